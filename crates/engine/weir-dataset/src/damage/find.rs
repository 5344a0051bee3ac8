//! Damage in volumes and snapshots: finds the versions that share damaged data, and stores and
//! clears the list of permanent errors.
//!
//! weir-pool (`damage`) has the list, weir-format its records; `named` describes the damage.
//!
//! Invariants:
//! - if a read ends with a `Data` error, its records are listed before the caller has the error;
//! - an entry for a volume's head was made under the volume's lock, for its current root;
//! - an entry stays until no version contains its records, or until a scrub reads them from disk;
//! - the next commit after a change of the list stores the list; a pool without damage stores
//!   nothing;
//! - the loss of the stored list, or of a part of the list, prevents no import.

use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashSet;
use weir_base::limits::SETTLED_RECORDS_MAX;
use weir_base::{DatasetId, ErrorKind, ObjectId, RecordSize, Txg};
use weir_format::{BlockPtr, DamageRecord, DamagedRange, DatasetRecord, ObjectSlot, TreeRoot};
use weir_pool::{
    Change, DamageList, DiffSpec, Objects, Pool, PoolError, Traced, Tracer, TreeOf, WriteOut,
    write_directory_block,
};

use crate::error::DatasetError;
use crate::state::block_clone::BlockClone;
use crate::state::damage::tree_of;
use crate::state::engine::Engine;
use crate::state::snapshot::{descent, inherits, objects_of};
use crate::state::volume::{State, Volume};
use crate::volume::read::RESTARTS_MAX;

/// Maximum rounds of lookups: a lookup can add entries for clones and their parents, which need
/// another round. Entries that remain are looked up a second later.
const ROUNDS_MAX: usize = 16;

/// Visible version of a volume: a snapshot or the head.
#[derive(Clone, Copy)]
struct Shown {
    /// Volume of the version.
    volume: DatasetId,
    /// Last txg in the version; [`DamagedRange::HEAD`] for the head of a volume.
    version: Txg,
    objects: Objects,
    root: TreeRoot,
    size: RecordSize,
    records: u64,
}

impl Shown {
    fn of(record: &DatasetRecord) -> Self {
        let TreeOf { volume, version, .. } = tree_of(record);
        let size = record.record_size;
        let objects = objects_of(record);
        let records = match objects {
            Objects::One => size.records_in(record.size_bytes),
            // Each object has its own number of records, so use the maximum.
            Objects::Many => TreeRoot::BLOCKS_MAX,
        };
        Self { volume, version, objects, root: record.root, size, records }
    }

    /// Object table, or tree of a volume.
    fn table(&self) -> (Objects, TreeRoot) {
        (self.objects, self.root)
    }
}

/// Versions of a volume that clients can see.
struct Versions {
    /// Versions that clients can see, ordered by time.
    shown: Vec<Shown>,
    inherits: Txg,
    origin: Option<DatasetId>,
    /// Numbers of the volume's visible snapshots.
    snapshots: HashSet<DatasetId>,
}

impl State {
    fn versions(&self) -> Versions {
        let active = || self.snapshots.iter().filter(|snapshot| snapshot.is_active());
        let now = (!self.is_destroyed()).then_some(&self.record);
        Versions {
            shown: active().map(|s| &s.record).chain(now).map(Shown::of).collect(),
            inherits: inherits(&self.record),
            origin: descent(&self.record).origin.map(|origin| origin.snapshot),
            snapshots: active().map(|snapshot| snapshot.record.id).collect(),
        }
    }
}

impl Versions {
    fn held(&self, range: &DamagedRange) -> &[Shown] {
        let from = self.shown.partition_point(|shown| shown.version < range.born);
        let to = self.shown.partition_point(|shown| shown.version <= range.until);
        &self.shown[from..to.max(from)]
    }

    fn at(&self, txg: Txg) -> Option<&Shown> {
        self.shown.iter().find(|shown| shown.version == txg)
    }
}

/// True if the record or node at the end of a traced path is unreadable. A record is tested by
/// reading it.
async fn is_lost(
    pool: &Pool,
    traced: &Traced,
    size: RecordSize,
    fresh: bool,
) -> Result<bool, PoolError> {
    if traced.ptr.is_hole() {
        return Ok(false);
    }
    let size = traced.size.unwrap_or(size);
    if traced.level > 0 || pool.check_record(&traced.ptr, size).is_err() {
        return Ok(true);
    }
    let read = if fresh {
        pool.read_fresh(&traced.ptr).await
    } else {
        pool.read_record(&traced.ptr).await
    };
    match read {
        Ok(_) => Ok(false),
        Err(error @ PoolError::NoSegment { .. }) => Err(error),
        Err(error) if error.kind() == ErrorKind::Data => Ok(true),
        Err(error) => Err(error),
    }
}

impl Volume {
    /// Returns `result`. If `result` is a `Data` error, first adds the unreadable records of these
    /// blocks to the list of permanent errors.
    pub(crate) async fn noted<T>(
        &self,
        blocks: Range<u64>,
        result: Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data) {
            self.note_unreadable(blocks, false).await;
        }
        result
    }

    /// As [`Self::noted`], for an operation on a long range that reads only nodes: adds the records
    /// below the first unreadable node.
    pub(crate) async fn noted_node<T>(
        &self,
        blocks: Range<u64>,
        result: Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data) {
            self.note_unreadable(blocks, true).await;
        }
        result
    }

    /// As [`Self::noted`], for an operation on records of an object: adds its unreadable slot, or
    /// its unreadable records.
    pub(crate) async fn noted_object<T>(
        &self,
        object: ObjectId,
        records: Range<u64>,
        result: Result<T, DatasetError>,
    ) -> Result<T, DatasetError> {
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Data) {
            let table = ObjectId::TABLE;
            if object != table {
                let slot = ObjectSlot::block_of(object);
                self.note_unreadable_in(table, slot..slot + 1, false).await;
            }
            self.note_unreadable_in(object, records, false).await;
        }
        result
    }

    /// Adds the unreadable records of these blocks to the list of permanent errors.
    pub(crate) async fn note_unreadable(&self, blocks: Range<u64>, nodes_alone: bool) {
        let size = self.record_size();
        self.note_unreadable_in(ObjectId::VOLUME, size.touched(&blocks), nodes_alone).await;
    }

    /// Reads records of an object. Adds each unreadable record to the list of permanent errors.
    #[boxed(?Send)]
    pub(crate) async fn note_unreadable_in(
        &self,
        object: ObjectId,
        records: Range<u64>,
        nodes_alone: bool,
    ) {
        let outlived = |error: &PoolError| matches!(error, PoolError::NoSegment { .. });
        for _ in 0..RESTARTS_MAX {
            match self.look_for_damage((object, &records), nodes_alone).await {
                Ok(false) => {}
                Err(error) if outlived(&error) => {}
                // Any other error is not damage: the disk that has the data may be temporarily
                // unresponsive.
                Ok(true) | Err(_) => return,
            }
        }
        // The tree points to a segment that does not exist, and no commit replaces the tree. Add
        // the records of these blocks to the list.
        let (shown, pool) = (Shown::of(&self.state.lock().record), &self.core.pool);
        if !nodes_alone {
            let born = pool.committed_txg().min(shown.version);
            pool.note_damage((shown.volume, object), records, born, shown.version);
        }
    }

    /// True if the list of permanent errors contains some of these blocks in the present version,
    /// or if some damage did not fit into the list.
    pub(crate) fn is_listed(&self, blocks: &Range<u64>) -> bool {
        let (shown, pool) = (Shown::of(&self.state.lock().record), &self.core.pool);
        let tree = (shown.volume, ObjectId::VOLUME);
        let on_list = |record| pool.damaged_to(tree, record, shown.version).is_some();
        shown.size.touched(blocks).any(on_list) || pool.damage().more > 0
    }

    /// Searches the records of an object for damage once. Returns false if a commit replaced the
    /// tree in the meantime.
    async fn look_for_damage(
        &self,
        (object, wanted): (ObjectId, &Range<u64>),
        nodes_alone: bool,
    ) -> Result<bool, PoolError> {
        let pool = &self.core.pool;
        let shown = Shown::of(&self.state.lock().record);
        let tree = (shown.volume, object);
        let (mut at, end) = (wanted.start, wanted.end.min(shown.records));
        let mut tracer = Tracer::new(pool);
        while at < end {
            // Skip ranges that are already on the list: an unreadable node may have terabytes below
            // it.
            if let Some(end) = pool.damaged_to(tree, at, shown.version) {
                at = end;
                continue;
            }
            let traced = tracer.trace_object(shown.table(), object, at).await?;
            if traced.is_above(object, shown.objects) {
                // The unreadable slot is an entry of its own.
                return Ok(true);
            }
            let mut records = traced.records();
            if nodes_alone && traced.level == 0 {
                // The leaf is readable, so continue with the next leaf.
                records = at..(at + 1).next_multiple_of(weir_format::NODE_FANOUT as u64);
            } else if is_lost(pool, &traced, shown.size, false).await? {
                let lost = records.start..records.end.min(shown.records);
                let state = self.state.lock();
                if state.record.root != shown.root {
                    return Ok(false);
                }
                pool.note_damage(tree, lost, traced.ptr.birth, shown.version);
                if nodes_alone {
                    return Ok(true);
                }
            }
            at = records.end.max(at + 1);
        }
        Ok(true)
    }
}

impl Engine {
    fn dataset(&self, id: DatasetId) -> Option<Arc<Volume>> {
        self.all_volumes().into_iter().find(|volume| volume.id == id)
    }

    /// Finds the other versions and volumes that share damaged records of new permanent errors, and
    /// removes entries that no version contains any more: the volume overwrote or trimmed the
    /// records, and every snapshot that had them is destroyed.
    ///
    /// Entries come from reads of clients and of the engine that end with a `Data` error, from
    /// scrubs and resilvers, and from commits.
    #[boxed(?Send)]
    pub(crate) async fn settle_damage(&self) {
        for _ in 0..ROUNDS_MAX {
            let Some(ranges) = self.pool().take_unsettled_damage() else { return };
            for range in &ranges {
                if let Err(error) = self.settle_range(range).await {
                    tracing::debug!(%error, "the search for shared damage is retried later");
                    self.pool().unsettle_damage();
                    return;
                }
            }
        }
    }

    async fn settle_range(&self, range: &DamagedRange) -> Result<(), PoolError> {
        let pool = self.pool();
        let Some(volume) = self.dataset(range.volume) else {
            pool.replace_damage(range, &[]);
            return Ok(());
        };
        let versions = volume.state.lock().versions();
        let parent = versions.origin.and_then(|origin| {
            let parent = self.owner_of_snapshot(origin)?;
            (range.born <= versions.inherits).then_some(parent)
        });
        if let (Some(parent), true) = (&parent, range.until <= versions.inherits) {
            // A promotion moved the snapshots of this range to the parent volume.
            pool.replace_damage(range, &[DamagedRange { volume: parent.id, ..*range }]);
            pool.unsettle_damage();
            return Ok(());
        }
        let held = versions.held(range);
        let Some(newest) = held.last() else {
            pool.replace_damage(range, &[]);
            return Ok(());
        };
        // Use the same birth txg for as many records as possible, so that they form one range.
        let before = versions.shown.iter().rev().find(|shown| shown.version < range.born);
        let before = before.map_or(versions.inherits, |shown| shown.version.max(versions.inherits));
        let born = if range.born > before { before.next() } else { range.born };
        let later: Vec<Shown> =
            versions.shown.iter().filter(|s| s.version > newest.version).copied().collect();
        let relatives = self.relatives(range, &versions, parent.as_deref());
        let until = if newest.version == DamagedRange::HEAD { range.until } else { newest.version };
        let whole = DamagedRange { born, until, ..*range };
        if later.is_empty() && relatives.is_empty() {
            pool.replace_damage(range, &[whole]);
            return Ok(());
        }
        let mut pieces = Vec::new();
        let mut tracer = Tracer::new(pool);
        let (mut at, mut looked) = (range.first, 0);
        while at < range.end() && looked < SETTLED_RECORDS_MAX {
            let object = range.object;
            let traced = tracer.trace_object(newest.table(), object, at).await?;
            let end = traced.records().end.clamp(at + 1, range.end());
            let mut until = until;
            for next in &later {
                if !tracer.trace_object(next.table(), object, at).await?.is_same(&traced) {
                    break;
                }
                until = next.version;
            }
            for (own, other) in &relatives {
                let own = tracer.trace_object(own.table(), object, at).await?;
                let its = tracer.trace_object(other.table(), object, at).await?;
                if !own.ptr.is_hole() && its.is_same(&own) {
                    let (end, tree) = (end.min(other.records), (other.volume, object));
                    pool.note_damage(tree, at..end, range.born, other.version);
                }
            }
            pieces.push(DamagedRange { first: at, count: end - at, until, ..whole });
            (at, looked) = (end, looked + 1);
        }
        if at < range.end() {
            pieces.push(DamagedRange { first: at, count: range.end() - at, ..whole });
        }
        pool.replace_damage(range, &pieces);
        Ok(())
    }

    /// Versions of other volumes that may have the same blocks at the same indexes: clones of this
    /// volume's snapshots, and its own origin. Each version comes with the version of this volume
    /// with which it must be compared.
    fn relatives(
        &self,
        range: &DamagedRange,
        versions: &Versions,
        parent: Option<&Volume>,
    ) -> Vec<(Shown, Shown)> {
        let mut relatives = Vec::new();
        let held = |txg: Txg| range.born <= txg && txg <= range.until;
        for volume in self.all_volumes() {
            let state = volume.state.lock();
            let Some(origin) = descent(&state.record).origin else { continue };
            if !versions.snapshots.contains(&origin.snapshot) || !held(origin.txg) {
                continue;
            }
            let first = state.versions().shown.first().copied();
            relatives.extend(versions.at(origin.txg).copied().zip(first));
        }
        if let Some(parent) = parent {
            let state = parent.state.lock();
            let of = state.snapshots.iter().find(|s| Some(s.record.id) == versions.origin);
            let of = of.filter(|snapshot| snapshot.is_active());
            let own = versions.held(range).first().copied();
            relatives.extend(own.zip(of.map(|snapshot| Shown::of(&snapshot.record))));
        }
        relatives
    }

    /// Runs after a scrub: finds all references to damaged shared blocks, and reads the listed
    /// records from disk again. If the scrub visited everything (`saw_all`), removes intact records
    /// from the list. A restart, an export, a partial read and `pool clear` remove no entry.
    #[boxed(?Send)]
    pub(crate) async fn conclude_damage(&self, saw_all: bool) -> Result<(), DatasetError> {
        self.find_shared_damage().await?;
        self.settle_damage().await;
        if saw_all {
            for range in self.pool().damage().ranges {
                match self.recheck_range(&range).await {
                    Err(PoolError::NoSegment { .. }) | Ok(()) => {}
                    Err(error) => {
                        self.pool().check_alive()?;
                        tracing::debug!(%error, "damage stays on the list of permanent errors");
                    }
                }
            }
            self.settle_damage().await;
        }
        self.pool().end_damage_scrub(saw_all);
        Ok(())
    }

    /// Reads a listed range from disk, in every version that contains it.
    async fn recheck_range(&self, range: &DamagedRange) -> Result<(), PoolError> {
        let Some(volume) = self.dataset(range.volume) else { return Ok(()) };
        let mut at = range.first;
        // A commit replaces the tree of a volume with client writes every few seconds: continue at
        // the same record of the new tree.
        for _ in 0..RESTARTS_MAX {
            let versions = volume.state.lock().versions();
            let held = versions.held(range);
            let mut tracer = Tracer::fresh(self.pool());
            while at < range.end() && !held.is_empty() {
                let records = (range.object, at..range.end());
                let (end, damaged) =
                    damaged_versions(self.pool(), &mut tracer, held, records).await?;
                if !self.put_checked(&volume, range, (held, at..end), &damaged) {
                    break;
                }
                at = end;
            }
        }
        Ok(())
    }

    /// Keeps the records on the list of permanent errors for the `damaged` versions only. Returns
    /// false if the volume changed in the meantime.
    fn put_checked(
        &self,
        volume: &Volume,
        range: &DamagedRange,
        (held, records): (&[Shown], Range<u64>),
        damaged: &[Range<usize>],
    ) -> bool {
        let pool = self.pool();
        let newest = held.last().expect("the caller checked");
        let state = volume.state.lock();
        if newest.version == DamagedRange::HEAD && state.record.root != newest.root {
            return false;
        }
        if damaged.first() == Some(&(0..held.len())) {
            return true;
        }
        pool.damage_healed(range, &records);
        for versions in damaged {
            let before = versions.start.checked_sub(1).map(|before| held[before].version.next());
            let (born, until) = (before.unwrap_or(range.born), held[versions.end - 1].version);
            pool.note_damage(range.tree(), records.clone(), born, until);
        }
        true
    }

    /// Searches all trees for references to damaged shared blocks.
    #[boxed(?Send)]
    pub(crate) async fn find_shared_damage(&self) -> Result<(), DatasetError> {
        let wanted = self.pool().take_shared_damage();
        if wanted.is_empty() {
            return Ok(());
        }
        for volume in self.all_volumes() {
            for _ in 0..RESTARTS_MAX {
                match self.find_shared_in(&volume, &wanted).await {
                    Err(PoolError::NoSegment { .. }) => {}
                    Err(error) => {
                        self.pool().check_alive()?;
                        tracing::warn!(%error, "some references to a damaged block are unknown");
                        break;
                    }
                    Ok(()) => break,
                }
            }
        }
        Ok(())
    }

    async fn find_shared_in(
        &self,
        volume: &Volume,
        wanted: &HashSet<u64>,
    ) -> Result<(), PoolError> {
        let versions = volume.state.lock().versions();
        let mut after = versions.inherits;
        for shown in &versions.shown {
            let object = ObjectId::VOLUME;
            let of = TreeOf { volume: shown.volume, object, version: shown.version };
            let spec = DiffSpec::of_tree(shown.objects, shown.root, Some(of), after);
            let mut walk = self.pool().unshared(spec);
            loop {
                let found = walk.next().await?;
                if found.is_empty() {
                    break;
                }
                for found in found.iter().filter(|found| found.level == 0) {
                    if wanted.contains(&found.ptr.address()) {
                        let record = found.index..found.index + 1;
                        let (birth, version) = (found.ptr.birth, shown.version);
                        let tree = (shown.volume, walk.object());
                        self.pool().note_damage(tree, record, birth, version);
                    }
                }
            }
            after = shown.version;
        }
        Ok(())
    }

    /// Destination records that a txg's clones made from damaged source records.
    pub(crate) fn cloned_damage(
        &self,
        clones: &[BlockClone],
        cloned: &[Change],
    ) -> Vec<Range<u64>> {
        if clones.is_empty() || !self.pool().has_damage() {
            return Vec::new();
        }
        let ranges = self.pool().damage().ranges;
        let mut found = Vec::new();
        for clone in clones {
            let (source, from) = clone.source();
            let shown = Shown::of(&source.state.lock().record);
            let to = clone.range();
            let is_of = |range: &&DamagedRange| {
                range.tree() == (shown.volume, ObjectId::VOLUME)
                    && range.born <= shown.version
                    && shown.version <= range.until
            };
            for range in ranges.iter().filter(is_of) {
                let start = range.first.max(from);
                let end = range.end().min(from + (to.end - to.start));
                if start >= end {
                    continue;
                }
                let damaged = start - from + to.start..end - from + to.start;
                // Exclude the parts of a clone that a later write covers.
                let made = cloned.iter().filter(|change| !change.is_hole());
                let made = made.map(|change| {
                    change.start.max(damaged.start)..(change.start + change.count).min(damaged.end)
                });
                found.extend(made.filter(|made| !made.is_empty()));
            }
        }
        found
    }

    /// Writes the list of permanent errors into the dataset directory if the stored list is out of
    /// date, or if the whole directory is rewritten. Returns the changed directory blocks.
    #[boxed(?Send)]
    pub(crate) async fn store_damage(
        &self,
        out: &mut WriteOut<'_>,
        whole: bool,
    ) -> Result<Vec<(DatasetId, BlockPtr)>, PoolError> {
        let Some(list) = self.pool().damage_to_store(whole) else { return Ok(Vec::new()) };
        let had = std::mem::take(&mut *self.damage_records.lock());
        let mut records = to_records(&list);
        let mut ids = had.iter().copied();
        for record in &mut records {
            record.id = ids.next().unwrap_or_else(|| self.new_dataset());
        }
        let mut blocks = Vec::new();
        for record in &records {
            blocks.push((record.id, write_directory_block(out, &record.encode()).await?));
        }
        blocks.extend(ids.map(|id| (id, BlockPtr::HOLE)));
        *self.damage_records.lock() = records.iter().map(|record| record.id).collect();
        Ok(blocks)
    }
}

/// Reads the first of some records from disk in each version. Returns the end of the records to
/// which the result applies, and the runs of versions, as indexes of `held`, in which these records
/// are lost.
async fn damaged_versions(
    pool: &Pool,
    tracer: &mut Tracer<'_>,
    held: &[Shown],
    (object, records): (ObjectId, Range<u64>),
) -> Result<(u64, Vec<Range<usize>>), PoolError> {
    let mut end = records.end;
    let mut before: Option<(Traced, bool)> = None;
    let mut damaged: Vec<Range<usize>> = Vec::new();
    for (index, shown) in held.iter().enumerate() {
        let traced = tracer.trace_object(shown.table(), object, records.start).await?;
        end = end.min(traced.records().end.max(records.start + 1));
        let lost = match before {
            Some((before, lost)) if before.is_same(&traced) => lost,
            _ => is_lost(pool, &traced, shown.size, true).await?,
        };
        before = Some((traced, lost));
        match damaged.last_mut().filter(|run| run.end == index) {
            Some(run) if lost => run.end += 1,
            _ if lost => damaged.push(index..index + 1),
            _ => {}
        }
    }
    Ok((end, damaged))
}

/// Converts the list of permanent errors to directory entries without numbers. An empty list needs
/// no entry.
fn to_records(list: &DamageList) -> Vec<DamageRecord> {
    let DamageList { ranges, parts, more } = list;
    // Ranges of volumes have entries of their own, which are the same as in a pool without objects.
    let (of_volumes, of_objects): (Vec<DamagedRange>, Vec<DamagedRange>) =
        ranges.iter().partition(|range| range.object == ObjectId::VOLUME);
    let of_objects = of_objects.chunks(DamageRecord::OBJECT_RANGES_MAX);
    let mut ranges = of_volumes.chunks(DamageRecord::RANGES_MAX).chain(of_objects);
    let mut parts = parts.chunks(DamageRecord::PARTS_MAX);
    let mut records = Vec::new();
    let mut more = Some(*more).filter(|more| *more > 0);
    loop {
        let (ranges, parts) = (ranges.next(), parts.next());
        if ranges.is_none() && parts.is_none() && more.is_none() {
            return records;
        }
        records.push(DamageRecord {
            id: DatasetId::default(),
            more: more.take().unwrap_or(0),
            ranges: ranges.unwrap_or_default().to_vec(),
            parts: parts.unwrap_or_default().to_vec(),
        });
    }
}
