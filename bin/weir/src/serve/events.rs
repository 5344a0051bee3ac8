//! Events of this run of the server: a ring in memory, and who waits for the next one.
//!
//! Not here: what makes an event (watchman, recorder), and what outlives the server (history).
//!
//! Invariants:
//! - numbers have no gap; at most [`KEPT_MAX`] events are kept and the older ones are counted;
//! - adding one never waits.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use weir_api::types::{Event, EventLevel, EventList, EventQuery};
use weir_base::{Clock as _, SystemClock};

/// Events kept: hours of a pool in trouble, a few MiB.
const KEPT_MAX: usize = 10_000;
/// Events in one answer: well below what a client takes in.
const ANSWERED_MAX: usize = 1000;

/// An event that has no number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewEvent {
    pub(super) level: EventLevel,
    pub(super) kind: String,
    pub(super) pool: Option<String>,
    pub(super) disk: Option<String>,
    pub(super) message: String,
}

/// The events of this run.
pub(super) struct Events {
    run: String,
    kept: Mutex<VecDeque<Event>>,
    newest: watch::Sender<u64>,
    clock: SystemClock,
}

impl Events {
    pub(super) fn new() -> Self {
        let clock = SystemClock::default();
        // The process alone could be numbered alike after a reboot.
        let run = format!("{}-{}", clock.unix_ms(), std::process::id());
        Self { run, kept: Mutex::default(), newest: watch::Sender::new(0), clock }
    }

    /// Adds an event; the oldest makes room for it.
    pub(super) fn add(&self, new: NewEvent) {
        let NewEvent { level, kind, pool, disk, message } = new;
        let mut kept = self.kept.lock();
        let seq = *self.newest.borrow() + 1;
        let unix_ms = self.clock.unix_ms();
        kept.push_back(Event { seq, unix_ms, level, kind, pool, disk, message });
        if kept.len() > KEPT_MAX {
            kept.pop_front();
        }
        self.newest.send_replace(seq);
    }

    /// Events after a number; waits for the next one if there is none and that was asked for.
    pub(super) async fn after(&self, query: EventQuery) -> EventList {
        let EventQuery { after, wait_ms } = query;
        let mut newest = self.newest.subscribe();
        if wait_ms > 0 {
            // A number from another run may be larger than any of this one: it is answered at once.
            let next = newest.wait_for(|newest| *newest != after);
            drop(tokio::time::timeout(Duration::from_millis(wait_ms), next).await);
        }
        self.kept_after(after)
    }

    fn kept_after(&self, after: u64) -> EventList {
        let kept = self.kept.lock();
        let newest = *self.newest.borrow();
        let oldest = kept.front().map_or(newest + 1, |event| event.seq);
        let lost = oldest.saturating_sub(after.saturating_add(1));
        let events = kept.iter().filter(|event| event.seq > after).take(ANSWERED_MAX);
        EventList { run: self.run.clone(), lost, newest, events: events.cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> NewEvent {
        let (level, message) = (EventLevel::Info, text.to_owned());
        NewEvent { level, kind: "test".into(), pool: None, disk: None, message }
    }

    fn numbers(list: &EventList) -> Vec<u64> {
        list.events.iter().map(|event| event.seq).collect()
    }

    #[test]
    fn what_is_dropped_is_counted() {
        let events = Events::new();
        for _ in 0..KEPT_MAX + 5 {
            events.add(event("x"));
        }
        let all = events.kept_after(0);
        assert_eq!((all.lost, all.events[0].seq, all.events.len()), (5, 6, ANSWERED_MAX));
        assert_eq!(events.kept_after(3).lost, 2);
        let rest = events.kept_after(KEPT_MAX as u64 + 3);
        assert_eq!((rest.lost, numbers(&rest)), (0, vec![10_004, 10_005]));
        assert_eq!(events.kept_after(u64::MAX).events, []);
    }

    #[tokio::test]
    async fn a_waiter_gets_the_next_event_and_no_other() {
        let events = std::sync::Arc::new(Events::new());
        events.add(event("old"));
        let waiting = tokio::spawn({
            let events = std::sync::Arc::clone(&events);
            async move { events.after(EventQuery { after: 1, wait_ms: 20_000 }).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        events.add(event("new"));
        let list = waiting.await.unwrap();
        assert_eq!((list.lost, numbers(&list)), (0, vec![2]));
        let none = events.after(EventQuery { after: 2, wait_ms: 10 }).await;
        assert_eq!((none.newest, numbers(&none)), (2, vec![]));
    }
}
