//! One txg of all volumes, from frozen tables to committed roots.
//!
//! Not here: segment table, bootstrap and uberblock (weir-pool's commit).
//!
//! Invariants:
//! - freeze takes every volume's lock at once: a txg is one cut through all volumes;
//! - a new root is shown to readers only after all its blocks can be read from disk;
//! - changes count as durable, and leave the log queue, only after the uberblock is durable.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weir_base::limits::TXG_INTERVAL;
use weir_base::{BLOCK_BYTES, Txg};
use weir_format::{
    BlockOwner, BlockPtr, DatasetRecord, DatasetState, PtrKind, SegmentClass, TreeRoot,
};
use weir_pool::{
    Change, CommitInput, Delta, PoolError, Roots, Tree, TreeHome, WriteOut, write_directory_block,
};

use crate::dirty::DirtyTable;
use crate::engine::Engine;
use crate::error::DatasetError;
use crate::volume::Volume;

/// Blocks of a destroyed volume that one txg frees at most: bounds the nodes it reads.
const DESTROY_BLOCKS_PER_TXG: u64 = 1 << 20;

/// One volume's part of a txg.
struct Frozen {
    volume: Arc<Volume>,
    table: Option<Arc<DirtyTable>>,
    record: DatasetRecord,
    record_dirty: bool,
}

/// What write-out made of it.
pub(crate) struct Written {
    volume: Arc<Volume>,
    /// `None`: the dataset is gone.
    record: Option<DatasetRecord>,
    data_blocks: u64,
    charge: u64,
    /// By a client, not by a commit that rewrites what it must.
    changed: bool,
}

impl Engine {
    /// Commits the open txg; does nothing when nothing changed and nobody asked.
    ///
    /// # Durability
    /// Every change acknowledged before this call is on stable media when it returns `Ok`.
    ///
    /// # Errors
    /// The pool is suspended by the failure.
    pub async fn commit(&self) -> Result<(), DatasetError> {
        let _committer = self.core.committer.lock().await;
        self.core.pool.check_alive()?;
        let Some((txg, frozen)) = self.freeze() else { return Ok(()) };
        let done = self.commit_frozen(txg, frozen).await;
        done.map_err(|error| {
            let error = self.core.pool.poison(&error);
            self.core.announce_poison();
            error.into()
        })
    }

    /// Closes the open txg and opens the next one.
    fn freeze(&self) -> Option<(Txg, Vec<Frozen>)> {
        // Held to the end: a volume that joins the list joins the next txg.
        let volumes = self.volume_list.read();
        let mut states: Vec<_> = volumes.iter().map(|volume| volume.state.lock()).collect();
        let txg = self.core.open_txg();
        let busy = states.iter().any(|state| {
            Volume::has_changes(state) || state.record.state == DatasetState::Destroying
        });
        if !busy && self.core.wanted() < txg {
            return None;
        }
        // The directory is rewritten with the records as they are now: later they may be changed by
        // what belongs to the next txg.
        let all = self.core.pool.root_is_stale();
        let mut frozen = Vec::new();
        for (volume, state) in volumes.iter().zip(&mut states) {
            let state = &mut **state;
            assert!(state.syncing.is_none(), "one txg is written out at a time");
            state.syncing_acked = state.acked;
            let table = std::mem::take(&mut state.open);
            state.syncing = (!table.is_empty()).then(|| Arc::new(table));
            let record_dirty = std::mem::take(&mut state.record_dirty);
            let destroying = state.record.state == DatasetState::Destroying;
            if state.syncing.is_some() || record_dirty || destroying || all {
                frozen.push(Frozen {
                    volume: Arc::clone(volume),
                    table: state.syncing.clone(),
                    record: state.record.clone(),
                    record_dirty,
                });
            }
        }
        self.core.advance_txg();
        Some((txg, frozen))
    }

    async fn commit_frozen(&self, txg: Txg, frozen: Vec<Frozen>) -> Result<(), PoolError> {
        let pool = &self.core.pool;
        let mut out = pool.begin_write_out(txg);
        let mut written = Vec::new();
        for part in frozen {
            written.push(self.write_out(&mut out, part).await?);
        }
        out.finish().await?;
        for Written { volume, record, .. } in &written {
            publish(volume, record.as_ref());
        }
        pool.clean(&mut out, &self.roots_with(&written), self.core.is_idle()).await?;
        let input = self.write_directory(&mut out, &written).await?;
        pool.commit(out, input).await?;
        self.settle(txg, &written);
        Ok(())
    }

    /// Every dataset's tree as of the txg that was just written and published.
    pub(crate) fn roots_with(&self, written: &[Written]) -> Roots {
        let gone = |id| written.iter().any(|w| w.volume.id == id && w.record.is_none());
        let volumes = self.all_volumes().into_iter().filter(|volume| !gone(volume.id));
        volumes.map(|volume| (volume.id, volume.state.lock().record.root)).collect()
    }

    async fn write_out(&self, out: &mut WriteOut<'_>, part: Frozen) -> Result<Written, PoolError> {
        let Frozen { volume, table, mut record, record_dirty } = part;
        let data_blocks = table.as_ref().map_or(0, |table| table.data_blocks() as u64);
        let charge = table.as_ref().map_or(0, |table| table.charge);
        if record.state == DatasetState::Destroying {
            // More of it goes with the next txg.
            self.core.note_freeing(out.txg.next());
            let gone = !record_dirty && self.free_some(out, &volume, &mut record).await?;
            let record = (!gone).then_some(record);
            return Ok(Written { volume, record, data_blocks, charge, changed: true });
        }
        let height = TreeRoot::height_for(record.size_bytes / BLOCK_BYTES as u64);
        let home = TreeHome::Dataset(volume.id);
        let tree = Tree::new(&self.core.pool, record.root);
        record.root = tree.grow(out, home, height.max(record.root.height)).await?;
        let mut history = volume.state.lock().history;
        let mut changes = Vec::new();
        for (mut change, data) in table.iter().flat_map(|table| table.changes()) {
            if let Some(block) = data {
                let owner = BlockOwner { dataset: volume.id, level: 0, index: change.start };
                let (class, kind) = (SegmentClass::Data, PtrKind::Data);
                let compression = record.compression;
                change.ptr = out
                    .write_block(class, Some(owner), kind, &block, compression, &mut history)
                    .await?;
            }
            changes.push(change);
        }
        volume.state.lock().history = history;
        self.apply(out, &mut record, &changes).await?;
        let changed = table.is_some() || record_dirty;
        Ok(Written { volume, record: Some(record), data_blocks, charge, changed })
    }

    async fn apply(
        &self,
        out: &mut WriteOut<'_>,
        record: &mut DatasetRecord,
        changes: &[Change],
    ) -> Result<(), PoolError> {
        let tree = Tree::new(&self.core.pool, record.root);
        let (root, Delta { blocks, stored_units }) =
            tree.apply(out, TreeHome::Dataset(record.id), changes).await?;
        record.root = root;
        record.used_blocks = record.used_blocks.saturating_add_signed(blocks);
        record.stored_units = record.stored_units.saturating_add_signed(stored_units);
        Ok(())
    }

    /// Frees the next part of a destroyed volume; true when nothing is left.
    async fn free_some(
        &self,
        out: &mut WriteOut<'_>,
        volume: &Volume,
        record: &mut DatasetRecord,
    ) -> Result<bool, PoolError> {
        let from = volume.state.lock().destroy_cursor;
        let mut next = None;
        let tree = Tree::new(&self.core.pool, record.root);
        let scanned = tree
            .scan(from..u64::MAX, &mut |block, _| {
                next = Some(block);
                false
            })
            .await;
        let capacity = TreeRoot::capacity(record.root.height);
        let start = match (scanned, next) {
            (Ok(()), None) => return Ok(true),
            (Ok(()), Some(start)) => start,
            // What is below a damaged node cannot be found; apply reports it and goes on.
            (Err(_), _) => from,
        };
        if start >= capacity {
            return Ok(true);
        }
        let count = DESTROY_BLOCKS_PER_TXG.min(capacity - start);
        let change = Change { start, count, ptr: BlockPtr::HOLE };
        self.apply(out, record, &[change]).await?;
        volume.state.lock().destroy_cursor = start + count;
        Ok(false)
    }

    /// Writes the records that changed into the dataset directory.
    async fn write_directory(
        &self,
        out: &mut WriteOut<'_>,
        written: &[Written],
    ) -> Result<CommitInput, PoolError> {
        let pool = &self.core.pool;
        let (root, _) = pool.datasets();
        let next_dataset = self.next_dataset();
        let mut records: Vec<&Written> = written.iter().collect();
        records.sort_by_key(|written| written.volume.id);
        let mut changes = Vec::new();
        for Written { volume, record, .. } in records {
            let ptr = match record {
                Some(record) => write_directory_block(out, &record.encode()).await?,
                None => BlockPtr::HOLE,
            };
            changes.push(Change { start: volume.id.0, count: 1, ptr });
        }
        let tree = Tree::new(pool, root);
        let height = TreeRoot::height_for(next_dataset).max(root.height);
        let root = tree.grow(out, TreeHome::Root, height).await?;
        let (datasets, _) = Tree::new(pool, root).apply(out, TreeHome::Root, &changes).await?;
        Ok(CommitInput { datasets, next_dataset })
    }

    /// After the uberblock: what was frozen is durable.
    fn settle(&self, txg: Txg, written: &[Written]) {
        for volume in self.all_volumes() {
            let durable = {
                let mut state = volume.state.lock();
                if state.overflow == Some(txg) {
                    state.overflow = None;
                }
                state.syncing_acked
            };
            volume.set_durable(durable);
        }
        for Written { volume, record, .. } in written {
            if record.is_none() {
                self.volume_list.write().retain(|other| other.id != volume.id);
            }
        }
        self.core.measure_after_commit(written.iter().any(|w| w.changed));
        self.core.sub_dirty(written.iter().map(|w| w.data_blocks).sum());
        self.core.uncharge(written.iter().map(|w| w.charge).sum());
        self.core.announce_commit(txg);
    }

    /// Commits until [`Engine::stop`] is called or the pool is suspended: every few seconds, or at
    /// once when somebody asks. `sleep` is the driver's timer.
    pub async fn run<S: Future<Output = ()>>(
        &self,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), DatasetError> {
        loop {
            if !self.core.wants_early_commit() && !self.is_stopping() {
                let timer = std::pin::pin!(sleep(TXG_INTERVAL));
                let woken = std::pin::pin!(self.core.wake_committer.notified());
                let timer = matches!(select(woken, timer).await, Either::Right(_));
                if !timer && !self.core.wants_early_commit() && !self.is_stopping() {
                    continue;
                }
                self.core.set_idle(timer);
                if timer && self.core.pool.wants_idle_cleaning() {
                    self.core.want(self.core.open_txg());
                }
            } else {
                self.core.set_idle(false);
            }
            // Asked before: a stop that comes during a commit is owed another one, for what was
            // acknowledged since that commit's cut.
            let stopping = self.is_stopping();
            self.commit().await?;
            if stopping {
                return Ok(());
            }
        }
    }
}

/// Shows readers the new tree and drops the table it was made from.
fn publish(volume: &Volume, record: Option<&DatasetRecord>) {
    let mut state = volume.state.lock();
    if let Some(record) = record {
        state.record.root = record.root;
        state.record.used_blocks = record.used_blocks;
        state.record.stored_units = record.stored_units;
    }
    let table = state.syncing.take();
    drop(state);
    // Freeing many blocks takes a while; nobody waits for it under the lock.
    drop(table);
}
