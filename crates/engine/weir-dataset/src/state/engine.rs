//! Engine of one pool: its state, its memory budget and its list of volumes.
//!
//! Other files add methods: `datasets` creates and destroys volumes, `volume` has the data path,
//! `commit` the txg commit.
//!
//! Invariants:
//! - a change to the set of volumes is committed before it is acknowledged;
//! - a changing call reports whether it changed anything, so clients can repeat it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use async_recursion::async_recursion as boxed;
use parking_lot::RwLock;
use tokio::sync::{Mutex, MutexGuard, Semaphore};
use weir_base::{Clock, DatasetId};
use weir_format::{Compression, DatasetState};
use weir_pool::{LateDisk, PlantedBug, Pool, PoolOptions};

use crate::error::DatasetError;
use crate::state::memory_split::CACHE_PERCENT;
use crate::state::outcome::Outcome;
use crate::state::replacement::PendingReplacement;
use crate::state::scan_requests::ScanDesk;
use crate::state::shared::Core;
use crate::state::traffic::Traffic;
use crate::state::volume::Volume;

/// The dedupe index can use at most the memory budget divided by this number. A non-empty index
/// takes its memory from the caches.
pub(crate) const HINT_SHARE: u64 = 5;
/// Default upper bound of the dedupe index: 50 million blocks.
pub(crate) const HINT_BYTES_MAX: u64 = 1 << 30;

/// Options of a running engine, which the pool does not store.
#[derive(Clone)]
pub struct EngineOptions {
    /// RAM for dirty data and caches of this pool.
    pub memory_bytes: u64,
    /// Clock of the engine.
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

/// Number of records of the volume's record size that must fit into a segment: eight, less the loss
/// by rounding to whole rows.
pub(crate) const RECORDS_OF_SEGMENT: u64 = 7;

/// Description of a new volume whose record size is one block.
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
    /// All volumes, including volumes under destruction, ordered by number.
    pub(crate) volume_list: RwLock<Vec<Arc<Volume>>>,
    pub(crate) next_dataset: AtomicU64,
    pub(crate) datasets_max: AtomicUsize,
    /// Lock of every call that changes the set of volumes or a property.
    pub(crate) admin: Mutex<()>,
    pub(crate) stopping: AtomicBool,
    /// Limits the blocks that block clones may reference in one txg.
    pub(crate) clone_room: Semaphore,
    pub(crate) traffic: Traffic,
    pub(crate) scans: ScanDesk,
    /// Disks that were unresponsive during import.
    pub(crate) late: parking_lot::Mutex<Vec<LateDisk>>,
    /// Replaced legs, each until its replacement is resilvered.
    pub(crate) successions: parking_lot::Mutex<Vec<PendingReplacement>>,
    /// Numbers of the directory entries that store the list of permanent errors.
    pub(crate) damage_records: parking_lot::Mutex<Vec<DatasetId>>,
}

impl Engine {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.core.pool
    }

    /// Counters of client requests. Each protocol server counts its requests here.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Commits all changes acknowledged so far.
    ///
    /// # Durability
    /// Everything acknowledged before this call is on disk when it returns `Ok`.
    #[boxed(?Send)]
    pub async fn sync(&self) -> Result<(), DatasetError> {
        self.core.pool.check_alive()?;
        self.core.want(self.core.open_txg());
        self.commit().await
    }

    /// Suspends the pool and fails every wait for its disks, so that the caller can drop the engine
    /// although the disks are unresponsive.
    ///
    /// # Durability
    /// Flushed data is safe. Changes that were only acknowledged are lost, as in a crash.
    pub fn abandon(&self, why: &dyn std::fmt::Display) {
        self.core.pool.abandon(why);
        self.core.announce_poison();
        self.stop();
    }

    /// Dirty bytes of all volumes.
    pub fn dirty_bytes(&self) -> u64 {
        self.core.dirty_bytes()
    }

    /// Bytes of the pool that client data cannot use.
    pub fn reserve_bytes(&self) -> u64 {
        self.core.reserve_bytes()
    }

    /// Sets the maximum RAM of the dedupe index, and empties the index.
    pub fn set_dedupe_memory(&self, bytes: u64) {
        self.core.pool.set_hint_bytes(bytes);
    }

    /// Stops the engine: [`Self::run`] returns after one more commit, [`Self::run_scans`] returns.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.core.wake_committer.notify_one();
        self.scans.wake.notify_one();
    }

    /// True after [`Self::abandon`]. Callers then also stop waiting for a disk that the call could
    /// not fail, such as a disk about to be added.
    pub fn is_abandoned(&self) -> bool {
        self.is_stopping() && self.core.pool.check_alive().is_err()
    }

    /// True after [`Self::stop`].
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) fn next_dataset(&self) -> u64 {
        self.next_dataset.load(Ordering::Acquire)
    }

    /// Returns an unused dataset number.
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

    /// Active volumes in order of creation.
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        let mut volumes = self.all_volumes();
        volumes.retain(|volume| volume.state.lock().record.state == DatasetState::Active);
        volumes
    }

    /// Returns the volume of this name.
    pub fn volume(&self, name: &str) -> Result<Arc<Volume>, DatasetError> {
        let found = self.volumes().into_iter().find(|v| v.state.lock().record.name == name);
        found.ok_or_else(|| DatasetError::NotFound { name: self.full_name(name) })
    }

    pub(crate) fn full_name(&self, name: &str) -> String {
        format!("{}/{name}", self.core.pool.name())
    }

    /// Waits for a running commit. Until the guard is dropped, no commit freezes a txg or frees
    /// blocks.
    ///
    /// # Errors
    /// The pool is suspended.
    pub(crate) async fn between_commits(&self) -> Result<MutexGuard<'_, ()>, DatasetError> {
        let guard = self.core.committer.lock().await;
        self.core.pool.check_alive()?;
        Ok(guard)
    }

    /// Commits an administrative change.
    pub(crate) async fn commit_change(&self) -> Result<Outcome, DatasetError> {
        self.core.want(self.core.open_txg());
        self.commit().await?;
        Ok(Outcome::Changed)
    }
}
