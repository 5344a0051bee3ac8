//! Disks that do not answer: opening, letting go of and closing pools without waiting for them.
//!
//! Not here: telling a caller (recorder), mirrors that go on without a leg (watchman).
//!
//! Invariants:
//! - the server is ready, and ends, within a bounded time whatever its disks do;
//! - a pool is let go of only by force or at the server's end; what was flushed is safe then.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OwnedMutexGuard;
use weir_api::ApiError;
use weir_api::types::{Health, PoolStatus};
use weir_base::ErrorKind;
use weir_base::limits::DISK_SILENT;

use crate::access::activity::Activity;
use crate::answer::pool_status;
use crate::disks::pool_thread::{CLOSE_SILENT, OpenPool, let_go_if_silent};
use crate::state::saved_state::KnownPool;
use crate::state::server::{Entry, Manager};

/// At the start a pool whose disks give no sign for this long is left to open in the background.
const OPEN_PATIENCE: Duration = Duration::from_secs(4);
/// A stopping server suspends no pool before this time.
const END_PATIENCE: Duration = Duration::from_secs(4);
/// From this time on, a stopping server suspends a pool after [`DISK_SILENT`] instead of
/// [`CLOSE_SILENT`].
const END_HURRY: Duration = Duration::from_secs(8);
/// A stopping server exits at this time if it has suspended a pool and still runs.
const END_LIMIT: Duration = Duration::from_millis(9500);
/// A suspended pool has at least this long to end its calls and its thread before the server exits.
const END_GRACE: Duration = Duration::from_millis(1500);
/// How often disks are looked at meanwhile.
const LOOK: Duration = Duration::from_millis(100);

impl Manager {
    fn entries(&self) -> Vec<(String, Arc<OpenPool>)> {
        let pools = self.pools.read();
        let open = pools.iter().filter_map(|(name, entry)| match entry {
            Entry::Open(pool) => Some((name.clone(), Arc::clone(pool))),
            Entry::Unavailable(_) => None,
        });
        open.collect()
    }

    /// The status of every open pool.
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

    /// Completes the entry of a pool that a server without guids in its file has written.
    fn remember_guid(&self, name: &str, guid: u64) {
        let of_pool = |known: &KnownPool| known.name == name && known.guid != guid;
        if !self.state.lock().state.pools.iter().any(of_pool) {
            return;
        }
        let remembered = self.remember(|state| {
            let known = state.pools.iter_mut().filter(|known| of_pool(known));
            known.for_each(|known| known.guid = guid);
        });
        if let Err(error) = remembered {
            tracing::warn!(pool = name, %error, "the guid of the pool is not remembered");
        }
    }

    /// Remembers which pools are not whole.
    pub(crate) fn remember_health(&self, pools: &[PoolStatus]) {
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
        let remembered = self.remember(|state| {
            for known in &mut state.pools {
                known.degraded = degraded(&known.name).unwrap_or(known.degraded);
            }
        });
        if let Err(error) = remembered {
            tracing::warn!(%error, "the health of pools is not remembered");
        }
    }

    /// The disks of an open pool that do not answer, each with for how long; `None` when no such
    /// pool is open.
    pub(crate) fn silent_disks(&self, pool: &str) -> Option<Vec<String>> {
        let open = self.pool(pool).ok()?;
        Some(open.silent_disks(DISK_SILENT))
    }

    /// Lets every mirror of every pool go on without legs that were silent for `limit`.
    pub(crate) fn let_go_of_silent_legs(&self, limit: Duration) -> Vec<(String, String)> {
        let mut gone = Vec::new();
        for (name, pool) in self.entries() {
            let legs = pool.engine.pool().let_go_of_silent_legs(limit);
            gone.extend(legs.into_iter().map(|leg| (name.clone(), leg)));
        }
        gone
    }

    /// Opens what was open when the server last ran. A pool that cannot be opened stays listed; one
    /// whose disks give no sign is opened in the background.
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
            while since.elapsed() < OPEN_PATIENCE {
                tokio::select! {
                    _ = &mut task => break,
                    () = tokio::time::sleep(LOOK) => {}
                }
                let now = activity.progress();
                if now != progress {
                    (progress, since) = (now, Instant::now());
                }
            }
        }
    }

    async fn reopen(&self, known: KnownPool) {
        let KnownPool { name, guid, disks, degraded } = known;
        let opened = self.open((&name, guid), disks, (false, degraded)).await;
        let _changes = self.changes.lock(&name).await;
        if !self.pools.read().contains_key(&name) {
            // Exported by force meanwhile.
            if let Ok(pool) = opened
                && let Err(error) = pool.close().await
            {
                tracing::warn!(pool = %name, %error, "pool not closed cleanly");
            }
            return;
        }
        match opened {
            Ok(pool) => {
                // A crash may have come between a rename and remembering it.
                if let Err(error) = self.follow_names(&pool.engine) {
                    tracing::warn!(pool = %name, %error, "names not followed");
                }
                self.remember_guid(&name, pool.engine.pool().guid().0);
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
    }

    /// Refuses to close a pool whose disks do not answer, before anything is changed; commits what
    /// is acknowledged.
    pub(crate) async fn settle(&self, name: &str) -> Result<(), ApiError> {
        let Ok(pool) = self.pool(name) else { return Ok(()) };
        let sync = pool.call(|engine| async move { engine.sync().await });
        let mut sync = std::pin::pin!(sync);
        loop {
            tokio::select! {
                done = &mut sync => return done,
                () = tokio::time::sleep(LOOK) => {}
            }
            let silent = pool.silent_disks(DISK_SILENT);
            if !silent.is_empty() {
                let message = format!("pool {name} does not answer: {}", silent.join(", "));
                return Err(ApiError::new(ErrorKind::Unavailable, message).with_action(format!(
                    "check the disks; 'weir pool export --force {name}' lets go of the pool"
                )));
            }
        }
    }

    /// The right to change a pool, for one who lets go of it: ahead of all calls that wait, and if
    /// the disks do not answer the call that has the right is ended with the pool.
    pub(crate) async fn right_by_force(&self, name: &str) -> OwnedMutexGuard<()> {
        let mut right = std::pin::pin!(self.changes.lock_first(name));
        loop {
            if let Ok(pool) = self.pool(name) {
                pool.let_go_if_silent(DISK_SILENT);
            }
            tokio::select! {
                right = &mut right => return right,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Suspends pools with silent disks while the server stops. Returns when the server must exit
    /// without waiting for them.
    pub(crate) async fn end_of_patience(&self) {
        let began = Instant::now();
        let mut suspended: Option<Instant> = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(limit) = silence_limit(began.elapsed()) else { continue };
            let closing = self.closing.lock().clone();
            let open = self.entries().into_iter().map(|(_, pool)| Arc::downgrade(&pool.engine));
            for engine in open.chain(closing).filter_map(|engine| engine.upgrade()) {
                if let_go_if_silent(&engine, limit) {
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

/// Silence of a disk after which a server that began to stop `elapsed` ago suspends the pool.
fn silence_limit(elapsed: Duration) -> Option<Duration> {
    match elapsed {
        elapsed if elapsed < END_PATIENCE => None,
        elapsed if elapsed < END_HURRY => Some(CLOSE_SILENT),
        _ => Some(DISK_SILENT),
    }
}

/// Whether a server that began to stop `elapsed` ago exits although pools are open. `suspended` is
/// the time from the stop signal to the first suspended pool.
fn must_exit(elapsed: Duration, suspended: Option<Duration>) -> bool {
    suspended.is_some_and(|at| elapsed >= END_LIMIT.max(at + END_GRACE))
}

#[cfg(test)]
pub(crate) mod tests;
