//! The server: open pools, exports, targets, and its saved state.
//!
//! The calls are in the modules of their objects, the start of the server is in `start`.
//!
//! Invariant: a pool is in the table of pools (`Manager::pools`) from its opening until it is
//! closed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use weir_api::ApiError;
use weir_api::types::{DedupeForecast, MemoryUse, PoolStatus, VolumeAdvice};
use weir_base::ErrorKind;
use weir_block::Arena;
use weir_dataset::{Engine, EngineOptions};
use weir_export::Registry;
use weir_fs::FilesystemLayer;
use weir_iscsi::Iscsi;
use weir_nbd::Nbd;
use weir_net::Budget;
use weir_pool::{ImportOptions, PlantedBug, Pool};

use crate::access::activity::Activity;
use crate::access::caller_files::CallerFiles;
use crate::access::tokens::Tokens;
use crate::answer::errors::{api_error, not_found};
use crate::answer::names::guid;
use crate::answer::pool_status;
use crate::disks::clock::ServerClock;
use crate::disks::identity::IDENTITY;
use crate::disks::memory::{ConnectionsUse, MemoryPlan, PoolsUse};
use crate::disks::open_disks;
use crate::disks::pool_locks::PoolLocks;
use crate::disks::pool_thread::OpenPool;
use crate::record::call_record::Record;
use crate::state::jobs::Jobs;
use crate::state::mounts::Mounts;
use crate::state::nfs_shares::NfsShares;
use crate::state::open_filesystems::OpenFilesystems;
use crate::state::replication_activity::Activities;
use crate::state::saved_state::StateFile;
use crate::state::scan_file::ScanFile;
use crate::state::seen::SeenFile;
use crate::state::target_registry::TargetRegistry;
use crate::state::transfers::Transfers;

/// A pool that the server knows.
pub(crate) enum Entry {
    Open(Arc<OpenPool>),
    /// The pool could not be opened when the server started, for this reason. The entry keeps the
    /// pool in the saved state.
    Unavailable(String),
}

/// Servers of the data protocols, with their exports and targets.
pub(crate) struct Clients {
    pub(crate) exports: Arc<Registry>,
    pub(crate) nbd: weir_net::ServerHandle<Nbd>,
    /// URI scheme of NBD exports over TCP.
    pub(crate) nbd_scheme: &'static str,
    pub(crate) targets: Arc<TargetRegistry>,
    /// The iSCSI server; `None` if iSCSI is not served.
    pub(crate) iscsi: Option<weir_net::ServerHandle<Iscsi>>,
    pub(crate) nfs: NfsShares,
    /// Memory budgets of the connections: of NBD, iSCSI and NFS.
    pub(crate) budgets: [Arc<Budget>; 3],
}

/// State of the whole server, which the management calls read and change.
pub(crate) struct Manager {
    pub(crate) memory: MemoryPlan,
    budgets: [Arc<Budget>; 3],
    pub(crate) start: Instant,
    pub(crate) pools: RwLock<BTreeMap<String, Entry>>,
    pub(crate) state: Mutex<StateFile>,
    pub(crate) seen: Mutex<SeenFile>,
    pub(crate) scans: Mutex<ScanFile>,
    pub(crate) exports: Arc<Registry>,
    pub(crate) nbd: RwLock<Option<weir_net::ServerHandle<Nbd>>>,
    /// URI scheme of NBD exports over TCP.
    pub(crate) nbd_scheme: &'static str,
    pub(crate) targets: Arc<TargetRegistry>,
    pub(crate) iscsi: Mutex<Option<weir_net::ServerHandle<Iscsi>>>,
    pub(crate) nfs: NfsShares,
    pub(crate) mounts: Mounts,
    pub(crate) open_filesystems: OpenFilesystems,
    /// Locks for the calls that change a pool, one lock for each pool.
    pub(crate) changes: PoolLocks,
    /// Engines of pools that the server is closing.
    pub(crate) closing: Mutex<Vec<Weak<Engine>>>,
    pub(crate) record: Record,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) files: CallerFiles,
    pub(crate) advising: Jobs<VolumeAdvice>,
    pub(crate) estimating: Jobs<DedupeForecast>,
    /// Sessions of streams that are being sent or received.
    pub(crate) transfers: Arc<Transfers>,
    /// Current state of all replications.
    pub(crate) activities: Activities,
}

/// Returns an error if `most` objects exist. `delete` is the command that deletes one.
pub(crate) fn refuse_above(
    most: usize,
    existing: usize,
    what: &str,
    delete: &str,
) -> Result<(), ApiError> {
    if existing < most {
        return Ok(());
    }
    Err(ApiError::new(ErrorKind::NoSpace, format!("there are {most} {what} already"))
        .with_action(format!("delete unused ones: {delete} NAME")))
}

impl Manager {
    pub(crate) fn new(
        memory: MemoryPlan,
        (state, seen, scans): (StateFile, SeenFile, ScanFile),
        clients: Clients,
        record: Record,
        (tokens, files): (Arc<Tokens>, CallerFiles),
    ) -> Self {
        let Clients { exports, nbd, nbd_scheme, targets, iscsi, nfs, budgets } = clients;
        Self {
            memory,
            budgets,
            start: Instant::now(),
            pools: RwLock::default(),
            state: Mutex::new(state),
            seen: Mutex::new(seen),
            scans: Mutex::new(scans),
            exports,
            nbd: RwLock::new(Some(nbd)),
            nbd_scheme,
            targets,
            iscsi: Mutex::new(iscsi),
            nfs,
            mounts: Mounts::default(),
            open_filesystems: OpenFilesystems::default(),
            changes: PoolLocks::default(),
            closing: Mutex::default(),
            record,
            tokens,
            files,
            advising: Jobs::default(),
            estimating: Jobs::default(),
            transfers: Arc::default(),
            activities: Activities::default(),
        }
    }

    pub(crate) fn nbd_addresses(&self) -> Vec<String> {
        let nbd = self.nbd.read();
        nbd.iter().flat_map(weir_net::ServerHandle::addresses).map(ToString::to_string).collect()
    }

    pub(crate) fn options(&self) -> EngineOptions {
        EngineOptions {
            memory_bytes: self.memory.pools_bytes() / (self.pools.read().len() as u64 + 1),
            clock: Arc::new(ServerClock::default()),
            bug: PlantedBug::None,
        }
    }

    /// Returns how `--memory` is split, and the current use of each part.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let pools = self.pools.read();
        let dedupe = |entry: &Entry| match entry {
            Entry::Open(pool) => pool.engine.pool().hint_figures().bytes,
            Entry::Unavailable(_) => 0,
        };
        let dedupe_bytes = pools.values().map(dedupe).sum();
        let used = PoolsUse { cells_bytes: Arena::live_bytes() as u64, dedupe_bytes };
        let budgets = self.budgets.iter();
        let connections = budgets.fold(ConnectionsUse::default(), |sum, budget| {
            let excess_bytes = budget.excess_bytes() as u64;
            let shared_bytes = (budget.used_bytes() as u64).saturating_sub(excess_bytes);
            sum.plus(ConnectionsUse { shared_bytes, excess_bytes })
        });
        self.memory.describe(&connections, &used)
    }

    /// Gives every open pool an equal share of the memory.
    pub(crate) fn share_memory(&self) {
        let pools = self.pools.read();
        let count = (pools.len() as u64).max(1);
        for entry in pools.values() {
            if let Entry::Open(pool) = entry {
                pool.engine.set_memory(self.memory.pools_bytes() / count);
                pool.engine.set_dedupe_memory(self.memory.dedupe_bytes / count);
            }
        }
    }

    pub(crate) fn pool(&self, name: &str) -> Result<Arc<OpenPool>, ApiError> {
        match self.pools.read().get(name) {
            Some(Entry::Open(pool)) => Ok(Arc::clone(pool)),
            Some(Entry::Unavailable(why)) => Err(ApiError::new(
                ErrorKind::Unavailable,
                format!("pool {name} could not be opened: {why}"),
            )
            .with_action(format!("connect its disks, then: weir pool clear {name}"))),
            None => Err(not_found("pool", name)),
        }
    }

    pub(crate) fn insert(&self, name: &str, pool: OpenPool) -> PoolStatus {
        self.record_seen(pool.engine.pool());
        self.restore_scan(&pool.engine);
        let status = pool_status::pool(&pool.engine);
        self.pools.write().insert(name.to_owned(), Entry::Open(Arc::new(pool)));
        self.share_memory();
        status
    }

    /// Opens the pool with this guid on the disks at `paths`. The guid is 0 if the caller does not
    /// know it.
    pub(crate) async fn open(
        &self,
        (name, pool): (&str, u64),
        paths: Vec<PathBuf>,
        (force, waits_for_all): (bool, bool),
    ) -> Result<OpenPool, ApiError> {
        let options = self.options();
        let newest_seen = self.seen.lock().of(pool);
        let activity = Activity::current();
        let open = move || async move {
            let (disks, errors) = open_disks::open_known(&paths, &activity);
            // If another process has a disk of the pool open, that process may have imported the
            // pool. An import without that disk would make the disks diverge.
            if let Some(busy) = errors.iter().find(|error| error.kind() == ErrorKind::Busy) {
                return Err(open_disks::device_error(busy));
            }
            if disks.is_empty()
                && let Some(error) = errors.first()
            {
                return Err(open_disks::device_error(error));
            }
            let owner = Some(&*IDENTITY);
            let how =
                ImportOptions { force, newest_seen, owner, waits_for_all, import_epoch: guid() };
            let opened = Engine::open_with_layer(disks, how, &options, &FilesystemLayer).await;
            opened.map_err(|error| api_error(&error))
        };
        OpenPool::start(name, open).await
    }

    /// Records the newest txg of a pool, so that disks with older data are recognized later.
    pub(crate) fn record_seen(&self, pool: &Pool) {
        if let Err(error) = self.seen.lock().record(pool) {
            tracing::warn!(pool = pool.name(), %error, "cannot record the pool's txg");
        }
    }

    pub(crate) fn save(
        &self,
        change: impl FnOnce(&mut crate::state::saved_state::State),
    ) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        change(&mut state.state);
        state.save()
    }
}

impl Manager {
    pub(crate) fn status_of(&self, name: &str, entry: &Entry) -> PoolStatus {
        match entry {
            Entry::Open(pool) => pool_status::pool(&pool.engine),
            Entry::Unavailable(why) => {
                let state = self.state.lock();
                let known = state.state.pools.iter().find(|pool| pool.name == name);
                let disks = known.map(|pool| pool.disks.clone()).unwrap_or_default();
                pool_status::unavailable(name, why, &disks)
            }
        }
    }
}
