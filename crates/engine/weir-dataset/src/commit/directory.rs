//! The dataset directory as an import reads it, and what becomes of the parts that cannot be read.
//!
//! Not here: what records say (weir-format), storing those that change (commit).
//!
//! Invariants:
//! - a record or node of the directory that cannot be read costs the datasets whose records it
//!   holds, and no other;
//! - commits do not change an unreadable part of the directory and free no block that was born
//!   before the import: a later import that reads the part has its datasets with all their data.
//!   Only [`Engine::forget_lost_datasets`], which a person calls, gives the part up;
//! - an import that cannot read the top node is refused, and so is one with logged writes to
//!   datasets whose records it cannot read; only a person's `force` opens the pool then;
//! - where disks are missing, only a person's `force` opens the pool without the datasets: those
//!   disks may have them;
//! - records of snapshots and bookmarks whose volume was lost stay as they are;
//! - blocks that a clone shares with a lost origin are held: no volume frees them;
//! - no rollback or promotion changes a line whose snapshots may have unreadable records.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::{HashMap, HashSet};
use weir_base::limits::{NAME_BYTES_MAX, VOLUME_BYTES_MAX};
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, Txg};
use weir_format::{
    DamageRecord, DatasetKind, DatasetRecord, DatasetState, FormatError, PoolRecord, PtrKind,
    TreeRoot,
};
use weir_pool::{DamageList, LostPart, PlantedBug, Pool, PoolError, Reads, Tree, WholeTree};

use crate::error::DatasetError;
use crate::state::directory_losses::DirectoryLosses;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::snapshot::descent;
use crate::state::volume::Volume;

/// Numbers beyond are not given out: a directory of any height has room for as many below.
const NUMBER_MAX: u64 = TreeRoot::capacity(TreeRoot::HEIGHT_MAX) - (1 << 32);

const RECORD: &str = "dataset record";

/// What is not known any more of a pool's datasets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostDatasets {
    /// Numbers of datasets whose records cannot be read, ascending; some may never have been used.
    /// Their space is kept.
    pub numbers: Vec<Range<u64>>,
    /// Names of snapshots and bookmarks whose volume is among them.
    pub orphans: Vec<String>,
    /// Whether the import could not read the pool's own properties.
    pub properties: bool,
}

/// What a directory says, and what is lost of it.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// The pool's own record; with the numbers that versions before took out of the directory.
    pub(crate) own: PoolRecord,
    /// Every dataset that can be opened.
    pub(crate) records: Vec<DatasetRecord>,
    /// The list of what has no good copy, and the numbers of the records it is in.
    pub(crate) damage: DamageList,
    pub(crate) damage_records: Vec<DatasetId>,
    /// Datasets that have another name than their records say.
    pub(crate) renamed: HashSet<DatasetId>,
    /// Losses found at import.
    pub(crate) losses: DirectoryLosses,
}

impl Engine {
    /// What is not known any more of the datasets of the pool.
    pub fn lost_datasets(&self) -> LostDatasets {
        let mut numbers = self.core.own.read().record.lost.clone();
        let losses = self.core.directory_losses.lock();
        numbers.extend(losses.numbers.iter().cloned());
        numbers.sort_unstable_by_key(|range| range.start);
        merge(&mut numbers);
        let orphans = losses.orphans.iter().map(|record| record.name.clone()).collect();
        LostDatasets { numbers, orphans, properties: losses.own }
    }
}

impl Engine {
    /// Gives up the datasets whose records cannot be read, and snapshots and bookmarks without
    /// their volume: a recount frees the space that they alone use.
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
            let is_whole = own.record.lost.is_empty() && losses.unread.is_empty();
            if is_whole && losses.orphans.is_empty() {
                return Ok(Outcome::Unchanged);
            }
            own.is_dirty |= !own.record.lost.is_empty();
            own.record.lost.clear();
            let orphans = std::mem::take(&mut losses.orphans);
            let losses = &mut *losses;
            losses.emptied.append(&mut losses.unread);
            losses.emptied.extend(orphans.iter().map(|record| record.id.0..record.id.0 + 1));
            losses.emptied.sort_unstable_by_key(|range| range.start);
            losses.numbers.clear();
            losses.unread_until = Txg(0);
            losses.own = false;
            tracing::warn!(pool = self.core.pool.name(), "unreadable datasets are given up");
        }
        self.core.pool.note_lost_node(self.core.open_txg());
        let done = self.commit_change().await?;
        self.core.pool.want_recount();
        self.scans.wake.notify_one();
        Ok(done)
    }

    /// Refuses to change the line of a volume if one of these numbers may be a snapshot of it with
    /// an unreadable record. The snapshot would return at a wrong place of the line: a destroyed
    /// neighbour would take blocks that others still refer to.
    pub(crate) fn refuse_unread(
        &self,
        volume: &Volume,
        numbers: Range<u64>,
    ) -> Result<(), DatasetError> {
        let losses = self.core.directory_losses.lock();
        let is_among = |lost: &&Range<u64>| lost.start < numbers.end && numbers.start < lost.end;
        let Some(lost) = losses.numbers.iter().find(is_among) else { return Ok(()) };
        let why = format!(
            "may have a snapshot whose record cannot be read (dataset numbers {}-{}). Make the \
             record readable and import the pool again, or give it up: weir pool clear --lost {}",
            lost.start,
            lost.end - 1,
            self.core.pool.name()
        );
        let name = volume.full_name(&volume.state.lock());
        Err(DatasetError::Unfit { name, why })
    }
}

impl Directory {
    /// Reads the directory, and reads it again for a while if parts of it are unreadable.
    ///
    /// # Errors
    /// Unless `force`: `DirectoryLost` if the top node is unreadable, `LossWhileMissing` if missing
    /// disks may have the unreadable parts.
    #[boxed(?Send)]
    pub(crate) async fn read(pool: &Pool, force: bool) -> Result<Self, DatasetError> {
        let (root, next_dataset) = pool.datasets();
        let mut reads = Reads::default();
        let (mut found, parts, why) = loop {
            let (found, parts, why) = Self::read_once(pool, root, next_dataset).await?;
            if parts.is_empty() || !reads.again(pool.clock()).await {
                break (found, parts, why);
            }
        };
        if !parts.is_empty() && !force {
            refuse_where_disks_are_missing(pool, &parts)?;
        }
        let is_top = |part: &LostPart| part.level > 0 && part.level == root.height;
        if let Some(source) = why
            && parts.iter().any(is_top)
            && !force
        {
            let (pool, source) = (pool.name().to_owned(), Box::new(source));
            return Err(PoolError::DirectoryLost { pool, source }.into());
        }
        found.note_unread(pool, &parts, next_dataset);
        found.part_orphans();
        found.cut_origins();
        found.hold_for_clones();
        found.tell_names_apart();
        Ok(found)
    }

    /// Reads the directory once. Returns the unreadable parts and the first error, too.
    async fn read_once(
        pool: &Pool,
        root: TreeRoot,
        next_dataset: u64,
    ) -> Result<(Self, Vec<LostPart>, Option<PoolError>), DatasetError> {
        let numbers = 0..next_dataset;
        let WholeTree { blocks, lost: mut parts, why, .. } =
            Tree::new(pool, root).read_whole().await?;
        let mut found = Self::default();
        for (id, ptr) in blocks {
            let block = match pool.read_block(&ptr).await {
                Ok(block) => block,
                Err(error) if error.kind() == ErrorKind::Data => {
                    tracing::error!(id, %error, "record of the dataset directory cannot be read");
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
        Ok((found, parts, why))
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

    /// The first number that no dataset had, unreadable ones included.
    pub(crate) fn next_dataset(&self, stored: u64) -> u64 {
        let DirectoryLosses { emptied, unread, .. } = &self.losses;
        let ends = emptied.iter().chain(unread).map(|range| range.end.min(NUMBER_MAX));
        ends.fold(stored, u64::max)
    }

    /// Notes the parts of the directory that cannot be read. A record there may be of any dataset:
    /// of a snapshot of any volume, too.
    fn note_unread(&mut self, pool: &Pool, parts: &[LostPart], next_dataset: u64) {
        let losses = &mut self.losses;
        let mut places: Vec<Range<u64>> = parts.iter().map(LostPart::blocks).collect();
        places.sort_unstable_by_key(|range| range.start);
        losses.own = places.first().is_some_and(|range| range.start == 0);
        if pool.bug() == PlantedBug::UnreadGivenUp {
            losses.emptied = places;
            return;
        }
        let numbers = places.iter().map(|range| range.start.max(1)..range.end.min(next_dataset));
        losses.numbers = numbers.filter(|range| !range.is_empty()).collect();
        merge(&mut losses.numbers);
        if !losses.numbers.is_empty() {
            losses.unread_until = pool.committed_txg();
        }
        losses.unread = places;
    }

    /// Gives a dataset another name if a younger one has its name: the younger one was made while
    /// the record of the other could not be read.
    fn tell_names_apart(&mut self) {
        let key = |record: &DatasetRecord, name: &str| {
            let (kind, of) = match &record.kind {
                DatasetKind::Volume(_) => (0, DatasetId(0)),
                DatasetKind::Snapshot(moment) => (1, moment.of),
                DatasetKind::Bookmark(bookmark) => (2, bookmark.of),
            };
            (kind, of, name.to_owned())
        };
        let mut taken = HashSet::default();
        let mut youngest_first: Vec<&mut DatasetRecord> = self.records.iter_mut().collect();
        youngest_first.retain(|record| record.state == DatasetState::Active);
        youngest_first.sort_unstable_by_key(|record| std::cmp::Reverse(record.id));
        for record in youngest_first {
            let mut name = record.name.clone();
            let mut number = record.id.0;
            while !taken.insert(key(record, &name)) {
                name = format!("{}-{number}", cut_name(&record.name));
                number += 1;
            }
            if name != record.name {
                tracing::warn!(dataset = record.id.0, record.name, name, "name is taken");
                record.name = name;
                self.renamed.insert(record.id);
            }
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
        self.losses.held_for_clones = self.losses.held_for_clones.max(held);
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
        self.losses.held_for_clones = self.losses.held_for_clones.max(held);
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

/// Joins ranges that touch.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
}

/// A name short enough for a number behind it.
fn cut_name(name: &str) -> &str {
    let room = NAME_BYTES_MAX - "-18446744073709551615".len();
    &name[..name.floor_char_boundary(room)]
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
    use weir_base::RecordSize;
    use weir_format::{Descent, Properties};

    use super::*;

    #[test]
    fn ranges_that_touch_are_joined() {
        let mut ranges = vec![3..4, 4..5, 128..200];
        merge(&mut ranges);
        assert_eq!(ranges, [3..5, 128..200]);
    }

    #[test]
    fn numbers_of_unreadable_datasets_are_not_used_again() {
        let mut found = Directory::default();
        found.losses.unread = vec![0..1, 128..256];
        assert_eq!(found.next_dataset(200), 256);
        assert_eq!(found.next_dataset(300), 300);
    }

    fn volume(id: u64, name: &str) -> DatasetRecord {
        DatasetRecord {
            id: DatasetId(id),
            kind: DatasetKind::Volume(Descent::default()),
            state: DatasetState::Active,
            name: name.to_owned(),
            size_bytes: 0,
            record_size: RecordSize::BLOCK,
            properties: Properties::default(),
            created_txg: Txg(1),
            created_unix_ms: 0,
            root: TreeRoot::default(),
            used_blocks: 0,
            stored_units: 0,
            shared_units: 0,
            tree_units: 0,
            born_units: 0,
            freed_to: 0,
        }
    }

    #[test]
    fn returned_volume_yields_its_name_to_a_younger_one() {
        let mut found = Directory::default();
        let long = "x".repeat(NAME_BYTES_MAX);
        found.records = vec![volume(1, "a"), volume(7, "a"), volume(5, "a-1"), volume(2, &long)];
        found.records.push(volume(9, &long));
        found.tell_names_apart();
        let names: Vec<&str> = found.records.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names[..3], ["a-2", "a", "a-1"]);
        assert!(names[3].ends_with("-2") && names[3].len() <= NAME_BYTES_MAX);
        assert_eq!(found.renamed, [DatasetId(1), DatasetId(2)].into_iter().collect());
    }
}
