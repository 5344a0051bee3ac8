//! Snapshot chains: a volume and its snapshots in txg order. Finds the version that references a
//! block.
//!
//! Names and other properties are in weir-dataset, traversals of trees in `radix_tree` and `diff`.
//!
//! Invariants:
//! - versions are in txg order; at each index, a version that is being destroyed counts until its
//!   block at that index is freed;
//! - at most one version of a chain is partly freed;
//! - a version that a rollback returned to is freed after all newer versions.

use std::ops::Range;
use std::sync::Arc;

use weir_base::hash::HashMap;
use weir_base::{DatasetId, ObjectId, Txg};
use weir_format::{BlockOwner, NODE_SHIFT, TreeRoot};

use crate::tree::kind::TreeOf;
use crate::tree::place::{Objects, Place};

/// First block after a block (`level` 0) or node.
pub(crate) fn end_of(level: u8, index: u64) -> u64 {
    (index + 1).saturating_mul(TreeRoot::capacity(level))
}

/// The head of a volume, or its state at the end of a txg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Last txg in the version; [`Self::HEAD`] for the head.
    pub txg: Txg,
    /// Root of this version's tree: the tree of the volume, or the object table.
    pub root: TreeRoot,
    /// Blocks before this place are already freed.
    pub freed_to: Place,
}

impl Version {
    /// Txg that represents the head of a volume.
    pub const HEAD: Txg = Txg(u64::MAX);

    fn references(&self, owner: &BlockOwner, objects: Objects) -> bool {
        end_of(owner.level, owner.index) > self.freed_to.within(owner.object, objects)
    }
}

/// The versions of a volume, and the blocks that it inherits.
///
/// Trees are copy-on-write and a block never changes its index. So a block belongs to a contiguous
/// run of versions: from the first version that ended after its birth to the last one before it was
/// overwritten. Two questions therefore need no list of dead blocks. Does any version reference a
/// block? Look in the first version that ended after its birth. Can an overwritten block be freed?
/// Yes, if it was born after the newest snapshot ended.
#[derive(Clone, Debug, Default)]
pub struct SnapshotChain {
    /// The volume.
    pub volume: DatasetId,
    /// Objects of each version.
    pub objects: Objects,
    /// Blocks born in this txg or earlier belong to the snapshot chain of the origin.
    pub inherits: Txg,
    /// Versions of the volume in the order of their txgs.
    pub versions: Vec<Version>,
}

impl SnapshotChain {
    /// Returns the identity of a version of this volume.
    pub fn of(&self, version: Txg) -> TreeOf {
        TreeOf { volume: self.volume, object: ObjectId::VOLUME, version }
    }

    /// Returns the blocks of an object that the versions before `index` also reference.
    pub fn held_before(&self, index: usize, object: ObjectId) -> SharedBirths {
        let mut held = SharedBirths { until: self.inherits, leaving: None };
        for version in &self.versions[..index] {
            held.add(version.txg, version.freed_to.within(object, self.objects));
        }
        held
    }
}

/// Blocks of a tree that earlier versions also reference, given as a limit on their birth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedBirths {
    /// Earlier versions reference blocks born in this txg or earlier.
    pub until: Txg,
    /// Set if a version is partly freed: the version's txg, which is later than `until`, and a
    /// block index. The version still references blocks after that index that were born in that txg
    /// or earlier.
    pub leaving: Option<(Txg, u64)>,
}

impl SharedBirths {
    /// Adds the next version. Versions must be added in the order of their txgs.
    pub fn add(&mut self, txg: Txg, freed_to: u64) {
        if freed_to == 0 {
            *self = Self { until: txg.max(self.until), leaving: None };
        } else {
            self.leaving = Some((txg, freed_to));
        }
    }

    /// Adds all blocks born in txg `until` or earlier, regardless of the versions.
    pub fn hold(&mut self, until: Txg) {
        self.until = self.until.max(until);
        self.leaving = self.leaving.filter(|(txg, _)| *txg > until);
    }

    /// Newest birth txg of the blocks that earlier versions reference at the index of a block
    /// (`level` 0) or node.
    pub fn at(&self, level: u8, index: u64) -> Txg {
        match self.leaving {
            Some((txg, freed_to)) if end_of(level, index) > freed_to => txg,
            _ => self.until,
        }
    }

    /// Returns a txg such that, at a node and at every index below the node, earlier versions
    /// reference all blocks born in this txg or earlier.
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

/// All snapshot chains of a pool, by owner of the blocks.
#[derive(Clone, Debug, Default)]
pub struct Roots {
    /// For each owner: the snapshot chains that reference its blocks, each with the last birth txg
    /// of those blocks.
    owners: HashMap<DatasetId, Vec<(Txg, Arc<SnapshotChain>)>>,
    chains: Vec<Arc<SnapshotChain>>,
    lost: LostOwners,
}

/// Datasets with lost records. Blocks without any known reference may belong to them.
#[derive(Clone, Debug, Default)]
pub struct LostOwners {
    /// Numbers of the datasets with lost records.
    pub numbers: Vec<Range<u64>>,
    /// Blocks born in this txg or earlier may belong to an unreadable version from which clones
    /// were made.
    pub until: Txg,
}

impl Roots {
    /// Adds a chain, with the datasets that wrote its blocks. `owners` pairs each dataset with the
    /// last birth txg of the blocks that the dataset wrote for this chain.
    pub fn add(
        &mut self,
        chain: SnapshotChain,
        owners: impl IntoIterator<Item = (Txg, DatasetId)>,
    ) {
        let chain = Arc::new(chain);
        for (until, owner) in owners {
            let chains = self.owners.entry(owner).or_default();
            let at = chains.partition_point(|(other, _)| *other < until);
            chains.insert(at, (until, Arc::clone(&chain)));
        }
        self.chains.push(chain);
    }

    /// Sets the datasets whose snapshot chains are unknown.
    pub fn set_lost(&mut self, lost: LostOwners) {
        self.lost = lost;
    }

    /// True if a traversal of all known chains may miss blocks in use.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.until > Txg(0) || !self.lost.numbers.is_empty()
    }

    /// True if an unknown chain may reference a block of this owner and birth.
    pub(crate) fn may_be_lost(&self, owner: &BlockOwner, birth: Txg) -> bool {
        let id = owner.dataset.0;
        birth <= self.lost.until || self.lost.numbers.iter().any(|range| range.contains(&id))
    }

    /// All chains, each once.
    pub fn chains(&self) -> &[Arc<SnapshotChain>] {
        &self.chains
    }

    /// Finds the version to check for a block of this owner and birth, and its volume. If any
    /// version references the block, the returned version does.
    pub(crate) fn version_of(
        &self,
        owner: &BlockOwner,
        birth: Txg,
    ) -> Option<(&SnapshotChain, &Version)> {
        let chains = self.owners.get(&owner.dataset)?;
        let (_, chain) = chains.iter().find(|(until, _)| *until >= birth)?;
        let born = chain.versions.partition_point(|version| version.txg < birth);
        let leads = |version: &&Version| version.references(owner, chain.objects);
        let version = chain.versions[born..].iter().find(leads)?;
        Some((chain, version))
    }
}

/// Index, among the nodes of its level, of the node that contains the pointer to a block or node.
pub(crate) fn node_above(owner: &BlockOwner) -> u64 {
    owner.index >> NODE_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(txg: u64, freed_to: u64) -> Version {
        let ptr = weir_format::BlockPtr { birth: Txg(txg), ..weir_format::BlockPtr::HOLE };
        Version {
            txg: Txg(txg),
            root: TreeRoot { ptr, height: 2 },
            freed_to: Place::in_volume(freed_to),
        }
    }

    fn owner(dataset: u64, level: u8, index: u64) -> BlockOwner {
        BlockOwner { dataset: DatasetId(dataset), object: ObjectId::VOLUME, level, index }
    }

    fn asked_of(roots: &Roots, owner: BlockOwner, birth: u64) -> Option<u64> {
        roots.version_of(&owner, Txg(birth)).map(|(_, version)| version.root.ptr.birth.0)
    }

    #[test]
    fn lookup_uses_the_first_version_after_a_birth() {
        let mut roots = Roots::default();
        let now = Version { txg: Version::HEAD, ..version(99, 0) };
        let versions = vec![version(10, 0), version(20, 128), version(30, 0), now];
        roots.add(
            SnapshotChain {
                volume: DatasetId(7),
                inherits: Txg(5),
                versions,
                ..Default::default()
            },
            [(Txg(12), DatasetId(3)), (Version::HEAD, DatasetId(7))],
        );
        assert_eq!(asked_of(&roots, owner(3, 0, 1), 10), Some(10));
        assert_eq!(asked_of(&roots, owner(3, 0, 1), 13), None, "that one wrote nothing later here");
        assert_eq!(asked_of(&roots, owner(7, 0, 127), 15), Some(30), "freed there");
        assert_eq!(asked_of(&roots, owner(7, 0, 128), 15), Some(20), "not yet freed there");
        assert_eq!(
            asked_of(&roots, owner(7, 1, 0), 15),
            Some(30),
            "a node ends with its last block"
        );
        assert_eq!(asked_of(&roots, owner(7, 2, 0), 15), Some(20));
        assert_eq!(asked_of(&roots, owner(7, 0, 0), 31), Some(99));
        assert_eq!(asked_of(&roots, owner(8, 0, 0), 31), None);
    }

    #[test]
    fn shared_births_depend_on_the_index_of_a_partly_freed_version() {
        let chain = SnapshotChain {
            volume: DatasetId(7),
            inherits: Txg(5),
            versions: vec![version(10, 0), version(20, 128), version(30, 0)],
            ..Default::default()
        };
        let held_before = |index| chain.held_before(index, ObjectId::VOLUME);
        assert_eq!(held_before(0), SharedBirths { until: Txg(5), leaving: None });
        let held = held_before(2);
        assert_eq!((held.at(0, 127), held.at(0, 128)), (Txg(10), Txg(20)));
        assert_eq!((held.at(2, 0), held.below(2, 0)), (Txg(20), Txg(10)));
        assert_eq!(held_before(3), SharedBirths { until: Txg(30), leaving: None });
    }

    #[test]
    fn version_that_freed_two_of_four_slots_still_references_the_block_of_the_table() {
        let mut leaving = version(20, 0);
        leaving.freed_to = Place { object: ObjectId(10), block: 3 };
        let chain = SnapshotChain {
            volume: DatasetId(7),
            objects: Objects::Many,
            inherits: Txg(5),
            versions: vec![leaving, version(30, 0)],
        };
        let table = chain.held_before(1, ObjectId::TABLE);
        assert_eq!([1, 2, 3].map(|block| table.at(0, block)), [Txg(5), Txg(20), Txg(20)]);
        let of = |object| chain.held_before(1, ObjectId(object));
        assert_eq!((of(9).at(0, 7), of(11).at(0, 0)), (Txg(5), Txg(20)));
        assert_eq!((of(10).at(0, 2), of(10).at(0, 3)), (Txg(5), Txg(20)));

        let mut roots = Roots::default();
        roots.add(chain, [(Version::HEAD, DatasetId(7))]);
        let of = |object, index| BlockOwner { object: ObjectId(object), ..owner(7, 0, index) };
        let asked = [(9, 7), (10, 2), (10, 3), (11, 0), (0, 1), (0, 2)];
        let found = asked.map(|(object, index)| asked_of(&roots, of(object, index), 15));
        assert_eq!(found, [30, 30, 20, 20, 30, 20].map(Some));
    }
}
