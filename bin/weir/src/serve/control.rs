//! The management calls over the engine.
//!
//! Not here: checking requests (weir-api does before it calls), HTTP, data.
//!
//! Invariants:
//! - one changing call per pool at a time (`changes`); looking never waits for one;
//! - what a call changed is remembered in the state file before it is answered.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use weir_api::types::{
    EventList, EventQuery, Export, ExportChange, ExportCreate, ExportKey, ExportList, Health,
    HistoryList, ImportableList, ImportablePool, Outcome, PoolAdd, PoolAttach, PoolChange,
    PoolClear, PoolCreate, PoolCreated, PoolDestroy, PoolDisk, PoolExport, PoolImport, PoolList,
    PoolRemove, PoolReplace, PoolScan, PoolScrub, PoolStatus, Protocol, Removed, ServerInfo,
    Volume, VolumeChange, VolumeCreate, VolumeList, VolumeResize, VolumeSet,
};
use weir_api::{Answer, ApiError, Control};
use weir_base::{ErrorKind, Guid};
use weir_dataset::{Engine, EngineOptions, VolumeSpec};
use weir_device::Arena;
use weir_pool::{CreateOptions, ImportOptions, PlantedBug};

use super::activity::Activity;
use super::changes::Changes;
use super::clock::ServerClock;
use super::exports::Registry;
use super::pools::{OpenPool, api_error};
use super::recorder::Record;
use super::state::{KnownExport, KnownPool, StateFile};
use super::{convert, disks, flush_check};

/// How long closing a pool waits for connections to let go of it.
const LET_GO: Duration = Duration::from_secs(2);

/// A pool the server knows.
pub(super) enum Entry {
    Open(Arc<OpenPool>),
    /// It could not be opened at start; kept, so that it is not forgotten.
    Unavailable(String),
}

/// Everything the management interface acts on.
pub(super) struct Manager {
    memory_bytes: u64,
    start: Instant,
    pub(super) pools: RwLock<BTreeMap<String, Entry>>,
    pub(super) state: Mutex<StateFile>,
    exports: Arc<Registry>,
    nbd: RwLock<Option<weir_nbd::ServerHandle>>,
    /// Held by the call that changes something.
    pub(super) changes: Changes,
    /// Engines of pools that are being closed.
    pub(super) closing: Mutex<Vec<Weak<Engine>>>,
    pub(super) record: Record,
}

fn not_found(what: &str, name: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("{what} {name:?} does not exist"))
}

/// No disk that could be looked at is of the pool; some that could not may be.
fn not_imported(pool: &str, scan: &disks::Scan) -> ApiError {
    /// Enough to see what is the matter.
    const SHOWN_MAX: usize = 4;

    let unknown = &scan.unknown;
    let mut error = not_found("pool", pool);
    if !unknown.is_empty() {
        let shown = unknown[..unknown.len().min(SHOWN_MAX)].join("; ");
        error.message =
            format!("{} on the disks that can be read; not looked at: {shown}", error.message);
    }
    if scan.other_version {
        return error.with_action(
            "if it is on a disk of another version, import it with the weir that wrote it; else \
             say where its disks are with -d DIR or -d DISK",
        );
    }
    error.with_action("say where its disks are with -d DIR or -d DISK, and free those in use")
}

pub(crate) fn guid() -> Guid {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes");
    Guid(u64::from_le_bytes(bytes))
}

fn split(volume: &str) -> Result<(&str, &str), ApiError> {
    let parts = weir_base::names::volume(volume);
    parts.map_err(|error| ApiError::new(ErrorKind::Invalid, error.to_string()))
}

impl Manager {
    pub(super) fn new(
        memory_bytes: u64,
        state: StateFile,
        exports: Arc<Registry>,
        nbd: weir_nbd::ServerHandle,
        record: Record,
    ) -> Self {
        Self {
            memory_bytes,
            start: Instant::now(),
            pools: RwLock::default(),
            state: Mutex::new(state),
            exports,
            nbd: RwLock::new(Some(nbd)),
            changes: Changes::default(),
            closing: Mutex::default(),
            record,
        }
    }

    pub(super) fn nbd_addresses(&self) -> Vec<String> {
        let nbd = self.nbd.read();
        nbd.iter().flat_map(weir_nbd::ServerHandle::addresses).map(ToString::to_string).collect()
    }

    fn options(&self) -> EngineOptions {
        EngineOptions {
            memory_bytes: self.memory_bytes / (self.pools.read().len() as u64 + 1),
            clock: Arc::new(ServerClock::default()),
            bug: PlantedBug::None,
        }
    }

    /// Gives every open pool its share of the memory.
    fn share_memory(&self) {
        let pools = self.pools.read();
        let share = self.memory_bytes / (pools.len() as u64).max(1);
        for entry in pools.values() {
            if let Entry::Open(pool) = entry {
                pool.engine.set_memory(share);
            }
        }
    }

    pub(super) fn pool(&self, name: &str) -> Result<Arc<OpenPool>, ApiError> {
        match self.pools.read().get(name) {
            Some(Entry::Open(pool)) => Ok(Arc::clone(pool)),
            Some(Entry::Unavailable(why)) => Err(ApiError::new(
                ErrorKind::Unavailable,
                format!("pool {name} could not be opened: {why}"),
            )),
            None => Err(not_found("pool", name)),
        }
    }

    pub(super) fn insert(&self, name: &str, pool: OpenPool) -> PoolStatus {
        let status = convert::pool(&pool.engine);
        self.pools.write().insert(name.to_owned(), Entry::Open(Arc::new(pool)));
        self.share_memory();
        status
    }

    pub(super) async fn open(
        &self,
        name: &str,
        paths: Vec<PathBuf>,
        force: bool,
    ) -> Result<OpenPool, ApiError> {
        let options = self.options();
        let activity = Activity::current();
        let open = move || async move {
            let (disks, errors) = disks::open_known(&paths, &activity);
            // Whoever has that disk may have the pool: going on without it would make two of one.
            if let Some(busy) = errors.iter().find(|error| error.kind() == ErrorKind::Busy) {
                return Err(disks::device_error(busy));
            }
            if disks.is_empty()
                && let Some(error) = errors.first()
            {
                return Err(disks::device_error(error));
            }
            let how = ImportOptions { force, opening: guid() };
            Engine::open(disks, how, &options).await.map_err(|error| api_error(&error))
        };
        OpenPool::start(name, open).await
    }

    pub(super) fn offer(&self, export: &KnownExport) -> Result<(), ApiError> {
        let (pool, own) = split(&export.volume)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = engine.volume(own).map_err(|error| api_error(&error))?;
        self.exports.offer(&export.name, engine, volume, export.read_only);
        Ok(())
    }

    fn withdraw(&self, name: &str) {
        self.exports.withdraw(name);
        if let Some(nbd) = &*self.nbd.read() {
            nbd.disconnect(name);
        }
    }

    /// Names of the exports of a volume, or of all volumes of a pool.
    fn exports_of(&self, pool: &str, volume: Option<&str>) -> Vec<String> {
        let state = self.state.lock();
        let of = |export: &&KnownExport| {
            split(&export.volume).is_ok_and(|(p, v)| p == pool && volume.is_none_or(|own| own == v))
        };
        state.state.exports.iter().filter(of).map(|export| export.name.clone()).collect()
    }

    fn refuse_exported(&self, pool: &str, volume: Option<&str>) -> Result<(), ApiError> {
        let exports = self.exports_of(pool, volume);
        let Some(first) = exports.first() else { return Ok(()) };
        let what = volume.map_or_else(|| pool.to_owned(), |own| format!("{pool}/{own}"));
        Err(ApiError::new(ErrorKind::Busy, format!("{what} is exported as {}", exports.join(", ")))
            .with_action(format!("stop that first: weir export delete {first}")))
    }

    pub(super) fn remember(
        &self,
        change: impl FnOnce(&mut super::state::State),
    ) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        change(&mut state.state);
        state.save()
    }

    async fn create_pool(&self, request: PoolCreate) -> Result<PoolCreated, ApiError> {
        if let Some((name, _)) = request.properties.first_key_value() {
            return Err(ApiError::new(
                ErrorKind::Invalid,
                format!("unknown pool property {name:?}"),
            )
            .with_action("leave it out: pools of this version have no properties to set"));
        }
        let _changes = self.changes.lock(&request.name).await;
        let paths: Vec<PathBuf> =
            request.vdevs.iter().flat_map(|vdev| &vdev.disks).map(PathBuf::from).collect();
        let name = request.name.clone();
        if self.pools.read().contains_key(&name) {
            let same =
                self.state.lock().state.pools.iter().any(|p| p.name == name && p.disks == paths);
            if same && let Ok(pool) = self.pool(&name) {
                let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
                let change = PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) };
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
            let (specs, warnings) = disks::open_for_create(vdevs, force, &activity).await?;
            let sizes = CreateOptions::default();
            let name = &request.name;
            let measured = flush_check::measure(name, &specs, sizes, &*options.clock).await?;
            drop(report.send((warnings, measured)));
            let made = Engine::create(name, &specs, sizes, &options, &mut guid).await;
            made.map_err(|error| api_error(&error))
        };
        let pool = OpenPool::start(&name, open).await?;
        let (mut warnings, measured) = warned.await.unwrap_or_default();
        let flush_checks = flush_check::tell(measured, &name, &mut warnings, &self.record.events);
        self.remember(|state| state.pools.push(KnownPool { name: name.clone(), disks: paths }))?;
        let pool = self.insert(&name, pool);
        let change = PoolChange { outcome: Outcome::Created, warnings, pool };
        Ok(PoolCreated { change, flush_checks })
    }

    async fn import_pool(&self, request: PoolImport) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.pool).await;
        if let Ok(pool) = self.pool(&request.pool) {
            let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
            return Ok(PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) });
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
                .with_action("import by the number, not the name"));
        }
        let Some((_, found)) = fitting.pop() else {
            return Err(not_imported(&request.pool, &found));
        };
        let name = found.newest.label.name.clone();
        let _named = if name == request.pool { None } else { Some(self.changes.lock(&name).await) };
        if self.pools.read().contains_key(&name) {
            let message = format!("a pool named {name} is open already");
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        let disks: Vec<PathBuf> = found.disks.into_values().collect();
        let pool = self.open(&name, disks.clone(), request.force).await?;
        self.remember(|state| state.pools.push(KnownPool { name: name.clone(), disks }))?;
        let pool = self.insert(&name, pool);
        Ok(PoolChange { outcome: Outcome::Changed, warnings: Vec::new(), pool })
    }

    async fn scan(search: Vec<String>) -> Result<disks::Scan, ApiError> {
        // Looking at disks may take long or hang; a thread of its own keeps the interface awake.
        let activity = Activity::current();
        let looked = tokio::task::spawn_blocking(move || {
            let runtime = weir_device::new_runtime()?;
            Ok::<_, std::io::Error>(runtime.block_on(disks::scan(&search, &activity)))
        });
        match looked.await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(super::internal("no runtime to look for pools", &error)),
            Err(error) => Err(super::internal("looking for pools failed", &error)),
        }
    }

    /// Takes a pool out of service and closes it; its exports are withdrawn.
    async fn take_out(&self, name: &str) -> Result<(), ApiError> {
        for export in self.exports_of(name, None) {
            self.withdraw(&export);
        }
        let entry = self.pools.write().remove(name);
        let gone = entry.ok_or_else(|| not_found("pool", name))?;
        self.remember(|state| {
            state.pools.retain(|pool| pool.name != name);
            let of_pool = |e: &KnownExport| split(&e.volume).is_ok_and(|(pool, _)| pool == name);
            state.exports.retain(|export| !of_pool(export));
        })?;
        self.share_memory();
        match gone {
            Entry::Open(pool) => self.close(pool).await,
            Entry::Unavailable(_) => Ok(()),
        }
    }

    /// Closes a pool that is out of the table, once no call uses it any more.
    async fn close(&self, mut pool: Arc<OpenPool>) -> Result<(), ApiError> {
        {
            let mut closing = self.closing.lock();
            closing.retain(|engine| engine.strong_count() > 0);
            closing.push(Arc::downgrade(&pool.engine));
        }
        let deadline = Instant::now() + LET_GO;
        loop {
            match Arc::try_unwrap(pool) {
                Ok(sole) => return sole.close().await,
                Err(shared) if Instant::now() < deadline => pool = shared,
                Err(_) => return Err(ApiError::new(ErrorKind::Busy, "a call still uses the pool")),
            }
            pool.let_go_if_silent();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn destroy_pool(&self, request: PoolDestroy) -> Result<Removed, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        self.refuse_exported(&request.name, None)?;
        let pool = self.pool(&request.name)?;
        pool.call(|engine| async move { Ok(engine.pool().erase().await?) }).await?;
        drop(pool);
        // The pool takes no more commits, so closing reports it as suspended: that is the point.
        drop(self.take_out(&request.name).await);
        Ok(Removed { outcome: Outcome::Removed, name: request.name })
    }

    async fn export_pool(&self, request: PoolExport) -> Result<Removed, ApiError> {
        let PoolExport { name, force } = request;
        let _changes =
            if force { self.right_by_force(&name).await } else { self.changes.lock(&name).await };
        if !force {
            self.refuse_exported(&name, None)?;
            self.settle(&name).await?;
        }
        let closed = self.take_out(&name).await;
        match closed {
            Err(error) if !force || error.kind == ErrorKind::NotFound => Err(error),
            _ => Ok(Removed { outcome: Outcome::Removed, name }),
        }
    }

    /// The volume an export offers.
    pub(super) fn volume_of(&self, export: &ExportKey) -> Option<String> {
        Some(self.known_export(&export.name)?.volume)
    }

    fn show_volume(&self, full: &str) -> Result<Volume, ApiError> {
        let (pool, own) = split(full)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = engine.volume(own).map_err(|error| api_error(&error))?;
        Ok(convert::volume(&engine, volume.info(), self.exports_of(pool, Some(own))))
    }

    /// Runs a change of a volume on its pool's thread and shows the result.
    async fn change_volume<F>(
        &self,
        full: &str,
        made: Outcome,
        change: impl FnOnce(Arc<Engine>, String) -> F + Send + 'static,
    ) -> Result<VolumeChange, ApiError>
    where
        F: Future<Output = Result<weir_dataset::Outcome, weir_dataset::DatasetError>> + 'static,
    {
        let (pool, own) = split(full)?;
        let _changes = self.changes.lock(pool).await;
        let own = own.to_owned();
        let outcome = self.pool(pool)?.call(move |engine| change(engine, own)).await?;
        let outcome = match outcome {
            weir_dataset::Outcome::Changed => made,
            weir_dataset::Outcome::Unchanged => Outcome::Unchanged,
        };
        Ok(VolumeChange { outcome, volume: self.show_volume(full)? })
    }

    async fn destroy_volume(&self, full: String) -> Result<Removed, ApiError> {
        let (pool, own) = split(&full)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        open.engine.volume(own).map_err(|error| api_error(&error))?;
        self.refuse_exported(pool, Some(own))?;
        let name = own.to_owned();
        open.call(move |engine| async move { engine.destroy_volume(&name, false).await }).await?;
        Ok(Removed { outcome: Outcome::Removed, name: full })
    }

    fn describe(&self, export: &KnownExport) -> Export {
        let uri = |address: &String| match address.strip_prefix("unix:") {
            Some(path) => format!("nbd+unix:///{}?socket={path}", export.name),
            None => {
                let place = address.strip_prefix("tcp:").unwrap_or(address);
                let default = format!(":{}", weir_api::place::NBD_PORT);
                format!("nbd://{}/{}", place.strip_suffix(&default).unwrap_or(place), export.name)
            }
        };
        Export {
            name: export.name.clone(),
            protocol: Protocol::Nbd,
            volume: export.volume.clone(),
            read_only: export.read_only,
            uris: self.nbd_addresses().iter().map(uri).collect(),
            connections: self.exports.connections(&export.name),
        }
    }

    async fn create_export(&self, request: ExportCreate) -> Result<ExportChange, ApiError> {
        let (pool, _) = split(&request.volume)?;
        let _changes = self.changes.lock(pool).await;
        let ExportKey { name, .. } = request.key();
        let new = KnownExport { name, volume: request.volume, read_only: request.read_only };
        let known = self.known_export(&new.name);
        let outcome = match known {
            Some(known) if known == new => Outcome::Unchanged,
            Some(_) => {
                let message = format!("export {} exists already, with other settings", new.name);
                return Err(ApiError::new(ErrorKind::Exists, message)
                    .with_action("delete it first, or give this one another --name"));
            }
            None => {
                self.offer(&new)?;
                self.remember(|state| state.exports.push(new.clone()))?;
                Outcome::Created
            }
        };
        Ok(ExportChange { outcome, export: self.describe(&new) })
    }

    fn known_export(&self, name: &str) -> Option<KnownExport> {
        let state = self.state.lock();
        state.state.exports.iter().find(|export| export.name == name).cloned()
    }

    fn delete_export(&self, key: &ExportKey) -> Result<Removed, ApiError> {
        // Waits for no disk: clients of a pool that hangs can be cut off.
        self.known_export(&key.name).ok_or_else(|| not_found("export", &key.name))?;
        self.withdraw(&key.name);
        self.remember(|state| state.exports.retain(|export| export.name != key.name))?;
        Ok(Removed { outcome: Outcome::Removed, name: key.name.clone() })
    }

    /// Answers clients, then commits and closes every pool.
    pub(super) async fn shut_down(&self) -> Result<(), ApiError> {
        let nbd = self.nbd.write().take();
        if let Some(nbd) = nbd {
            drop(tokio::task::spawn_blocking(move || nbd.stop()).await);
        }
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

impl Control for Manager {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        Box::pin(async {
            Ok(ServerInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_ms: self.start.elapsed().as_millis() as u64,
                memory_cap_bytes: self.memory_bytes,
                memory_used_bytes: Arena::live_bytes() as u64,
                nbd_addresses: self.nbd_addresses(),
                io_backend: weir_device::io_backend().name().to_owned(),
            })
        })
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        Box::pin(self.create_pool(request))
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        Box::pin(async {
            let pools = self.pools.read();
            let status = |(name, entry): (&String, &Entry)| self.status_of(name, entry);
            Ok(PoolList { pools: pools.iter().map(status).collect() })
        })
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        Box::pin(async move {
            let pools = self.pools.read();
            let entry = pools.get(&pool).ok_or_else(|| not_found("pool", &pool))?;
            Ok(self.status_of(&pool, entry))
        })
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        Box::pin(self.destroy_pool(request))
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        Box::pin(async move {
            let found = Self::scan(request.search).await?;
            let pools = found.pools.into_values().map(|pool| importable(&pool)).collect();
            Ok(ImportableList { pools })
        })
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        Box::pin(self.import_pool(request))
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        Box::pin(self.export_pool(request))
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        Box::pin(async move {
            let entries = self.record.history.of(&pool);
            if entries.is_empty() {
                // Tells apart a pool that nothing was done to and a mistyped name.
                self.pool_status(pool.clone()).await?;
            }
            Ok(HistoryList { pool, entries })
        })
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        Box::pin(async move { Ok(self.record.events.after(query).await) })
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        Box::pin(async move { self.scrub_pool(&request) })
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        Box::pin(self.offline_disk(request))
    }

    fn pool_online(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        Box::pin(self.online_disk(request))
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        Box::pin(self.clear_pool(request))
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        Box::pin(self.attach_disk(request))
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        Box::pin(self.replace_disk(request))
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        Box::pin(self.detach_disk(request))
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        Box::pin(self.add_vdevs(request))
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        Box::pin(self.remove_vdev(request))
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        Box::pin(self.expand_pool(pool))
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            let compression = request.properties.compression.unwrap_or_default();
            let (size_bytes, compression) = (request.size_bytes, convert::compression(compression));
            self.change_volume(&request.name, Outcome::Created, move |engine, name| async move {
                engine.create_volume(&VolumeSpec { name, size_bytes, compression }).await
            })
            .await
        })
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        Box::pin(async move {
            if let Some(pool) = &pool {
                self.pool(pool)?;
            }
            let mut volumes = Vec::new();
            for (name, entry) in &*self.pools.read() {
                let Entry::Open(open) = entry else { continue };
                if pool.as_ref().is_some_and(|wanted| wanted != name) {
                    continue;
                }
                for volume in open.engine.volumes() {
                    let info = volume.info();
                    let exports = self.exports_of(name, Some(&info.name));
                    volumes.push(convert::volume(&open.engine, info, exports));
                }
            }
            volumes.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(VolumeList { volumes })
        })
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        Box::pin(async move { self.show_volume(&volume) })
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            let compression = request.properties.compression.map(convert::compression);
            self.change_volume(&request.name, Outcome::Changed, move |engine, name| async move {
                match compression {
                    Some(compression) => engine.set_compression(&name, compression).await,
                    None => Ok(weir_dataset::Outcome::Unchanged),
                }
            })
            .await
        })
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            let size = request.size_bytes;
            self.change_volume(&request.name, Outcome::Changed, move |engine, name| async move {
                engine.resize_volume(&name, size).await
            })
            .await
        })
    }

    fn volume_destroy(&self, volume: String) -> Answer<'_, Removed> {
        Box::pin(self.destroy_volume(volume))
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        Box::pin(self.create_export(request))
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        Box::pin(async {
            let mut known = self.state.lock().state.exports.clone();
            known.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(ExportList { exports: known.iter().map(|export| self.describe(export)).collect() })
        })
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        Box::pin(async move {
            let known = self.known_export(&export.name);
            let known = known.ok_or_else(|| not_found("export", &export.name))?;
            Ok(self.describe(&known))
        })
    }

    fn export_delete(&self, export: ExportKey) -> Answer<'_, Removed> {
        Box::pin(async move { self.delete_export(&export) })
    }
}

impl Manager {
    fn status_of(&self, name: &str, entry: &Entry) -> PoolStatus {
        match entry {
            Entry::Open(pool) => convert::pool(&pool.engine),
            Entry::Unavailable(why) => {
                let state = self.state.lock();
                let known = state.state.pools.iter().find(|pool| pool.name == name);
                let disks = known.map(|pool| pool.disks.clone()).unwrap_or_default();
                convert::unavailable(name, why, &disks)
            }
        }
    }
}

fn importable(pool: &disks::FoundPool) -> ImportablePool {
    let label = &pool.newest.label;
    let vdevs = convert::label_vdevs(label, &|guid| pool.disks.contains_key(&guid));
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
            Some("Attach the missing disks, or say where they are with -d."),
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
