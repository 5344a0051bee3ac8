//! Pool monitor: polls the status of all pools once a second, emits an event for each change, and
//! stops I/O to legs that are unresponsive for 30 s if their vdev has enough other legs.
//!
//! The recorder emits the events of management calls.
//!
//! Invariants:
//! - fault states and error counters persist until the next import or until an administrator clears
//!   them, so every fault is seen by the next poll;
//! - the monitor never waits for a disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_api::types::{
    Damage, DamagedPart, DamagedRange, DiskStatus, EventLevel, Health, PoolStatus,
};

use crate::record::events::{Events, NewEvent};
use crate::shares::incident_events::IncidentReports;
use crate::state::server::Manager;

/// Poll interval of the pool monitor.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which the monitor stops I/O to an unresponsive leg that its vdev does not need: the
/// time after which Linux resets an unresponsive disk.
const LET_GO: Duration = Duration::from_secs(30);
/// Number of consecutive polls in which a slow disk must be fast before it is reported as fast.
const FAST_POLLS: u32 = 30;

/// Maximum number of events about damaged ranges at one poll; further ranges are only counted.
const DAMAGE_EVENTS_MAX: usize = 16;

/// State of the pools at the last poll.
#[derive(Default)]
struct Seen {
    pools: BTreeMap<String, PoolStatus>,
    /// Slow disks that an event has reported, by guid, with the number of polls since the disk was
    /// last slow.
    slow: BTreeMap<String, u32>,
}

/// Polls all pools until the task is dropped.
pub(crate) async fn watch(manager: Arc<Manager>, events: Arc<Events>) {
    let mut seen = Seen::default();
    let mut incidents = IncidentReports::default();
    let mut timer = tokio::time::interval(POLL_INTERVAL);
    timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        events.add_counts();
        for event in manager.incident_events(&mut incidents) {
            events.add(event);
        }
        manager.open_filesystems.close_idle_snapshots();
        if events.has_unsaved() {
            let saving = Arc::clone(&events);
            // The blocking task saves the events and ends by itself, so its handle is not needed.
            drop(tokio::task::spawn_blocking(move || saving.save()));
        }
        for (pool, disk) in manager.fail_unresponsive_legs(LET_GO) {
            let message = format!(
                "{disk} of pool {pool} completed no I/O for {} s and is no longer used",
                LET_GO.as_secs()
            );
            let (level, kind) = (EventLevel::Error, "disk_let_go".to_owned());
            events.add(NewEvent { level, kind, pool: Some(pool), disk: Some(disk), message });
        }
        let now = manager.open_pools();
        manager.save_health(&now);
        manager.record_due_txgs(&now);
        for event in seen.look(now) {
            events.add(event);
        }
    }
}

impl Seen {
    /// Compares the states of the pools with the last poll; returns the changes as events.
    fn look(&mut self, now: Vec<PoolStatus>) -> Vec<NewEvent> {
        let mut changes = Vec::new();
        for pool in &now {
            let before = self.pools.get(&pool.name).filter(|old| {
                // `counted_ms` is the time since the error counters started. If it went backwards,
                // the pool was imported again since the last poll, and its counters cannot be
                // compared.
                old.guid == pool.guid && old.counted_ms <= pool.counted_ms
            });
            changes.extend(pool_change(before, pool));
            changes.extend(damage_changes(before, pool));
            for disk in pool.vdevs.iter().flat_map(|vdev| &vdev.disks) {
                let mut old = before.iter().flat_map(|pool| &pool.vdevs).flat_map(|v| &v.disks);
                let old = old.find(|old| old.guid == disk.guid);
                changes.extend(disk_changes(&pool.name, old, disk));
                changes.extend(speed_change(&mut self.slow, &pool.name, disk));
            }
        }
        self.pools = now.into_iter().map(|pool| (pool.name.clone(), pool)).collect();
        changes
    }
}

fn pool_change(before: Option<&PoolStatus>, now: &PoolStatus) -> Option<NewEvent> {
    let was = before.map_or(Health::Online, |old| old.state);
    if was == now.state {
        return None;
    }
    let (level, kind) = match now.state {
        Health::Online => (EventLevel::Info, "pool_online"),
        Health::Degraded => (EventLevel::Warning, "pool_degraded"),
        Health::Faulted => (EventLevel::Error, "pool_suspended"),
        Health::Offline | Health::Unavailable => (EventLevel::Error, "pool_unavailable"),
    };
    let why = now.status.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let message = format!("pool {} is {}{why}", now.name, now.state.name());
    let pool = Some(now.name.clone());
    Some(NewEvent { level, kind: kind.to_owned(), pool, disk: None, message })
}

/// Returns events for permanent errors that were added or cleared since the last poll.
fn damage_changes(before: Option<&PoolStatus>, now: &PoolStatus) -> Vec<NewEvent> {
    let none = Damage::default();
    let was = before.map_or(&none, |pool| &pool.damage);
    let event = |level, kind: &str, message| {
        let (kind, pool) = (kind.to_owned(), Some(now.name.clone()));
        NewEvent { level, kind, pool, disk: None, message }
    };
    let lost =
        now.damage.ranges.iter().filter(|range| !was.ranges.iter().any(|old| old.covers(range)));
    let lost: Vec<String> = lost.map(DamagedRange::describe).collect();
    let whole =
        was.ranges.iter().filter(|old| !now.damage.ranges.iter().any(|range| range.meets(old)));
    let whole: Vec<String> = whole.map(DamagedRange::describe).collect();
    let same = |a: &DamagedPart, b: &DamagedPart| (&a.part, a.number) == (&b.part, b.number);
    let parts = now.damage.parts.iter().filter(|part| !was.parts.iter().any(|old| same(old, part)));
    let parts: Vec<String> = parts.map(|part| format!("{} {}", part.part, part.number)).collect();
    let mut events = Vec::new();
    let told = [
        (lost, EventLevel::Error, "data_lost", "no disk has a good copy of"),
        (parts, EventLevel::Error, "structure_lost", "no disk has a good copy of"),
        (
            whole,
            EventLevel::Info,
            "damage_cleared",
            "overwritten, freed, or found intact by a scrub:",
        ),
    ];
    for (all, level, kind, what) in told {
        let more = all.len().saturating_sub(DAMAGE_EVENTS_MAX);
        for one in all.iter().take(DAMAGE_EVENTS_MAX) {
            events.push(event(level, kind, format!("pool {}: {what} {one}", now.name)));
        }
        if more > 0 {
            events.push(event(
                level,
                kind,
                format!("pool {}: {what} {more} more ranges", now.name),
            ));
        }
    }
    events
}

fn disk_event(
    level: EventLevel,
    kind: &str,
    pool: &str,
    disk: &DiskStatus,
    what: &str,
) -> NewEvent {
    NewEvent {
        level,
        kind: kind.to_owned(),
        pool: Some(pool.to_owned()),
        disk: Some(disk.path.clone()),
        message: format!("{} of pool {pool} {what}", disk.path),
    }
}

fn disk_changes(pool: &str, before: Option<&DiskStatus>, now: &DiskStatus) -> Vec<NewEvent> {
    let mut changes = Vec::new();
    let was = before.map_or(Health::Online, |old| old.state);
    if was != now.state {
        let (level, kind) = match now.state {
            Health::Online => (EventLevel::Info, "disk_online"),
            Health::Degraded => (EventLevel::Warning, "disk_degraded"),
            Health::Faulted => (EventLevel::Error, "disk_faulted"),
            Health::Offline => (EventLevel::Warning, "disk_offline"),
            Health::Unavailable => (EventLevel::Warning, "disk_missing"),
        };
        let why = now.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
        let what = format!("is {}{why}", now.state.name());
        changes.push(disk_event(level, kind, pool, now, &what));
    }
    let errors = before.map(|old| old.errors).unwrap_or_default();
    let more = |old: u64, new: u64| new.saturating_sub(old);
    let counts = [
        (
            more(errors.checksum, now.errors.checksum),
            "checksum_errors",
            "returned data with bad checksums, repaired where another copy is good",
        ),
        (more(errors.read, now.errors.read), "read_errors", "failed reads"),
        (more(errors.write, now.errors.write), "write_errors", "failed writes or flushes"),
    ];
    for (count, kind, what) in counts {
        if count > 0 {
            let what = format!("{what}: {count} more");
            changes.push(disk_event(EventLevel::Warning, kind, pool, now, &what));
        }
    }
    changes
}

/// Returns an event if a disk has become slow or fast. Slowness is reported at once, recovery only
/// after it has lasted [`FAST_POLLS`] polls.
fn speed_change(
    slow: &mut BTreeMap<String, u32>,
    pool: &str,
    disk: &DiskStatus,
) -> Option<NewEvent> {
    if disk.slow {
        let new = slow.insert(disk.guid.clone(), 0).is_none();
        let why = disk.note.as_deref().unwrap_or("slow");
        let what = format!("is slow or unresponsive: {why}");
        return new.then(|| disk_event(EventLevel::Warning, "disk_slow", pool, disk, &what));
    }
    let looks = slow.get_mut(&disk.guid)?;
    *looks += 1;
    if *looks < FAST_POLLS {
        return None;
    }
    slow.remove(&disk.guid);
    Some(disk_event(EventLevel::Info, "disk_well", pool, disk, "is no longer slow"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(state: &str, disk: &str, checksum: u64, slow: bool) -> PoolStatus {
        let errors = serde_json::json!({ "read": 0, "write": 0, "checksum": checksum });
        let disk = serde_json::json!({
            "path": "/a", "guid": "5", "state": disk, "errors": errors, "slow": slow,
            "note": "a note",
        });
        let vdev = serde_json::json!({
            "name": "mirror-0", "kind": "mirror", "state": state, "errors": errors,
            "disks": [disk],
        });
        let pool = serde_json::json!({
            "name": "tank", "guid": "1", "state": state, "status": "why", "action": null,
            "see": null, "size_bytes": 1, "allocated_bytes": 0, "free_bytes": 1, "txg": 4,
            "properties": {}, "errors": errors, "vdevs": [vdev], "counted_ms": 5,
        });
        serde_json::from_value(pool).unwrap()
    }

    fn kinds(seen: &mut Seen, now: PoolStatus) -> Vec<String> {
        seen.look(vec![now]).into_iter().map(|event| event.kind).collect()
    }

    #[test]
    fn change_is_reported_once() {
        let mut seen = Seen::default();
        let well = || pool("online", "online", 0, false);
        assert!(kinds(&mut seen, well()).is_empty());
        let healed = || pool("online", "online", 3, false);
        assert_eq!(kinds(&mut seen, healed()), ["checksum_errors"]);
        assert!(kinds(&mut seen, healed()).is_empty());
        let faulted = || pool("degraded", "faulted", 3, false);
        assert_eq!(kinds(&mut seen, faulted()), ["pool_degraded", "disk_faulted"]);
        assert!(kinds(&mut seen, faulted()).is_empty());
        assert_eq!(kinds(&mut seen, well()), ["pool_online", "disk_online"]);
    }

    fn with_damage(ranges: &[(u64, u64)]) -> PoolStatus {
        let mut pool = pool("online", "online", 0, false);
        let range = |(offset_bytes, len_bytes): &(u64, u64)| DamagedRange {
            volume: "tank/v".to_owned(),
            objects: None,
            offset_bytes: *offset_bytes,
            len_bytes: *len_bytes,
            in_volume: true,
            snapshots: vec!["a".to_owned()],
            snapshot_count: 1,
            found_unix_ms: 0,
        };
        pool.damage.ranges = ranges.iter().map(range).collect();
        pool
    }

    #[test]
    fn damaged_ranges_are_reported_when_added_and_cleared() {
        let mut seen = Seen::default();
        assert!(kinds(&mut seen, with_damage(&[])).is_empty());
        assert_eq!(kinds(&mut seen, with_damage(&[(0, 4096)])), ["data_lost"]);
        assert!(kinds(&mut seen, with_damage(&[(0, 4096)])).is_empty());
        let lost = seen.look(vec![with_damage(&[(0, 8192)])]);
        assert_eq!(
            lost[0].message,
            "pool tank: no disk has a good copy of 8192 bytes at 0 of tank/v, and of its snapshot a"
        );
        assert!(kinds(&mut seen, with_damage(&[(4096, 4096)])).is_empty(), "a part of it is left");
        assert_eq!(kinds(&mut seen, with_damage(&[])), ["damage_cleared"]);
        let many: Vec<(u64, u64)> = (0..40).map(|n| (n * 8192, 4096)).collect();
        assert_eq!(kinds(&mut seen, with_damage(&many)).len(), DAMAGE_EVENTS_MAX + 1);
    }

    #[test]
    fn faulted_pool_is_reported_at_the_first_poll() {
        let mut seen = Seen::default();
        let first = pool("faulted", "faulted", 0, false);
        assert_eq!(kinds(&mut seen, first), ["pool_suspended", "disk_faulted"]);
    }

    #[test]
    fn intermittently_slow_disk_is_reported_once() {
        let mut seen = Seen::default();
        let look = |slow| pool("online", "online", 0, slow);
        assert_eq!(kinds(&mut seen, look(true)), ["disk_slow"]);
        for _ in 0..10 {
            assert!(kinds(&mut seen, look(false)).is_empty());
            assert!(kinds(&mut seen, look(true)).is_empty());
        }
        let mut last = Vec::new();
        for _ in 0..FAST_POLLS {
            last = kinds(&mut seen, look(false));
        }
        assert_eq!(last, ["disk_well"]);
    }
}
