//! The connections of one listener: how many of whom, which of them gives way to a new one, and
//! which wait for a slot.
//!
//! Not here: accepting and serving (`server`), limits for each token (`calls`).
//!
//! A new connection is accepted at once. Where all slots are taken, or those that one peer may
//! have, a connection gives way that makes no progress: an idle one or one with half a request
//! header first, then one with half a body, one whose call only waits, and one whose client does
//! not take its answer. If none does, the new one waits in a bounded queue, from which the peer
//! with the fewest connections is let in first; nothing is read of its request meanwhile.
//!
//! Invariants:
//! - at most [`CONNECTIONS_MAX`] connections, and [`ROOT_SLOTS`] more of root on a unix socket;
//! - at most [`PEER_CONNECTIONS_MAX`] of one address or one local user (other tables have other
//!   numbers: [`Most`]);
//! - a call under way is never cut off: its connection leaves after its answer was sent, or when
//!   the client takes nothing of the answer for [`ANSWER_GIVES_WAY`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use weir_base::Sieve;

use crate::answers::Charge;
use crate::limits::{
    ANSWER_GIVES_WAY, CONNECTIONS_MAX, GRACE, PEER_CONNECTIONS_MAX, PEER_WAITING_MAX, ROOT_SLOTS,
    SLOT_WAIT, STALL_LIMIT, WAITING_MAX,
};

/// The log tells of refused connections so often at most; the rest are counted.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// A waiting connection looks this often for connections that give way by now.
const LOOK: Duration = Duration::from_millis(50);

/// A connection whose call was cut short must send the answer and close within this.
const CUT_SHORT_LIMIT: Duration = Duration::from_secs(1);

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

/// Returns when a call on this slot is to be answered now; never for a connection without a slot.
pub(crate) async fn hurried(slot: Option<&Arc<Slot>>) {
    match slot {
        Some(slot) => slot.hurried().await,
        None => std::future::pending().await,
    }
}

/// Runs `task` with [`current`] telling the slot, which is given back with the task; ends it when
/// the slot is to be left.
pub(crate) async fn within(taken: Taken, task: impl Future<Output = ()>) {
    let taken = Arc::new(taken);
    tokio::select! {
        // First: a request that came in the meantime is a call, and stays.
        biased;
        () = SLOT.scope(Arc::clone(&taken), task) => {}
        () = taken.slot.left() => tracing::debug!("a silent connection gives way"),
    }
}

/// Whom a connection is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    /// An IP address; of IPv6 its network of 64 bits, which one machine may have all of.
    Address(IpAddr),
    /// Root, or the user of the server, on a unix socket.
    Root,
    /// Another user of this machine; `None` where the system does not say.
    Uid(Option<u32>),
}

impl Who {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(ip) => Self::Address(IpAddr::V6((u128::from(ip) >> 64 << 64).into())),
            v4 @ IpAddr::V4(_) => Self::Address(v4),
        }
    }
}

/// How gladly a connection is closed for another: the smaller the sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// No whole request header is there.
    Waits,
    /// A body is being received.
    Body,
    /// A call waits for events, and can be answered early.
    Polls,
    /// A call waits for its turn, or for memory for its answer, and can be refused.
    Queues,
    /// An answer is on its way to the client.
    Answers,
    /// A call is under way.
    Busy,
    /// It is being closed.
    Leaving,
}

/// A body is on its way, and a call waits for its turn, for this many times longer than a header
/// before the connection gives way: a burst of short calls of one client is not refused.
const LONG_GRACES: u32 = 4;

impl Phase {
    /// Time before a connection of this phase can be evicted; `None` for never. `grace` is the time
    /// for a header.
    fn gives_way_after(self, grace: Duration) -> Option<Duration> {
        match self {
            Self::Waits => Some(grace),
            Self::Body | Self::Queues => Some(grace * LONG_GRACES),
            Self::Polls => Some(Duration::ZERO),
            Self::Answers => Some(ANSWER_GIVES_WAY),
            Self::Busy | Self::Leaving => None,
        }
    }
}

struct State {
    phase: Phase,
    /// Begin of the phase; of an answer, the last time that the client took some of it.
    since: Instant,
    calls: usize,
    stall_limit: Duration,
    /// Memory of answers that are not sent yet.
    charges: Vec<Charge>,
}

/// One connection.
pub(crate) struct Slot {
    who: Who,
    state: Mutex<State>,
    leave: Notify,
    hurry: Notify,
}

impl Slot {
    fn new(who: Who) -> Arc<Self> {
        let (phase, since) = (Phase::Waits, Instant::now());
        let (stall_limit, charges) = (STALL_LIMIT, Vec::new());
        let state = State { phase, since, calls: 0, stall_limit, charges };
        Arc::new(Self { who, state: Mutex::new(state), leave: Notify::new(), hurry: Notify::new() })
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        if state.phase != Phase::Leaving {
            (state.phase, state.since) = (phase, Instant::now());
        }
    }

    /// A whole header is there; until the result is dropped the connection stays.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        let mut state = self.state.lock();
        state.calls += 1;
        state.stall_limit = STALL_LIMIT;
        if state.phase == Phase::Leaving {
            // It came while the connection was told to close: it is answered as the last one.
            self.hurry.notify_one();
        } else {
            (state.phase, state.since) = (Phase::Busy, Instant::now());
        }
        Call(Arc::clone(self))
    }

    /// The body of the call is received; `false`: it is there.
    pub(crate) fn receives_body(&self, receives: bool) {
        self.enter(if receives { Phase::Body } else { Phase::Busy });
    }

    /// Returns when the call is to be answered now, because another connection needs the slot: one
    /// whose body is being received, or that waits ([`Slot::polls`], [`Slot::queues`]).
    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// The call waits for events until the result is dropped. Another connection may need the slot
    /// meanwhile: then [`Slot::hurried`] returns.
    pub(crate) fn polls(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Polls);
        Yields(Arc::clone(self))
    }

    /// As [`Slot::polls`], for a call that waits for its turn or for memory.
    pub(crate) fn queues(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Queues);
        Yields(Arc::clone(self))
    }

    /// Whether the connection is to end with the answer that is sent next.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().phase == Phase::Leaving
    }

    /// Holds the memory of the running call's answer until it was sent.
    pub(crate) fn hold(&self, charge: Charge) {
        self.state.lock().charges.push(charge);
    }

    /// Time in which the client must take a part of the answer.
    pub(crate) fn stall_limit(&self) -> Duration {
        self.state.lock().stall_limit
    }

    /// Sets [`Slot::stall_limit`] for the answer of the running call.
    pub(crate) fn set_stall_limit(&self, limit: Duration) {
        self.state.lock().stall_limit = limit;
    }

    /// The client took a part of an answer.
    pub(crate) fn moved(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Answers {
            state.since = Instant::now();
        }
    }

    /// The system took all bytes that were to be sent.
    pub(crate) fn flushed(&self) {
        let mut state = self.state.lock();
        if state.calls > 0 {
            return;
        }
        if state.phase == Phase::Answers {
            (state.phase, state.since) = (Phase::Waits, Instant::now());
        }
        let charges = std::mem::take(&mut state.charges);
        drop(state);
        drop(charges);
    }

    /// Returns once the connection is to be closed for another.
    async fn left(&self) {
        self.leave.notified().await;
        if self.state.lock().calls > 0 {
            // Its call is being answered early.
            tokio::time::sleep(CUT_SHORT_LIMIT).await;
        }
    }

    /// Tells the connection to leave.
    fn send_off(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Body | Phase::Polls | Phase::Queues) {
            self.hurry.notify_one();
        }
        state.phase = Phase::Leaving;
        self.leave.notify_one();
    }

    /// Eviction rank; `None` if the connection cannot be evicted now.
    fn rank(&self, now: Instant, grace: Duration) -> Option<(Phase, Instant)> {
        let state = self.state.lock();
        let after = state.phase.gives_way_after(grace)?;
        (now.duration_since(state.since) >= after).then_some((state.phase, state.since))
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
            self.0.enter(Phase::Answers);
        }
    }
}

/// A call that waits; see [`Slot::polls`].
pub(crate) struct Yields(Arc<Slot>);

impl Drop for Yields {
    fn drop(&mut self) {
        self.0.enter(Phase::Busy);
    }
}

/// Limits of slots and of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// In all.
    pub(crate) all: usize,
    /// Of one address or user.
    pub(crate) of_one: usize,
    /// Beside these, of root.
    pub(crate) of_root: usize,
    /// Connections that wait.
    pub(crate) waiting: usize,
    /// ... of one address or user.
    pub(crate) waiting_of_one: usize,
    /// A connection that sent no whole header for this long gives way.
    pub(crate) grace: Duration,
}

/// The slots of a listener, or of one kind of its connections.
pub(crate) struct Slots {
    most: Most,
    table: Mutex<Table>,
    refused: Sieve<()>,
    freed: Notify,
}

#[derive(Default)]
struct Table {
    taken: Vec<Arc<Slot>>,
    /// In the order of coming.
    waiting: Vec<(Arc<Slot>, oneshot::Sender<()>)>,
    /// Last search for connections to evict.
    looked: Option<Instant>,
}

/// Numbers of connections. Connections that leave are not counted.
struct Counts {
    of: HashMap<Who, usize>,
    /// Without the connections in slots of root.
    common: usize,
}

impl Table {
    fn counts(&self, most: &Most) -> Counts {
        let mut of: HashMap<Who, usize> = HashMap::new();
        for slot in self.taken.iter().filter(|slot| !slot.is_leaving()) {
            *of.entry(slot.who).or_default() += 1;
        }
        let total: usize = of.values().sum();
        let of_root = of.get(&Who::Root).copied().unwrap_or_default();
        Counts { common: total - of_root.min(most.of_root), of }
    }
}

impl Counts {
    fn of(&self, who: Who) -> usize {
        self.of.get(&who).copied().unwrap_or_default()
    }

    /// Of the common slots.
    fn common_of(&self, who: Who, most: &Most) -> usize {
        let own = if who == Who::Root { most.of_root } else { 0 };
        self.of(who).saturating_sub(own)
    }

    fn has_share(&self, who: Who, most: &Most) -> bool {
        self.common_of(who, most) >= most.of_one
    }

    fn has_room(&self, who: Who, most: &Most) -> bool {
        who == Who::Root && self.of(who) < most.of_root
            || !self.has_share(who, most) && self.common < most.all
    }
}

/// A slot, given back when it is dropped.
pub(crate) struct Taken {
    slots: Mutex<Arc<Slots>>,
    slot: Arc<Slot>,
}

/// A new connection at the door.
pub(crate) enum Entrance {
    /// It has a slot.
    Taken(Taken),
    /// It waits for one.
    Waits(Waiting),
    /// Too many wait already.
    Full,
}

/// A connection that waits for a slot.
pub(crate) struct Waiting {
    /// Gives the slot back, or the place in the queue.
    taken: Taken,
    entered: oneshot::Receiver<()>,
}

impl Default for Slots {
    fn default() -> Self {
        Self::with(Most {
            all: CONNECTIONS_MAX,
            of_one: PEER_CONNECTIONS_MAX,
            of_root: ROOT_SLOTS,
            waiting: WAITING_MAX,
            waiting_of_one: PEER_WAITING_MAX,
            grace: GRACE,
        })
    }
}

impl Slots {
    pub(crate) fn with(most: Most) -> Self {
        Self {
            most,
            table: Mutex::default(),
            refused: Sieve::new(TELL_INTERVAL),
            freed: Notify::new(),
        }
    }

    /// Returns a slot for a new connection, or a place in the queue.
    pub(crate) fn knock(self: &Arc<Self>, who: Who) -> Entrance {
        let slot = Slot::new(who);
        let taken = Taken { slots: Mutex::new(Arc::clone(self)), slot: Arc::clone(&slot) };
        let mut table = self.table.lock();
        // None passes an earlier one of the same peer.
        let of_who = table.waiting.iter().filter(|(slot, _)| slot.who == who).count();
        if of_who == 0 && self.enter(&mut table, &slot) {
            return Entrance::Taken(taken);
        }
        let most = &self.most;
        if of_who >= most.waiting_of_one || table.waiting.len() >= most.waiting {
            drop(table);
            self.tell_refused(who);
            return Entrance::Full;
        }
        let (enter, entered) = oneshot::channel();
        table.waiting.push((slot, enter));
        Entrance::Waits(Waiting { taken, entered })
    }

    /// Puts a slot in, in the place of another one if need be; false where all are in use.
    fn enter(&self, table: &mut Table, slot: &Arc<Slot>) -> bool {
        let (who, counts, now) = (slot.who, table.counts(&self.most), Instant::now());
        if !counts.has_room(who, &self.most) {
            let has_share = counts.has_share(who, &self.most);
            let candidates = table.taken.iter().filter(|slot| !has_share || slot.who == who);
            let ranked = candidates.filter_map(|slot| {
                let (phase, since) = slot.rank(now, self.most.grace)?;
                Some(((phase, usize::MAX - counts.of(slot.who), since), slot))
            });
            let Some((_, gives_way)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
            gives_way.send_off();
        }
        {
            // The time in the queue is not the client's: nothing of its request was read.
            let mut state = slot.state.lock();
            if state.phase == Phase::Waits {
                state.since = now;
            }
        }
        table.taken.push(Arc::clone(slot));
        true
    }

    /// Lets connections in that wait, of the peers with the fewest first.
    fn settle(&self, table: &mut Table) {
        table.waiting.retain(|(_, enter)| !enter.is_closed());
        let mut tried: Vec<Who> = Vec::new();
        loop {
            let counts = table.counts(&self.most);
            let waiting = table.waiting.iter().enumerate();
            let next = waiting.filter(|(_, (slot, _))| !tried.contains(&slot.who));
            let next =
                next.min_by_key(|(_, (slot, _))| (slot.who != Who::Root, counts.of(slot.who)));
            let Some((at, (slot, _))) = next else { return };
            let slot = Arc::clone(slot);
            if self.enter(table, &slot) {
                let (_, enter) = table.waiting.remove(at);
                // One that went away meanwhile gives its slot back when it is dropped.
                enter.send(()).ok();
            } else {
                tried.push(slot.who);
            }
        }
    }

    fn leave(&self, slot: &Arc<Slot>) {
        let mut table = self.table.lock();
        table.taken.retain(|other| !Arc::ptr_eq(other, slot));
        table.waiting.retain(|(other, _)| !Arc::ptr_eq(other, slot));
        self.settle(&mut table);
        drop(table);
        self.freed.notify_waiters();
    }

    fn tell_refused(&self, who: Who) {
        if let Some(more) = self.refused.pass(()) {
            tracing::warn!(?who, more, "connection refused: all slots are in use");
        }
    }

    /// Returns once no connection is left.
    pub(crate) async fn all_free(&self) {
        loop {
            let freed = self.freed.notified();
            if self.table.lock().taken.is_empty() {
                return;
            }
            freed.await;
        }
    }
}

impl Waiting {
    /// The slot, once there is one; `None` if there was none for [`SLOT_WAIT`].
    pub(crate) async fn taken(mut self) -> Option<Taken> {
        let slots = Arc::clone(&self.taken.slots.lock());
        let deadline = Instant::now() + SLOT_WAIT;
        loop {
            if let Ok(entered) = tokio::time::timeout(LOOK, &mut self.entered).await {
                return entered.is_ok().then_some(self.taken);
            }
            if Instant::now() >= deadline {
                slots.tell_refused(self.taken.slot.who);
                return None;
            }
            // Connections become evictable with time. One search serves the whole queue.
            let mut table = slots.table.lock();
            let now = Instant::now();
            if table.looked.is_none_or(|looked| now.duration_since(looked) >= LOOK / 2) {
                table.looked = Some(now);
                slots.settle(&mut table);
            }
        }
    }
}

impl Taken {
    /// The connection's slot.
    #[cfg(test)]
    pub(crate) fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }

    /// Leaves its table for another one, where there is a slot for it there.
    fn move_to(&self, other: &Arc<Slots>) -> bool {
        let mut slots = self.slots.lock();
        if Arc::ptr_eq(&slots, other) {
            return true;
        }
        if !other.enter(&mut other.table.lock(), &self.slot) {
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
mod tests;
