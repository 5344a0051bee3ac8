//! Administrator of a scenario: creates, resizes and destroys volumes under load.
//!
//! `client` writes data, `snapshots` handles snapshots and clones, `ranges` makes block clones.
//!
//! Invariant: a call is recorded as pending before it starts, and as acknowledged right after it
//! returns.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::BLOCK_BYTES;
use weir_base::RecordSize;
use weir_base::ZstdLevel;
use weir_base::property::{COMPRESSION, QUOTA, RESERVATION};
use weir_dataset::{DatasetError, Engine, PropertyChange, PropertyTarget, VolumeSize};
use weir_format::Compression;

use crate::coverage::{CoveragePoint, note};
use crate::error::Stop;
use crate::executor::Executor;
use crate::expected::{ExpectedState, LARGE_RECORD};
use crate::history::Presence;
use crate::rng::Rng;

/// Number of block clones that the administrator tries after it set a new quota.
const CLONES_AGAINST_QUOTA: usize = 3;
/// Maximum space that a tight quota leaves for writes, above the space that the volume already
/// uses.
const QUOTA_LEAVES_BYTES: u64 = 6 * BLOCK_BYTES as u64;

pub(crate) struct Admin {
    pub(crate) rng: Rng,
    pub(crate) engine: Arc<Engine>,
    pub(crate) expected: Rc<RefCell<ExpectedState>>,
    pub(crate) executor: Executor,
}

impl Admin {
    pub(crate) async fn step(&mut self) -> Result<(), Stop> {
        if self.rng.coin() {
            return self.snapshot_step().await;
        }
        let index = self.rng.index(self.expected.borrow().volumes.len());
        let (presence, name) = {
            let expected = self.expected.borrow();
            (expected.volumes[index].presence, expected.volumes[index].name.clone())
        };
        if presence != Presence::There {
            return self.create(index, name).await;
        }
        match self.rng.below(10) {
            // Keep the first volumes, so that clients always find volumes to write.
            0..4 if name.starts_with('t') => self.destroy(index, &name).await,
            4 => self.set_dedupe(&name).await,
            5 => self.set_compression(index, &name).await,
            6..8 => self.set_limits(index, &name).await,
            _ => self.resize(index, &name).await,
        }
    }

    /// Draws a size in blocks for a volume with this record size.
    fn some_blocks(&mut self, record: RecordSize) -> usize {
        let (max, blocks) = (self.expected.borrow().blocks_max(), record.blocks() as usize);
        (1 + self.rng.index(max / blocks)) * blocks
    }

    async fn create(&mut self, index: usize, name: String) -> Result<(), Stop> {
        // Give few volumes large records: with large records, less space is freed and cleaned.
        let record = if self.rng.below(4) == 0 { LARGE_RECORD } else { RecordSize::BLOCK };
        let blocks = self.some_blocks(record);
        let compression = self.some_compression();
        self.expected.borrow_mut().create(index, blocks, compression, None);
        let size = VolumeSize { bytes: (blocks * BLOCK_BYTES) as u64, record };
        let changes = [PropertyChange::set(COMPRESSION, compression)];
        self.engine.create_volume_with(&name, size, &changes).await.map_err(Stop::Failed)?;
        if !record.is_block() {
            note(CoveragePoint::RecordsOfSeveral);
        }
        self.expected.borrow_mut().volumes[index].presence = Presence::There;
        note(CoveragePoint::VolumeCreated);
        Ok(())
    }

    async fn destroy(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let snapshots = self.snapshots_of(name).await?;
        self.expected.borrow_mut().mark(&snapshots, Presence::Destroying);
        self.expected.borrow_mut().volumes[index].presence = Presence::Destroying;
        let presence = match self.engine.destroy_volume(name, true).await {
            Ok(_) => Presence::Gone,
            Err(DatasetError::InUse { .. }) => Presence::There,
            Err(error) => return Err(Stop::Failed(error)),
        };
        note(if presence == Presence::Gone {
            CoveragePoint::VolumeDestroyed
        } else {
            CoveragePoint::OriginKept
        });
        self.expected.borrow_mut().mark(&snapshots, presence);
        self.expected.borrow_mut().volumes[index].presence = presence;
        Ok(())
    }

    async fn resize(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let record = self.engine.volume(name).map_err(Stop::Failed)?.record_size();
        let blocks = self.some_blocks(record);
        let before = self.expected.borrow().volumes[index].size.known;
        self.expected.borrow_mut().volumes[index].size.asked = Some(blocks);
        let done = self.engine.resize_volume(name, (blocks * BLOCK_BYTES) as u64).await;
        let mut expected = self.expected.borrow_mut();
        let book = &mut expected.volumes[index];
        match done {
            Ok(_) => {
                note(if blocks < before {
                    CoveragePoint::VolumeShrunk
                } else {
                    CoveragePoint::VolumeGrown
                });
                book.size.settle();
                Ok(())
            }
            Err(DatasetError::ShrinkBelowData { .. }) if blocks < before => {
                note(CoveragePoint::ShrinkRefused);
                book.size.asked = None;
                Ok(())
            }
            Err(DatasetError::Quota { .. }) if blocks > before => {
                book.size.asked = None;
                Ok(())
            }
            Err(error) => Err(Stop::Failed(error)),
        }
    }

    /// Sets the property dedupe. Dedupe changes only the space used, so the expected state does not
    /// record this property.
    async fn set_dedupe(&mut self, name: &str) -> Result<(), Stop> {
        let dedupe = self.rng.below(4) > 0;
        self.engine.set_dedupe(name, dedupe).await.map_err(Stop::Failed)?;
        Ok(())
    }

    fn some_compression(&mut self) -> Compression {
        // Draw each kind of compression equally often, and any level of zstd.
        match self.rng.below(4) {
            0 => Compression::Off,
            1 => Compression::Lz4,
            2 => Compression::Auto,
            _ => {
                let levels: Vec<ZstdLevel> = ZstdLevel::all().collect();
                Compression::Zstd(levels[self.rng.index(levels.len())])
            }
        }
    }

    async fn set_compression(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let compression = self.some_compression();
        self.expected.borrow_mut().volumes[index].compression.asked = Some(compression);
        self.engine.set_compression(name, compression).await.map_err(Stop::Failed)?;
        self.expected.borrow_mut().volumes[index].compression.settle();
        Ok(())
    }

    /// Sets quota and reservation of a volume: often none, otherwise a quota that the next writes
    /// reach and a reservation close to the volume's size.
    async fn set_limits(&mut self, index: usize, name: &str) -> Result<(), Stop> {
        let max = (self.expected.borrow().blocks_max() * BLOCK_BYTES) as u64;
        let used = self.engine.volume(name).map_err(Stop::Failed)?.info().space.used;
        let rng = &mut self.rng;
        let reservation = if rng.coin() { 0 } else { 1 + rng.below(2 * max) };
        let quota = match rng.below(4) {
            0 => 0,
            1 => 1 + rng.below(2 * max),
            _ => used + rng.below(QUOTA_LEAVES_BYTES),
        };
        self.expected.borrow_mut().volumes[index].limits.asked = Some((quota, reservation));
        let target = [PropertyTarget::Volume(name.to_owned())];
        let changes =
            [PropertyChange::set(QUOTA, quota), PropertyChange::set(RESERVATION, reservation)];
        let done = self.engine.change_properties(&target, &changes).await;
        {
            let limits = &mut self.expected.borrow_mut().volumes[index].limits;
            match done {
                Ok(_) => limits.settle(),
                Err(DatasetError::Limit { .. } | DatasetError::CannotReserve { .. }) => {
                    limits.asked = None;
                }
                Err(error) => return Err(Stop::Failed(error)),
            }
        }
        if quota > 0 {
            // Try block clones against the new quota before client writes reach it.
            for _ in 0..CLONES_AGAINST_QUOTA {
                self.clone_range_of(index, name).await?;
            }
        }
        Ok(())
    }
}
