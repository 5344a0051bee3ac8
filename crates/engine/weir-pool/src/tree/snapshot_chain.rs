//! Lines: a volume and its snapshots in the order of time, and which of them leads to a block.
//!
//! Not here: names and other properties (weir-dataset), walking trees (tree, unshared).
//!
//! A tree is copy-on-write and a block keeps its place in it, so a block is part of the versions of
//! one stretch of time: from the first that ended after its birth to the one before it was
//! overwritten. Two questions need no list of dead blocks for that: whether anything leads to a
//! block (ask the first version that ended after its birth), and whether an overwritten block can
//! be freed (it can if it was born after the newest snapshot ended).
//!
//! Invariants:
//! - versions are in the order of time; one that is being destroyed counts until the last block of
//!   it is freed, at each place by itself;
//! - at most one version of a line is partly freed;
//! - a version that another one was made from again (rollback) goes after all that are newer.

use std::ops::Range;
use std::sync::Arc;

use weir_base::hash::HashMap;
use weir_base::{DatasetId, Txg};
use weir_format::{BlockOwner, NODE_SHIFT, TreeRoot};

use crate::tree::kind::TreeOf;

/// First block behind a block (`level` 0) or node.
pub(crate) fn end_of(level: u8, index: u64) -> u64 {
    (index + 1).saturating_mul(TreeRoot::capacity(level))
}

/// A volume as it is, or as it was at the end of a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// The last txg it shows; of a volume as it is, later than any.
    pub txg: Txg,
    /// Its tree.
    pub root: TreeRoot,
    /// It leads to no block before this one any more.
    pub freed_to: u64,
}

impl Version {
    /// Txg that stands for the current version of a volume.
    pub const NOW: Txg = Txg(u64::MAX);

    fn leads_to(&self, owner: &BlockOwner) -> bool {
        end_of(owner.level, owner.index) > self.freed_to
    }
}

/// A volume's versions and what they inherit.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The volume.
    pub volume: DatasetId,
    /// What was born up to here belongs to the line it was cloned from.
    pub inherits: Txg,
    /// By time.
    pub versions: Vec<Version>,
}

impl Line {
    /// One of its versions.
    pub fn of(&self, version: Txg) -> TreeOf {
        TreeOf { volume: self.volume, version }
    }

    /// What the versions before one lead to as well.
    pub fn held_before(&self, index: usize) -> Held {
        let mut held = Held { until: self.inherits, leaving: None };
        for version in &self.versions[..index] {
            held.add(version.txg, version.freed_to);
        }
        held
    }
}

/// What of a tree earlier versions lead to as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Everything born up to this txg.
    pub until: Txg,
    /// Up to a later one, what ends behind a block: a version that is partly freed.
    pub leaving: Option<(Txg, u64)>,
}

impl Held {
    /// Counts the next later version in.
    pub fn add(&mut self, txg: Txg, freed_to: u64) {
        if freed_to == 0 {
            *self = Self { until: txg.max(self.until), leaving: None };
        } else {
            self.leaving = Some((txg, freed_to));
        }
    }

    /// Holds everything born up to a txg, whatever versions there are.
    pub fn hold(&mut self, until: Txg) {
        self.until = self.until.max(until);
        self.leaving = self.leaving.filter(|(txg, _)| *txg > until);
    }

    /// The newest birth that is held of a block (`level` 0) or node.
    pub fn at(&self, level: u8, index: u64) -> Txg {
        match self.leaving {
            Some((txg, freed_to)) if end_of(level, index) > freed_to => txg,
            _ => self.until,
        }
    }

    /// As [`Self::at`], for all that is below a node as well.
    pub(crate) fn below(&self, level: u8, index: u64) -> Txg {
        match self.leaving {
            Some((txg, freed_to))
                if index.saturating_mul(TreeRoot::capacity(level)) >= freed_to =>
            {
                txg
            }
            _ => self.until,
        }
    }
}

/// Every line of a pool, by who wrote its blocks.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// By owner: the lines that have its blocks, each those born up to a txg.
    owners: HashMap<DatasetId, Vec<(Txg, Arc<Line>)>>,
    lines: Vec<Arc<Line>>,
    lost: LostOwners,
}

/// Datasets whose records were lost: something that nothing is known to lead to may be theirs.
#[derive(Clone, Debug, Default)]
pub struct LostOwners {
    /// Their numbers.
    pub numbers: Vec<Range<u64>>,
    /// What was born up to here may be part of one that others were made from.
    pub until: Txg,
}

impl Roots {
    /// Adds a line and those who wrote its blocks, each up to a txg.
    pub fn add(&mut self, line: Line, owners: impl IntoIterator<Item = (Txg, DatasetId)>) {
        let line = Arc::new(line);
        for (until, owner) in owners {
            let lines = self.owners.entry(owner).or_default();
            let at = lines.partition_point(|(other, _)| *other < until);
            lines.insert(at, (until, Arc::clone(&line)));
        }
        self.lines.push(line);
    }

    /// Names the datasets of which no line is known.
    pub fn set_lost(&mut self, lost: LostOwners) {
        self.lost = lost;
    }

    /// Whether a walk of all lines may miss blocks that are in use.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.until > Txg(0) || !self.lost.numbers.is_empty()
    }

    /// Whether something that is not known may lead to a block of this owner and birth.
    pub(crate) fn may_be_lost(&self, owner: &BlockOwner, birth: Txg) -> bool {
        let id = owner.dataset.0;
        birth <= self.lost.until || self.lost.numbers.iter().any(|range| range.contains(&id))
    }

    /// Every line once.
    pub fn lines(&self) -> &[Arc<Line>] {
        &self.lines
    }

    /// The version that leads to a block of this owner and birth if any does, and its volume.
    pub(crate) fn version_of(
        &self,
        owner: &BlockOwner,
        birth: Txg,
    ) -> Option<(DatasetId, &Version)> {
        let lines = self.owners.get(&owner.dataset)?;
        let (_, line) = lines.iter().find(|(until, _)| *until >= birth)?;
        let born = line.versions.partition_point(|version| version.txg < birth);
        let version = line.versions[born..].iter().find(|version| version.leads_to(owner))?;
        Some((line.volume, version))
    }
}

/// The node that holds the pointer to a block or node, by number in its level.
pub(crate) fn node_above(owner: &BlockOwner) -> u64 {
    owner.index >> NODE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(txg: u64, freed_to: u64) -> Version {
        let ptr = weir_format::BlockPtr { birth: Txg(txg), ..weir_format::BlockPtr::HOLE };
        Version { txg: Txg(txg), root: TreeRoot { ptr, height: 2 }, freed_to }
    }

    fn owner(dataset: u64, level: u8, index: u64) -> BlockOwner {
        BlockOwner { dataset: DatasetId(dataset), level, index }
    }

    fn asked(roots: &Roots, owner: BlockOwner, birth: u64) -> Option<u64> {
        roots.version_of(&owner, Txg(birth)).map(|(_, version)| version.root.ptr.birth.0)
    }

    #[test]
    fn the_first_version_after_a_birth_is_asked() {
        let mut roots = Roots::default();
        let now = Version { txg: Version::NOW, ..version(99, 0) };
        let versions = vec![version(10, 0), version(20, 128), version(30, 0), now];
        roots.add(
            Line { volume: DatasetId(7), inherits: Txg(5), versions },
            [(Txg(12), DatasetId(3)), (Version::NOW, DatasetId(7))],
        );
        assert_eq!(asked(&roots, owner(3, 0, 1), 10), Some(10));
        assert_eq!(asked(&roots, owner(3, 0, 1), 13), None, "that one wrote nothing later here");
        assert_eq!(asked(&roots, owner(7, 0, 127), 15), Some(30), "freed there");
        assert_eq!(asked(&roots, owner(7, 0, 128), 15), Some(20), "not yet freed there");
        assert_eq!(asked(&roots, owner(7, 1, 0), 15), Some(30), "a node ends with its last block");
        assert_eq!(asked(&roots, owner(7, 2, 0), 15), Some(20));
        assert_eq!(asked(&roots, owner(7, 0, 0), 31), Some(99));
        assert_eq!(asked(&roots, owner(8, 0, 0), 31), None);
    }

    #[test]
    fn what_is_held_depends_on_the_place_while_a_version_goes() {
        let line = Line {
            volume: DatasetId(7),
            inherits: Txg(5),
            versions: vec![version(10, 0), version(20, 128), version(30, 0)],
        };
        assert_eq!(line.held_before(0), Held { until: Txg(5), leaving: None });
        let held = line.held_before(2);
        assert_eq!((held.at(0, 127), held.at(0, 128)), (Txg(10), Txg(20)));
        assert_eq!((held.at(2, 0), held.below(2, 0)), (Txg(20), Txg(10)));
        assert_eq!(line.held_before(3), Held { until: Txg(30), leaving: None });
    }
}
