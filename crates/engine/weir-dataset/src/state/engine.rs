//! The engine of one pool: making, opening, listing, changing and destroying volumes.
//!
//! Not here: data (volume, volume_read, flush) and committing (commit).
//!
//! Invariants:
//! - a change to the set of volumes is committed before it is acknowledged;
//! - changing calls say whether anything changed, so each can be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_recursion::async_recursion as boxed;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Semaphore};
use weir_base::{Clock, DatasetId};
use weir_format::{Compression, DatasetState};
use weir_pool::{LateDisk, PlantedBug, Pool, PoolOptions};

use crate::error::DatasetError;
use crate::state::outcome::Outcome;
use crate::state::replacement::Succession;
use crate::state::scan_requests::ScanDesk;
use crate::state::shared::Core;
use crate::state::traffic::Traffic;
use crate::state::volume::Volume;

/// Parts of the memory budget; the rest is buffers in flight, log queues and the program.
const CACHE_PERCENT: u64 = 38;
pub(crate) const DIRTY_PERCENT: u64 = 42;

/// Part of the memory budget that the dedupe index takes at most, as a divisor; it comes out of the
/// caches' part once there is something in it.
pub(crate) const HINT_SHARE: u64 = 5;
/// ... and never more than this, unless told otherwise: 50 million blocks.
pub(crate) const HINT_BYTES_MAX: u64 = 1 << 30;

/// How to run an engine; nothing of it is stored.
#[derive(Clone)]
pub struct EngineOptions {
    /// RAM for dirty data and caches of this pool.
    pub memory_bytes: u64,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A deliberate fault, for the simulator.
    pub bug: PlantedBug,
}

impl EngineOptions {
    pub(crate) fn pool(&self) -> PoolOptions {
        PoolOptions {
            cache_bytes: self.memory_bytes / 100 * CACHE_PERCENT,
            clock: Arc::clone(&self.clock),
            bug: self.bug,
        }
    }
}

/// Records that a segment has room for at least: eight, but for what rounding to whole rows takes.
pub(crate) const RECORDS_OF_SEGMENT: u64 = 7;

/// A volume to make, with records that are blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSpec {
    /// Name inside the pool.
    pub name: String,
    /// Size in bytes, whole blocks.
    pub size_bytes: u64,
    /// Compression of new blocks.
    pub compression: Compression,
}

/// One open pool with its volumes.
pub struct Engine {
    pub(crate) core: Arc<Core>,
    /// Every dataset, those being destroyed included, by number.
    pub(crate) volume_list: RwLock<Vec<Arc<Volume>>>,
    pub(crate) next_dataset: AtomicU64,
    pub(crate) datasets_max: AtomicUsize,
    /// Held by whoever changes the set of volumes or a property.
    pub(crate) admin: Mutex<()>,
    pub(crate) stopping: AtomicBool,
    /// Blocks that range clones may refer to with one txg.
    pub(crate) clone_room: Semaphore,
    pub(crate) traffic: Traffic,
    pub(crate) scans: ScanDesk,
    /// Disks that did not answer while the pool was opened.
    pub(crate) late: parking_lot::Mutex<Vec<LateDisk>>,
    /// Replaced legs that wait for their successors.
    pub(crate) successions: parking_lot::Mutex<Vec<Succession>>,
    /// Numbers of the directory's records that hold the list of damage.
    pub(crate) damage_records: parking_lot::Mutex<Vec<DatasetId>>,
}

impl Engine {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// What clients asked for; whoever serves a protocol counts it here.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Commits what is acknowledged now.
    ///
    /// # Durability
    /// Everything acknowledged before this call is on disk when it returns `Ok`.
    #[boxed(?Send)]
    pub async fn sync(&self) -> Result<(), DatasetError> {
        self.core.pool.check_alive()?;
        self.core.want(self.core.open_txg());
        self.commit().await
    }

    /// Suspends the pool and ends every wait for its disks with an error, so that the engine can
    /// be dropped though the disks do not answer.
    ///
    /// # Durability
    /// What was flushed is safe; what was only acknowledged is lost, as by a crash.
    pub fn abandon(&self, why: &dyn std::fmt::Display) {
        self.core.pool.abandon(why);
        self.core.announce_poison();
        self.stop();
    }

    /// Dirty data now.
    pub fn dirty_bytes(&self) -> u64 {
        self.core.dirty_bytes()
    }

    /// Bytes of the pool that user data never gets.
    pub fn reserve_bytes(&self) -> u64 {
        self.core.reserve_bytes()
    }

    /// Changes the budget of this pool's dirty data and caches.
    pub fn set_memory(&self, bytes: u64) {
        self.core.pool.set_cache_bytes(bytes / 100 * CACHE_PERCENT);
        self.core.set_dirty_max(bytes / 100 * DIRTY_PERCENT);
    }

    /// Changes the most RAM that the dedupe index takes; it is emptied by that.
    pub fn set_dedupe_memory(&self, bytes: u64) {
        self.core.pool.set_hint_bytes(bytes);
    }

    /// Makes [`Self::run`] commit once more and return, and [`Self::run_scans`] return.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.core.wake_committer.notify_one();
        self.scans.wake.notify_one();
    }

    /// Whether [`Self::abandon`] was called: calls that wait for disks it does not reach, such as
    /// one that was to be added, shall not be waited for either.
    pub fn is_abandoned(&self) -> bool {
        self.is_stopping() && self.core.pool.check_alive().is_err()
    }

    /// Whether [`Self::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn next_dataset(&self) -> u64 {
        self.next_dataset.load(Ordering::Acquire)
    }

    /// A number that nothing in the directory has.
    pub(crate) fn new_dataset(&self) -> DatasetId {
        DatasetId(self.next_dataset.fetch_add(1, Ordering::AcqRel))
    }

    /// Sets the maximum number of datasets of the pool in place of [`DATASETS_MAX`], for tests.
    pub fn set_datasets_max(&self, datasets: usize) {
        self.datasets_max.store(datasets, Ordering::Release);
    }

    /// Refuses `more` datasets above the maximum of the pool. Hidden volumes and snapshots count
    /// too. The caller holds the admin lock.
    ///
    /// # Errors
    /// `TooMany`.
    pub(crate) fn refuse_too_many(&self, more: usize) -> Result<(), DatasetError> {
        let count = |volume: &Arc<Volume>| {
            let state = volume.state.lock();
            1 + state.snapshots.len() + state.bookmarks.len()
        };
        let count = self.volume_list.read().iter().map(count).sum::<usize>();
        if count + more <= self.datasets_max.load(Ordering::Acquire) {
            return Ok(());
        }
        let (name, what) = (self.core.pool.name().to_owned(), "volumes, snapshots and bookmarks");
        Err(DatasetError::TooMany { name, count, what })
    }

    pub(crate) fn all_volumes(&self) -> Vec<Arc<Volume>> {
        self.volume_list.read().clone()
    }

    /// Volumes in the order they were made.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.all_volumes();
        volumes.retain(|volume| volume.state.lock().record.state == DatasetState::Active);
        volumes
    }

    /// The volume of this name.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, DatasetError> {
        let found = self.volumes().into_iter().find(|v| v.state.lock().record.name == name);
        found.ok_or_else(|| DatasetError::NotFound { name: self.full_name(name) })
    }

    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}/{name}", self.core.pool.name())
    }

    /// Commits what an administrator changed.
    pub(crate) async fn commit_change(&self) -> Result<Outcome, DatasetError> {
        self.core.want(self.core.open_txg());
        self.commit().await?;
        Ok(Outcome::Changed)
    }
}
