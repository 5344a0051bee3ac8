//! Calls for disk maintenance: scrub, offline, online, and clearing of errors.
//!
//! Creating and importing pools is in `pool_calls`; resilvers are in the engine.
//!
//! Invariants:
//! - the server opens a disk again before it brings the disk online, because a different disk may
//!   have the path now. The label identifies the disk, whatever its path;
//! - opening a disk never delays another pool.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::types::{
    Outcome, PoolChange, PoolClear, PoolOffline, PoolOnline, PoolScrub, ScrubAction,
};
use weir_api::{ApiError, Handle};
use weir_base::{ErrorKind, Guid};
use weir_dataset::Engine;
use weir_pool::LegState;

use crate::access::activity::Activity;
use crate::answer::errors::{api_error, outcome, pool_error};
use crate::answer::pool_status;
use crate::disks::open_disks;
use crate::state::server::Manager;

/// Maximum time to wait for the last operations of a disk before the disk is opened again.
const LET_GO: Duration = Duration::from_secs(3);

impl Handle<PoolScrub> for Manager {
    /// Starts, pauses or stops a scrub. The scrub continues after the answer; the state of the pool
    /// shows its progress. Answers `unchanged` for a scrub that is in the requested state.
    ///
    /// `Busy` for a start while a resilver runs, and for a pause or stop while no scrub runs.
    async fn handle(&self, call: PoolScrub) -> Result<PoolChange, ApiError> {
        let request = &call;
        let pool = self.pool(&request.name)?;
        let done = match request.action {
            ScrubAction::Start => pool.engine.scrub_start(),
            ScrubAction::Pause => pool.engine.scrub_pause(),
            ScrubAction::Stop => pool.engine.scrub_stop(),
        };
        let outcome = outcome(done.map_err(|error| api_error(&error))?);
        Ok(PoolChange { outcome, warnings: Vec::new(), pool: pool_status::pool(&pool.engine) })
    }
}

impl Handle<PoolOffline> for Manager {
    /// Takes a redundant disk offline until `pool_online` or the next import.
    ///
    /// # Errors
    /// `Busy` for the only complete disk of a vdev.
    async fn handle(&self, request: PoolOffline) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let leg = pool.engine.pool().find_leg(&request.disk);
        let (guid, ..) = leg.map_err(pool_error)?;
        let changed = pool.engine.pool().take_leg_offline(guid).map_err(|error| {
            pool_error(error).with_action("bring its other disks online first, or replace them")
        })?;
        let outcome = if changed { Outcome::Changed } else { Outcome::Unchanged };
        let warnings = if changed {
            vec!["the disk stays offline until 'weir pool online' or the next import".to_owned()]
        } else {
            Vec::new()
        };
        Ok(PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) })
    }
}

impl Handle<PoolOnline> for Manager {
    /// Brings a disk online. A resilver copies the missed writes to it.
    ///
    /// # Errors
    /// `Invalid` if the path belongs to a different disk now; unless `force` is set, `Unavailable`
    /// if the disk was written without the other disks of its vdev. In both cases the pool stays
    /// unchanged.
    async fn handle(&self, request: PoolOnline) -> Result<PoolChange, ApiError> {
        let PoolOnline { name, disk, at, force } = request;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        let core = pool.engine.pool();
        let (guid, path, state) = match (core.find_leg(&disk), at.clone()) {
            (Ok(found), _) => found,
            (Err(_), Some(at)) => {
                let activity = Activity::current();
                let look = pool.call_api(move |engine| async move {
                    open_disks::leg_at(Path::new(&at), engine.pool(), &activity).await
                });
                core.find_leg(&look.await?.to_string()).map_err(pool_error)?
            }
            (Err(error), None) => {
                return Err(pool_error(error).with_action(format!(
                    "list its disks: weir pool status {name}; for a disk with a new path: weir \
                     pool online {name} PATH"
                )));
            }
        };
        if matches!(state, LegState::Online | LegState::Stale) {
            // A request for an online disk retries a resilver that has failed.
            pool.engine.leg_came_back();
            let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
            return Ok(PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) });
        }
        if let Some(at) = &at {
            self.save_disks(&name, &pool, std::slice::from_ref(at))?;
        }
        let activity = Activity::current();
        let back = match at {
            Some(at) => Back { path: at, is_named: true, force },
            None => Back { path, is_named: false, force },
        };
        let done = pool.call_api(move |engine| bring_back(engine, guid, back, activity)).await;
        self.save_disks(&name, &pool, &[])?;
        done.map_err(|error| match error.kind {
            ErrorKind::NotFound => error.with_action(format!(
                "connect it; if its path has changed: weir pool online {name} {disk} PATH"
            )),
            _ => error,
        })?;
        let (outcome, warnings) = (Outcome::Changed, Vec::new());
        Ok(PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) })
    }
}

impl Handle<PoolClear> for Manager {
    /// Sets error counts to zero and opens faulted disks again. A warning names each disk that
    /// cannot be opened. Opens a pool again that is suspended or could not be opened.
    async fn handle(&self, request: PoolClear) -> Result<PoolChange, ApiError> {
        if self.is_down(&request.name) {
            self.reopen_pool(&request.name).await?;
        }
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let core = pool.engine.pool();
        let one = request.disk.as_deref().map(|disk| core.find_leg(disk)).transpose();
        let one = one.map_err(pool_error)?.map(|(guid, ..)| guid);
        core.clear_leg_errors(one);
        if request.lost {
            let forget = async |engine: Arc<Engine>| engine.discard_lost_datasets().await;
            pool.call(forget).await?;
        }
        let faulted: Vec<(Guid, String)> = core
            .status()
            .vdevs
            .into_iter()
            .flat_map(|vdev| vdev.legs)
            .filter(|leg| leg.state == LegState::Faulted && one.is_none_or(|g| g == leg.guid))
            .map(|leg| (leg.guid, leg.path))
            .collect();
        let mut warnings = Vec::new();
        for (guid, path) in faulted {
            let activity = Activity::current();
            let back = Back { path, is_named: false, force: false };
            let back = pool.call_api(move |engine| bring_back(engine, guid, back, activity)).await;
            warnings.extend(back.err().map(|error| error.message));
        }
        pool.engine.leg_came_back();
        let outcome = Outcome::Changed;
        Ok(PoolChange { outcome, warnings, pool: pool_status::pool(&pool.engine) })
    }
}

/// A disk to bring online.
struct Back {
    path: String,
    /// True if the caller named the path. Otherwise the path comes from the server's state.
    is_named: bool,
    /// True if the resilver may overwrite writes that only this disk has.
    force: bool,
}

/// Opens the disk of a leg again and brings it online; runs on the pool's thread.
async fn bring_back(
    engine: Arc<Engine>,
    guid: Guid,
    Back { path, is_named, force }: Back,
    activity: Arc<Activity>,
) -> Result<(), ApiError> {
    let pool = engine.pool();
    pool.check_alive().map_err(pool_error)?;
    if !pool.fail_leg(guid).map_err(pool_error)? {
        return Ok(());
    }
    let deadline = Instant::now() + LET_GO;
    let disk = loop {
        match open_disks::open_again(Path::new(&path), is_named, &activity) {
            Ok(disk) => break disk,
            // Try again: the last operations of the disk have not ended and keep the disk open.
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                compio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => return Err(open_disks::device_error(&error)),
        }
    };
    pool.online_leg(guid, disk, force).await.map_err(pool_error)?;
    engine.leg_came_back();
    Ok(())
}
