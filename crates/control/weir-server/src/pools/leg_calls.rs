//! Calls that change the disks of vdevs: attach, replace, detach.
//!
//! The engine performs the steps of a change; offline and online are in `maintenance_calls`.
//!
//! Invariants:
//! - a new disk with a file system or other recognized contents is refused unless forced;
//! - the server saves the path of a new disk before the pool relies on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_api::types::{Outcome, PoolAttach, PoolChange, PoolDetach, PoolReplace};
use weir_api::{ApiError, Handle};
use weir_base::{ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine};
use weir_device::Device;
use weir_pool::{LegState, PoolError, Replacement};

use crate::access::activity::Activity;
use crate::answer::errors::{api_error, pool_error};
use crate::answer::names::guid;
use crate::answer::pool_status;
use crate::disks::flush_check::Measured;
use crate::disks::pool_thread::OpenPool;
use crate::disks::{flush_check, open_disks};
use crate::state::server::Manager;

impl Handle<PoolAttach> for Manager {
    /// Attaches a disk to a mirror, or to a single disk, which becomes a mirror. A resilver copies
    /// the data to the new disk.
    ///
    /// # Errors
    /// `Exists` for a new disk with data on it, without `force`; `Invalid` for a full mirror or a
    /// new disk that is too small.
    async fn handle(&self, request: PoolAttach) -> Result<PoolChange, ApiError> {
        let PoolAttach { name, disk, new, force } = request;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        let (beside, ..) = pool.engine.pool().find_leg(&disk).map_err(pool_error)?;
        self.save_disks(&name, &pool, std::slice::from_ref(&new))?;
        let activity = Activity::current();
        let attached = pool.call_api(move |engine| async move {
            let device: Arc<dyn Device> =
                open_disks::open_new(Path::new(&new), force, &activity).await?;
            let there = engine.pool();
            let fits = there.check_joining(beside, Replacement::Attached);
            fits.and_then(|()| there.check_disk(beside, &*device)).map_err(pool_error)?;
            let measured = measure(&device, &engine).await?;
            let done = engine.attach_leg(beside, device, guid()).await;
            done.map(|()| measured).map_err(|error| api_error(&error))
        });
        let attached = attached.await;
        self.save_disks(&name, &pool, &[])?;
        let mut warnings = Vec::new();
        flush_check::report(attached?, &name, &mut warnings, &self.record.events);
        Ok(changed(&pool, warnings))
    }
}

impl Handle<PoolReplace> for Manager {
    /// Replaces a disk by another. The old disk stays in the vdev until the resilver ends. If the
    /// vdev has no place for a further disk and the request has `at_once`, the old disk leaves the
    /// vdev before the resilver.
    ///
    /// # Errors
    /// The errors of `pool_attach`; `Busy` for a disk that the vdev cannot lose.
    async fn handle(&self, request: PoolReplace) -> Result<PoolChange, ApiError> {
        let PoolReplace { name, disk, new, force, at_once } = request;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        let (old, path, state) = pool.engine.pool().find_leg(&disk).map_err(pool_error)?;
        let new = new.unwrap_or_else(|| path.clone());
        if new == path && matches!(state, LegState::Online | LegState::Stale) {
            let message = format!("{path} is in use; it cannot replace itself");
            return Err(ApiError::new(ErrorKind::Invalid, message)
                .with_action("name the disk that replaces it"));
        }
        self.save_disks(&name, &pool, std::slice::from_ref(&new))?;
        let activity = Activity::current();
        let replaced = pool.call_api(move |engine| async move {
            if new == path {
                // A different disk may have this path now, so the pool's disk must be closed first.
                engine.pool().fail_leg(old).map_err(pool_error)?;
            }
            let itself = open_disks::leg_at(Path::new(&new), engine.pool(), &activity).await;
            if !force && itself.is_ok_and(|guid| guid == old) {
                return Err(is_same(&new, engine.pool().name()));
            }
            let device: Arc<dyn Device> =
                open_disks::open_new(Path::new(&new), force, &activity).await?;
            let refused = |error| match error {
                DatasetError::Pool(PoolError::StillGood { .. }) => api_error(&error)
                    .with_action("repeat it with --at-once to accept less redundancy meanwhile"),
                _ => api_error(&error),
            };
            engine.check_replacement(old, &*device, at_once).map_err(refused)?;
            let measured = measure(&device, &engine).await?;
            let how = engine.replace_leg(old, device, guid(), at_once).await.map_err(refused)?;
            Ok((how, measured))
        });
        let replaced = replaced.await;
        self.save_disks(&name, &pool, &[])?;
        let (how, measured) = replaced?;
        let mut warnings = match how {
            Replacement::Attached => {
                vec![format!("{disk} is detached when the new disk is resilvered")]
            }
            Replacement::Instead | Replacement::InsteadOfGood => Vec::new(),
        };
        flush_check::report(measured, &name, &mut warnings, &self.record.events);
        Ok(changed(&pool, warnings))
    }
}

impl Handle<PoolDetach> for Manager {
    /// Detaches a disk from a mirror and erases its label.
    ///
    /// # Errors
    /// `Busy` for the only complete disk of the mirror, `Invalid` for a disk outside a mirror.
    async fn handle(&self, request: PoolDetach) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let leg = pool.engine.pool().find_leg(&request.disk);
        let (leg, ..): (Guid, _, _) = leg.map_err(pool_error)?;
        pool.call(move |engine| async move { engine.detach_leg(leg).await }).await?;
        self.save_disks(&request.name, &pool, &[])?;
        Ok(changed(&pool, Vec::new()))
    }
}

impl Manager {
    /// Saves the paths of the disks of a pool, and of the disks that are about to join it.
    pub(crate) fn save_disks(
        &self,
        name: &str,
        pool: &OpenPool,
        joining: &[String],
    ) -> Result<(), ApiError> {
        let legs = pool.engine.pool().status().vdevs.into_iter().flat_map(|vdev| vdev.legs);
        let disks =
            legs.map(|leg| PathBuf::from(leg.path)).chain(joining.iter().map(PathBuf::from));
        let disks: Vec<PathBuf> = disks.collect();
        self.save(|state| {
            for known in state.pools.iter_mut().filter(|known| known.name == name) {
                known.disks.clone_from(&disks);
            }
        })
    }
}

/// Returns the error for a request that names a disk as its own replacement.
fn is_same(path: &str, pool: &str) -> ApiError {
    let message = format!("{path} is the same disk: by its label, it belongs to pool {pool}");
    ApiError::new(ErrorKind::Exists, message).with_action(format!(
        "bring it online, which resilvers the writes that it missed: weir pool online {pool} \
         {path}; to rewrite all of it, repeat the call with --force"
    ))
}

/// Measures the flush latencies of a checked disk that is about to join a pool.
async fn measure(device: &Arc<dyn Device>, engine: &Engine) -> Result<Vec<Measured>, ApiError> {
    flush_check::measure_disks(std::slice::from_ref(device), engine.pool().clock()).await
}

pub(crate) fn changed(pool: &OpenPool, warnings: Vec<String>) -> PoolChange {
    let outcome = Outcome::Changed;
    PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) }
}
