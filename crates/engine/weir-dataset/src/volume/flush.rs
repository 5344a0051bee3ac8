//! Flush: group commit of queued changes to the intent log, or a wait for the commit of their txg.
//!
//! weir-pool manages the ring of the log.
//!
//! Invariants:
//! - prefix rule: a batch holds queued changes of a volume in order and without gaps, from the
//!   oldest on, so a crash leaves a prefix of the volume's acknowledged changes;
//! - a dataset with many objects follows the closure rule of `objects::object_log` instead;
//! - all parts of a change are in one batch;
//! - a change of txg N+1 is never logged before a change of txg N that is neither logged nor
//!   committed: a volume whose queue overflowed in txg N first waits for the commit of txg N;
//! - one task at a time writes a batch ([`Engine::log_round`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::limits::LOG_BATCH_BYTES_MAX;
use weir_base::{Lsn, Txg};
use weir_format::log::BatchBuilder;
use weir_pool::{LogWriteError, PlantedBug};

use crate::error::DatasetError;
use crate::objects::log_queue::{FlushStep, Payload, QueuedRecord};
use crate::objects::object_log::{QueuedObjectRecord, SyncOf, TakenObjects};
use crate::state::engine::Engine;
use crate::state::shared::Core;
use crate::state::volume::Volume;

/// Changes of one volume in a batch.
enum Records {
    Volume(Vec<QueuedRecord>),
    Objects(TakenObjects),
}

struct Taken {
    volume: Arc<Volume>,
    records: Records,
    /// Newest txg of the changes.
    newest: Txg,
}

impl Taken {
    /// Copies queued changes of a volume for a batch. `None` if no change must be logged now.
    fn new(volume: Arc<Volume>, room: &mut usize) -> Option<Self> {
        let state = volume.state.lock();
        let records = match &state.objects {
            None => Records::Volume(state.object.log.take_records(room)),
            // The commit of the skipped txg comes first, as for a volume.
            Some(_) if state.object.log.is_skipping() => return None,
            Some(set) => Records::Objects(set.log.take(room, volume.core.pool.bug())),
        };
        drop(state);
        let newest = match &records {
            Records::Volume(records) => records.iter().map(|record| record.txg).max(),
            Records::Objects(taken) => taken.records.iter().map(|record| record.txg).max(),
        };
        Some(Self { volume, records, newest: newest? })
    }

    fn push_to(&self, builder: &mut BatchBuilder) {
        match &self.records {
            Records::Volume(records) => {
                records.iter().for_each(|record| push(builder, &self.volume, record));
            }
            Records::Objects(taken) => {
                taken.records.iter().for_each(|change| push_object(builder, &self.volume, change));
            }
        }
    }

    /// Notes that the changes are in the intent log.
    fn set_durable(&self) {
        let mut state = self.volume.state.lock();
        match &self.records {
            Records::Volume(records) => {
                let last = records.last().expect("only volumes with records are kept");
                state.object.log.set_durable(last.lsn);
            }
            Records::Objects(taken) => {
                if let Some(set) = &mut state.objects {
                    set.log.set_durable(taken);
                }
            }
        }
    }
}

/// A flush in progress, whose changes the log writer includes in its batches.
struct Waiting<'a> {
    volume: &'a Volume,
    /// LSN of the last change that the flush makes durable.
    target: Lsn,
    /// Changes of a dataset with many objects that the flush makes durable; `None` for a volume.
    objects: Option<SyncOf>,
}

impl<'a> Waiting<'a> {
    fn new(volume: &'a Volume, of: SyncOf) -> Self {
        let mut state = volume.state.lock();
        let target = state.object.log.acked();
        let objects = state.objects.as_mut().map(|set| {
            set.log.add_waiting(of, target);
            of
        });
        volume.flush_waiters.fetch_add(1, Ordering::AcqRel);
        Self { volume, target, objects }
    }

    fn next_step(&self) -> FlushStep {
        let state = self.volume.state.lock();
        match (state.object.log.next_step(self.target), self.objects, &state.objects) {
            (FlushStep::Log, Some(of), Some(set)) => {
                set.log.next_step(of, self.target, self.volume.core.pool.bug())
            }
            (step, ..) => step,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let (Some(of), Some(set)) = (self.objects, &mut self.volume.state.lock().objects) {
            set.log.remove_waiting(of, self.target);
        }
        self.volume.flush_waiters.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Engine {
    /// Makes every change to the volume that was acknowledged before this call durable.
    ///
    /// # Durability
    /// The changes are in the intent log or in a committed txg, on every leg in use, when this
    /// returns `Ok`.
    ///
    /// # Errors
    /// The pool is suspended. A crash may lose all changes acknowledged since the last successful
    /// flush.
    ///
    /// # Cancel safety
    /// None: poll the future to completion. Dropping it during a log write suspends the pool.
    #[boxed(?Send)]
    pub async fn flush(&self, volume: &Volume) -> Result<(), DatasetError> {
        self.sync_objects(volume, SyncOf::All).await
    }

    /// Makes changes of a dataset with many objects durable: all changes of the namespace and all
    /// changes of `of` that were acknowledged before this call. For a volume, makes all changes
    /// durable.
    ///
    /// # Durability
    /// As [`Self::flush`]. Changes of other objects may become durable, too.
    ///
    /// # Errors
    /// As [`Self::flush`].
    ///
    /// # Cancel safety
    /// As [`Self::flush`].
    #[boxed(?Send)]
    pub async fn sync_objects(&self, volume: &Volume, of: SyncOf) -> Result<(), DatasetError> {
        let core = &self.core;
        core.pool.check_alive()?;
        let waiting = Waiting::new(volume, of);
        loop {
            match waiting.next_step() {
                FlushStep::Done => return Ok(core.pool.check_alive()?),
                FlushStep::Commit(txg) => core.committed(txg).await?,
                FlushStep::Log => {
                    let _writer = core.log_writer.lock().await;
                    if matches!(waiting.next_step(), FlushStep::Log) {
                        self.log_round(volume.id).await?;
                        if core.pool.bug() == PlantedBug::SyncEndsEarly {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Logs one batch: the queued changes of volume `first`, then those of every other volume with
    /// a waiting flush. The caller holds `log_writer`; tasks that wait for this lock find their
    /// changes in this batch or in the next one.
    #[boxed(?Send)]
    async fn log_round(&self, first: weir_base::DatasetId) -> Result<(), DatasetError> {
        let mut volumes: Vec<Arc<Volume>> =
            self.volumes().into_iter().filter(|volume| volume.waiters() > 0).collect();
        volumes.sort_by_key(|volume| volume.id != first);
        let mut room = LOG_BATCH_BYTES_MAX;
        let mut taken: Vec<Taken> = Vec::new();
        for volume in volumes {
            if room == 0 {
                break;
            }
            taken.extend(Taken::new(volume, &mut room));
        }
        let mut builder = BatchBuilder::default();
        taken.iter().for_each(|taken| taken.push_to(&mut builder));
        let newest = taken.iter().map(|taken| taken.newest).max();
        let Some(newest) = newest else { return Ok(()) };
        let guard = DropGuard { core: &self.core, armed: true };
        let logged = self.core.pool.log_write(builder, newest).await;
        guard.disarm();
        match logged {
            Ok(()) => {
                taken.iter().for_each(Taken::set_durable);
                if self.core.pool.log_half_full() {
                    self.core.wake_committer.notify_one();
                }
                Ok(())
            }
            Err(LogWriteError::NeedsCommit) => {
                tracing::debug!(txg = newest.0, "the flush waits for a commit");
                self.core.committed(newest).await
            }
            Err(LogWriteError::Pool(error)) => {
                self.core.announce_poison();
                Err(error.into())
            }
        }
    }
}

fn push(builder: &mut BatchBuilder, volume: &Volume, record: &QueuedRecord) {
    let QueuedRecord { lsn, txg, offset, payload } = record;
    match payload {
        Payload::One(block) => {
            builder.push_write(*lsn, *txg, volume.id, *offset, std::iter::once(&block[..]));
        }
        Payload::Many(blocks) => {
            let parts = blocks.iter().map(|block| &block[..]);
            builder.push_write(*lsn, *txg, volume.id, *offset, parts);
        }
        Payload::Zero { bytes } => builder.push_zero(*lsn, *txg, volume.id, *offset, *bytes),
    }
}

fn push_object(builder: &mut BatchBuilder, volume: &Volume, change: &QueuedObjectRecord) {
    let QueuedObjectRecord { lsn, txg, record } = change;
    let blocks = record.blocks.iter().map(|block| &block[..]);
    let payload = std::iter::once(&record.payload[..]).chain(blocks);
    builder.push_object((*lsn, *txg), volume.id, (record.object, record.kind), payload);
}

/// Suspends the pool if the future of a log write is dropped before it completes: the batch may or
/// may not be on disk, so later batches must not follow it.
struct DropGuard<'a> {
    core: &'a Core,
    armed: bool,
}

impl DropGuard<'_> {
    fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for DropGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.core.pool.poison(&"an intent log write was abandoned");
            self.core.announce_poison();
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_base::BLOCK_BYTES;

    use crate::copy::block_clone::tests::{engine, now};

    const BLOCK: u64 = BLOCK_BYTES as u64;

    /// A zeroing change that begins and ends within blocks has three log records. If a batch held
    /// only the first record, a crash after this batch would leave only a part of the change.
    #[test]
    fn batch_holds_all_parts_of_a_change_or_none() {
        let (_engine, _, b) = engine();
        now(b.write(0, &[1; 4 * BLOCK_BYTES])).unwrap();
        now(b.zero(10 * BLOCK + 512, 5 * BLOCK)).unwrap();
        now(b.write(20 * BLOCK + 512, &[2; 3 * BLOCK_BYTES])).unwrap();
        let lens = |mut room: usize| {
            let records = b.state.lock().object.log.take_records(&mut room);
            records.iter().map(|record| record.lsn.0).collect::<Vec<_>>()
        };
        let all = lens(1 << 20);
        let [first, zero, last] = [all[0], all[1], all[all.len() - 1]];
        assert_eq!(all, [first, zero, zero, zero, last]);
        assert_eq!(last, first + 2, "an unaligned write is one record");
        assert_eq!(lens(0), [first]);
        assert_eq!(lens(4 * BLOCK_BYTES), [first]);
        for room in [5 * BLOCK_BYTES, 5 * BLOCK_BYTES + 64, 6 * BLOCK_BYTES + 64] {
            assert_eq!(lens(room), all[..4], "{room}");
        }
    }
}
