//! Looking after pools: scrub, and disks that go out of use and come back.
//!
//! Not here: pools' life (control), what a resilver copies (the engine).
//!
//! Invariants:
//! - a disk is opened again before it is used again: what the path leads to now may be another one;
//! - looking at a disk never holds up another pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::ApiError;
use weir_api::types::{
    Outcome, PoolChange, PoolClear, PoolDisk, PoolScrub, ScanKind, ScanState, ScanStatus,
    ScrubAction,
};
use weir_base::{ErrorKind, Guid};
use weir_dataset::{DatasetError, Engine};
use weir_pool::LegState;

use super::activity::Activity;
use super::control::Manager;
use super::pools::api_error;
use super::{convert, disks};

/// How long a disk's last operations may take before it can be opened again.
const LET_GO: Duration = Duration::from_secs(3);

pub(super) fn outcome(outcome: weir_dataset::Outcome) -> Outcome {
    match outcome {
        weir_dataset::Outcome::Changed => Outcome::Changed,
        weir_dataset::Outcome::Unchanged => Outcome::Unchanged,
    }
}

pub(super) fn pool_error(error: weir_pool::PoolError) -> ApiError {
    api_error(&DatasetError::from(error))
}

/// A scan as the API tells it.
pub(super) fn scan(scan: &weir_pool::ScanStatus) -> ScanStatus {
    let ran_ms = scan.ran.as_millis() as u64;
    let running = scan.state == weir_pool::ScanState::Running && scan.examined_bytes > 0;
    let left = scan.total_bytes.saturating_sub(scan.examined_bytes);
    ScanStatus {
        kind: match scan.kind {
            weir_pool::ScanKind::Scrub => ScanKind::Scrub,
            weir_pool::ScanKind::Resilver => ScanKind::Resilver,
        },
        state: match scan.state {
            weir_pool::ScanState::Running => ScanState::Running,
            weir_pool::ScanState::Paused => ScanState::Paused,
            weir_pool::ScanState::Finished => ScanState::Finished,
            weir_pool::ScanState::Stopped => ScanState::Stopped,
        },
        started_unix_ms: scan.started_unix_ms,
        ended_unix_ms: scan.ended_unix_ms,
        ran_ms,
        total_bytes: scan.total_bytes,
        examined_bytes: scan.examined_bytes,
        repaired_bytes: scan.repaired_bytes,
        errors: scan.damaged + scan.unrepaired,
        left_ms: running.then(|| {
            let at_this_speed = u128::from(ran_ms) * u128::from(left);
            (at_this_speed / u128::from(scan.examined_bytes)) as u64
        }),
    }
}

impl Manager {
    pub(super) fn scrub_pool(&self, request: &PoolScrub) -> Result<PoolChange, ApiError> {
        let pool = self.pool(&request.name)?;
        let done = match request.action {
            ScrubAction::Start => pool.engine.scrub_start(),
            ScrubAction::Pause => pool.engine.scrub_pause(),
            ScrubAction::Stop => pool.engine.scrub_stop(),
        };
        let outcome = outcome(done.map_err(|error| api_error(&error))?);
        Ok(PoolChange { outcome, warnings: Vec::new(), pool: convert::pool(&pool.engine) })
    }

    pub(super) async fn offline_disk(&self, request: PoolDisk) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let leg = pool.engine.pool().find_leg(&request.disk);
        let (guid, ..) = leg.map_err(pool_error)?;
        let changed = pool.engine.pool().take_leg_offline(guid).map_err(|error| {
            pool_error(error).with_action("bring its other disks online first, or replace them")
        })?;
        let outcome = if changed { Outcome::Changed } else { Outcome::Unchanged };
        let warnings = if changed {
            vec!["the disk is used again when the pool is next opened".to_owned()]
        } else {
            Vec::new()
        };
        Ok(PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) })
    }

    pub(super) async fn online_disk(&self, request: PoolDisk) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let (guid, path, state) = pool.engine.pool().find_leg(&request.disk).map_err(pool_error)?;
        if matches!(state, LegState::Online | LegState::Stale) {
            // Asked again, a resilver that had given up tries once more.
            pool.engine.leg_came_back();
            let (outcome, warnings) = (Outcome::Unchanged, Vec::new());
            return Ok(PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) });
        }
        // The disk may stand under another name now, which is how it was asked for.
        let path = if request.disk.starts_with('/') { request.disk } else { path };
        let activity = Activity::current();
        pool.call_api(move |engine| bring_back(engine, guid, path, activity)).await?;
        let (outcome, warnings) = (Outcome::Changed, Vec::new());
        Ok(PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) })
    }

    pub(super) async fn clear_pool(&self, request: PoolClear) -> Result<PoolChange, ApiError> {
        let _changes = self.changes.lock(&request.name).await;
        let pool = self.pool(&request.name)?;
        let core = pool.engine.pool();
        let one = request.disk.as_deref().map(|disk| core.find_leg(disk)).transpose();
        let one = one.map_err(pool_error)?.map(|(guid, ..)| guid);
        core.clear_leg_errors(one);
        if request.lost {
            let forget = async |engine: Arc<Engine>| engine.forget_lost_datasets().await;
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
            let back = pool.call_api(move |engine| bring_back(engine, guid, path, activity)).await;
            warnings.extend(back.err().map(|error| error.message));
        }
        pool.engine.leg_came_back();
        let outcome = Outcome::Changed;
        Ok(PoolChange { outcome, warnings, pool: convert::pool(&pool.engine) })
    }
}

/// Opens a leg's disk anew and takes it into use; on the pool's thread.
async fn bring_back(
    engine: Arc<Engine>,
    guid: Guid,
    path: String,
    activity: Arc<Activity>,
) -> Result<(), ApiError> {
    let pool = engine.pool();
    pool.check_alive().map_err(pool_error)?;
    if !pool.let_go_of_leg(guid).map_err(pool_error)? {
        return Ok(());
    }
    let deadline = Instant::now() + LET_GO;
    let disk = loop {
        let (mut disks, mut errors) = disks::open_known(&[PathBuf::from(&path)], &activity);
        match (disks.pop(), errors.pop()) {
            (Some(disk), _) => break disk,
            // Its last operations still hold it.
            (None, Some(error)) if error.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                compio::time::sleep(Duration::from_millis(50)).await;
            }
            (None, Some(error)) => return Err(disks::device_error(&error)),
            (None, None) => return Err(super::internal("no disk and no error", &path)),
        }
    };
    pool.bring_leg_back(guid, disk).await.map_err(pool_error)?;
    engine.leg_came_back();
    Ok(())
}
