//! Schedules: the calls that change them, and the task that takes and destroys snapshots for them.
//!
//! `plan` decides which snapshots are due.
//!
//! Invariants:
//! - a pool's schedule snapshots all volumes without a schedule of their own at one point in time;
//! - a schedule finds its pool and volume by number, never another pool or volume of the same name;
//! - a pool that waits for its disks delays the schedules of no other pool;
//! - the schedule of a replica takes no snapshots, which could clash with names of the source;
//! - a schedule destroys only its own snapshots; if an admin set it, also received snapshots;
//! - no operator shortens the life of an existing snapshot: a schedule whose counts an operator
//!   reduces gets a new number, and does not own the snapshots with the former number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_api::access::Role;
use weir_api::types::{
    EventLevel, Every, Keep, ListSchedules, Outcome, RECEIVED_FROM, REPLICA_TAG, Removed, Schedule,
    ScheduleChange, ScheduleClear, ScheduleList, ScheduleSet,
};
use weir_api::{ApiError, Handle, caller};
use weir_base::{Clock as _, ErrorKind, SystemClock};
use weir_dataset::{Engine, PropertyChange, PropertyTarget, SnapshotId, TAKEN_BY, TakenBy, Volume};

use crate::answer::errors::{api_error, not_found};
use crate::answer::names::{Of, guid, pool_of};
use crate::disks::pool_thread::OpenPool;
use crate::record::events::{Events, NewEvent};
use crate::schedules::plan;
use crate::schedules::plan::Plan;
use crate::state::saved_state::KnownSchedule;
use crate::state::server::{Manager, refuse_above};

/// Interval of the scheduler. Slots begin at full minutes, so a snapshot is taken at most this long
/// after its slot began.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of schedules of all pools. The server writes the complete list at each change.
const SCHEDULES_MAX: usize = 10_000;

/// Maximum number of snapshot names in one event.
const NAMES_TOLD: usize = 3;

impl KnownSchedule {
    fn is_of(&self, engine: &Engine) -> bool {
        self.pool_guid == engine.pool().guid().0 && pool_of(&self.name) == engine.pool().name()
    }

    /// True if the schedule may destroy a snapshot of this volume.
    fn owns(&self, volume: &Volume, taken_by: Option<TakenBy>) -> bool {
        match taken_by {
            Some(TakenBy::Schedule(id)) => id == self.id,
            Some(TakenBy::Received(into)) => self.prunes_received && into == volume.dataset(),
            Some(TakenBy::Replication | TakenBy::User) | None => false,
        }
    }
}

/// Returns true if the snapshot's creator is a schedule with another number than `id`.
fn is_of_another(taken_by: Option<TakenBy>, id: u64) -> bool {
    matches!(taken_by, Some(TakenBy::Schedule(other)) if other != id)
}

/// True if a schedule with the counts `after` destroys no snapshot that the counts `before` keep. A
/// sort that is only in `after` counts as a reduction: an earlier schedule may have had this sort,
/// and snapshots of that time remain.
fn keeps_as_much(before: &Keep, after: &Keep) -> bool {
    Every::ALL.into_iter().all(|every| match (before.of(every), after.of(every)) {
        (Some(before), Some(after)) => after >= before,
        (before, after) => before.is_none() && after.is_none(),
    })
}

impl Manager {
    fn show_schedule(&self, known: &KnownSchedule, now_ms: u64) -> Schedule {
        let pool = self.pool(pool_of(&known.name)).ok();
        let active = pool.is_some_and(|pool| known.is_of(&pool.engine));
        let taken = known.keep.wanted().filter(|(_, count)| *count > 0);
        let next = taken.map(|(every, _)| plan::next(every, now_ms)).min();
        let KnownSchedule { name, keep, prune_only, .. } = known.clone();
        let next_unix_ms = next.filter(|_| active && !prune_only);
        Schedule { name, keep, prune_only, next_unix_ms }
    }
}

impl Handle<ScheduleSet> for Manager {
    /// Schedules snapshots of a volume, or of all volumes of a pool.
    async fn handle(&self, request: ScheduleSet) -> Result<ScheduleChange, ApiError> {
        let ScheduleSet { name, keep, prune_only } = request;
        let pool = pool_of(&name);
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let engine = Arc::clone(&open.engine);
        let dataset = match name.split_once('/') {
            None => None,
            Some((_, own)) => {
                Some(engine.volume(own).map_err(|error| api_error(&error))?.dataset().0)
            }
        };
        let pool_guid = engine.pool().guid().0;
        let mut new = KnownSchedule {
            name: name.clone(),
            pool_guid,
            dataset,
            keep,
            prune_only,
            id: new_id(),
            prunes_received: false,
        };
        let existing = {
            let known = &self.state.lock().state.schedules;
            known.iter().filter(|known| known.name != name).count()
        };
        refuse_above(SCHEDULES_MAX, existing, "schedules", "weir schedule clear")?;
        self.inherit_rights(&mut new);
        let id = new.id;
        let now_ms = SystemClock::default().unix_ms();
        let schedule = self.show_schedule(&new, now_ms);
        let mut outcome = Outcome::Created;
        self.save(|state| {
            let before = state.schedules.iter().position(|known| known.name == name);
            if let Some(before) = before.map(|at| state.schedules.remove(at)) {
                outcome = if before == new { Outcome::Unchanged } else { Outcome::Changed };
            }
            state.schedules.push(new);
            state.schedules.sort_by(|a, b| a.name.cmp(&b.name));
        })?;
        if caller::current().has(Role::Admin) {
            self.adopt(&open, id).await?;
        }
        Ok(ScheduleChange { outcome, schedule })
    }
}

impl Manager {
    /// Gives a new schedule the number of the schedule that it replaces, so that it owns the
    /// snapshots of that schedule. Requires that the caller is an admin, or that the new schedule
    /// keeps at least as many snapshots.
    fn inherit_rights(&self, new: &mut KnownSchedule) {
        let is_admin = caller::current().has(Role::Admin);
        new.prunes_received = is_admin;
        let state = self.state.lock();
        let same = |known: &&KnownSchedule| {
            known.name == new.name
                && (known.pool_guid, known.dataset) == (new.pool_guid, new.dataset)
        };
        let before = state.state.schedules.iter().find(same);
        if let Some(before) = before.filter(|b| is_admin || keeps_as_much(&b.keep, &new.keep)) {
            new.id = before.id;
            new.prunes_received |= before.prunes_received;
        }
    }

    /// Makes the schedule with this number the owner of snapshots that other schedules took in the
    /// volumes that now follow it. Only for admins, because the counts of this schedule may be
    /// smaller.
    async fn adopt(&self, open: &OpenPool, id: u64) -> Result<(), ApiError> {
        let known = self.state.lock().state.schedules.clone();
        let of_pool: Vec<_> = known.into_iter().filter(|known| known.is_of(&open.engine)).collect();
        let mut targets = Vec::new();
        for (volume, _) in followed(&open.engine, &of_pool).iter().filter(|(_, s)| s.id == id) {
            let volume = volume.info().name;
            let takers = open.engine.snapshot_takers(&volume).map_err(|error| api_error(&error))?;
            let of_others = takers.into_iter().filter(|(_, by)| is_of_another(*by, id));
            targets.extend(of_others.map(|(name, _)| {
                PropertyTarget::Snapshot(SnapshotId { volume: volume.clone(), name })
            }));
        }
        if targets.is_empty() {
            return Ok(());
        }
        let mark = TakenBy::Schedule(id).to_string();
        let changes = [PropertyChange::User(TAKEN_BY.to_owned(), Some(mark))];
        let change = move |engine: Arc<Engine>| async move {
            engine.change_properties(&targets, &changes).await
        };
        open.call(change).await.map(drop)
    }
}

impl Handle<ListSchedules> for Manager {
    /// Lists schedules by name.
    async fn handle(&self, _call: ListSchedules) -> Result<ScheduleList, ApiError> {
        let known = self.state.lock().state.schedules.clone();
        let now_ms = SystemClock::default().unix_ms();
        let schedules = known.iter().map(|known| self.show_schedule(known, now_ms)).collect();
        Ok(ScheduleList { schedules, next: None })
    }
}

impl Handle<ScheduleClear> for Manager {
    /// Deletes a schedule and keeps its snapshots.
    async fn handle(&self, call: ScheduleClear) -> Result<Removed, ApiError> {
        let name = call.name;
        let known = || self.state.lock().state.schedules.iter().any(|known| known.name == name);
        if !known() {
            return Err(not_found("schedule", &name));
        }
        if !caller::current().has(Role::Admin) {
            self.refuse_shorter_life(&name)?;
        }
        self.save(|state| state.schedules.retain(|known| known.name != name))?;
        Ok(Removed { outcome: Outcome::Removed, name })
    }
}

impl Manager {
    /// Refuses to clear a volume's own schedule if the volume would then follow its pool's
    /// schedule, and that schedule would destroy received snapshots that the volume keeps now.
    fn refuse_shorter_life(&self, name: &str) -> Result<(), ApiError> {
        let Ok(open) = self.pool(pool_of(name)) else { return Ok(()) };
        let known = self.state.lock().state.schedules.clone();
        let of_pool: Vec<_> = known.into_iter().filter(|known| known.is_of(&open.engine)).collect();
        let pools = of_pool.iter().find(|known| known.dataset.is_none() && known.prunes_received);
        let own = of_pool.iter().find(|known| known.dataset.is_some() && known.name == name);
        let (Some(pools), Some(own)) = (pools, own) else { return Ok(()) };
        let (_, volume) = name.split_once('/').unwrap_or_default();
        // A volume that does not exist has no snapshots.
        let takers = open.engine.snapshot_takers(volume).unwrap_or_default();
        let any_received = takers.iter().any(|(_, by)| matches!(by, Some(TakenBy::Received(_))));
        if !any_received || keeps_as_much(&own.keep, &pools.keep) {
            return Ok(());
        }
        let message = format!(
            "without its own schedule, {name} follows the schedule of the pool, which keeps fewer \
             of its received snapshots"
        );
        Err(ApiError::new(ErrorKind::Permission, message)
            .with_action("ask an admin to clear it, which may destroy snapshots"))
    }

    /// Returns the schedules of open pools, by pool.
    fn active_schedules(&self) -> BTreeMap<String, Vec<KnownSchedule>> {
        let known = self.state.lock().state.schedules.clone();
        let mut by_pool: BTreeMap<String, Vec<KnownSchedule>> = BTreeMap::new();
        for schedule in known {
            let name = pool_of(&schedule.name).to_owned();
            if self.pool(&name).is_ok_and(|pool| schedule.is_of(&pool.engine)) {
                by_pool.entry(name).or_default().push(schedule);
            }
        }
        by_pool
    }
}

/// Returns true for a volume that another server sends to and that has not changed since its newest
/// snapshot. After a client has written to the volume, it is no longer a replica and needs
/// scheduled snapshots of its own.
fn is_replica(volume: &Volume) -> bool {
    volume.has_user_property(RECEIVED_FROM) && volume.is_at_newest_snapshot()
}

/// Returns the volumes of a pool that have a schedule, each with its own schedule or the pool's.
fn followed<'s>(
    engine: &Engine,
    schedules: &'s [KnownSchedule],
) -> Vec<(Arc<Volume>, &'s KnownSchedule)> {
    let of_pool = schedules.iter().find(|schedule| schedule.dataset.is_none());
    // While a volume receives a stream, its contents are incomplete, so no snapshot is taken of it.
    let settled = engine.volumes().into_iter().filter(|volume| volume.receiving().is_none());
    let with_schedule = |volume: Arc<Volume>| {
        let own = schedules.iter().find(|s| s.dataset == Some(volume.dataset().0));
        own.or(of_pool).map(|schedule| (volume, schedule))
    };
    settled.filter_map(with_schedule).collect()
}

/// The work that is due for one volume.
struct Due {
    volume: String,
    /// Number of the schedule that the volume follows.
    by: u64,
    plan: Plan,
    /// Sorts with more snapshots of the volume than the schedule keeps, each with the snapshots
    /// that the schedule may not destroy.
    not_ours: Vec<(Every, Vec<String>)>,
}

/// Returns the due work for each volume.
fn plans(engine: &Engine, schedules: &[KnownSchedule], now_ms: u64) -> Vec<Due> {
    let plan = |(volume, schedule): (Arc<Volume>, &KnownSchedule)| {
        let name = volume.info().name;
        let takers = engine.snapshot_takers(&name).ok()?;
        let is_ours = |(_, by): &(String, Option<TakenBy>)| schedule.owns(&volume, *by);
        let (ours, others): (Vec<_>, Vec<_>) = takers.into_iter().partition(is_ours);
        let [ours, others] =
            [ours, others].map(|of| of.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        let prune_only = schedule.prune_only || is_replica(&volume);
        let plan = plan::plan(now_ms, &schedule.keep, prune_only, &ours);
        let not_ours = plan::beyond(&schedule.keep, &ours, &others);
        Some(Due { volume: name, by: schedule.id, plan, not_ours })
    };
    followed(engine, schedules).into_iter().filter_map(plan).collect()
}

/// Returns a number that no other schedule has.
fn new_id() -> u64 {
    // Number 0 is reserved for schedules that older servers saved without a number.
    guid().0.max(1)
}

/// Problems that the scheduler has reported. The scheduler reports a problem again only after the
/// pool's next successful snapshot.
type Reported = Arc<Mutex<BTreeSet<String>>>;

/// Runs the schedules until the task is dropped.
pub(crate) async fn run(manager: Arc<Manager>, events: Arc<Events>) {
    let reported = Reported::default();
    let mut working: BTreeMap<String, tokio::task::JoinHandle<()>> = BTreeMap::new();
    let mut seen: Option<(u64, BTreeMap<String, Vec<KnownSchedule>>)> = None;
    let mut timer = tokio::time::interval(POLL_INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        working.retain(|_, task| !task.is_finished());
        let minute = SystemClock::default().unix_ms() / 60_000;
        let now = (minute, manager.active_schedules());
        // Work becomes due only at the start of a minute, or when a schedule or a pool is new.
        if seen.as_ref() == Some(&now) {
            continue;
        }
        for (pool, schedules) in &now.1 {
            if working.contains_key(pool) {
                continue;
            }
            let scheduler = Scheduler {
                manager: Arc::clone(&manager),
                events: Arc::clone(&events),
                reported: Arc::clone(&reported),
                pool: pool.clone(),
            };
            let schedules = schedules.clone();
            let task = async move { scheduler.follow(&schedules).await };
            working.insert(pool.clone(), tokio::spawn(task));
        }
        seen = Some(now);
    }
}

/// Runs all schedules once.
#[cfg(test)]
pub(crate) async fn follow_now(manager: &Arc<Manager>, events: &Arc<Events>) {
    for (pool, schedules) in manager.active_schedules() {
        let (manager, events) = (Arc::clone(manager), Arc::clone(events));
        Scheduler { manager, events, reported: Reported::default(), pool }.follow(&schedules).await;
    }
}

/// Describes, for an admin, which snapshots of a volume exceed the count of their sort.
fn beyond_count(of: &str, every: Every, names: &[String]) -> String {
    let some: Vec<&str> = names.iter().take(NAMES_TOLD).map(String::as_str).collect();
    let more = if names.len() > some.len() { " and more" } else { "" };
    format!(
        "{of} keeps {} {} snapshots that its schedule did not take: {}{more}. A schedule destroys \
         only its own; to destroy one: weir snapshot destroy {of}@{}",
        names.len(),
        every.name(),
        some.join(", "),
        some.first().unwrap_or(&""),
    )
}

/// One pass over the schedules of one pool.
struct Scheduler {
    manager: Arc<Manager>,
    events: Arc<Events>,
    reported: Reported,
    pool: String,
}

impl Scheduler {
    async fn follow(&self, schedules: &[KnownSchedule]) {
        let _changes = self.manager.changes.lock(&self.pool).await;
        let Ok(pool) = self.manager.pool(&self.pool) else { return };
        let now_ms = SystemClock::default().unix_ms();
        let due = plans(&pool.engine, schedules, now_ms);
        for every in Every::ALL {
            let mut wanted: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for due in due.iter().filter(|due| due.plan.take.contains(&every)) {
                wanted.entry(due.by).or_default().push(due.volume.clone());
            }
            for (by, volumes) in wanted {
                self.take(&pool, every, by, volumes, now_ms).await;
            }
        }
        for Due { volume, plan, not_ours, .. } in due {
            let of = format!("{}/{volume}", self.pool);
            if let Some(ahead) = plan.ahead {
                let message = format!(
                    "{of}@{ahead} has a creation time in the future; its schedule waits until that \
                     time, or until the snapshot is destroyed"
                );
                self.report_once(EventLevel::Warning, message);
            }
            for (every, names) in not_ours {
                // Callers choose these names and can change them at will, so report each volume and
                // sort once.
                if self.reported.lock().insert(format!("{of} {}", every.name())) {
                    self.report(EventLevel::Warning, beyond_count(&of, every, &names));
                }
            }
        }
        // Plan again with the new snapshots: if a snapshot could not be taken, no older one is
        // destroyed.
        for Due { volume, plan, .. } in plans(&pool.engine, schedules, now_ms) {
            for name in plan.destroy {
                self.destroy(&pool, &volume, name).await;
            }
        }
    }

    /// Takes a snapshot of each of these volumes, at one point in time. Skips a volume in which a
    /// user's snapshot already has this name; the schedule retries in the next minute, with another
    /// name.
    async fn take(
        &self,
        pool: &OpenPool,
        every: Every,
        by: u64,
        mut volumes: Vec<String>,
        now_ms: u64,
    ) {
        let name = plan::name(every, now_ms);
        volumes.retain(|volume| {
            pool.engine.snapshot_names(volume).is_ok_and(|names| !names.contains(&name))
        });
        if volumes.is_empty() {
            return;
        }
        let id = |volume: &String| SnapshotId::new(volume.clone(), name.clone());
        let ids: Vec<SnapshotId> = volumes.iter().map(id).collect();
        let full: Vec<String> =
            volumes.iter().map(|volume| format!("{}/{volume}@{name}", self.pool)).collect();
        let full = full.join(" ");
        let by = Some(TakenBy::Schedule(by));
        let taken =
            pool.call(move |engine| async move { engine.create_snapshots_by(&ids, by).await });
        match taken.await {
            Ok(_) => {
                // A snapshot succeeded, so the reported problems of this pool are over. If these
                // problems recur, report them again.
                self.reported.lock().retain(|text| !text.starts_with(&self.prefix()));
                self.report(EventLevel::Info, format!("taken by schedule: {full}"));
            }
            Err(error) => {
                let what = format!("{}{} not taken: {error}", self.prefix(), every.name());
                if self.reported.lock().insert(what) {
                    self.report(EventLevel::Error, format!("{full} could not be taken: {error}"));
                }
            }
        }
    }

    fn prefix(&self) -> String {
        format!("{}: ", self.pool)
    }

    async fn destroy(&self, pool: &OpenPool, volume: &str, name: String) {
        let full = format!("{}/{volume}@{name}", self.pool);
        let id = SnapshotId::new(volume, name.clone());
        let of = volume.to_owned();
        let destroy = async {
            let _closed = self.manager.close_snapshots(Of::Dataset(&full)).await?;
            let destroy = move |engine: Arc<Engine>| async move {
                engine.destroy_snapshots(&of, &[name]).await
            };
            pool.call(destroy).await
        };
        let gone = destroy.await;
        match gone {
            Ok(_) => self.report(EventLevel::Info, format!("destroyed by schedule: {full}")),
            // Report nothing: the snapshot is held for a replication, and the other server releases
            // it at the end of its run.
            Err(error) if error.kind == ErrorKind::Busy && self.is_replicas(pool, id).await => {}
            Err(error) if error.kind == ErrorKind::Busy => self.report_once(
                EventLevel::Warning,
                format!("{full} is kept beyond its schedule: {}", error.message),
            ),
            Err(error) => self.report_once(
                EventLevel::Error,
                format!("{full} could not be destroyed: {}", error.message),
            ),
        }
    }

    /// Returns true if a server that replicates to this one holds the snapshot.
    async fn is_replicas(&self, pool: &OpenPool, id: SnapshotId) -> bool {
        let infos = self.manager.snapshot_infos(pool, vec![id]).await.unwrap_or_default();
        infos.iter().flat_map(|(_, info)| &info.holds).any(|tag| tag == REPLICA_TAG)
    }

    fn report_once(&self, level: EventLevel, message: String) {
        if self.reported.lock().insert(message.clone()) {
            self.report(level, message);
        }
    }

    fn report(&self, level: EventLevel, message: String) {
        let (kind, pool) = ("schedule".to_owned(), Some(self.pool.clone()));
        self.events.add(NewEvent { level, kind, pool, disk: None, message });
    }
}
