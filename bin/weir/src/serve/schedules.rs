//! Schedules: keeping them, and taking and destroying the snapshots they ask for.
//!
//! Not here: what is due (schedule_plan).
//!
//! Invariants:
//! - of a pool's schedule all volumes are taken at one moment, but for those with their own;
//! - a schedule belongs to a pool and a volume by their numbers: it follows renames, rests while
//!   the pool is closed, and never acts on another pool of that name;
//! - a pool that waits for its disks holds up no other;
//! - a replica's schedule takes no snapshots: their names would clash with the source's snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_api::ApiError;
use weir_api::types::{
    EventLevel, Every, Outcome, RECEIVED_FROM, REPLICA_TAG, Removed, Schedule, ScheduleChange,
    ScheduleList, ScheduleSet,
};
use weir_base::{Clock as _, ErrorKind, SystemClock};
use weir_dataset::{Engine, SnapshotId};

use super::control::{Manager, not_found, pool_of};
use super::events::{Events, NewEvent};
use super::pools::{OpenPool, api_error};
use super::schedule_plan::{self, Plan};
use super::state::KnownSchedule;

/// Time between two looks at the clock. Slots begin with a minute, so this is how late one is.
const LOOK: Duration = Duration::from_secs(1);

impl KnownSchedule {
    fn is_of(&self, engine: &Engine) -> bool {
        self.pool_guid == engine.pool().guid().0 && pool_of(&self.name) == engine.pool().name()
    }
}

impl Manager {
    fn show_schedule(&self, known: &KnownSchedule, now_ms: u64) -> Schedule {
        let pool = self.pool(pool_of(&known.name)).ok();
        let active = pool.is_some_and(|pool| known.is_of(&pool.engine));
        let taken = known.keep.wanted().filter(|(_, count)| *count > 0);
        let next = taken.map(|(every, _)| schedule_plan::next(every, now_ms)).min();
        let KnownSchedule { name, keep, prune_only, .. } = known.clone();
        let next_unix_ms = next.filter(|_| active && !prune_only);
        Schedule { name, keep, prune_only, next_unix_ms }
    }

    pub(super) async fn set_schedule(
        &self,
        request: ScheduleSet,
    ) -> Result<ScheduleChange, ApiError> {
        let ScheduleSet { name, keep, prune_only } = request;
        let pool = pool_of(&name);
        let _changes = self.changes.lock(pool).await;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let dataset = match name.split_once('/') {
            None => None,
            Some((_, own)) => {
                Some(engine.volume(own).map_err(|error| api_error(&error))?.dataset().0)
            }
        };
        let pool_guid = engine.pool().guid().0;
        let new = KnownSchedule { name: name.clone(), pool_guid, dataset, keep, prune_only };
        let now_ms = SystemClock::default().unix_ms();
        let schedule = self.show_schedule(&new, now_ms);
        let mut outcome = Outcome::Created;
        self.remember(|state| {
            let before = state.schedules.iter().position(|known| known.name == name);
            if let Some(before) = before.map(|at| state.schedules.remove(at)) {
                outcome = if before == new { Outcome::Unchanged } else { Outcome::Changed };
            }
            state.schedules.push(new);
            state.schedules.sort_by(|a, b| a.name.cmp(&b.name));
        })?;
        Ok(ScheduleChange { outcome, schedule })
    }

    pub(super) fn list_schedules(&self) -> ScheduleList {
        let known = self.state.lock().state.schedules.clone();
        let now_ms = SystemClock::default().unix_ms();
        let schedules = known.iter().map(|known| self.show_schedule(known, now_ms)).collect();
        ScheduleList { schedules, next: None }
    }

    pub(super) fn clear_schedule(&self, name: String) -> Result<Removed, ApiError> {
        let known = || self.state.lock().state.schedules.iter().any(|known| known.name == name);
        if !known() {
            return Err(not_found("schedule", &name));
        }
        self.remember(|state| state.schedules.retain(|known| known.name != name))?;
        Ok(Removed { outcome: Outcome::Removed, name })
    }

    /// The schedules of open pools, by pool.
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

/// True for a volume that another server sends to, and that holds what its newest snapshot holds.
/// One that a client wrote to is no replica any more: it needs snapshots of its own.
fn is_replica(volume: &weir_dataset::Volume) -> bool {
    volume.has_user_property(RECEIVED_FROM) && volume.is_at_newest_snapshot()
}

/// The schedule that each scheduled volume of a pool follows.
fn followed<'s>(
    engine: &Engine,
    schedules: &'s [KnownSchedule],
) -> Vec<(Arc<weir_dataset::Volume>, &'s KnownSchedule)> {
    let of_pool = schedules.iter().find(|schedule| schedule.dataset.is_none());
    // One that is being received into stands at no moment that anybody would want back.
    let settled = engine.volumes().into_iter().filter(|volume| volume.receiving().is_none());
    let with_schedule = |volume: Arc<weir_dataset::Volume>| {
        let own = schedules.iter().find(|s| s.dataset == Some(volume.dataset().0));
        own.or(of_pool).map(|schedule| (volume, schedule))
    };
    settled.filter_map(with_schedule).collect()
}

/// What the schedules ask for of each volume.
fn plans(engine: &Engine, schedules: &[KnownSchedule], now_ms: u64) -> Vec<(String, Plan)> {
    let plan = |(volume, schedule): (Arc<weir_dataset::Volume>, &KnownSchedule)| {
        let name = volume.info().name;
        let names = engine.snapshot_names(&name).ok()?;
        let prune_only = schedule.prune_only || is_replica(&volume);
        Some((name, schedule_plan::plan(now_ms, &schedule.keep, prune_only, &names)))
    };
    followed(engine, schedules).into_iter().filter_map(plan).collect()
}

/// What was told already and is not told again while it stays so.
type Told = Arc<Mutex<BTreeSet<String>>>;

/// Takes and destroys snapshots as schedules say, until the task is dropped.
pub(super) async fn run(manager: Arc<Manager>, events: Arc<Events>) {
    let told = Told::default();
    let mut working: BTreeMap<String, tokio::task::JoinHandle<()>> = BTreeMap::new();
    let mut seen: Option<(u64, BTreeMap<String, Vec<KnownSchedule>>)> = None;
    let mut timer = tokio::time::interval(LOOK);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        working.retain(|_, task| !task.is_finished());
        let minute = SystemClock::default().unix_ms() / 60_000;
        let now = (minute, manager.active_schedules());
        // Nothing is due but at the start of a minute, or when a schedule or a pool is new.
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
                told: Arc::clone(&told),
                pool: pool.clone(),
            };
            let schedules = schedules.clone();
            let task = async move { scheduler.follow(&schedules).await };
            working.insert(pool.clone(), tokio::spawn(task));
        }
        seen = Some(now);
    }
}

/// One pool at one moment.
struct Scheduler {
    manager: Arc<Manager>,
    events: Arc<Events>,
    told: Told,
    pool: String,
}

impl Scheduler {
    async fn follow(&self, schedules: &[KnownSchedule]) {
        let _changes = self.manager.changes.lock(&self.pool).await;
        let Ok(pool) = self.manager.pool(&self.pool) else { return };
        let now_ms = SystemClock::default().unix_ms();
        let due = plans(&pool.engine, schedules, now_ms);
        for every in Every::ALL {
            let wanted = due.iter().filter(|(_, plan)| plan.take.contains(&every));
            let volumes: Vec<String> = wanted.map(|(volume, _)| volume.clone()).collect();
            if !volumes.is_empty() {
                self.take(&pool, every, &volumes, now_ms).await;
            }
        }
        for (volume, plan) in due {
            if let Some(ahead) = plan.ahead {
                self.tell_once(
                    EventLevel::Warning,
                    format!(
                        "{}/{volume}@{ahead} is from a time that is still to come; its schedule \
                         waits until then, or until it is destroyed",
                        self.pool
                    ),
                );
            }
        }
        // Again, with what was taken: what could not be taken makes nothing go.
        for (volume, plan) in plans(&pool.engine, schedules, now_ms) {
            for name in plan.destroy {
                self.destroy(&pool, &volume, name).await;
            }
        }
    }

    async fn take(&self, pool: &OpenPool, every: Every, volumes: &[String], now_ms: u64) {
        let name = schedule_plan::name(every, now_ms);
        let id = |volume: &String| SnapshotId { volume: volume.clone(), name: name.clone() };
        let ids: Vec<SnapshotId> = volumes.iter().map(id).collect();
        let full: Vec<String> =
            volumes.iter().map(|volume| format!("{}/{volume}@{name}", self.pool)).collect();
        let full = full.join(" ");
        let taken = pool.call(move |engine| async move { engine.create_snapshots(&ids).await });
        match taken.await {
            Ok(_) => {
                // What failed before may fail again, and is told then.
                self.told.lock().retain(|text| !text.starts_with(&self.prefix()));
                self.tell(EventLevel::Info, format!("taken by schedule: {full}"));
            }
            Err(error) => {
                let what = format!("{}{} not taken: {error}", self.prefix(), every.name());
                if self.told.lock().insert(what) {
                    self.tell(EventLevel::Error, format!("{full} could not be taken: {error}"));
                }
            }
        }
    }

    fn prefix(&self) -> String {
        format!("{}: ", self.pool)
    }

    async fn destroy(&self, pool: &OpenPool, volume: &str, name: String) {
        let full = format!("{}/{volume}@{name}", self.pool);
        let id = SnapshotId { volume: volume.to_owned(), name: name.clone() };
        let of = volume.to_owned();
        let gone = pool
            .call(move |engine| async move { engine.destroy_snapshots(&of, &[name]).await })
            .await;
        match gone {
            Ok(_) => self.tell(EventLevel::Info, format!("destroyed by schedule: {full}")),
            // The other server releases it when its run ends.
            Err(error) if error.kind == ErrorKind::Busy && self.is_replicas(pool, id).await => {}
            Err(error) if error.kind == ErrorKind::Busy => self.tell_once(
                EventLevel::Warning,
                format!("{full} is kept beyond its schedule: {}", error.message),
            ),
            Err(error) => self.tell_once(
                EventLevel::Error,
                format!("{full} could not be destroyed: {}", error.message),
            ),
        }
    }

    /// True if the other server that replicates to this one holds the snapshot.
    async fn is_replicas(&self, pool: &OpenPool, id: SnapshotId) -> bool {
        let infos = self.manager.snapshot_infos(pool, vec![id]).await.unwrap_or_default();
        infos.iter().flat_map(|(_, info)| &info.holds).any(|tag| tag == REPLICA_TAG)
    }

    fn tell_once(&self, level: EventLevel, message: String) {
        if self.told.lock().insert(message.clone()) {
            self.tell(level, message);
        }
    }

    fn tell(&self, level: EventLevel, message: String) {
        let (kind, pool) = ("schedule".to_owned(), Some(self.pool.clone()));
        self.events.add(NewEvent { level, kind, pool, disk: None, message });
    }
}
