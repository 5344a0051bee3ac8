//! The dataset directory as an import reads it, and what becomes of the parts that cannot be read.
//!
//! Not here: what records say (weir-format), storing those that change (commit).
//!
//! Invariants:
//! - a record or node of the directory that cannot be read costs the datasets whose records it
//!   holds, and no other;
//! - the numbers of lost datasets are stored before anything else changes, and their places in the
//!   directory are emptied by the same txg: what was lost never comes back as it was, for blocks
//!   that it shared with others may be gone by then;
//! - where disks are missing, only a person's `force` gives datasets up: those disks may have them;
//! - records of snapshots and bookmarks whose volume was lost stay as they are;
//! - blocks that a clone shares with a lost origin are held: no volume frees them.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::{HashMap, HashSet};
use weir_base::limits::VOLUME_BYTES_MAX;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, Txg};
use weir_format::{
    DamageRecord, DatasetKind, DatasetRecord, FormatError, LOST_RANGES_MAX, PoolRecord, PtrKind,
    TreeRoot,
};
use weir_pool::{DamageList, LostPart, Pool, PoolError, Tree, WholeTree};

use crate::engine::{Engine, Outcome};
use crate::error::DatasetError;
use crate::snapshot::descent;

/// Numbers beyond are not given out: a directory of any height has room for as many below.
const NUMBER_MAX: u64 = TreeRoot::capacity(TreeRoot::HEIGHT_MAX) - (1 << 32);

const RECORD: &str = "dataset record";

/// What is not known any more of a pool's datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostDatasets {
    /// Numbers of datasets whose records were lost, ever, ascending; some may never have been used.
    pub numbers: Vec<Range<u64>>,
    /// Names of snapshots and bookmarks whose volume is among them.
    pub orphans: Vec<String>,
    /// Whether what was set on the pool itself was lost when it was opened.
    pub properties: bool,
}

/// What a directory says, and what is lost of it.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The pool's own record; with the numbers of all that was ever lost.
    pub(crate) own: PoolRecord,
    /// Every dataset that can be opened.
    pub(crate) records: Vec<DatasetRecord>,
    /// The list of what has no good copy, and the numbers of the records it is in.
    pub(crate) damage: DamageList,
    pub(crate) damage_records: Vec<DatasetId>,
    /// Losses found at import.
    pub(crate) losses: DirectoryLosses,
}

/// Losses of the directory, found at import and kept until the pool is closed.
#[derive(Debug, Default)]
pub(crate) struct DirectoryLosses {
    /// Places that the next commit empties.
    pub(crate) emptied: Vec<Range<u64>>,
    /// Records of snapshots and bookmarks without their volume.
    pub(crate) orphans: Vec<DatasetRecord>,
    /// What was born up to here may be part of a lost snapshot that a clone began as.
    pub(crate) held: Txg,
    /// The pool's own record is among what was lost.
    pub(crate) own: bool,
}

impl Engine {
    /// What is not known any more of the datasets of the pool.
    pub fn lost_datasets(&self) -> LostDatasets {
        let numbers = self.core.own.read().record.lost.clone();
        let losses = self.core.directory_losses.lock();
        let orphans = losses.orphans.iter().map(|record| record.name.clone()).collect();
        LostDatasets { numbers, orphans, properties: losses.own }
    }
}

impl Engine {
    /// Gives up what was lost: the pool forgets the numbers, and what orphans have for themselves
    /// becomes free space.
    ///
    /// # Durability
    /// On disk when this returns.
    #[boxed(?Send)]
    pub async fn forget_lost_datasets(&self) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        {
            let mut own = self.core.own.write();
            let mut losses = self.core.directory_losses.lock();
            if own.record.lost.is_empty() && losses.orphans.is_empty() {
                return Ok(Outcome::Unchanged);
            }
            own.record.lost.clear();
            own.is_dirty = true;
            let orphans = std::mem::take(&mut losses.orphans);
            losses.emptied.extend(orphans.iter().map(|record| record.id.0..record.id.0 + 1));
            losses.emptied.sort_unstable_by_key(|range| range.start);
        }
        self.commit_change().await
    }
}

impl Directory {
    /// Reads all that can be read. `force`: gives datasets up that missing disks may have.
    #[boxed(?Send)]
    pub(crate) async fn read(pool: &Pool, force: bool) -> Result<Self, DatasetError> {
        let (root, next_dataset) = pool.datasets();
        let numbers = 0..next_dataset;
        let WholeTree { blocks, lost: mut parts, .. } = Tree::new(pool, root).read_whole().await?;
        let mut found = Self::default();
        for (id, ptr) in blocks {
            let block = match pool.read_block(&ptr).await {
                Ok(block) => block,
                Err(error) if error.kind() == ErrorKind::Data => {
                    tracing::error!(id, %error, "record of the dataset directory is lost");
                    parts.push(LostPart { level: 0, index: id });
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let taken = if numbers.contains(&id) {
                found.take(pool, id, &block)
            } else {
                Err(FormatError::Field { what: RECORD, field: "id", value: id })
            };
            if let Err(error) = taken {
                tracing::error!(id, %error, "record of the dataset directory is damaged");
                parts.push(LostPart { level: 0, index: id });
            }
        }
        if !parts.is_empty() && !force {
            refuse_where_disks_are_missing(pool, &parts)?;
        }
        found.losses.emptied = parts.iter().map(LostPart::blocks).collect();
        found.losses.emptied.sort_unstable_by_key(|range| range.start);
        found.losses.own = found.losses.emptied.first().is_some_and(|range| range.start == 0);
        found.note_lost(next_dataset);
        found.part_orphans();
        found.cut_origins();
        found.hold_for_clones();
        Ok(found)
    }

    /// Takes over a record.
    fn take(&mut self, pool: &Pool, id: u64, block: &[u8; BLOCK_BYTES]) -> Result<(), FormatError> {
        if id == 0 {
            self.own = PoolRecord::decode(block)?;
            return Ok(());
        }
        if DamageRecord::is_one(block) {
            self.add_damage(DatasetId(id), DamageRecord::decode(block));
            return Ok(());
        }
        let record = DatasetRecord::decode(block)?;
        if record.id != DatasetId(id) {
            return Err(FormatError::Field { what: RECORD, field: "id", value: record.id.0 });
        }
        judge(pool, &record)?;
        self.records.push(record);
        Ok(())
    }

    /// Takes a part of the list of damage in; one that cannot be is written anew with the next
    /// change of the list.
    fn add_damage(&mut self, id: DatasetId, decoded: Result<DamageRecord, FormatError>) {
        self.damage_records.push(id);
        match decoded {
            Ok(DamageRecord { more, ranges, parts, .. }) => {
                self.damage.more = self.damage.more.saturating_add(more);
                self.damage.ranges.extend(ranges);
                self.damage.parts.extend(parts);
            }
            Err(error) => tracing::error!(%error, "a part of the list of damage is lost"),
        }
    }

    /// The first number that no dataset had: those of lost ones are not used again.
    pub(crate) fn next_dataset(&self, stored: u64) -> u64 {
        let ends = self.losses.emptied.iter().map(|range| range.end.min(NUMBER_MAX));
        ends.fold(stored, u64::max)
    }

    /// Adds what is lost to what the pool remembers as such.
    fn note_lost(&mut self, next_dataset: u64) {
        let new = self.losses.emptied.iter().map(|range| range.start.max(1)..range.end);
        let new = new.map(|range| range.start..range.end.min(next_dataset));
        let lost = &mut self.own.lost;
        lost.extend(new.filter(|range| !range.is_empty()));
        lost.sort_unstable_by_key(|range| range.start);
        merge(lost, 0);
        let mut gap = 1;
        while lost.len() > LOST_RANGES_MAX {
            merge(lost, gap);
            gap *= 2;
        }
    }

    /// Takes out snapshots and bookmarks whose volume is not there.
    fn part_orphans(&mut self) {
        let volumes: HashSet<DatasetId> = self
            .records
            .iter()
            .filter(|record| matches!(record.kind, DatasetKind::Volume(_)))
            .map(|record| record.id)
            .collect();
        let has_volume = |record: &DatasetRecord| match &record.kind {
            DatasetKind::Volume(_) => true,
            DatasetKind::Snapshot(moment) => volumes.contains(&moment.of),
            DatasetKind::Bookmark(bookmark) => volumes.contains(&bookmark.of),
        };
        let (records, orphans) =
            std::mem::take(&mut self.records).into_iter().partition(has_volume);
        (self.records, self.losses.orphans) = (records, orphans);
    }

    /// Cuts clones from origins that cannot be theirs: a snapshot of another txg, or one that the
    /// volume itself leads to. Such a clone goes on as one whose origin is lost.
    fn cut_origins(&mut self) {
        // Of each snapshot: its volume and txg; of each volume: its origin.
        let mut snapshots: HashMap<DatasetId, (DatasetId, Txg)> = HashMap::default();
        let mut origins: HashMap<DatasetId, DatasetId> = HashMap::default();
        for record in &self.records {
            if let DatasetKind::Snapshot(moment) = &record.kind {
                snapshots.insert(record.id, (moment.of, moment.txg));
            }
        }
        let mut held = Txg(0);
        for record in &mut self.records {
            let DatasetKind::Volume(descent) = &mut record.kind else { continue };
            let Some(origin) = &mut descent.origin else { continue };
            let Some((parent, txg)) = snapshots.get(&origin.snapshot).copied() else { continue };
            // What is kept so far has no circle; does the parent lead here?
            let mut above = Some(parent);
            while let Some(volume) = above.filter(|volume| *volume != record.id) {
                above = origins.get(&volume).copied();
            }
            if above.is_none() && txg == origin.txg {
                origins.insert(record.id, parent);
                continue;
            }
            let (volume, snapshot) = (record.id.0, origin.snapshot.0);
            tracing::error!(volume, snapshot, "a clone's origin cannot be: it is taken for lost");
            held = held.max(txg).max(origin.txg);
            // Its own number is that of no snapshot.
            origin.snapshot = record.id;
        }
        self.losses.held = self.losses.held.max(held);
    }

    /// Finds what clones share with origins that are not there.
    fn hold_for_clones(&mut self) {
        let snapshots: HashSet<DatasetId> = self
            .records
            .iter()
            .filter(|record| matches!(record.kind, DatasetKind::Snapshot(_)))
            .map(|record| record.id)
            .collect();
        let volumes = self.records.iter().filter(|r| matches!(r.kind, DatasetKind::Volume(_)));
        let origins = volumes.filter_map(|record| descent(record).origin);
        let lost = origins.filter(|origin| !snapshots.contains(&origin.snapshot));
        let held = lost.map(|origin| origin.txg).max().unwrap_or_default();
        self.losses.held = self.losses.held.max(held);
    }
}

/// Judges a record against the pool it is in: what it leads to was made before now, and numbers on
/// which others count cannot overflow. A wrong name or counter costs nothing.
fn judge(pool: &Pool, record: &DatasetRecord) -> Result<(), FormatError> {
    let what = RECORD;
    let ensure = |holds: bool, field, value| {
        if holds { Ok(()) } else { Err(FormatError::Field { what, field, value }) }
    };
    let now = pool.committed_txg();
    let TreeRoot { ptr, height } = record.root;
    let kind = if height == 0 { PtrKind::Data } else { PtrKind::Node };
    ensure(record.size_bytes <= VOLUME_BYTES_MAX, "size_bytes", record.size_bytes)?;
    ensure(ptr.is_hole() || ptr.kind == kind, "root", ptr.kind.code())?;
    ensure(ptr.birth <= now, "birth", ptr.birth.0)?;
    match &record.kind {
        DatasetKind::Volume(descent) => {
            let origin = descent.origin.map_or(Txg(0), |origin| origin.txg);
            ensure(origin <= now, "origin's txg", origin.0)?;
            let last = descent.lineage.last().map_or(Txg(0), |ancestor| ancestor.until);
            ensure(last <= now, "until", last.0)
        }
        DatasetKind::Snapshot(moment) => {
            ensure(moment.txg <= now, "txg", moment.txg.0)?;
            ensure(ptr.birth <= moment.txg, "birth", ptr.birth.0)
        }
        DatasetKind::Bookmark(bookmark) => ensure(bookmark.txg <= now, "txg", bookmark.txg.0),
    }
}

/// Makes one of ranges that are at most `gap` apart.
fn merge(ranges: &mut Vec<Range<u64>>, gap: u64) {
    ranges.dedup_by(|next, before| {
        let joins = next.start <= before.end.saturating_add(gap);
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
}

fn refuse_where_disks_are_missing(pool: &Pool, parts: &[LostPart]) -> Result<(), PoolError> {
    let missing = pool.missing_legs();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("{} parts of the dataset directory", parts.len());
    Err(PoolError::LossWhileMissing {
        pool: pool.name().to_owned(),
        what,
        missing: missing.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_numbers_are_merged_until_they_fit() {
        let mut found = Directory::default();
        found.losses.emptied = vec![0..1, 3..4, 4..5, 128..256];
        found.note_lost(200);
        assert_eq!(found.own.lost, [3..5, 128..200], "the pool's own record is no dataset");
        assert_eq!(found.next_dataset(200), 256);
        found.losses.emptied = (0..300).map(|n| 1000 + 10 * n..1001 + 10 * n).collect();
        found.note_lost(10_000);
        assert!(found.own.lost.len() <= LOST_RANGES_MAX, "{:?}", found.own.lost);
        assert!(found.own.lost.iter().any(|range| range.contains(&3990)));
    }
}
