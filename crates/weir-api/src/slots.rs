//! The connections of one listener: how many of whom, and which of them gives way to a new one.
//!
//! Not here: accepting and serving (`server`).
//!
//! A new connection is accepted at once. Where all slots are taken, or those that one peer may
//! have, the connection that waits for its client for longest is closed for it: first idle ones and
//! those with half a request header, then those with half a body. So clients that connect and send
//! nothing, or send slowly, never delay a call of others.
//!
//! Invariants:
//! - at most [`CONNECTIONS_MAX`] connections, and [`ROOT_SLOTS`] more of root on a unix socket;
//! - at most [`PEER_CONNECTIONS_MAX`] of one address, or of one local user other than root (other
//!   tables have other numbers: [`Most`]);
//! - a connection with a call under way, or an answer that is being streamed, is never closed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::{CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, ROOT_SLOTS};

/// The log tells of refused connections so often at most; the rest are counted.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

tokio::task_local! {
    static SLOT: Arc<Taken>;
}

/// The slot of the connection that the running task serves, if it has one.
pub(crate) fn current() -> Option<Arc<Slot>> {
    SLOT.try_with(|taken| Arc::clone(&taken.slot)).ok()
}

/// Gives the slot of the connection that the running task serves a place in another table; false
/// where that has none.
pub(crate) fn move_current_to(slots: &Arc<Slots>) -> bool {
    SLOT.try_with(|taken| taken.move_to(slots)).unwrap_or(true)
}

/// Runs `task` with [`current`] telling the slot, which is given back with the task; ends it when
/// the slot is to be left.
pub(crate) async fn within(taken: Taken, task: impl Future<Output = ()>) {
    let taken = Arc::new(taken);
    tokio::select! {
        () = SLOT.scope(Arc::clone(&taken), task) => {}
        () = taken.slot.left() => tracing::debug!("a silent connection gives way"),
    }
}

/// Whom a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// An IP address; of IPv6 its network of 64 bits, which one machine may have all of.
    Address(IpAddr),
    /// A user of this machine; `None` where the system does not say.
    Uid(Option<u32>),
}

impl Who {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(ip) => Self::Address(IpAddr::V6((u128::from(ip) >> 64 << 64).into())),
            v4 @ IpAddr::V4(_) => Self::Address(v4),
        }
    }

    const fn is_root(self) -> bool {
        matches!(self, Self::Uid(Some(0)))
    }
}

/// How gladly a connection is closed for another: the smaller the sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// No whole request header is there.
    Waits,
    /// A body is being received.
    Body,
    /// A call is under way.
    Busy,
    /// It is being closed.
    Leaving,
}

struct State {
    phase: Phase,
    since: Instant,
    calls: usize,
}

/// One connection.
pub(crate) struct Slot {
    who: Who,
    state: Mutex<State>,
    leave: Notify,
}

impl Slot {
    fn new(who: Who) -> Arc<Self> {
        let state = State { phase: Phase::Waits, since: Instant::now(), calls: 0 };
        Arc::new(Self { who, state: Mutex::new(state), leave: Notify::new() })
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        if state.phase != Phase::Leaving {
            (state.phase, state.since) = (phase, Instant::now());
        }
    }

    /// A whole header is there; until the result is dropped the connection stays.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        self.enter(Phase::Busy);
        self.state.lock().calls += 1;
        Call(Arc::clone(self))
    }

    /// The body of the call is received; `false`: it is there.
    pub(crate) fn receives_body(&self, receives: bool) {
        self.enter(if receives { Phase::Body } else { Phase::Busy });
    }

    /// Returns once the connection is to be closed for another.
    pub(crate) async fn left(&self) {
        self.leave.notified().await;
    }
}

/// A call, until its answer is handed over; see [`Slot::call`].
pub(crate) struct Call(Arc<Slot>);

impl Drop for Call {
    fn drop(&mut self) {
        let calls = {
            let mut state = self.0.state.lock();
            state.calls -= 1;
            state.calls
        };
        if calls == 0 {
            self.0.enter(Phase::Waits);
        }
    }
}

/// Limits on the slots taken at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// In all.
    pub(crate) all: usize,
    /// Of one address or user other than root.
    pub(crate) of_one: usize,
    /// Beside these, of root.
    pub(crate) of_root: usize,
}

/// The slots of a listener, or of one kind of its connections.
pub(crate) struct Slots {
    most: Most,
    taken: Mutex<Vec<Arc<Slot>>>,
    refused: Told,
    pub(crate) freed: Notify,
}

/// Lets one line of the log through in a while, and counts the others.
pub(crate) struct Told {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Told {
    pub(crate) const fn new() -> Self {
        Self { state: Mutex::new((None, 0)) }
    }

    /// Counts a line: the lines suppressed since the last one that passed, or `None` if this one is
    /// suppressed too.
    pub(crate) fn pass(&self, interval: Duration) -> Option<u64> {
        let mut state = self.state.lock();
        let (told, count) = *state;
        if told.is_some_and(|told| told.elapsed() < interval) {
            *state = (told, count + 1);
            return None;
        }
        *state = (Some(Instant::now()), 0);
        Some(count)
    }
}

/// A slot, given back when it is dropped.
pub(crate) struct Taken {
    slots: Mutex<Arc<Slots>>,
    slot: Arc<Slot>,
}

impl Default for Slots {
    fn default() -> Self {
        let most = Most { all: CONNECTIONS_MAX, of_one: PEER_CONNECTIONS_MAX, of_root: ROOT_SLOTS };
        Self::with(most)
    }
}

impl Slots {
    pub(crate) fn with(most: Most) -> Self {
        Self { most, taken: Mutex::default(), refused: Told::new(), freed: Notify::new() }
    }

    /// A slot for a connection, or `None` where all are in use.
    pub(crate) fn take(self: &Arc<Self>, who: Who) -> Option<Taken> {
        let slot = Slot::new(who);
        self.enter(&slot).then(|| Taken { slots: Mutex::new(Arc::clone(self)), slot })
    }

    /// Puts a slot in, in the place of another one if need be; false where all are in use.
    fn enter(&self, slot: &Arc<Slot>) -> bool {
        let who = slot.who;
        let mut taken = self.taken.lock();
        let mut counts: HashMap<Who, usize> = HashMap::new();
        let mut total = 0;
        for slot in taken.iter().filter(|slot| slot.state.lock().phase != Phase::Leaving) {
            *counts.entry(slot.who).or_default() += 1;
            total += 1;
        }
        let of_who = counts.get(&who).copied().unwrap_or_default();
        let has_share = of_who >= self.most.of_one && !who.is_root();
        if has_share || total >= self.most.all {
            let candidates = taken.iter().filter(|slot| !has_share || slot.who == who);
            let ranked = candidates.filter_map(|slot| {
                let State { phase, since, .. } = *slot.state.lock();
                let gives_way = phase <= Phase::Body;
                let count = counts.get(&slot.who).copied().unwrap_or_default();
                gives_way.then_some(((phase, usize::MAX - count, since), slot))
            });
            match ranked.min_by_key(|(rank, _)| *rank) {
                Some((_, slot)) => {
                    slot.state.lock().phase = Phase::Leaving;
                    slot.leave.notify_one();
                }
                None if who.is_root() && total < self.most.all + self.most.of_root => {}
                None => {
                    drop(taken);
                    self.tell_refused(who);
                    return false;
                }
            }
        }
        taken.push(Arc::clone(slot));
        true
    }

    fn leave(&self, slot: &Arc<Slot>) {
        self.taken.lock().retain(|other| !Arc::ptr_eq(other, slot));
        self.freed.notify_waiters();
    }

    fn tell_refused(&self, who: Who) {
        if let Some(more) = self.refused.pass(TELL_INTERVAL) {
            tracing::warn!(?who, more, "connection closed: all slots are in use");
        }
    }

    /// Returns once no connection is left.
    pub(crate) async fn all_free(&self) {
        loop {
            let freed = self.freed.notified();
            if self.taken.lock().is_empty() {
                return;
            }
            freed.await;
        }
    }
}

impl Taken {
    /// Leaves its table for another one, where there is a slot for it there.
    fn move_to(&self, other: &Arc<Slots>) -> bool {
        let mut slots = self.slots.lock();
        if Arc::ptr_eq(&slots, other) {
            return true;
        }
        if !other.enter(&self.slot) {
            return false;
        }
        slots.leave(&self.slot);
        *slots = Arc::clone(other);
        true
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.slots.get_mut().leave(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> Who {
        Who::of(IpAddr::from([10, 0, 0, last]))
    }

    fn is_leaving(taken: &Taken) -> bool {
        taken.slot.state.lock().phase == Phase::Leaving
    }

    #[test]
    fn oldest_silent_connection_gives_way() {
        let slots = Arc::new(Slots::default());
        let half = CONNECTIONS_MAX / 2;
        let held: Vec<Taken> = (0..CONNECTIONS_MAX)
            .map(|n| slots.take(peer(u8::from(n >= half))).expect("a free slot"))
            .collect();
        let calls: Vec<Call> = held.iter().skip(1).map(|taken| taken.slot.call()).collect();
        let newest = slots.take(peer(2)).expect("the silent one gives way");
        assert!(is_leaving(&held[0]));
        let _call = newest.slot.call();
        assert!(slots.take(peer(3)).is_none(), "all are in use");
        held[5].slot.receives_body(true);
        let next = slots.take(peer(3)).expect("the half-sent body gives way");
        assert!(is_leaving(&held[5]) && !is_leaving(&next));
        drop(calls);
        assert!(slots.take(peer(4)).is_some());
    }

    #[test]
    fn slot_moves_to_another_table_if_that_has_one() {
        let most = Most { all: 2, of_one: 1, of_root: 0 };
        let [strangers, proven] = [0; 2].map(|_| Arc::new(Slots::with(most)));
        let first = strangers.take(peer(1)).expect("a free slot");
        assert!(first.move_to(&proven));
        let second = strangers.take(peer(1)).expect("the first one left");
        let _call = first.slot.call();
        assert!(!second.move_to(&proven), "its address has its share there");
        assert_eq!((strangers.taken.lock().len(), proven.taken.lock().len()), (1, 1));
        drop((first, second));
        assert!(strangers.taken.lock().is_empty() && proven.taken.lock().is_empty());
    }

    #[test]
    fn one_peer_never_has_all_slots_and_root_always_gets_one() {
        let slots = Arc::new(Slots::default());
        let mut held = Vec::new();
        let take = |who| slots.take(who).map(|taken| (taken.slot.call(), taken));
        for who in [Who::Uid(Some(1000)), Who::Uid(Some(1001))] {
            while let Some(taken) = take(who) {
                held.push(taken);
            }
        }
        assert_eq!(held.len(), CONNECTIONS_MAX);
        assert!(take(Who::Uid(Some(1002))).is_none());
        for _ in 0..ROOT_SLOTS {
            held.push(take(Who::Uid(Some(0))).expect("a slot for root"));
        }
        assert!(take(Who::Uid(Some(0))).is_none());
        let of_first = held.iter().filter(|(_, taken)| taken.slot.who == Who::Uid(Some(1000)));
        assert_eq!(of_first.count(), PEER_CONNECTIONS_MAX);
        drop(held);
        assert!(slots.taken.lock().is_empty());
    }
}
