//! Dataset directory: how an import reads it and treats its unreadable parts.
//!
//! weir-format decodes the directory entries (dataset records); `txg` stores changed ones.
//!
//! Invariants (docs/decisions/0021):
//! - an unreadable entry or node affects only the datasets whose entries it contains;
//! - until [`Engine::discard_lost_datasets`], commits change neither an unreadable part nor the
//!   entries of snapshots and bookmarks whose volume is unreadable, and free no block born before
//!   the import;
//! - without `force`, an import that could lose data because of such a part fails (`read`);
//! - no volume frees blocks that a clone shares with a lost origin;
//! - no rollback or promotion changes a snapshot chain that may have unreadable snapshots.

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
use crate::state::volume::Volume;

/// Highest number at which numbering may resume after an unreadable range. A directory of maximum
/// height has 2^32 more numbers above this number.
const NUMBER_MAX: u64 = TreeRoot::BLOCKS_MAX - (1 << 32);

const RECORD: &str = "dataset record";

/// Unreadable parts of a pool's dataset directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostDatasets {
    /// Numbers of datasets with unreadable directory entries, ascending. Some of the numbers may
    /// never have been used. The pool keeps the space of these datasets.
    pub numbers: Vec<Range<u64>>,
    /// Names of the snapshots and bookmarks whose volume is unreadable.
    pub orphans: Vec<String>,
    /// True if the import could not read the pool's own properties.
    pub properties: bool,
}

/// Contents of the dataset directory, and its unreadable parts.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// Directory entry of the pool itself, including the unreadable numbers that earlier releases
    /// stored in it.
    pub(crate) own: PoolRecord,
    /// All datasets that can be opened.
    pub(crate) records: Vec<DatasetRecord>,
    /// List of permanent errors, and the numbers of the directory entries that store it.
    pub(crate) damage: DamageList,
    pub(crate) damage_records: Vec<DatasetId>,
    /// Datasets that the import renamed, so that their name differs from the stored one.
    pub(crate) renamed: HashSet<DatasetId>,
    /// Unreadable parts of the directory that the import found.
    pub(crate) losses: DirectoryLosses,
}

impl Engine {
    /// Reports the unreadable parts of the dataset directory.
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
    /// Abandons the datasets with unreadable records, and the snapshots and bookmarks without their
    /// volume. A recount frees the space that only these datasets use. Only an administrator
    /// requests this call: until then, an import that can read the parts again has the datasets
    /// with all their data.
    ///
    /// # Durability
    /// The change is on disk when this returns.
    #[boxed(?Send)]
    pub async fn discard_lost_datasets(&self) -> Result<Outcome, DatasetError> {
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
            tracing::warn!(pool = self.core.pool.name(), "unreadable datasets dropped");
        }
        self.core.pool.note_lost_node(self.core.open_txg());
        let done = self.commit_change().await?;
        self.core.pool.want_recount();
        self.scans.wake.notify_one();
        Ok(done)
    }

    /// Refuses to change the snapshot chain of a volume if an unreadable directory entry with one
    /// of these numbers may be a snapshot of the volume. After the change, a later import would
    /// find this snapshot at a wrong position in the chain. Destroying its neighbour would then
    /// free blocks that other versions of the volume still reference.
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
             record readable and import the pool again, or drop it: weir pool clear --lost {}",
            lost.start,
            lost.end - 1,
            self.core.pool.name()
        );
        let name = volume.full_name(&volume.state.lock());
        Err(DatasetError::Unfit { name, why })
    }
}

impl Directory {
    /// Reads the directory, and retries for a while if parts of it are unreadable.
    ///
    /// # Errors
    /// Unless `force`: `DirectoryLost` if the top node is unreadable, `LossWhileMissing` if missing
    /// disks may have the unreadable parts. If the log has writes to datasets with unreadable
    /// entries, `replay::refuse_logged_for_unread` then fails the import with `LoggedForLost`.
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
        found.rename_duplicate();
        Ok(found)
    }

    /// Reads the directory once. Also returns the unreadable parts and the first error.
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

    /// Adds a directory entry, decoded from `block`, to this result.
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

    /// Adds a part of the list of permanent errors. If the part cannot be decoded, the next change
    /// of the list rewrites the part.
    fn add_damage(&mut self, id: DatasetId, decoded: Result<DamageRecord, FormatError>) {
        self.damage_records.push(id);
        match decoded {
            Ok(DamageRecord { more, ranges, parts, .. }) => {
                self.damage.more = self.damage.more.saturating_add(more);
                self.damage.ranges.extend(ranges);
                self.damage.parts.extend(parts);
            }
            Err(error) => tracing::error!(%error, "a part of the list of permanent errors is lost"),
        }
    }

    /// First number that no dataset has used, unreadable datasets included.
    pub(crate) fn next_dataset(&self, stored: u64) -> u64 {
        let DirectoryLosses { emptied, unread, .. } = &self.losses;
        let ends = emptied.iter().chain(unread).map(|range| range.end.min(NUMBER_MAX));
        ends.fold(stored, u64::max)
    }

    /// Records the unreadable parts of the directory. An unreadable entry may belong to any
    /// dataset, also to a snapshot of any volume.
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

    /// Renames a dataset if a younger one has the same name. The younger one was created while the
    /// older one's entry was unreadable.
    fn rename_duplicate(&mut self) {
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
                tracing::warn!(dataset = record.id.0, record.name, name, "name in use; renamed");
                record.name = name;
                self.renamed.insert(record.id);
            }
        }
    }

    /// Separates the snapshots and bookmarks whose volume is not in the directory.
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

    /// Detaches clones from impossible origins: a snapshot of another txg, or a snapshot of one of
    /// the clone's descendants. Such a clone stays usable as a clone with a lost origin.
    fn cut_origins(&mut self) {
        // Maps each snapshot to its volume and txg, and each volume to its origin's volume.
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
            // `origins` has no cycle so far, so it can be followed to check whether the parent
            // descends from this volume.
            let mut above = Some(parent);
            while let Some(volume) = above.filter(|volume| *volume != record.id) {
                above = origins.get(&volume).copied();
            }
            if above.is_none() && txg == origin.txg {
                origins.insert(record.id, parent);
                continue;
            }
            let (volume, snapshot) = (record.id.0, origin.snapshot.0);
            tracing::error!(volume, snapshot, "a clone's origin is invalid: treated as lost");
            held = held.max(txg).max(origin.txg);
            // Use the clone's own number, which is never the number of a snapshot, so that the
            // clone counts as a clone with a lost origin.
            origin.snapshot = record.id;
        }
        self.losses.held_for_clones = self.losses.held_for_clones.max(held);
    }

    /// Determines which blocks clones share with lost origins, so that these blocks stay allocated.
    fn hold_for_clones(&mut self) {
        let snapshots: HashSet<DatasetId> = self
            .records
            .iter()
            .filter(|record| matches!(record.kind, DatasetKind::Snapshot(_)))
            .map(|record| record.id)
            .collect();
        // The origin of a clone under destruction may be freed before the clone. The clone needs no
        // block of the origin: nothing reads the clone, and freeing the clone skips the blocks that
        // it inherited.
        let active = self.records.iter().filter(|record| record.state == DatasetState::Active);
        let origins = active.filter_map(|record| match &record.kind {
            DatasetKind::Volume(descent) => descent.origin,
            DatasetKind::Snapshot(_) | DatasetKind::Bookmark(_) => None,
        });
        let lost = origins.filter(|origin| !snapshots.contains(&origin.snapshot));
        let held = lost.map(|origin| origin.txg).max().unwrap_or_default();
        self.losses.held_for_clones = self.losses.held_for_clones.max(held);
    }
}

/// Validates a directory entry: its blocks were born in the committed txg or earlier, and numbers
/// on which other code relies cannot overflow. Wrong names and counters are harmless.
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

/// Merges adjacent and overlapping ranges.
fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.dedup_by(|next, before| {
        let joins = next.start <= before.end;
        if joins {
            before.end = before.end.max(next.end);
        }
        joins
    });
}

/// Shortens a name so that a number can be appended.
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
    use weir_format::{Descent, Origin, Properties};

    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut ranges = vec![3..4, 4..5, 128..200];
        merge(&mut ranges);
        assert_eq!(ranges, [3..5, 128..200]);
    }

    #[test]
    fn numbers_of_unreadable_datasets_are_not_reused() {
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
            objects: None,
        }
    }

    #[test]
    fn origin_of_a_destroyed_clone_may_be_gone() {
        let mut clone = volume(5, "clone");
        let origin = Some(Origin { snapshot: DatasetId(3), txg: Txg(4) });
        clone.kind = DatasetKind::Volume(Descent { origin, ..Descent::default() });
        let held_for = |state| {
            let records = vec![volume(1, "files"), DatasetRecord { state, ..clone.clone() }];
            let mut found = Directory { records, ..Directory::default() };
            found.hold_for_clones();
            found.losses.held()
        };
        assert_eq!(held_for(DatasetState::Active), Txg(4), "the snapshot's entry is lost");
        assert_eq!(held_for(DatasetState::Destroying), Txg(0));
    }

    #[test]
    fn returned_volume_yields_its_name_to_a_younger_one() {
        let mut found = Directory::default();
        let long = "x".repeat(NAME_BYTES_MAX);
        found.records = vec![volume(1, "a"), volume(7, "a"), volume(5, "a-1"), volume(2, &long)];
        found.records.push(volume(9, &long));
        found.rename_duplicate();
        let names: Vec<&str> = found.records.iter().map(|record| record.name.as_str()).collect();
        assert_eq!(names[..3], ["a-2", "a", "a-1"]);
        assert!(names[3].ends_with("-2") && names[3].len() <= NAME_BYTES_MAX);
        assert_eq!(found.renamed, [DatasetId(1), DatasetId(2)].into_iter().collect());
    }
}
