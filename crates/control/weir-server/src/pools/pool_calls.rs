//! Calls that create, import, close and destroy pools.
//!
//! Maintenance is in `maintenance_calls`, changes of disks are in `leg_calls` and `vdev_calls`,
//! volumes in `volumes`.
//!
//! Invariants:
//! - the server writes to no disk of a new pool before it has checked all disks of the pool;
//! - before it closes a pool, the server withdraws the exports of the pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::types::{
    Health, ImportableList, ImportablePool, ListPools, Outcome, PoolChange, PoolCreate,
    PoolCreated, PoolDestroy, PoolExport, PoolImport, PoolList, PoolScan, PoolStatus,
    PropertyValues, Removed, ShowPool,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_base::names::PropertyOf;
use weir_dataset::{Engine, PropertyTarget};
use weir_iscsi::Targets as _;
use weir_pool::CreateOptions;

use crate::access::activity::Activity;
use crate::answer::errors::{api_error, internal, not_found};
use crate::answer::names::{Of, guid};
use crate::answer::pool_status;
use crate::disks::identity::IDENTITY;
use crate::disks::pool_thread::{CLOSE_TIMEOUT, OpenPool};
use crate::disks::{flush_check, open_disks};
use crate::state::saved_state::SavedPool;
use crate::state::server::{Entry, Manager};
use crate::volumes::property_calls;

/// Maximum time for which a stopping server waits until initiators have logged out. Most initiators
/// log out as soon as the server asks them.
const LOGOUT_GRACE: Duration = Duration::from_secs(3);
/// Poll interval while the server waits for logouts.
const LOGOUT_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum time for which the close of a pool waits for connections and calls that use the pool.
const LET_GO: Duration = Duration::from_secs(2);

/// Returns the error for an import that found no readable disk of the pool. The error names
/// unreadable disks, because these may belong to the pool.
fn not_imported(pool: &str, scan: &open_disks::Scan) -> ApiError {
    /// Maximum number of unreadable disks that the error names.
    const SHOWN_MAX: usize = 4;

    let unknown = &scan.unknown;
    let mut error = not_found("pool", pool);
    if !unknown.is_empty() {
        let shown = unknown[..unknown.len().min(SHOWN_MAX)].join("; ");
        error.message = format!("{} on the readable disks; skipped: {shown}", error.message);
    }
    if scan.other_version {
        return error.with_action(
            "if it is on a disk of another version, import it with the Weir version that wrote it; \
             otherwise name its disks with -d DIR or -d DISK",
        );
    }
    error.with_action(format!(
        "weir pool import -d DIR {pool}, where DIR has its disks; release disks that are in use"
    ))
}

impl Handle<PoolCreate> for Manager {
    /// Creates a pool on disks. Answers `unchanged` for a pool of this name on the same disks.
    ///
    /// # Errors
    /// `Exists` for a taken name or a disk with data on it, `Busy` for a disk in use, `Invalid` for
    /// unsuitable disks. The server writes to no disk before it has checked all disks of the
    /// request.
    async fn handle(&self, request: PoolCreate) -> Result<PoolCreated, ApiError> {
        let values = PropertyValues(request.properties.clone());
        let (properties, _) = property_calls::changes(&values, PropertyOf::Pool)?;
        let _changes = self.changes.lock(&request.name).await;
        let paths: Vec<PathBuf> =
            request.vdevs.iter().flat_map(|vdev| &vdev.disks).map(PathBuf::from).collect();
        let name = request.name.clone();
        if self.pools.read().contains_key(&name) {
            let same =
                self.state.lock().state.pools.iter().any(|p| p.name == name && p.disks == paths);
            if same && let Ok(pool) = self.pool(&name) {
                let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
                let change =
                    PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) };
                return Ok(PoolCreated { change, flush_checks: Vec::new() });
            }
            return Err(ApiError::new(ErrorKind::Exists, format!("pool {name} exists already"))
                .with_action("choose another name"));
        }
        let options = self.options();
        let (report, warned) = tokio::sync::oneshot::channel();
        let activity = Activity::current();
        let open = move || async move {
            let (vdevs, force) = (&request.vdevs, request.force);
            let (specs, warnings) = open_disks::open_for_create(vdevs, force, &activity).await?;
            let sizes = CreateOptions::default();
            let name = &request.name;
            let measured = flush_check::measure(name, &specs, sizes, &*options.clock).await?;
            drop(report.send((warnings, measured)));
            let made = Engine::create(name, &specs, sizes, &options, &mut guid).await;
            let engine = made.map_err(|error| api_error(&error))?;
            let set = engine.change_properties(&[PropertyTarget::Pool], &properties).await;
            set.map_err(|error| api_error(&error))?;
            engine.pool().announce_owner(&IDENTITY, &[]).await;
            Ok(engine)
        };
        let pool = OpenPool::start(&name, open).await?;
        let (mut warnings, measured) = warned.await.unwrap_or_default();
        let flush_checks = flush_check::report(measured, &name, &mut warnings, &self.record.events);
        let guid = pool.engine.pool().guid().0;
        self.save(|state| {
            let name = name.clone();
            state.pools.push(SavedPool { name, guid, disks: paths, degraded: false });
        })?;
        let pool = self.insert(&name, pool);
        let change = PoolChange { outcome: Outcome::Created, warnings, pool };
        Ok(PoolCreated { change, flush_checks })
    }
}

impl Handle<PoolImport> for Manager {
    /// Imports a pool. Answers `unchanged` for an imported pool.
    async fn handle(&self, request: PoolImport) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.pool).await;
        if let Ok(pool) = self.pool(&request.pool) {
            let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
            return Ok(PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) });
        }
        let mut found = Self::scan(request.search.clone()).await?;
        let mut fitting: Vec<_> = std::mem::take(&mut found.pools)
            .into_iter()
            .filter(|(guid, pool)| {
                pool.newest.label.name == request.pool || guid.to_string() == request.pool
            })
            .collect();
        if fitting.len() > 1 {
            let guids: Vec<_> = fitting.iter().map(|(guid, _)| guid.to_string()).collect();
            let message = format!("several pools are named {}: {}", request.pool, guids.join(", "));
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("import by guid, not by name"));
        }
        let Some((guid, found)) = fitting.pop() else {
            return Err(not_imported(&request.pool, &found));
        };
        let name = found.newest.label.name.clone();
        let _named = if name == request.pool { None } else { Some(self.changes.lock(&name).await) };
        match self.pools.read().get(&name) {
            None => {}
            Some(Entry::Open(_)) => {
                let message = format!("a pool named {name} is open already");
                return Err(ApiError::new(ErrorKind::Exists, message));
            }
            Some(Entry::Unavailable(_)) => {
                let message = format!("pool {name} is known, but could not be opened");
                return Err(ApiError::new(ErrorKind::Exists, message).with_action(format!(
                    "weir pool clear {name} opens it on the known disks; to import it from \
                         others, first: weir pool export --force {name}"
                )));
            }
        }
        let disks: Vec<PathBuf> = found.disks.into_values().collect();
        let pool = self.open((&name, guid.0), disks.clone(), (request.force, false)).await?;
        // Update the saved names: another server that had the pool imported may have renamed
        // datasets.
        self.follow_names(&pool.engine)?;
        self.save(|state| {
            let name = name.clone();
            state.pools.push(SavedPool { name, guid: guid.0, disks, degraded: false });
        })?;
        let pool = self.insert(&name, pool);
        self.mount_pool(&name).await;
        self.share_pool(&name).await;
        Ok(PoolChange { outcome: Outcome::Changed, warnings: Vec::new(), pool })
    }
}

impl Manager {
    pub(crate) async fn scan(search: Vec<String>) -> Result<open_disks::Scan, ApiError> {
        // The search may be slow or hang, so it does not run on the thread of the management
        // interface.
        let activity = Activity::current();
        let looked = tokio::task::spawn_blocking(move || {
            let runtime = weir_device::new_runtime()?;
            Ok::<_, std::io::Error>(runtime.block_on(open_disks::scan(&search, &activity)))
        });
        match looked.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(internal("no runtime to search for pools", &error)),
            Err(error) => Err(internal("the search for pools failed", &error)),
        }
    }

    /// Takes the volumes of a pool away from clients.
    pub(crate) fn withdraw_pool(&self, name: &str) {
        for export in self.exports_of(Of::Pool(name)) {
            self.withdraw(&export);
        }
        self.hide_luns(Of::Pool(name));
        self.transfers.end_of_pool(name);
    }

    /// Closes a pool and deletes its exports, logical units and shares.
    async fn take_out(&self, name: &str) -> Result<(), ApiError> {
        self.withdraw_pool(name);
        let entry = self.pools.write().remove(name);
        let gone = entry.ok_or_else(|| not_found("pool", name))?;
        self.save(|state| {
            state.pools.retain(|pool| pool.name != name);
            let of_pool = |full: &str| full.split('/').next() == Some(name);
            state.shares.retain(|share| !of_pool(&share.filesystem));
            state.exports.retain(|export| !of_pool(&export.volume));
            for target in &mut state.targets {
                target.luns.retain(|lun| !of_pool(&lun.volume));
            }
        })?;
        self.share_memory();
        match gone {
            Entry::Open(pool) => self.close(pool).await,
            Entry::Unavailable(_) => Ok(()),
        }
    }

    /// Closes a pool that is no longer in the table, after all calls that use the pool have ended.
    pub(crate) async fn close(&self, mut pool: Arc<OpenPool>) -> Result<(), ApiError> {
        {
            let mut closing = self.closing.lock();
            closing.retain(|engine| engine.strong_count() > 0);
            closing.push(Arc::downgrade(&pool.engine));
        }
        let deadline = Instant::now() + LET_GO;
        loop {
            match Arc::try_unwrap(pool) {
                Ok(sole) => {
                    let engine = Arc::clone(&sole.engine);
                    let closed = sole.close().await;
                    self.record_seen(engine.pool());
                    self.record_last_scan(&engine);
                    return closed;
                }
                Err(shared) if Instant::now() < deadline => pool = shared,
                Err(_) => return Err(ApiError::new(ErrorKind::Busy, "a call still uses the pool")),
            }
            pool.fail_io_if_unresponsive(CLOSE_TIMEOUT);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Handle<PoolDestroy> for Manager {
    /// Destroys a pool with all volumes and snapshots.
    ///
    /// # Errors
    /// `Busy` while a volume of the pool is exported or a filesystem is mounted.
    async fn handle(&self, request: PoolDestroy) -> Result<Removed, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        self.refuse_in_use(Of::Pool(&request.name))?;
        let pool = self.pool(&request.name)?;
        let guid = pool.engine.pool().guid().0;
        pool.call(|engine| async move { Ok(engine.pool().erase().await?) }).await?;
        drop(pool);
        self.save(|state| {
            state.schedules.retain(|schedule| schedule.pool_guid != guid);
            state.replications.retain(|replication| replication.pool_guid != guid);
        })?;
        // An erased pool accepts no more commits, so the close returns an error; that is expected.
        drop(self.take_out(&request.name).await);
        Ok(Removed { outcome: Outcome::Removed, name: request.name })
    }
}

impl Handle<PoolExport> for Manager {
    /// Commits and closes a pool, so that another server can import it.
    ///
    /// # Errors
    /// `Busy` while one of its datasets is exported or shared, or programs use files of its mounts,
    /// unless `force`.
    async fn handle(&self, request: PoolExport) -> Result<Removed, ApiError> {
        let PoolExport { name, force } = request;
        let _changes =
            if force { self.right_by_force(&name).await } else { self.changes.lock(&name).await };
        if !force {
            self.refuse_exported(Of::Pool(&name))?;
            self.refuse_shared(Of::Pool(&name))?;
            self.settle(&name).await?;
        }
        self.drop_shares(Of::Pool(&name));
        let unmount = self.unmount_pool(&name, force);
        if force {
            self.suspend_while(&name, unmount).await?;
        } else {
            unmount.await?;
        }
        let closed = self.take_out(&name).await;
        match closed {
            Err(error) if !force || error.kind == ErrorKind::NotFound => Err(error),
            _ => Ok(Removed { outcome: Outcome::Removed, name }),
        }
    }
}

impl Manager {
    /// Asks initiators to log out, and waits up to [`LOGOUT_GRACE`] for their logouts.
    async fn let_initiators_log_out(&self) {
        let sessions = self.targets.sessions();
        let asked = sessions.ask_to_log_out(LOGOUT_GRACE);
        let all_left = async {
            while !sessions.list().is_empty() {
                tokio::time::sleep(LOGOUT_POLL_INTERVAL).await;
            }
        };
        if asked > 0 && tokio::time::timeout(LOGOUT_GRACE, all_left).await.is_err() {
            tracing::info!(asked, left = sessions.list().len(), "initiators stay logged in");
        }
    }

    async fn stop_nbd(&self) {
        let nbd = self.nbd.write().take();
        if let Some(nbd) = nbd {
            drop(tokio::task::spawn_blocking(move || nbd.stop()).await);
        }
    }

    async fn stop_iscsi(&self) {
        let iscsi = self.iscsi.lock().take();
        if let Some(iscsi) = iscsi {
            self.let_initiators_log_out().await;
            drop(tokio::task::spawn_blocking(move || iscsi.stop()).await);
        }
    }

    /// Sends the outstanding responses to clients, then commits and closes every pool.
    pub(crate) async fn shut_down(&self) -> Result<(), ApiError> {
        // The servers of the protocols stop concurrently, because each waits up to 5 s for clients
        // that do not read their responses.
        tokio::join!(self.stop_nbd(), self.stop_iscsi(), self.stop_nfs());
        self.stop_mounts().await;
        let pools = std::mem::take(&mut *self.pools.write());
        let mut result = Ok(());
        for (name, entry) in pools {
            if let Entry::Open(pool) = entry
                && let Err(error) = self.close(pool).await
            {
                tracing::error!(pool = %name, %error, "pool not closed cleanly");
                result = Err(error);
            }
        }
        result
    }
}

pub(crate) fn importable(pool: &open_disks::FoundPool) -> ImportablePool {
    let label = &pool.newest.label;
    let vdevs = pool_status::label_vdevs(label, &|guid| pool.disks.contains_key(&guid));
    let state = match vdevs.iter().map(|vdev| vdev.state).collect::<Vec<_>>() {
        states if states.contains(&Health::Unavailable) => Health::Unavailable,
        states if states.contains(&Health::Degraded) => Health::Degraded,
        _ => Health::Online,
    };
    let (status, action) = match state {
        Health::Online => (None, Some("The pool can be imported by its name or number.")),
        Health::Degraded => (
            Some("Some disks are missing."),
            Some("The pool can be imported with less redundancy."),
        ),
        Health::Faulted | Health::Offline | Health::Unavailable => (
            Some("A vdev has too few disks."),
            Some("Attach the missing disks, or name their paths with -d."),
        ),
    };
    ImportablePool {
        name: label.name.clone(),
        guid: label.pool.to_string(),
        state,
        status: status.map(str::to_owned),
        action: action.map(str::to_owned),
        vdevs,
    }
}

impl Handle<ListPools> for Manager {
    /// Lists the imported pools with their state, by name.
    async fn handle(&self, _call: ListPools) -> Result<PoolList, ApiError> {
        let pools = self.pools.read();
        let status = |(name, entry): (&String, &Entry)| self.status_of(name, entry);
        Ok(PoolList { pools: pools.iter().map(status).collect() })
    }
}

impl Handle<ShowPool> for Manager {
    /// Shows the state of one pool.
    async fn handle(&self, call: ShowPool) -> Result<PoolStatus, ApiError> {
        let pools = self.pools.read();
        let entry = pools.get(&call.name).ok_or_else(|| not_found("pool", &call.name))?;
        Ok(self.status_of(&call.name, entry))
    }
}

impl Handle<PoolScan> for Manager {
    /// Searches disks for pools that can be imported.
    async fn handle(&self, call: PoolScan) -> Result<ImportableList, ApiError> {
        let found = Self::scan(call.search).await?;
        let pools = found.pools.into_values().map(|pool| importable(&pool)).collect();
        Ok(ImportableList { pools })
    }
}
