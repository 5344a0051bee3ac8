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
//! - at most [`PEER_CONNECTIONS_MAX`] of one address, or of one local user other than root;
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
    static SLOT: Arc<Slot>;
}

/// The slot of the connection that the running task serves, if it has one.
pub(crate) fn current() -> Option<Arc<Slot>> {
    SLOT.try_with(Arc::clone).ok()
}

/// Runs `task` with [`current`] telling `slot`.
pub(crate) async fn within<T>(slot: Arc<Slot>, task: impl Future<Output = T>) -> T {
    SLOT.scope(slot, task).await
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

/// The slots of a listener.
#[derive(Default)]
pub(crate) struct Slots {
    taken: Mutex<Vec<Arc<Slot>>>,
    refused: Mutex<Refused>,
    pub(crate) freed: Notify,
}

#[derive(Default)]
struct Refused {
    told: Option<Instant>,
    count: u64,
}

/// A slot, given back when it is dropped.
pub(crate) struct Taken {
    slots: Arc<Slots>,
    pub(crate) slot: Arc<Slot>,
}

impl Slots {
    /// A slot for a connection, or `None` where all are in use.
    pub(crate) fn take(self: &Arc<Self>, who: Who) -> Option<Taken> {
        let mut taken = self.taken.lock();
        let mut counts: HashMap<Who, usize> = HashMap::new();
        let mut total = 0;
        for slot in taken.iter().filter(|slot| slot.state.lock().phase != Phase::Leaving) {
            *counts.entry(slot.who).or_default() += 1;
            total += 1;
        }
        let of_who = counts.get(&who).copied().unwrap_or_default();
        let has_share = of_who >= PEER_CONNECTIONS_MAX && !who.is_root();
        if has_share || total >= CONNECTIONS_MAX {
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
                None if who.is_root() && total < CONNECTIONS_MAX + ROOT_SLOTS => {}
                None => {
                    drop(taken);
                    self.tell_refused(who);
                    return None;
                }
            }
        }
        let slot = Slot::new(who);
        taken.push(Arc::clone(&slot));
        Some(Taken { slots: Arc::clone(self), slot })
    }

    fn tell_refused(&self, who: Who) {
        let mut refused = self.refused.lock();
        refused.count += 1;
        if refused.told.is_none_or(|told| told.elapsed() >= TELL_INTERVAL) {
            let count = std::mem::take(&mut refused.count);
            refused.told = Some(Instant::now());
            tracing::warn!(?who, count, "management connections closed: all are in use");
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

impl Drop for Taken {
    fn drop(&mut self) {
        self.slots.taken.lock().retain(|slot| !Arc::ptr_eq(slot, &self.slot));
        self.slots.freed.notify_waiters();
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
