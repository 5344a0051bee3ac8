//! Intent log: a ring of batches on every leg of one vdev, and its move to another vdev.
//!
//! weir-dataset fills a batch and waits for its write; [`crate::log::replay`] reads the log back.
//!
//! Invariants:
//! - I6: `write` returns `Ok` only when the batch is durable on every leg that the newest uberblock
//!   does not list as stale;
//! - one batch is written at a time, so batch k+1 exists only if batch k was acknowledged;
//! - the space of a batch is reused only once a durable uberblock no longer needs the batch;
//! - batches never wrap ([`IntentLog::place`]); the log moves only when no batch is needed;
//! - the region is zeroed before the first use of a leg: it holds only zeros and stamped sectors of
//!   this pool's batches.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_base::{Guid, Txg};
use weir_block::IoBuf;
use weir_device::Durability;
use weir_format::layout::LABEL_BYTES;
use weir_format::log::{BatchBuilder, BatchId};

use crate::disks::leg::Leg;
use crate::disks::vdevs::Vdevs;
use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;

/// Reason why a batch was not logged.
#[derive(Debug)]
pub enum LogWriteError {
    /// The changes of the batch are durable only after a commit: the ring is full, the log moves,
    /// or a leg missed batches before any uberblock lists it as stale.
    NeedsCommit,
    /// The disks failed.
    Pool(PoolError),
}

struct LiveBatch {
    offset: u64,
    batch: u64,
    bytes: u64,
    newest_txg: Txg,
}

struct Ring {
    vdev: u16,
    /// Vdev to which the log is to move, if a move was requested. The log moves once no batch on
    /// its present vdev is needed.
    moving_to: Option<u16>,
    epoch: u64,
    head: u64,
    next_batch: u64,
    /// Batches that replay may need for an uncommitted txg, oldest first.
    live: VecDeque<LiveBatch>,
    live_bytes: u64,
}

/// The intent log of one pool.
pub(crate) struct IntentLog {
    pool: Guid,
    region_bytes: u64,
    ring: Mutex<Ring>,
    bug: PlantedBug,
}

/// First batch to replay after an import, as the uberblock names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogStart {
    pub(crate) vdev: u16,
    pub(crate) epoch: u64,
    pub(crate) batch: u64,
    pub(crate) offset: u64,
}

impl IntentLog {
    pub(crate) fn new(
        pool: Guid,
        region_bytes: u64,
        vdev: u16,
        epoch: u64,
        bug: PlantedBug,
    ) -> Self {
        let ring = Ring {
            vdev,
            moving_to: None,
            epoch,
            head: 0,
            next_batch: 1,
            live: VecDeque::new(),
            live_bytes: 0,
        };
        Self { pool, region_bytes, ring: Mutex::new(ring), bug }
    }

    /// Vdev that holds the log.
    pub(crate) fn vdev(&self) -> u16 {
        self.ring.lock().vdev
    }

    /// Requests a move to another vdev; [`Self::start_after`] and [`Self::release`] perform it. A
    /// commit moves the log with an uberblock that needs no batch on the old vdev. From this
    /// request until that uberblock is durable, no batch is logged. The first batch on the new vdev
    /// has the next number.
    pub(crate) fn move_to(&self, vdev: u16) {
        let mut ring = self.ring.lock();
        ring.moving_to = (ring.vdev != vdev).then_some(vdev);
    }

    /// Writes one batch. Calls must not overlap.
    ///
    /// # Durability
    /// When the call returns `Ok`, the batch is on stable media of every leg that the newest
    /// uberblock does not list as stale. If the call returned `Ok` although such a leg lacks the
    /// batch, an import of that leg alone would miss the batch, because only an uberblock shows
    /// that other legs are newer.
    pub(crate) async fn write(
        &self,
        vdevs: &Vdevs,
        builder: BatchBuilder,
        newest_txg: Txg,
    ) -> Result<(), LogWriteError> {
        let packed = builder.pack();
        let len = packed.batch_bytes();
        let mut bytes = IoBuf::zeroed(len);
        let (vdev, epoch, batch, offset) = {
            // Reserve the space before the write, so that a concurrent commit knows that the space
            // is in use.
            let mut ring = self.ring.lock();
            if ring.moving_to.is_some() {
                return Err(LogWriteError::NeedsCommit);
            }
            let offset = self.place(&ring, len as u64).ok_or(LogWriteError::NeedsCommit)?;
            let batch = ring.next_batch;
            if offset < ring.head {
                tracing::debug!(batch, "log ring wraps");
            }
            ring.head = offset + len as u64;
            ring.next_batch = batch + 1;
            ring.live_bytes += len as u64;
            ring.live.push_back(LiveBatch { offset, batch, bytes: len as u64, newest_txg });
            (&vdevs[usize::from(ring.vdev)], ring.epoch, batch, offset)
        };
        packed.finish(BatchId { pool: self.pool, epoch, batch }, offset, &mut bytes);
        let durability = match self.bug {
            PlantedBug::AckBeforeLogDurable => Durability::Cached,
            _ => Durability::Durable,
        };
        vdev.write(LABEL_BYTES + offset, &Arc::new(bytes), 0..len, durability)
            .await
            .map_err(LogWriteError::Pool)?;
        if vdev.legs.iter().any(Leg::is_unlisted) && self.bug != PlantedBug::UnlistedLegsIgnored {
            return Err(LogWriteError::NeedsCommit);
        }
        Ok(())
    }

    /// Offset of the first free range of `len` bytes. The range ends strictly before the oldest
    /// live batch, so that a full ring differs from an empty one. A batch that does not fit before
    /// the end of the region starts at 0, so a reader searches for the next batch at 0 and after
    /// the last batch.
    fn place(&self, ring: &Ring, len: u64) -> Option<u64> {
        let to_end = ring.head + len <= self.region_bytes;
        let Some(oldest) = ring.live.front() else {
            return (len <= self.region_bytes).then_some(if to_end { ring.head } else { 0 });
        };
        if ring.head > oldest.offset {
            if to_end { Some(ring.head) } else { (len < oldest.offset).then_some(0) }
        } else {
            (ring.head + len < oldest.offset).then_some(ring.head)
        }
    }

    /// True if live batches fill more than half of the log region, so that a commit should release
    /// space.
    pub(crate) fn half_full(&self) -> bool {
        self.ring.lock().live_bytes > self.region_bytes / 2
    }

    /// First batch to replay once txg `committed` is on disk.
    pub(crate) fn start_after(&self, committed: Txg) -> LogStart {
        let ring = self.ring.lock();
        let needed = ring.live.iter().find(|live| live.newest_txg > committed);
        if let Some(vdev) = ring.moving_to
            && (needed.is_none() || self.bug == PlantedBug::LogMovesEarly)
        {
            return LogStart { vdev, epoch: ring.epoch, batch: ring.next_batch, offset: 0 };
        }
        LogStart {
            vdev: ring.vdev,
            epoch: ring.epoch,
            batch: needed.map_or(ring.next_batch, |live| live.batch),
            offset: needed.map_or(ring.head, |live| live.offset),
        }
    }

    /// Releases the batches before `start`, the batch that a durable uberblock names as the start
    /// of the replay. Batches logged after that uberblock was built stay, even if their txgs are
    /// committed by now.
    pub(crate) fn release(&self, start: LogStart) {
        let mut ring = self.ring.lock();
        while let Some(live) = ring.live.pop_front_if(|live| live.batch < start.batch) {
            ring.live_bytes -= live.bytes;
        }
        if ring.vdev != start.vdev {
            assert!(ring.live.is_empty(), "the log moves when no batch is needed");
            tracing::info!(from = ring.vdev, to = start.vdev, "intent log moved");
            (ring.vdev, ring.head) = (start.vdev, 0);
            ring.moving_to = ring.moving_to.filter(|vdev| *vdev != start.vdev);
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_base::{DatasetId, Lsn, SystemClock};
    use weir_codec::checksum::xxh3_64;
    use weir_device::{Device, MemoryDevice, new_runtime};
    use weir_format::layout::FORMAT_VERSION;
    use weir_format::{Features, Label, LegConfig, VdevConfig, VdevKind, VdevRole};

    use weir_format::log::ALIGN_BYTES;

    use super::*;
    use crate::disks::owner_guard::OwnerGuard;
    use crate::disks::vdev::Vdev;
    use crate::log::replay::Replay;
    use crate::options::PoolOptions;

    const REGION_BYTES: u64 = 64 << 10;

    fn disk() -> Vdevs {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new("disk", 8 << 20));
        let leg = LegConfig { guid: Guid(1), path: String::new() };
        let (kind, role, legs) = (VdevKind::Disk, VdevRole::Data, vec![leg]);
        let config = VdevConfig { kind, role, disk_bytes: 8 << 20, legs };
        let label = Label {
            version: FORMAT_VERSION,
            pool: Guid(7),
            name: "tank".to_owned(),
            disk: Guid(1),
            txg: Txg(1),
            segment_bytes: 1 << 16,
            strip_bytes: 4096,
            log_bytes: REGION_BYTES,
            vdevs: vec![config],
            features: Features::default(),
        };
        let clock = Arc::new(SystemClock::default());
        let options = PoolOptions { cache_bytes: 0, clock, bug: PlantedBug::None };
        let legs = vec![Leg::new(Guid(1), String::new(), Some(device))];
        let guard = OwnerGuard::new(&options.clock, PlantedBug::None);
        Vdevs::new(vec![Vdev::new(&label, 0, legs, &options)], guard)
    }

    /// Bytes that LZ4 cannot compress.
    fn noise(bytes: usize) -> Vec<u8> {
        let words = (0..bytes as u64 / 8).map(|word| xxh3_64(&[&word.to_le_bytes()]).to_le_bytes());
        words.flatten().collect()
    }

    /// Logs one batch of exactly `bytes`, a multiple of `ALIGN_BYTES`.
    async fn log(
        ring: &IntentLog,
        vdevs: &Vdevs,
        txg: Txg,
        bytes: usize,
    ) -> Result<(), LogWriteError> {
        let mut builder = BatchBuilder::default();
        let payload = noise(bytes - ALIGN_BYTES);
        builder.push_write(Lsn(1), txg, DatasetId(1), 0, std::iter::once(&payload[..]));
        ring.write(vdevs, builder, txg).await?;
        let logged = ring.ring.lock().live.back().map(|live| live.bytes);
        assert_eq!(logged, Some(bytes as u64));
        Ok(())
    }

    /// A batch of a txg that is being committed may be logged after the uberblock of that txg was
    /// built. Replay starts with that batch, so its space must not be reused before the next
    /// commit.
    #[test]
    fn batch_that_the_uberblock_names_is_kept() {
        new_runtime().unwrap().block_on(async {
            let vdevs = disk();
            let ring = IntentLog::new(Guid(7), REGION_BYTES, 0, 1, PlantedBug::None);
            log(&ring, &vdevs, Txg(1), 16 << 10).await.unwrap();
            let start = ring.start_after(Txg(1));
            log(&ring, &vdevs, Txg(1), 16 << 10).await.unwrap();
            ring.release(start);
            let mut logged = 0;
            while logged < 20 && log(&ring, &vdevs, Txg(2), 8 << 10).await.is_ok() {
                logged += 1;
            }
            assert!((1..20).contains(&logged), "the ring is full after {logged}");
            let mut replay = Replay::new(&vdevs[0], Guid(7), "tank", REGION_BYTES, start);
            let mut found = 0;
            while replay.next(false).await.unwrap().is_some() {
                found += 1;
            }
            assert_eq!(found, 1 + logged, "the batch the uberblock names, and all later ones");
        });
    }
}
