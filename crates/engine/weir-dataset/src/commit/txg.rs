//! Txg commit for all volumes: freezes the dirty tables, writes them out and publishes the new
//! roots.
//!
//! The segment table, bootstrap table and uberblock are in weir-pool (`commit`); `freeing` frees
//! the space of destroyed volumes and snapshots.
//!
//! Invariants:
//! - a snapshot is the volume's tree at the end of the txg that was open at the request;
//! - the commit takes references to existing blocks before it frees any block;
//! - the freeze holds all volume locks at once, so a txg is a consistent cut across volumes;
//! - readers see a new root only when all its blocks are readable from disk;
//! - changes count as durable, and leave the log queue, only after the uberblock is durable.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, LocalBoxFuture, select};
use weir_base::limits::TXG_INTERVAL;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, ObjectId, Txg};
use weir_format::{BlockPtr, DamagedRange, DatasetKind, DatasetRecord, PoolRecord, TreeRoot};
use weir_pool::{
    Change, CommitInput, Delta, EarlierSnapshots, PartialRecord, PlantedBug, PoolError, Roots,
    Tree, TreeKind, WriteOut, filled, write_directory_block,
};

use crate::commit::freeing;
use crate::commit::partial::write_partial;
use crate::commit::write_objects::{FrozenObjects, freeze_objects};
use crate::commit::write_table::StoredAs;
use crate::commit::written::Written;
use crate::error::DatasetError;
use crate::objects::dirty::DirtyTable;
use crate::state::block_clone::BlockClone;
use crate::state::damage::changed_records;
use crate::state::engine::Engine;
use crate::state::snapshot::{FrozenVersions, Snapshot, account, descent, descent_mut};
use crate::state::timer::{Timer, boxed_timer};
use crate::state::volume::{State, Volume};

/// Interval between commits while destroyed datasets are being freed.
const FREEING_INTERVAL: Duration = Duration::from_millis(100);

/// Contents of a frozen txg.
struct FrozenTxg {
    txg: Txg,
    volumes: Vec<Frozen>,
    /// Directory entry of the pool itself, if the commit must write it.
    own: Option<PoolRecord>,
    /// True if the commit rewrites the whole directory.
    all: bool,
}

/// One volume's part of a txg.
pub(crate) struct Frozen {
    pub(crate) volume: Arc<Volume>,
    pub(crate) table: Option<Arc<DirtyTable>>,
    /// Partial records that log replay produced, by ascending record number.
    partial: Vec<(u64, PartialRecord)>,
    /// Block clones of the txg, and their changes to the tree.
    pub(crate) clones: Vec<BlockClone>,
    pub(crate) cloned: Vec<Change>,
    pub(crate) record: DatasetRecord,
    pub(crate) is_destroyed: bool,
    record_dirty: bool,
    versions: FrozenVersions,
    objects: Option<FrozenObjects>,
    /// Changed directory entries of snapshots and bookmarks.
    others: Vec<DatasetRecord>,
    /// Bookmarks that the txg removes.
    forgotten: Vec<DatasetId>,
    /// The snapshot that the txg creates at its end.
    taking: Option<DatasetRecord>,
    /// Number of records before the volume grew in this txg.
    grown_from: Option<u64>,
    /// True if the volume has destroyed versions to free.
    frees: bool,
}

impl Engine {
    /// Commits the open txg, unless it has no changes and no task requested the commit.
    ///
    /// # Durability
    /// Every change acknowledged before this call is on stable media when it returns `Ok`.
    ///
    /// # Errors
    /// The failure suspends the pool.
    #[boxed(?Send)]
    pub async fn commit(&self) -> Result<(), DatasetError> {
        let _committer = self.core.committer.lock().await;
        loop {
            self.core.pool.check_alive()?;
            let Some(frozen) = self.freeze() else { return Ok(()) };
            let all = frozen.all;
            self.commit_frozen(frozen).await.map_err(|error| {
                let error = self.core.pool.poison(&error);
                self.core.announce_poison();
                error
            })?;
            if all || !self.core.pool.roots_are_damaged() {
                return Ok(());
            }
            // Some metadata is unreadable on disk and exists only in RAM. Commit now, because a
            // crash would lose it.
            self.core.want(self.core.open_txg());
        }
    }

    /// Freezes the open txg and opens the next one.
    fn freeze(&self) -> Option<FrozenTxg> {
        // Hold this lock throughout, so a new volume joins the next txg.
        let volumes = self.volume_list.read();
        let mut states: Vec<_> = volumes.iter().map(|volume| volume.state.lock()).collect();
        let txg = self.core.open_txg();
        let busy = states.iter().any(|state| Volume::has_changes(state) || state.has_to_free());
        let mut own = self.core.own.write();
        let is_unstored = own.is_dirty || self.core.pool.damage_is_unstored();
        // A concurrent flush may log changes that the running commit makes durable. Only the next
        // commit releases that part of the log.
        let log_is_full = self.core.pool.log_half_full();
        if !busy && !is_unstored && !log_is_full && self.core.wanted() < txg {
            return None;
        }
        // Copy all directory entries now if the directory is rewritten: later they may contain
        // changes of the next txg.
        let all = self.core.pool.root_is_stale();
        let is_stored = all && own.record != PoolRecord::default();
        let stored = std::mem::take(&mut own.is_dirty) || is_stored;
        let own = stored.then(|| own.record.clone());
        let mut frozen = Vec::new();
        for (volume, state) in volumes.iter().zip(&mut states) {
            let state = &mut **state;
            state.object.freeze();
            state.objects.iter_mut().for_each(|objects| objects.freeze());
            volume.count_holes(state);
            frozen.extend(freeze_volume(volume, state, all));
        }
        self.core.advance_txg();
        Some(FrozenTxg { txg, volumes: frozen, own, all })
    }

    #[boxed(?Send)]
    async fn commit_frozen(&self, frozen: FrozenTxg) -> Result<(), PoolError> {
        let FrozenTxg { txg, volumes: mut frozen, own, all } = frozen;
        let pool = &self.core.pool;
        let mut out = pool.begin_write_out(txg);
        // Take references before freeing: the source blocks are still live in the committed trees.
        for part in frozen.iter_mut().filter(|part| !part.clones.is_empty()) {
            self.take_references(&mut out, part).await?;
        }
        for part in &mut frozen {
            if let Some(objects) = part.objects.as_mut().filter(|_| !part.is_destroyed) {
                self.add_references(&mut out, objects).await?;
            }
        }
        let mut written = Vec::new();
        for part in frozen {
            written.push(self.write_out(&mut out, part).await?);
        }
        out.finish().await?;
        written.iter_mut().for_each(publish);
        for part in written.iter_mut().filter(|part| part.frees) {
            freeing::free_some(pool, &mut out, part).await?;
        }
        pool.clean(&mut out, &self.roots_with(&written), self.core.is_idle()).await?;
        let input = self.write_directory(&mut out, (own, all), &written).await?;
        pool.commit(out, input).await?;
        self.settle(txg, &written);
        Ok(())
    }

    /// Returns every dataset's tree in the txg that was just written and published.
    pub(crate) fn roots_with(&self, written: &[Written]) -> Roots {
        let gone = |id| written.iter().any(|w| w.volume.id == id && w.is_gone);
        let mut roots = Roots::default();
        for volume in self.all_volumes().into_iter().filter(|volume| !gone(volume.id)) {
            let state = volume.state.lock();
            let mut chain = state.chain();
            if self.core.pool.bug() == PlantedBug::SnapshotsNotAsked {
                chain.versions.drain(..chain.versions.len() - 1);
            }
            roots.add(chain, state.owners());
        }
        roots.set_lost(self.core.lost_owners());
        roots
    }

    #[boxed(?Send)]
    async fn write_out(&self, out: &mut WriteOut<'_>, part: Frozen) -> Result<Written, PoolError> {
        let Frozen { volume, table, mut record, record_dirty, versions, .. } = part;
        let others = part.others.into_iter().map(|record| (record.id, Some(record)));
        let others = others.chain(part.forgotten.into_iter().map(|id| (id, None)));
        let objects = part.objects.as_ref().map(|objects| &objects.changes);
        let data_blocks = table.as_ref().map_or(0, |table| table.data_blocks() as u64)
            + objects.map_or(0, |objects| objects.blocks);
        let charge = table.as_ref().map_or(0, |table| table.charge)
            + objects.map_or(0, |objects| objects.charge)
            + part.clones.iter().map(|clone| clone.charge).sum::<u64>();
        if part.frees {
            // The next txg frees the next part of the volume.
            self.core.note_freeing(out.txg.next());
        }
        let mut written = Written {
            volume: Arc::clone(&volume),
            record: None,
            is_gone: false,
            data_blocks,
            charge,
            cloned_bytes: part.clones.iter().map(BlockClone::weight).sum::<u64>()
                + objects.map_or(0, |objects| objects.referenced_bytes),
            changed: table.is_some()
                || part.objects.is_some()
                || !part.cloned.is_empty()
                || !part.partial.is_empty()
                || record_dirty
                || part.frees,
            delta: Delta::default(),
            changes: Vec::new(),
            gained: part.grown_from.map(|from| from..records_of(&record)),
            new_damage: self.cloned_damage(&part.clones, &part.cloned),
            is_reshaped: record_dirty || part.frees || part.taking.is_some(),
            taken: None,
            // The txg that stores the state "destroying" frees nothing yet, so that it commits
            // without delay.
            frees: part.frees && !record_dirty,
            others: others.collect(),
            slot_blocks: BTreeMap::new(),
            changed_objects: Vec::new(),
        };
        if part.is_destroyed {
            written.record = Some(record);
            return Ok(written);
        }
        if let Some(objects) = &part.objects {
            let wrote = self.write_objects(out, &volume, &mut record, objects, &versions).await?;
            account(&mut record, &wrote.delta);
            (written.delta, written.slot_blocks) = (wrote.delta, wrote.slot_blocks);
            written.changed_objects = wrote.changed;
        }
        if record.objects.is_some() {
            return Ok(end_of_write_out(written, record, part.taking, out.txg));
        }
        self.write_volume(
            out,
            &mut written,
            &mut record,
            (table, part.cloned),
            (&part.partial, &versions),
        )
        .await?;
        Ok(end_of_write_out(written, record, part.taking, out.txg))
    }

    /// Writes the changed records and nodes of a volume, and sets its new root in `record`.
    async fn write_volume(
        &self,
        out: &mut WriteOut<'_>,
        written: &mut Written,
        record: &mut DatasetRecord,
        (table, cloned): (Option<Arc<DirtyTable>>, Vec<Change>),
        (partial, versions): (&[(u64, PartialRecord)], &FrozenVersions),
    ) -> Result<(), PoolError> {
        let volume = Arc::clone(&written.volume);
        let mut past = versions.before_head(ObjectId::VOLUME);
        past.records = Some(records_of(record));
        if self.core.pool.bug() == PlantedBug::HeldOffByOne {
            past.held.until = Txg(past.held.until.0.saturating_sub(1));
        }
        let height = TreeRoot::height_for(records_of(record));
        let home = TreeKind::Object(volume.id, ObjectId::VOLUME);
        let tree = Tree::new(&self.core.pool, record.root);
        let (root, grown) = tree.grow(out, home, height.max(record.root.height)).await?;
        record.root = root;
        let clock = self.core.pool.clock();
        let (begun, waited) = (clock.monotonic(), out.waited);
        let mut changes = cloned;
        if let Some(table) = &table {
            let stored_as = StoredAs { object: ObjectId::VOLUME, size: record.record_size };
            changes.extend(self.write_table(out, &volume, record, stored_as, table).await?);
            let spent = clock.monotonic().saturating_sub(begun);
            let waited = out.waited.saturating_sub(waited);
            self.core.pressure.note(spent, waited, table.data_blocks() as u64 * BLOCK_BYTES as u64);
        }
        changes.extend(write_partial(out, volume.id, partial).await?);
        written.new_damage.extend(partial.iter().map(|(record, _)| *record..record + 1));
        // The changes that clones make are in the order of the requests, so sort them by block.
        if table.is_some() || self.core.pool.bug() != PlantedBug::ClonesUnsorted {
            changes.sort_unstable_by_key(|change| change.start);
        }
        let tree = Tree::new(&self.core.pool, record.root);
        if let Some(gained) = &written.gained {
            changes = zero_new_space(tree, changes, gained).await?;
        }
        let (root, mut delta) = tree.apply(out, home, &past, &changes).await?;
        delta.tree_units += grown.tree_units;
        delta.born_units += grown.born_units;
        record.root = root;
        account(record, &delta);
        written.delta = delta;
        written.changes = changes;
        Ok(())
    }

    /// Writes the changed directory entries into the dataset directory.
    async fn write_directory(
        &self,
        out: &mut WriteOut<'_>,
        (own, all): (Option<PoolRecord>, bool),
        written: &[Written],
    ) -> Result<CommitInput, PoolError> {
        let pool = &self.core.pool;
        let (root, _) = pool.datasets();
        let damage = self.store_damage(out, all).await?;
        let next_dataset = self.next_dataset();
        let mut records: BTreeMap<DatasetId, Option<&DatasetRecord>> = BTreeMap::new();
        for part in written {
            let record = part.record.as_ref().filter(|_| !part.is_gone);
            records.insert(part.volume.id, record);
            records.extend(part.others.iter().map(|(id, record)| (*id, record.as_ref())));
        }
        let (orphans, emptied, unread) = {
            let mut losses = self.core.directory_losses.lock();
            let orphans = if all { losses.orphans.clone() } else { Vec::new() };
            (orphans, std::mem::take(&mut losses.emptied), losses.unread.clone())
        };
        records.extend(orphans.iter().map(|record| (record.id, Some(record))));
        let root = pool.without(out, root, &emptied).await?;
        let mut changes = Vec::new();
        if let Some(own) = own {
            let ptr = write_directory_block(out, &own.encode()).await?;
            changes.push(Change::one(0, ptr));
        }
        for (id, record) in records {
            let ptr = match record {
                Some(record) => write_directory_block(out, &record.encode()).await?,
                None => BlockPtr::HOLE,
            };
            changes.push(Change::one(id.0, ptr));
        }
        changes.extend(damage.into_iter().map(|(id, ptr)| Change::one(id.0, ptr)));
        changes.sort_unstable_by_key(|change| change.start);
        let tree = Tree::new(pool, root);
        let height = TreeRoot::height_for(next_dataset).max(root.height);
        let (root, _) = tree.grow(out, TreeKind::Root, height).await?;
        if all {
            // `filled` also replaces the pointers below nodes that became unreadable while the pool
            // was in use.
            changes = filled(changes, root.blocks(), &unread);
        }
        let (tree, past) = (Tree::new(pool, root), EarlierSnapshots::default());
        let (datasets, _) = tree.apply(out, TreeKind::Root, &past, &changes).await?;
        let keeps_unread = !unread.is_empty();
        Ok(CommitInput { datasets, next_dataset, all, keeps_unread })
    }

    /// Updates the state in RAM after the uberblock is durable.
    fn settle(&self, txg: Txg, written: &[Written]) {
        for volume in self.all_volumes() {
            let mut state = volume.state.lock();
            state.settle_log(txg);
            // Clear this list only now that the uberblock is durable. A partial write logs its
            // whole blocks: without the list, it could log bytes of a clone that is not durable
            // yet, and these bytes would survive a crash that loses the clone.
            state.syncing_clones.clear();
            volume.measure_limits(&mut state);
        }
        for part in written.iter().filter(|part| part.is_gone) {
            self.volume_list.write().retain(|other| other.id != part.volume.id);
        }
        if written.iter().any(|w| w.is_reshaped || w.is_gone) {
            self.core.pool.unsettle_damage();
        }
        self.core.measure_after_commit(written.iter().any(|w| w.changed));
        // Release the charges first, so that a pool without dirty blocks has no charges either.
        self.core.uncharge(written.iter().map(|w| w.charge).sum());
        self.core.sub_dirty(written.iter().map(|w| w.data_blocks).sum());
        self.core.announce_commit(txg);
    }

    /// Commits until [`Engine::stop`] is called or the pool is suspended: every [`TXG_INTERVAL`],
    /// or at once on request. `sleep` is the driver's timer.
    pub fn run<'a, S: Future<Output = ()> + 'a>(
        &'a self,
        sleep: impl Fn(Duration) -> S + 'a,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        self.run_with(boxed_timer(sleep))
    }

    fn run_with<'a>(
        &'a self,
        sleep: Box<Timer<'a>>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move { self.commit_until_stopped(&*sleep).await })
    }

    async fn commit_until_stopped(&self, sleep: &Timer<'_>) -> Result<(), DatasetError> {
        loop {
            if !self.core.wants_early_commit() && !self.is_stopping() {
                let freeing = self.all_volumes().iter().any(|v| v.state.lock().has_to_free());
                let timer = if freeing { FREEING_INTERVAL } else { TXG_INTERVAL };
                let timer = std::pin::pin!(sleep(timer));
                let woken = std::pin::pin!(self.core.wake_committer.notified());
                let timer = matches!(select(woken, timer).await, Either::Right(_));
                if !timer && !self.core.wants_early_commit() && !self.is_stopping() {
                    continue;
                }
                self.core.set_idle(timer && !freeing);
                if timer && self.core.pool.wants_idle_cleaning() {
                    self.core.want(self.core.open_txg());
                }
            } else {
                self.core.set_idle(false);
            }
            // Read the flag before the commit: a stop during a commit needs another commit, for the
            // changes acknowledged after that commit's freeze.
            let stopping = self.is_stopping();
            self.commit().await?;
            if stopping {
                return Ok(());
            }
        }
    }
}

/// Freezes one volume. With `all`, its directory entries are included even if they are unchanged.
fn freeze_volume(volume: &Arc<Volume>, state: &mut State, all: bool) -> Option<Frozen> {
    let objects = freeze_objects(state);
    let record_dirty = std::mem::take(&mut state.record_dirty);
    let frees = state.has_to_free();
    let taking = std::mem::take(&mut state.taking);
    let grown_from = std::mem::take(&mut state.grown_from);
    let mut others = Vec::new();
    for snapshot in &mut state.snapshots {
        if std::mem::take(&mut snapshot.dirty) || all {
            others.push(snapshot.record.clone());
        }
    }
    for mark in &mut state.bookmarks {
        if std::mem::take(&mut mark.dirty) || all {
            others.push(mark.record.clone());
        }
    }
    let forgotten = std::mem::take(&mut state.forgotten);
    let clones = std::mem::take(&mut state.clones);
    state.syncing_clones = clones.iter().map(BlockClone::range).collect();
    let partial: Vec<_> = std::mem::take(&mut state.object.partial).into_iter().collect();
    let told = !others.is_empty() || !forgotten.is_empty();
    let news = taking.is_some() || told || !clones.is_empty() || !partial.is_empty();
    let changed = record_dirty || frees || news;
    let is_written = state.object.syncing.is_some() || objects.is_some();
    (is_written || changed || all).then(|| Frozen {
        volume: Arc::clone(volume),
        table: state.object.syncing.clone(),
        partial,
        clones,
        cloned: Vec::new(),
        record: state.record.clone(),
        is_destroyed: state.is_destroyed(),
        record_dirty,
        versions: state.freeze_versions(volume.core.held_for_unread()),
        objects,
        others,
        forgotten,
        taking,
        grown_from,
        frees,
    })
}

/// Makes the records that a volume gained by growing holes if their leaf is unreadable: such a leaf
/// has no pointers for these records.
async fn zero_new_space(
    tree: Tree<'_>,
    changes: Vec<Change>,
    gained: &Range<u64>,
) -> Result<Vec<Change>, PoolError> {
    match tree.lookup(gained.start).await {
        Err(error) if error.kind() == ErrorKind::Data => {
            Ok(filled(changes, gained.end, std::slice::from_ref(&(0..gained.start))))
        }
        found => found.map(|_| changes),
    }
}

/// Number of records of a volume.
fn records_of(record: &DatasetRecord) -> u64 {
    record.record_size.records_in(record.size_bytes)
}

/// Adds the dataset's new directory entry to the result, and the entry of the requested snapshot.
fn end_of_write_out(
    mut written: Written,
    mut record: DatasetRecord,
    taking: Option<DatasetRecord>,
    txg: Txg,
) -> Written {
    if let Some(asked) = taking {
        written.taken = Some(take(asked, &record, txg));
        record.born_units = 0;
    }
    written.record = Some(record);
    written
}

/// Builds the directory entry of the requested snapshot from the volume's entry at the end of the
/// txg.
fn take(asked: DatasetRecord, volume: &DatasetRecord, txg: Txg) -> DatasetRecord {
    let DatasetKind::Snapshot(mut moment) = asked.kind else {
        unreachable!("the request is a snapshot record")
    };
    moment.txg = txg;
    moment.unique_units = Some(0);
    DatasetRecord {
        id: asked.id,
        state: asked.state,
        name: asked.name,
        created_txg: txg,
        created_unix_ms: asked.created_unix_ms,
        kind: DatasetKind::Snapshot(moment),
        properties: asked.properties,
        ..volume.clone()
    }
}

/// Removes the overwritten and freed records from the list of permanent errors. The caller holds
/// the volume's lock, because a failed read adds damage only for the current root.
fn note_changes(state: &State, written: &mut Written) {
    let volume = Arc::clone(&written.volume);
    let pool = &volume.core.pool;
    let changes = std::mem::take(&mut written.changes);
    if pool.has_damage() {
        let newest = state.snapshots.last().map(|snapshot| snapshot.moment().txg);
        let mut changed = changed_records(&changes);
        changed.extend(written.gained.take());
        let tree = |object| (volume.id, object);
        pool.damage_overwritten(tree(ObjectId::VOLUME), &changed, newest);
        for (object, changed) in written.changed_objects.drain(..) {
            pool.damage_overwritten(tree(object), &changed, newest);
        }
    }
    for records in written.new_damage.drain(..) {
        let born = pool.committed_txg().next();
        let tree = (volume.id, ObjectId::VOLUME);
        pool.note_damage(tree, records, born, DamagedRange::HEAD);
    }
}

/// Publishes the new tree to readers and drops the dirty table from which it was built.
fn publish(written: &mut Written) {
    let volume = Arc::clone(&written.volume);
    let mut state = volume.state.lock();
    if let Some(record) = &written.record {
        state.record.root = record.root;
        state.record.used_blocks = record.used_blocks;
        state.record.stored_units = record.stored_units;
        state.record.shared_units = record.shared_units;
        state.record.tree_units = record.tree_units;
        state.record.born_units = record.born_units;
        let inherited = descent(record).inherited_units;
        descent_mut(&mut state.record).inherited_units = inherited;
    }
    note_changes(&state, written);
    let touched = state.account_snapshots(&written.delta);
    touched.into_iter().for_each(|record| written.note(record));
    if let Some(record) = written.taken.take() {
        written.note(record.clone());
        let mut taken = Snapshot::new(record, false);
        taken.kept = !taken.is_active();
        state.snapshots.push(taken);
        state.limits.is_taking = state.taking.is_some();
    }
    let table = state.object.syncing.take();
    let slot_blocks = std::mem::take(&mut written.slot_blocks);
    let objects = state.objects.as_mut().and_then(|objects| objects.publish(slot_blocks));
    state.cloning_bytes -= written.cloned_bytes;
    volume.measure_limits(&mut state);
    drop(state);
    // Dropping many blocks takes time, so it happens after the lock is released.
    drop((table, objects));
}
