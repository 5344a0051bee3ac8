//! Events of the server: ring buffers in memory, and the callers that wait for the next event.
//!
//! `pool_monitor` and `recorder` create most events; `event_file` stores events, `history` calls.
//!
//! Each class of events has its own ring, so that unauthenticated peers and callers evict no events
//! about disks. An event that they can cause at will is counted, and adds one event a minute.
//!
//! Invariants:
//! - event numbers increase by one; each class keeps its newest events; evicted events count as
//!   lost;
//! - adding an event never waits for a file or for a reader;
//! - at most [`COUNTS_MAX`] counts exist, and at most [`CALLER_COUNTS_MAX`] for each caller.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use std::path::Path;

use parking_lot::Mutex;
use tokio::sync::watch;
use weir_api::Operation;
use weir_api::types::{Event, EventLevel, EventList, ListEvents};
use weir_base::{Clock as _, SystemClock};

use super::event_file::EventFile;

/// Maximum number of events in one response, well below the client's limit.
const ANSWERED_MAX: usize = 1000;
/// Interval at which the server adds one event for each count of repeated events. The repetitions
/// themselves are only counted.
const COUNTED_EVERY: Duration = Duration::from_mins(1);
/// Maximum number of separate counts of repeated events. Further repeated events share one count.
const COUNTS_MAX: usize = 256;
/// Maximum number of counts of one caller. Further failures of this caller share one count, which
/// leaves counts for other callers.
const CALLER_COUNTS_MAX: usize = COUNTS_MAX / 8;

/// Class of an event by its subject; each class has its own ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Faults of disks and data, and failures of the server's own work.
    Data,
    /// Refused secrets, refused tokens, and calls that failed for a reason at the server.
    Security,
    /// Events of level info: successful calls, calls refused because of their request, and routine
    /// work that callers requested.
    Access,
    /// Squashed, refused and stale calls of NFS clients.
    Clients,
}

impl Class {
    const ALL: [Self; 4] = [Self::Data, Self::Security, Self::Access, Self::Clients];

    fn of(event: &Event) -> Self {
        let is_call = Operation::find(&event.kind).is_some();
        match event.kind.as_str() {
            "chap_refused" | "token_refused" | "calls_refused" | "certificate_reload" => {
                Self::Security
            }
            "share_squashed" | "share_refused" | "share_stale" => Self::Clients,
            _ if event.level == EventLevel::Info => Self::Access,
            _ if is_call => Self::Security,
            _ => Self::Data,
        }
    }

    /// Returns the number of events that the ring buffer of this class holds: enough for hours of a
    /// failing pool. All ring buffers together take a few MiB.
    const fn kept_max(self) -> usize {
        match self {
            Self::Data => 10_000,
            Self::Security | Self::Clients => 2000,
            Self::Access => 5000,
        }
    }
}

/// An event that has no sequence number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewEvent {
    pub(crate) level: EventLevel,
    pub(crate) kind: String,
    pub(crate) pool: Option<String>,
    pub(crate) disk: Option<String>,
    pub(crate) message: String,
}

/// Number of repetitions of an event since the server last added an event with this number.
struct Count {
    /// The caller whose limit [`CALLER_COUNTS_MAX`] includes this count. `None` for a common count
    /// of several pools or callers, and for counts by [`Events::count`].
    caller: Option<String>,
    since: Instant,
    held: u64,
    last: NewEvent,
}

/// The owner of counts: a caller, or this server. An owner has up to [`CALLER_COUNTS_MAX`] separate
/// counts, and one common count for all further events.
#[derive(Clone, Copy)]
struct Share<'a> {
    owner: &'a str,
    /// Noun for the counted events in the message of the common count.
    what: &'a str,
    /// Event kind of the common count.
    kind: &'a str,
}

/// Events of this run of the server; events of earlier runs precede them.
pub(crate) struct Events {
    run: String,
    /// The file of events, and the number of the last event that was written to it; `None` in
    /// tests.
    saved: Mutex<Option<(EventFile, u64)>>,
    /// Events in ring buffers, one for each class, in the order of [`Class::ALL`].
    kept: Mutex<[VecDeque<Event>; Class::ALL.len()]>,
    counts: Mutex<BTreeMap<String, Count>>,
    newest: watch::Sender<u64>,
    clock: SystemClock,
}

impl Events {
    pub(crate) fn new() -> Self {
        let clock = SystemClock::default();
        // Add the start time, because the process id alone could repeat after a reboot.
        let run = format!("{}-{}", clock.unix_ms(), std::process::id());
        let newest = watch::Sender::new(0);
        let (kept, counts, saved) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { run, saved, kept, counts, newest, clock }
    }

    /// Reads the events of earlier runs from the state directory.
    pub(crate) fn load(dir: &Path) -> Self {
        let events = Self::new();
        let (file, mut earlier) = EventFile::load(dir);
        // The file may have more events than the ring buffers can hold, so keep the newest of each
        // class.
        let mut left = Class::ALL.map(Class::kept_max);
        let mut is_kept: Vec<bool> = Vec::with_capacity(earlier.len());
        for event in earlier.iter().rev() {
            let left = &mut left[Class::of(event) as usize];
            is_kept.push(*left > 0);
            *left = left.saturating_sub(1);
        }
        earlier.retain(|_| is_kept.pop().unwrap_or(true));
        earlier.into_iter().for_each(|event| events.put(event));
        *events.saved.lock() = Some((file, *events.newest.borrow()));
        events
    }

    /// True if there are events that [`Self::save`] would write now.
    pub(crate) fn has_unsaved(&self) -> bool {
        let newest = *self.newest.borrow();
        let saved = self.saved.try_lock();
        saved.is_some_and(|saved| saved.as_ref().is_some_and(|(_, last)| *last != newest))
    }

    /// Writes new events to the state directory and blocks for the write. Returns at once if
    /// another thread is already writing the events.
    pub(crate) fn save(&self) {
        let Some(mut saved) = self.saved.try_lock() else { return };
        let Some((file, last)) = saved.as_mut() else { return };
        if *last == *self.newest.borrow() {
            return;
        }
        let (newest, new, count) = {
            let kept = self.kept.lock();
            let count = kept.iter().map(VecDeque::len).sum();
            let after = if file.is_long(count) { 0 } else { *last };
            let later = kept
                .iter()
                .flat_map(|ring| ring.range(ring.partition_point(|event| event.seq <= after)..));
            let mut new: Vec<Event> = later.cloned().collect();
            new.sort_by_key(|event| event.seq);
            (*self.newest.borrow(), new, count)
        };
        let written = if file.is_long(count) { file.replace(&new) } else { file.append(&new) };
        *last = newest;
        if let Err(error) = written {
            // Retry when the next event is added, not now: the state directory may be full for
            // hours.
            tracing::warn!(%error, "events not saved");
            file.must_be_replaced();
        }
    }

    /// Adds an event, which may evict the oldest of its class.
    pub(crate) fn add(&self, new: NewEvent) {
        let NewEvent { level, kind, pool, disk, message } = new;
        let unix_ms = self.clock.unix_ms();
        self.put(Event { seq: 0, unix_ms, level, kind, pool, disk, message });
    }

    /// Adds an event with the next number.
    fn put(&self, event: Event) {
        let mut kept = self.kept.lock();
        let seq = *self.newest.borrow() + 1;
        let event = Event { seq, ..event };
        let class = Class::of(&event);
        let ring = &mut kept[class as usize];
        ring.push_back(event);
        if ring.len() > class.kept_max() {
            ring.pop_front();
        }
        self.newest.send_replace(seq);
    }

    /// Counts an event that unauthenticated peers or callers can cause at will. The first such
    /// event is added and logged; afterwards one event a minute gives the number of repetitions.
    /// Events with the same `of` share a count. The event that reports a count has the message of
    /// the last repetition. So a caller that may read one event with this `of` must be allowed to
    /// read all of these events.
    pub(crate) fn count(&self, of: &str, new: NewEvent) {
        self.count_at(of, None, new, Instant::now());
    }

    /// Counts an event like [`Self::count`], for the calls of one caller on one pool.
    pub(crate) fn count_calls(&self, caller: &str, pool: &str, new: NewEvent) {
        let share = Share { owner: caller, what: "calls", kind: "calls_refused" };
        // Count each level separately, so that no mistake in a request hides a failure of the
        // server.
        let of = format!("{caller} {pool} {}", new.level.name());
        self.count_at(&of, Some(share), new, Instant::now());
    }

    /// Counts an event like [`Self::count`], for one step of a replication. All replications
    /// together have at most [`CALLER_COUNTS_MAX`] counts, like one caller.
    pub(crate) fn count_replications(&self, of: &str, new: NewEvent) {
        let share = Share { owner: "this server", what: "replications", kind: "replication" };
        self.count_at(&format!("replication {of}"), Some(share), new, Instant::now());
    }

    fn count_at(&self, of: &str, share: Option<Share<'_>>, new: NewEvent, now: Instant) {
        let mut counts = self.counts.lock();
        let caller = share.map(|share| share.owner);
        let rest_of = share.filter(|_| !counts.contains_key(of) && is_full(&counts, caller));
        let (of, caller, new) = match rest_of {
            None => (of.to_owned(), caller, new),
            Some(Share { owner, what, kind }) => {
                let message =
                    format!("{what} of {owner} failed, too many to count each separately");
                (
                    format!("rest of {owner} {}", new.level.name()),
                    None,
                    of_several_pools(new.level, kind, message),
                )
            }
        };
        let (of, caller, new) = if counts.len() < COUNTS_MAX || counts.contains_key(&of) {
            (of, caller, new)
        } else {
            let message = "calls and logins were refused, of too many callers to count each \
                           separately";
            (String::new(), None, of_several_pools(new.level, "calls_refused", message.to_owned()))
        };
        if let Some(count) = counts.get_mut(&of) {
            count.held += 1;
            count.last = new;
            return;
        }
        let caller = caller.map(str::to_owned);
        counts.insert(of, Count { caller, since: now, held: 0, last: new.clone() });
        drop(counts);
        self.add_logged(new);
    }

    /// Adds an event for each count that has new repetitions and whose last event is at least
    /// [`COUNTED_EVERY`] old. Called about once a second.
    pub(crate) fn add_counts(&self) {
        self.add_counts_at(Instant::now());
    }

    fn add_counts_at(&self, now: Instant) {
        let mut due = Vec::new();
        self.counts.lock().retain(|_, count| {
            if now.duration_since(count.since) < COUNTED_EVERY {
                return true;
            }
            let held = std::mem::take(&mut count.held);
            if held > 0 {
                let message = format!("{held} more like the last one: {}", count.last.message);
                due.push(NewEvent { message, ..count.last.clone() });
                count.since = now;
            }
            held > 0
        });
        due.into_iter().for_each(|event| self.add_logged(event));
    }

    fn add_logged(&self, new: NewEvent) {
        tracing::warn!(kind = new.kind, "{}", new.message);
        self.add(new);
    }

    /// Returns the events with numbers above `after`. If there are no such events, waits up to
    /// `wait_ms` for the next event.
    pub(crate) async fn after(&self, query: ListEvents) -> EventList {
        let ListEvents { after, wait_ms } = query;
        let mut newest = self.newest.subscribe();
        if wait_ms > 0 {
            // The given number may come from an earlier start of the server and be larger than all
            // current numbers, so any difference to the newest number ends the wait.
            let next = newest.wait_for(|newest| *newest != after);
            drop(tokio::time::timeout(Duration::from_millis(wait_ms), next).await);
        }
        self.kept_after(after)
    }

    /// Returns the events with numbers above `after`, without waiting.
    pub(crate) fn kept_after(&self, after: u64) -> EventList {
        let kept = self.kept.lock();
        let newest = *self.newest.borrow();
        let later = kept.iter().flat_map(|ring| {
            let from = ring.partition_point(|event| event.seq <= after);
            ring.range(from..).take(ANSWERED_MAX)
        });
        let mut events: Vec<Event> = later.cloned().collect();
        events.sort_by_key(|event| event.seq);
        events.truncate(ANSWERED_MAX);
        // `lost` counts evicted events with numbers up to the last event of this response; the next
        // response counts later ones.
        let is_whole = events.len() < ANSWERED_MAX;
        let last = events.last().map(|event| event.seq).filter(|_| !is_whole).unwrap_or(newest);
        let lost = last.saturating_sub(after).saturating_sub(events.len() as u64);
        EventList { run: self.run.clone(), lost, newest, events }
    }
}

/// True if the caller already has [`CALLER_COUNTS_MAX`] counts of repeated events.
fn is_full(counts: &BTreeMap<String, Count>, caller: Option<&str>) -> bool {
    let own = counts.values().filter(|count| count.caller.as_deref() == caller);
    own.count() >= CALLER_COUNTS_MAX
}

/// Returns an event that only callers with access to all pools see.
fn of_several_pools(level: EventLevel, kind: &str, message: String) -> NewEvent {
    NewEvent { level, kind: kind.to_owned(), pool: None, disk: None, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> NewEvent {
        let (level, message) = (EventLevel::Error, text.to_owned());
        NewEvent { level, kind: "test".into(), pool: None, disk: None, message }
    }

    impl NewEvent {
        fn named(self, message: &str) -> Self {
            Self { message: message.to_owned(), ..self }
        }
    }

    fn numbers(list: &EventList) -> Vec<u64> {
        list.events.iter().map(|event| event.seq).collect()
    }

    const DATA_MAX: usize = Class::Data.kept_max();

    #[test]
    fn evicted_events_are_counted_as_lost() {
        let events = Events::new();
        for _ in 0..DATA_MAX + 5 {
            events.add(event("x"));
        }
        let all = events.kept_after(0);
        assert_eq!((all.lost, all.events[0].seq, all.events.len()), (5, 6, ANSWERED_MAX));
        assert_eq!(events.kept_after(3).lost, 2);
        let rest = events.kept_after(DATA_MAX as u64 + 3);
        assert_eq!((rest.lost, numbers(&rest)), (0, vec![10_004, 10_005]));
        assert_eq!(events.kept_after(u64::MAX).events, []);
    }

    fn of_kind(kind: &str, level: EventLevel) -> NewEvent {
        NewEvent { kind: kind.into(), level, ..event(kind) }
    }

    // Regression: wrong secrets from 3,000 addresses evicted every event about damage.
    #[test]
    fn events_of_one_class_evict_none_of_another() {
        let events = Events::new();
        events.add(event("damage"));
        events.add(of_kind("volume_create", EventLevel::Info));
        events.add(of_kind("volume_create", EventLevel::Warning));
        for _ in 0..2 * DATA_MAX {
            events.add(of_kind("chap_refused", EventLevel::Warning));
        }
        let first = events.kept_after(0);
        let refused = Class::Security.kept_max() as u64;
        assert_eq!(numbers(&first)[..2], [1, 2]);
        assert_eq!(numbers(&first)[2], events.kept_after(0).newest - refused + 1);
        assert_eq!(first.lost, 2 * DATA_MAX as u64 + 1 - refused);
        // A client that continues after the first response has lost no further event.
        let last = first.events.last().unwrap().seq;
        assert_eq!(events.kept_after(last).lost, 0);
        for _ in 0..2 * DATA_MAX {
            events.add(of_kind("snapshot_hold", EventLevel::Info));
            events.add(of_kind("share_refused", EventLevel::Warning));
        }
        assert_eq!(events.kept_after(0).events[0].message, "damage");
        let kept = events.kept.lock().each_ref().map(VecDeque::len);
        assert_eq!(kept, [1, 2000, 5000, 2000], "of data, refusals, calls and clients");
    }

    #[test]
    fn counted_events_are_added_once_a_minute_with_their_number() {
        let events = Events::new();
        let start = Instant::now();
        let refused = |text: &str| of_kind("chap_refused", EventLevel::Warning).named(text);
        for at in 0..11_908 {
            events.count_at("chap", None, refused(&format!("from {at}")), start);
        }
        events.count_at("token", None, refused("of another count"), start);
        let told = || {
            let kept = events.kept_after(0).events;
            kept.into_iter().map(|event| event.message).collect::<Vec<_>>()
        };
        assert_eq!(told(), ["from 0", "of another count"]);
        events.add_counts_at(start + COUNTED_EVERY / 2);
        assert_eq!(told().len(), 2);
        events.add_counts_at(start + COUNTED_EVERY);
        assert_eq!(told()[2..], ["11907 more like the last one: from 11907"]);
        // After a minute without refusals the count ends, so the next refusal is an event at once.
        events.add_counts_at(start + 2 * COUNTED_EVERY);
        events.count_at("chap", None, refused("again"), start + 2 * COUNTED_EVERY);
        assert_eq!(told()[3..], ["again"]);
        for at in 0..2 * COUNTS_MAX {
            events.count_at(&format!("count {at}"), None, refused("x"), start + 2 * COUNTED_EVERY);
        }
        assert!(events.counts.lock().len() <= COUNTS_MAX + 1);
    }

    // Regression: one token that failed on 300 pools took all counts, so the failures of all other
    // callers shared one count.
    #[test]
    fn failing_caller_leaves_counts_for_others() {
        let events = Events::new();
        let start = Instant::now();
        let fail = |caller: &str, pool: &str, at: Instant| {
            let failed = of_kind("volume_create", EventLevel::Warning);
            let failed = NewEvent { pool: Some(pool.to_owned()), ..failed };
            let failed = failed.named(&format!("{caller}: {pool}"));
            let share = Share { owner: caller, what: "calls", kind: "calls_refused" };
            events.count_at(&format!("{caller} {pool}"), Some(share), failed, at);
        };
        for pool in 0..1000 {
            fail("token a", &format!("p{pool}"), start);
        }
        assert_eq!(events.counts.lock().len(), CALLER_COUNTS_MAX + 1);
        fail("token b", "tank", start);
        fail("token b", "tank", start);
        fail("token a", "p0", start);
        let kept = events.kept_after(0).events;
        let rest = &kept[CALLER_COUNTS_MAX];
        assert_eq!((rest.pool.as_deref(), rest.kind.as_str()), (None, "calls_refused"));
        assert!(rest.message.contains("calls of token a failed, too many to count"), "{rest:?}");
        let last = kept.last().expect("an event");
        assert_eq!((last.message.as_str(), last.pool.as_deref()), ("token b: tank", Some("tank")));
        assert_eq!(kept.len(), CALLER_COUNTS_MAX + 2);
        // After a minute without failures the caller's counts are free again.
        events.add_counts_at(start + COUNTED_EVERY);
        events.add_counts_at(start + 2 * COUNTED_EVERY);
        fail("token a", "p999", start + 2 * COUNTED_EVERY);
        assert_eq!(events.kept_after(0).events.last().expect("an event").message, "token a: p999");
    }

    #[test]
    fn failing_replications_leave_counts_for_others() {
        let events = Events::new();
        for volume in 0..1000 {
            let failed = of_kind("replication", EventLevel::Warning);
            events.count_replications(&format!("run tank/v{volume}"), failed);
        }
        assert_eq!(events.counts.lock().len(), CALLER_COUNTS_MAX + 1);
        let kept = events.kept_after(0).events;
        let rest = kept.last().expect("an event");
        assert_eq!((rest.kind.as_str(), rest.pool.as_deref()), ("replication", None));
        assert!(rest.message.contains("replications of this server failed"), "{rest:?}");
    }

    #[test]
    fn events_survive_a_restart_and_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let events = Events::load(dir.path());
        events.add(event("a"));
        events.add(of_kind("volume_create", EventLevel::Info));
        events.save();
        events.add(event("b"));
        events.save();
        events.save();
        std::fs::write(&path, [&std::fs::read(&path).unwrap(), &b"{\"seq\":3,"[..]].concat())
            .unwrap();
        let again = Events::load(dir.path());
        let kept = again.kept_after(0);
        assert_ne!(kept.run, events.run);
        let shown: Vec<_> = kept.events.iter().map(|e| (e.seq, e.message.as_str())).collect();
        assert_eq!(shown, [(1, "a"), (2, "volume_create"), (3, "b")]);
        assert_eq!(kept.events[0].unix_ms, events.kept_after(0).events[0].unix_ms);
        again.add(event("c"));
        again.save();
        assert_eq!(Events::load(dir.path()).kept_after(0).events.len(), 4);
    }

    // Regression: after a failed save the server retried every second, and logged a warning each
    // time.
    #[test]
    fn failed_save_is_retried_with_the_next_event() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let events = Events::load(dir.path());
        events.add(event("first"));
        events.save();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        events.add(event("second"));
        events.save();
        assert!(!events.has_unsaved());
        std::fs::remove_dir(&path).unwrap();
        events.add(event("third"));
        events.save();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    #[test]
    fn event_file_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let events = Events::load(dir.path());
        for round in 0..5 {
            for _ in 0..DATA_MAX {
                events.add(event("x"));
            }
            events.save();
            let text = std::fs::read_to_string(dir.path().join("events.jsonl")).unwrap();
            assert!(
                text.lines().count() <= 3 * DATA_MAX,
                "round {round}: {}",
                text.lines().count()
            );
        }
        assert_eq!(Events::load(dir.path()).kept_after(0).newest, DATA_MAX as u64);
    }

    #[tokio::test]
    async fn waiting_caller_gets_only_the_next_event() {
        let events = std::sync::Arc::new(Events::new());
        events.add(event("old"));
        let waiting = tokio::spawn({
            let events = std::sync::Arc::clone(&events);
            async move { events.after(ListEvents { after: 1, wait_ms: 20_000 }).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        events.add(event("new"));
        let list = waiting.await.unwrap();
        assert_eq!((list.lost, numbers(&list)), (0, vec![2]));
        let none = events.after(ListEvents { after: 2, wait_ms: 10 }).await;
        assert_eq!((none.newest, numbers(&none)), (2, vec![]));
    }
}
