//! Unresponsive disks: opens and closes pools in bounded time, and suspends pools that wait for
//! such disks.
//!
//! `recorder` returns errors to waiting callers; `pool_monitor` stops I/O to single legs.
//!
//! Invariants:
//! - the server is ready, and exits, within a bounded time whatever its disks do;
//! - the server suspends a pool because of an unresponsive disk in three cases only: while the pool
//!   is being closed, during a forced export, and when the server stops. In each case, flushed data
//!   is already on disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use weir_api::ApiError;
use weir_api::types::{Health, PoolStatus};
use weir_base::ErrorKind;
use weir_base::limits::DISK_UNRESPONSIVE;

use crate::access::activity::Activity;
use crate::answer::pool_status;
use crate::disks::pool_thread::{CLOSE_TIMEOUT, OpenPool, fail_io_if_unresponsive};
use crate::state::saved_state::SavedPool;
use crate::state::server::{Entry, Manager};

/// Time without disk progress after which a starting server stops waiting for a pool; the pool is
/// opened in the background.
const OPEN_TIMEOUT: Duration = Duration::from_secs(4);
/// Minimum time from the stop signal to the first suspension of a pool.
const END_SUSPEND_DELAY: Duration = Duration::from_secs(4);
/// Time from the stop signal after which the shorter limit [`DISK_UNRESPONSIVE`] for suspending a
/// pool replaces [`CLOSE_TIMEOUT`].
const END_HURRY: Duration = Duration::from_secs(8);
/// Time from the stop signal at which a server that has suspended a pool exits, even if calls still
/// run.
const END_LIMIT: Duration = Duration::from_millis(9500);
/// Minimum time for a suspended pool to end its calls and its thread before the server exits.
const END_GRACE: Duration = Duration::from_millis(1500);
/// Poll interval for unresponsive disks while the server starts or stops.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Manager {
    fn entries(&self) -> Vec<(String, Arc<OpenPool>)> {
        let pools = self.pools.read();
        let open = pools.iter().filter_map(|(name, entry)| match entry {
            Entry::Open(pool) => Some((name.clone(), Arc::clone(pool))),
            Entry::Unavailable(_) => None,
        });
        open.collect()
    }

    /// Returns the status of all open pools.
    pub(crate) fn open_pools(&self) -> Vec<PoolStatus> {
        self.entries().iter().map(|(_, pool)| pool_status::pool(&pool.engine)).collect()
    }

    /// Records the newest txgs and scans of open pools when they are due.
    pub(crate) fn record_due_txgs(&self, pools: &[PoolStatus]) {
        for (name, pool) in self.entries() {
            self.record_scan(&pool.engine);
            let pool = pool.engine.pool();
            let is_online =
                |status: &PoolStatus| status.name == name && status.state == Health::Online;
            let is_degraded = !pools.iter().any(is_online);
            if self.seen.lock().is_due(pool, is_degraded) {
                self.record_seen(pool);
            }
        }
    }

    /// Saves the guid of a pool in its entry, if an older version of the server saved the entry
    /// without a guid.
    fn save_guid(&self, name: &str, guid: u64) {
        let of_pool = |known: &SavedPool| known.name == name && known.guid != guid;
        if !self.state.lock().state.pools.iter().any(of_pool) {
            return;
        }
        let remembered = self.save(|state| {
            let known = state.pools.iter_mut().filter(|known| of_pool(known));
            known.for_each(|known| known.guid = guid);
        });
        if let Err(error) = remembered {
            tracing::warn!(pool = name, %error, "cannot save the guid of the pool");
        }
    }

    /// Saves for each pool whether it is degraded.
    pub(crate) fn save_health(&self, pools: &[PoolStatus]) {
        let degraded = |name: &str| {
            let pool = pools.iter().find(|pool| pool.name == name);
            pool.map(|pool| pool.state != Health::Online)
        };
        let known = self.state.lock().state.pools.clone();
        let changed =
            known.iter().any(|known| degraded(&known.name).is_some_and(|d| d != known.degraded));
        if !changed {
            return;
        }
        let remembered = self.save(|state| {
            for known in &mut state.pools {
                known.degraded = degraded(&known.name).unwrap_or(known.degraded);
            }
        });
        if let Err(error) = remembered {
            tracing::warn!(%error, "cannot save the health of the pools");
        }
    }

    /// Describes the unresponsive disks of an open pool, each with the time for which it has been
    /// unresponsive; `None` if no pool of this name is open.
    pub(crate) fn unresponsive_disks(&self, pool: &str) -> Option<Vec<String>> {
        let open = self.pool(pool).ok()?;
        Some(open.unresponsive_disks(DISK_UNRESPONSIVE))
    }

    /// Stops I/O to legs that were unresponsive for `limit`, in all vdevs that have enough other
    /// legs. Returns the pool and the path of each leg.
    pub(crate) fn fail_unresponsive_legs(&self, limit: Duration) -> Vec<(String, String)> {
        let mut gone = Vec::new();
        for (name, pool) in self.entries() {
            let legs = pool.engine.pool().fail_unresponsive_legs(limit);
            gone.extend(legs.into_iter().map(|leg| (name.clone(), leg)));
        }
        gone
    }

    /// Opens the pools that were open when the server last ran. A pool that cannot be opened stays
    /// listed; a pool whose disks make no progress is opened in the background.
    pub(crate) async fn reopen_pools(self: &Arc<Self>) {
        let known = self.state.lock().state.pools.clone();
        let mut opening = Vec::new();
        for pool in known {
            let why = "its disks have not answered yet; it is still being opened".to_owned();
            self.pools.write().insert(pool.name.clone(), Entry::Unavailable(why));
            let (manager, activity) = (Arc::clone(self), Arc::new(Activity::default()));
            let open = Arc::clone(&activity).cover(async move { manager.reopen(pool).await });
            opening.push((tokio::spawn(open), activity));
        }
        for (mut task, activity) in opening {
            let (mut progress, mut since) = (activity.progress(), Instant::now());
            while since.elapsed() < OPEN_TIMEOUT {
                tokio::select! {
                    _ = &mut task => break,
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
                let now = activity.progress();
                if now != progress {
                    (progress, since) = (now, Instant::now());
                }
            }
        }
    }

    /// Opens a saved pool that is listed as unavailable, and offers its exports, logical units,
    /// mounts and shares. If it cannot be opened, it stays listed with the reason.
    pub(crate) async fn reopen(&self, known: SavedPool) {
        let SavedPool { name, guid, disks, degraded } = known;
        let opened = self.open((&name, guid), disks, (false, degraded)).await;
        let _changes = self.changes.lock(&name).await;
        if !matches!(self.pools.read().get(&name), Some(Entry::Unavailable(_))) {
            // A forced export removed the pool from the table meanwhile, or another call opened the
            // pool. Close this one again, if it is open.
            if let Ok(pool) = opened
                && let Err(error) = pool.close().await
            {
                tracing::warn!(pool = %name, %error, "pool not closed cleanly");
            }
            return;
        }
        match opened {
            Ok(pool) => {
                // Update the saved names: the server may have crashed after a rename and before it
                // saved the new name.
                if let Err(error) = self.follow_names(&pool.engine) {
                    tracing::warn!(pool = %name, %error, "cannot update the saved names");
                }
                self.save_guid(&name, pool.engine.pool().guid().0);
                self.insert(&name, pool);
            }
            Err(error) => {
                tracing::error!(pool = %name, %error, "pool not opened");
                self.pools.write().insert(name.clone(), Entry::Unavailable(error.message));
            }
        }
        let exports = self.state.lock().state.exports.clone();
        let of_pool = |volume: &str| volume.split('/').next() == Some(name.as_str());
        for export in exports.iter().filter(|export| of_pool(&export.volume)) {
            match self.offer(export) {
                Ok(dataset) => self.note_dataset(export, dataset),
                Err(error) => {
                    tracing::error!(export = %export.name, %error, "export not offered");
                }
            }
        }
        self.show_luns(&name);
        self.mount_pool(&name).await;
        self.share_pool(&name).await;
    }

    /// Commits all acknowledged writes of a pool before it is closed. If its disks are
    /// unresponsive, returns an error and changes nothing.
    pub(crate) async fn settle(&self, name: &str) -> Result<(), ApiError> {
        let Ok(pool) = self.pool(name) else { return Ok(()) };
        let sync = pool.call(|engine| async move { engine.sync().await });
        let mut sync = std::pin::pin!(sync);
        loop {
            tokio::select! {
                done = &mut sync => return done,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            let silent = pool.unresponsive_disks(DISK_UNRESPONSIVE);
            if !silent.is_empty() {
                let message = format!("pool {name} does not answer: {}", silent.join(", "));
                return Err(ApiError::new(ErrorKind::Unavailable, message).with_action(format!(
                    "check the disks; 'weir pool export --force {name}' closes the pool"
                )));
            }
        }
    }

    /// Takes the lock of a pool for a forced export, before all queued calls. If disks are
    /// unresponsive, suspends the pool, which ends the call that holds the lock.
    pub(crate) async fn right_by_force(&self, name: &str) -> OwnedMutexGuard<()> {
        self.suspend_while(name, self.changes.lock_first(name)).await
    }

    /// Waits for a step of a forced export. If disks are unresponsive meanwhile, suspends the pool,
    /// which ends the calls and the requests of mounts that the step waits for.
    pub(crate) async fn suspend_while<T>(&self, name: &str, step: impl Future<Output = T>) -> T {
        let mut step = std::pin::pin!(step);
        loop {
            if let Ok(pool) = self.pool(name) {
                pool.fail_io_if_unresponsive(DISK_UNRESPONSIVE);
            }
            tokio::select! {
                done = &mut step => return done,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// Suspends pools with unresponsive disks while the server stops. Returns when the server must
    /// exit without waiting for those pools.
    pub(crate) async fn end_of_patience(&self) {
        let began = Instant::now();
        let mut suspended: Option<Instant> = None;
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let Some(limit) = silence_limit(began.elapsed()) else { continue };
            let closing = self.closing.lock().clone();
            let open = self.entries().into_iter().map(|(_, pool)| Arc::downgrade(&pool.engine));
            for engine in open.chain(closing).filter_map(|engine| engine.upgrade()) {
                if fail_io_if_unresponsive(&engine, limit) {
                    suspended.get_or_insert_with(Instant::now);
                }
            }
            let suspended = suspended.map(|at| at.duration_since(began));
            if must_exit(began.elapsed(), suspended) {
                return;
            }
        }
    }
}

/// Returns how long a disk must be unresponsive before its pool is suspended, for a server that got
/// the stop signal `elapsed` ago. `None`: it is too early to suspend a pool.
fn silence_limit(elapsed: Duration) -> Option<Duration> {
    match elapsed {
        elapsed if elapsed < END_SUSPEND_DELAY => None,
        elapsed if elapsed < END_HURRY => Some(CLOSE_TIMEOUT),
        _ => Some(DISK_UNRESPONSIVE),
    }
}

/// True if a server that got the stop signal `elapsed` ago exits although pools are open.
/// `suspended` is the time from the stop signal to the first suspended pool.
fn must_exit(elapsed: Duration, suspended: Option<Duration>) -> bool {
    suspended.is_some_and(|at| elapsed >= END_LIMIT.max(at + END_GRACE))
}

#[cfg(test)]
pub(crate) mod tests;
