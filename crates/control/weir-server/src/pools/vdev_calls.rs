//! Calls that change the vdevs of a pool: add, remove, expand; and the task that activates spares.
//!
//! The engine performs the steps of a change; changes of single disks are in `leg_calls`.
//!
//! Invariants:
//! - new disks with recognized contents, and vdevs of another redundancy, are refused unless
//!   forced;
//! - the server saves the path of a new disk before the pool relies on the disk. After a vdev is
//!   removed, the server drops the saved paths of the vdev's disks, which may belong to another
//!   pool by then;
//! - a spare replaces only a disk that failed, never a disk that an administrator took offline.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::types::{
    EventLevel, Health, Outcome, PoolAdd, PoolChange, PoolExpand, PoolRemove, PoolStatus, VdevRole,
    VdevSpec,
};
use weir_api::{ApiError, Handle};
use weir_base::Guid;

use crate::access::activity::Activity;
use crate::answer::errors::{api_error, outcome, pool_error};
use crate::answer::names::guid;
use crate::answer::pool_status;
use crate::disks::pool_thread::OpenPool;
use crate::disks::{flush_check, open_disks};
use crate::pools::leg_calls::changed;
use crate::record::events::{Events, NewEvent};
use crate::state::server::Manager;

/// Interval of the checks for disks that need a spare.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which a disk may be missing before a spare replaces it. A disk may be slow to appear
/// after a start.
const MISSING_MAX: Duration = Duration::from_mins(1);

impl Handle<PoolAdd> for Manager {
    /// Adds vdevs to a pool.
    ///
    /// # Errors
    /// Without `force`, `Exists` for a disk with data on it, and `Invalid` for vdevs with another
    /// redundancy than the pool's. Always `Invalid` for vdevs that cannot be a part of this pool.
    async fn handle(&self, request: PoolAdd) -> Result<PoolChange, ApiError> {
        let PoolAdd { name, vdevs, force } = request;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        if !force {
            check_same_redundancy(&pool_status::pool(&pool.engine), &vdevs)?;
        }
        let joining: Vec<String> = vdevs.iter().flat_map(|vdev| vdev.disks.clone()).collect();
        self.save_disks(&name, &pool, &joining)?;
        let activity = Activity::current();
        let added = pool.call_api(move |engine| async move {
            let (specs, warnings) = open_disks::open_for_create(&vdevs, force, &activity).await?;
            for spec in &specs {
                engine.pool().check_new_vdev(spec).map_err(pool_error)?;
            }
            let new: Vec<_> = specs.iter().flat_map(|spec| &spec.disks).map(Arc::clone).collect();
            let measured = flush_check::measure_disks(&new, engine.pool().clock()).await?;
            for spec in &specs {
                engine.add_vdev(spec, &mut guid).await.map_err(|error| api_error(&error))?;
            }
            Ok((warnings, measured))
        });
        let added = added.await;
        self.save_disks(&name, &pool, &[])?;
        let (mut warnings, measured) = added?;
        flush_check::report(measured, &name, &mut warnings, &self.record.events);
        Ok(changed(&pool, warnings))
    }
}

impl Handle<PoolRemove> for Manager {
    /// Starts or stops the removal of a vdev. After the answer, the pool moves the data of the vdev
    /// to the other vdevs; the state of the pool shows the progress. Answers `unchanged` if the
    /// removal is already in the requested state.
    ///
    /// # Errors
    /// `NoSpace` if the other vdevs have no space for the data, `Invalid` for the last data vdev.
    async fn handle(&self, request: PoolRemove) -> Result<PoolChange, ApiError> {
        let PoolRemove { name, vdev, stop } = request;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        let number = pool.engine.pool().find_vdev(&vdev).map_err(pool_error)?;
        let done = pool.call(move |engine| async move {
            if stop {
                engine.cancel_removal(number).await
            } else {
                engine.remove_vdev(number).await
            }
        });
        let outcome = outcome(done.await?);
        self.save_disks(&name, &pool, &[])?;
        Ok(PoolChange { outcome, warnings: Vec::new(), pool: pool_status::pool(&pool.engine) })
    }
}

impl Handle<PoolExpand> for Manager {
    /// Expands the pool to the full size of its disks. Answers `unchanged` if no disk has grown.
    async fn handle(&self, call: PoolExpand) -> Result<PoolChange, ApiError> {
        let name = call.name;
        let _changes = self.changes.lock(&name).await;
        let pool = self.pool(&name)?;
        let gained = pool.call(|engine| async move { engine.expand().await }).await?;
        let outcome = if gained > 0 { Outcome::Changed } else { Outcome::Unchanged };
        Ok(PoolChange { outcome, warnings: Vec::new(), pool: pool_status::pool(&pool.engine) })
    }
}

impl Manager {
    /// Drops the saved disk paths of removed vdevs. Does nothing while a call changes the pool,
    /// because calls save the paths of new disks before these belong to the pool.
    fn delete_removed_disks(&self, pool: &OpenPool, status: &PoolStatus) {
        let name = &status.name;
        let disks = status.vdevs.iter().flat_map(|vdev| &vdev.disks);
        let disks: BTreeSet<PathBuf> = disks.map(|disk| PathBuf::from(&disk.path)).collect();
        let stale = self.state.lock().state.pools.iter().any(|known| {
            known.name == *name && known.disks.iter().any(|disk| !disks.contains(disk))
        });
        if !stale {
            return;
        }
        let Some(_changes) = self.changes.try_lock(name) else { return };
        if let Err(error) = self.save_disks(name, pool, &[]) {
            tracing::warn!(pool = name, %error, "the state file could not be written");
        }
    }

    /// Replaces the disk `old` by a spare of the pool, if a spare fits.
    async fn use_spare(&self, name: &str, pool: &OpenPool, old: Guid) -> Result<bool, ApiError> {
        let _changes = self.changes.lock(name).await;
        pool.call(move |engine| async move { engine.use_spare(old, guid()).await }).await
    }
}

/// Refuses new vdevs with another redundancy than the pool's: a pool is as redundant as its weakest
/// vdev.
fn check_same_redundancy(pool: &PoolStatus, new: &[VdevSpec]) -> Result<(), ApiError> {
    let of = |kind: weir_api::types::VdevKind, disks: usize| match disks {
        1 => "single disks".to_owned(),
        _ => format!("{} of {disks} disks", kind.name()),
    };
    let data = pool.vdevs.iter().filter(|vdev| vdev.role == VdevRole::Data);
    let staying = data.filter(|vdev| vdev.leaving.is_none());
    let present: Vec<String> = staying.map(|vdev| of(vdev.kind, vdev.disks.len())).collect();
    let joining = new.iter().filter(|vdev| vdev.role == VdevRole::Data);
    let joining = joining.map(|vdev| of(vdev.kind, vdev.disks.len()));
    let other = joining.into_iter().find(|new| !present.contains(new));
    match (present.first(), other) {
        (Some(first), Some(other)) => {
            Err(weir_api::Error::Mismatched { first: first.clone(), other }.into())
        }
        _ => Ok(()),
    }
}

/// The disks of a pool that need a spare.
#[derive(Default)]
struct Wanting {
    /// Missing disks by guid, each with the time at which it was first seen missing.
    missing: BTreeMap<String, Instant>,
    /// Guids of disks for which no spare was found. A disk leaves this set when it is online again.
    tried: BTreeSet<String>,
}

impl Wanting {
    /// Returns the disk of a pool that a spare should replace now.
    fn next(&mut self, pool: &PoolStatus, now: Instant) -> Option<String> {
        let in_service = pool.vdevs.iter().filter(|vdev| vdev.role != VdevRole::Spare);
        let mut wanted = None;
        for disk in in_service.flat_map(|vdev| &vdev.disks) {
            let due = match disk.state {
                Health::Faulted => true,
                Health::Unavailable => {
                    let since = *self.missing.entry(disk.guid.clone()).or_insert(now);
                    now.duration_since(since) >= MISSING_MAX
                }
                Health::Online | Health::Degraded | Health::Offline => {
                    self.missing.remove(&disk.guid);
                    self.tried.remove(&disk.guid);
                    false
                }
            };
            if due && wanted.is_none() && !self.tried.contains(&disk.guid) {
                wanted = Some(disk.guid.clone());
            }
        }
        let has_spare = pool.vdevs.iter().any(|vdev| vdev.role == VdevRole::Spare);
        wanted.filter(|_| has_spare)
    }
}

/// Activates spares and drops the disks of removed vdevs, until the task is dropped. Each pool
/// activates spares in its own task, so a pool that waits for its disks delays no other pool.
pub(crate) async fn look_after(manager: Arc<Manager>, events: Arc<Events>) {
    let mut wanting: BTreeMap<String, Wanting> = BTreeMap::new();
    let mut stepping_in: BTreeMap<String, tokio::task::JoinHandle<()>> = BTreeMap::new();
    let mut timer = tokio::time::interval(POLL_INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        stepping_in.retain(|_, task| !task.is_finished());
        let open = manager.open_pools();
        wanting.retain(|name, _| open.iter().any(|pool| pool.name == *name));
        for status in open {
            let name = status.name.clone();
            let Ok(pool) = manager.pool(&name) else { continue };
            manager.delete_removed_disks(&pool, &status);
            let wanting = wanting.entry(name.clone()).or_default();
            let busy = stepping_in.contains_key(&name);
            let Some(old) = wanting.next(&status, Instant::now()).filter(|_| !busy) else {
                continue;
            };
            wanting.tried.insert(old.clone());
            let (manager, events) = (Arc::clone(&manager), Arc::clone(&events));
            let task = step_in(manager, events, name.clone(), pool, old);
            stepping_in.insert(name, tokio::spawn(task));
        }
    }
}

async fn step_in(
    manager: Arc<Manager>,
    events: Arc<Events>,
    name: String,
    pool: Arc<OpenPool>,
    old: String,
) {
    let Ok((leg, path, _)) = pool.engine.pool().find_leg(&old) else { return };
    let done = manager.use_spare(&name, &pool, leg).await;
    if let Err(error) = manager.save_disks(&name, &pool, &[]) {
        tracing::warn!(pool = name, %error, "the state file could not be written");
    }
    let (level, kind, message) = match done {
        Ok(true) => {
            let message = format!("a spare replaced {path} in pool {name}");
            (EventLevel::Warning, "spare_used", message)
        }
        Ok(false) => {
            let message = format!("no spare of pool {name} can replace {path}");
            (EventLevel::Warning, "spare_missing", message)
        }
        Err(error) => {
            let what = &error.message;
            let message = format!("no spare replaced {path} in pool {name}: {what}");
            (EventLevel::Error, "spare_failed", message)
        }
    };
    events.add(NewEvent {
        level,
        kind: kind.to_owned(),
        pool: Some(name),
        disk: Some(path),
        message,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(state: &str, with_spare: bool) -> PoolStatus {
        let errors = serde_json::json!({ "read": 0, "write": 0, "checksum": 0 });
        let vdev = |role: &str, guid: &str, state: &str| {
            serde_json::json!({
                "name": guid, "kind": "disk", "role": role, "state": state, "errors": errors,
                "disks": [{ "path": "/a", "guid": guid, "state": state, "errors": errors,
                            "note": null }],
            })
        };
        let mut vdevs = vec![vdev("data", "5", state)];
        if with_spare {
            vdevs.push(vdev("spare", "6", "unavailable"));
        }
        let pool = serde_json::json!({
            "name": "tank", "guid": "1", "state": "degraded", "status": null, "action": null,
            "see": null, "size_bytes": 1, "allocated_bytes": 0, "free_bytes": 1, "txg": 4,
            "properties": {}, "errors": errors, "vdevs": vdevs, "counted_ms": 5,
        });
        serde_json::from_value(pool).unwrap()
    }

    #[test]
    fn spare_replaces_failed_and_long_missing_disks() {
        let mut wanting = Wanting::default();
        let start = Instant::now();
        let disk = Some("5".to_owned());
        assert_eq!(wanting.next(&pool("online", true), start), None);
        assert_eq!(wanting.next(&pool("offline", true), start), None, "a person did that");
        assert_eq!(wanting.next(&pool("unavailable", true), start), None, "not yet");
        assert_eq!(wanting.next(&pool("unavailable", true), start + MISSING_MAX), disk);
        assert_eq!(wanting.next(&pool("unavailable", false), start + MISSING_MAX), None);
        assert_eq!(wanting.next(&pool("faulted", true), start), disk);
        wanting.tried.insert("5".to_owned());
        assert_eq!(wanting.next(&pool("faulted", true), start), None, "once");
        assert_eq!(wanting.next(&pool("online", true), start), None);
        assert_eq!(wanting.next(&pool("faulted", true), start), disk, "it was well between");
    }
}
