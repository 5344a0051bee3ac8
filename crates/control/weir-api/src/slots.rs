//! Connection table of one listener: limits by owner, eviction, and the queue for a slot.
//!
//! Accepting and serving are in `server`, limits of calls for each token are in `call_queue`.
//!
//! The server accepts a new connection at once. If all slots are taken, or all that one peer may
//! have, it evicts a connection that makes no progress: first an idle one or one with an incomplete
//! request header, then one with an incomplete body, one whose call only waits, and one whose
//! client does not read its response. If there is none, the new connection waits in a bounded
//! queue, which admits the peer with the fewest connections first; the server reads nothing of its
//! request meanwhile.
//!
//! Invariants:
//! - the queue has at most [`WAITING_MAX`] connections, including connections that waited too long
//!   and are being answered 503;
//! - at most [`CONNECTIONS_MAX`] connections, and [`ROOT_SLOTS`] more of root on a unix socket;
//! - at most [`PEER_CONNECTIONS_MAX`] of one address or one local user (other tables have other
//!   limits: [`SlotLimits`]);
//! - a running call is never interrupted: its connection closes after the response was sent, or if
//!   the client reads nothing of the response for [`ANSWER_GIVES_WAY`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use weir_base::LogLimiter;

use crate::answers::Charge;
use crate::limits::{
    ANSWER_GIVES_WAY, CONNECTIONS_MAX, GRACE, PEER_CONNECTIONS_MAX, PEER_WAITING_MAX, ROOT_SLOTS,
    SLOT_WAIT, STALL_LIMIT, WAITING_MAX,
};

/// Minimum interval between log lines about refused connections. The table counts the refusals in
/// between.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which the queue searches for connections that have become evictable.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time in which a connection whose call was ended early must send the response and close.
const CUT_SHORT_LIMIT: Duration = Duration::from_secs(1);

tokio::task_local! {
    static SLOT: Arc<Taken>;
}

/// Returns the slot of the connection that the current task serves, if it has one.
pub(crate) fn current() -> Option<Arc<Slot>> {
    SLOT.try_with(|taken| Arc::clone(&taken.slot)).ok()
}

/// Moves the slot of the connection that the current task serves to another table; returns false if
/// that table has no free slot.
pub(crate) fn move_current_to(slots: &Arc<Slots>) -> bool {
    SLOT.try_with(|taken| taken.move_to(slots)).unwrap_or(true)
}

/// Returns when a call on this slot must finish early. Never returns for a connection without a
/// slot.
pub(crate) async fn hurried(slot: Option<&Arc<Slot>>) {
    match slot {
        Some(slot) => slot.hurried().await,
        None => std::future::pending().await,
    }
}

/// Runs `task` with its slot as [`current`] and releases the slot when the task ends. Ends the task
/// when the slot is evicted.
pub(crate) async fn within(taken: Taken, task: impl Future<Output = ()>) {
    let taken = Arc::new(taken);
    tokio::select! {
        // The task is polled first: if a request arrived in the meantime, its call runs and the
        // connection is not evicted.
        biased;
        () = SLOT.scope(Arc::clone(&taken), task) => {}
        () = taken.slot.left() => tracing::debug!("a silent connection gives way"),
    }
}

/// Owner of a connection, to which limits apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SlotOwner {
    /// An IP address. For IPv6 it is the /64 network, because one machine may have all addresses of
    /// the network.
    Address(IpAddr),
    /// Root, or the user of the server, on a unix socket.
    Root,
    /// Another user of this machine; `None` if the kernel does not report it.
    Uid(Option<u32>),
}

impl SlotOwner {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(ip) => Self::Address(IpAddr::V6((u128::from(ip) >> 64 << 64).into())),
            v4 @ IpAddr::V4(_) => Self::Address(v4),
        }
    }
}

/// Phase of a connection, in the order of eviction: the first phase is evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Waits for a complete request header.
    Waits,
    /// Receives a body.
    Body,
    /// A call waits for events, and can finish early.
    Polls,
    /// A call waits for a permit, or for memory for its response, and can be refused.
    Queues,
    /// A response is being sent to the client.
    Answers,
    /// A call runs.
    Busy,
    /// The connection is being closed.
    Leaving,
}

/// Factor on the time limit for a header that applies to eviction while a connection receives a
/// body or its call waits for a permit, so that a burst of short calls of one client is not
/// refused.
const LONG_GRACES: u32 = 4;

impl Phase {
    /// Returns the time before a connection of this phase can be evicted; `None` for never. `grace`
    /// is the time limit for a header.
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
    /// Start of the phase. While a response is sent, the last time that the client read a part of
    /// the response.
    since: Instant,
    calls: usize,
    stall_limit: Duration,
    /// Memory of unsent responses.
    charges: Vec<Charge>,
}

/// Slot of one connection.
pub(crate) struct Slot {
    who: SlotOwner,
    state: Mutex<State>,
    leave: Notify,
    hurry: Notify,
}

impl Slot {
    fn new(who: SlotOwner) -> Arc<Self> {
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

    /// Starts a call, after a complete header. The connection cannot be evicted until the result is
    /// dropped.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        let mut state = self.state.lock();
        state.calls += 1;
        state.stall_limit = STALL_LIMIT;
        if state.phase == Phase::Leaving {
            // The request arrived during the eviction. The connection answers it before it closes.
            self.hurry.notify_one();
        } else {
            (state.phase, state.since) = (Phase::Busy, Instant::now());
        }
        Call(Arc::clone(self))
    }

    /// Records whether the call receives its body; `false` when the body is complete.
    pub(crate) fn receives_body(&self, receives: bool) {
        self.enter(if receives { Phase::Body } else { Phase::Busy });
    }

    /// Returns when the call must finish early because another connection needs the slot. This
    /// happens only while the call receives its body or waits ([`Slot::polls`], [`Slot::queues`]).
    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// Marks the call as waiting for events until the result is dropped. If another connection
    /// needs the slot meanwhile, [`Slot::hurried`] returns.
    pub(crate) fn polls(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Polls);
        Yields(Arc::clone(self))
    }

    /// As [`Slot::polls`], for a call that waits for a permit or for memory.
    pub(crate) fn queues(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Queues);
        Yields(Arc::clone(self))
    }

    /// Whether the connection closes after the next response.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().phase == Phase::Leaving
    }

    /// Keeps the memory of the running call's response charged until the response has been sent.
    pub(crate) fn hold(&self, charge: Charge) {
        self.state.lock().charges.push(charge);
    }

    /// Returns the time limit for the client to read a part of the response.
    pub(crate) fn stall_limit(&self) -> Duration {
        self.state.lock().stall_limit
    }

    /// Sets [`Slot::stall_limit`] for the response of the running call.
    pub(crate) fn set_stall_limit(&self, limit: Duration) {
        self.state.lock().stall_limit = limit;
    }

    /// Records that the client read a part of a response.
    pub(crate) fn moved(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Answers {
            state.since = Instant::now();
        }
    }

    /// Records that the kernel took all bytes of the response.
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

    /// Returns when the connection must close because another connection needs its slot.
    async fn left(&self) {
        self.leave.notified().await;
        if self.state.lock().calls > 0 {
            // The call of this connection finishes early.
            tokio::time::sleep(CUT_SHORT_LIMIT).await;
        }
    }

    /// Evicts the connection.
    fn send_off(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::Body | Phase::Polls | Phase::Queues) {
            self.hurry.notify_one();
        }
        state.phase = Phase::Leaving;
        self.leave.notify_one();
    }

    /// Returns the eviction rank; `None` if the connection cannot be evicted now.
    fn rank(&self, now: Instant, grace: Duration) -> Option<(Phase, Instant)> {
        let state = self.state.lock();
        let after = state.phase.gives_way_after(grace)?;
        (now.duration_since(state.since) >= after).then_some((state.phase, state.since))
    }
}

/// A call that runs until its response is passed on; see [`Slot::call`].
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

/// A waiting call; see [`Slot::polls`].
pub(crate) struct Yields(Arc<Slot>);

impl Drop for Yields {
    fn drop(&mut self) {
        self.0.enter(Phase::Busy);
    }
}

/// Limits of slots and of the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLimits {
    /// Maximum number of connections.
    pub(crate) all: usize,
    /// Maximum number of connections of one address or user.
    pub(crate) of_one: usize,
    /// Number of additional slots for root.
    pub(crate) of_root: usize,
    /// Maximum number of waiting connections.
    pub(crate) waiting: usize,
    /// Maximum number of waiting connections of one address or user.
    pub(crate) waiting_of_one: usize,
    /// Time after which a connection without a complete header can be evicted.
    pub(crate) grace: Duration,
}

/// The slots of a listener, or of one kind of its connections.
pub(crate) struct Slots {
    most: SlotLimits,
    table: Mutex<Table>,
    refused: LogLimiter<()>,
    freed: Notify,
}

#[derive(Default)]
struct Table {
    taken: Vec<Arc<Slot>>,
    /// Connections that wait for a slot, in FIFO order.
    waiting: Vec<(Arc<Slot>, oneshot::Sender<()>)>,
    /// Owners of the connections that waited too long and are being answered 503.
    timed_out: Vec<SlotOwner>,
    /// Time of the last search for connections to evict.
    looked: Option<Instant>,
}

/// Numbers of connections, without the connections that are being closed.
struct Counts {
    of: HashMap<SlotOwner, usize>,
    /// Connections that do not use the slots of root.
    common: usize,
}

impl Table {
    fn counts(&self, most: &SlotLimits) -> Counts {
        let mut of: HashMap<SlotOwner, usize> = HashMap::new();
        for slot in self.taken.iter().filter(|slot| !slot.is_leaving()) {
            *of.entry(slot.who).or_default() += 1;
        }
        let total: usize = of.values().sum();
        let of_root = of.get(&SlotOwner::Root).copied().unwrap_or_default();
        Counts { common: total - of_root.min(most.of_root), of }
    }
}

impl Counts {
    fn of(&self, who: SlotOwner) -> usize {
        self.of.get(&who).copied().unwrap_or_default()
    }

    /// Returns the number of connections of `who` in slots that are not reserved for root.
    fn common_of(&self, who: SlotOwner, most: &SlotLimits) -> usize {
        let own = if who == SlotOwner::Root { most.of_root } else { 0 };
        self.of(who).saturating_sub(own)
    }

    fn has_share(&self, who: SlotOwner, most: &SlotLimits) -> bool {
        self.common_of(who, most) >= most.of_one
    }

    fn has_room(&self, who: SlotOwner, most: &SlotLimits) -> bool {
        who == SlotOwner::Root && self.of(who) < most.of_root
            || !self.has_share(who, most) && self.common < most.all
    }
}

/// A slot; dropping it releases the slot.
pub(crate) struct Taken {
    slots: Mutex<Arc<Slots>>,
    slot: Arc<Slot>,
}

/// Result of a request for a slot for a new connection.
pub(crate) enum Entrance {
    /// The connection has a slot.
    Taken(Taken),
    /// The connection waits for a slot.
    Waits(Waiting),
    /// The queue is full.
    Full,
}

/// A connection that waits for a slot.
pub(crate) struct Waiting {
    /// Releases the slot, or the position in the queue, when dropped.
    taken: Taken,
    entered: oneshot::Receiver<()>,
}

/// A connection that got no slot within [`SLOT_WAIT`]. It counts against the limits of the queue
/// until this is dropped, so keep this value while the 503 is sent.
pub(crate) struct TimedOut {
    slots: Arc<Slots>,
    who: SlotOwner,
}

impl Drop for TimedOut {
    fn drop(&mut self) {
        let mut table = self.slots.table.lock();
        if let Some(at) = table.timed_out.iter().position(|who| *who == self.who) {
            table.timed_out.swap_remove(at);
        }
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::with(SlotLimits {
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
    pub(crate) fn with(most: SlotLimits) -> Self {
        Self {
            most,
            table: Mutex::default(),
            refused: LogLimiter::new(TELL_INTERVAL),
            freed: Notify::new(),
        }
    }

    /// Requests a slot for a new connection, or a position in the queue.
    pub(crate) fn knock(self: &Arc<Self>, who: SlotOwner) -> Entrance {
        let slot = Slot::new(who);
        let taken = Taken { slots: Mutex::new(Arc::clone(self)), slot: Arc::clone(&slot) };
        let mut table = self.table.lock();
        // No connection overtakes an earlier connection of the same peer.
        let of_who = table.waiting.iter().filter(|(slot, _)| slot.who == who).count();
        if of_who == 0 && self.enter(&mut table, &slot) {
            return Entrance::Taken(taken);
        }
        let most = &self.most;
        let of_who = of_who + table.timed_out.iter().filter(|other| **other == who).count();
        let all = table.waiting.len() + table.timed_out.len();
        if of_who >= most.waiting_of_one || all >= most.waiting {
            drop(table);
            self.report_refused(who);
            return Entrance::Full;
        }
        let (enter, entered) = oneshot::channel();
        table.waiting.push((slot, enter));
        Entrance::Waits(Waiting { taken, entered })
    }

    /// Enters a slot into the table and evicts another connection if necessary. Returns false if no
    /// slot can be freed.
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
            // The time in the queue does not count against the client, because the server read
            // nothing of its request.
            let mut state = slot.state.lock();
            if state.phase == Phase::Waits {
                state.since = now;
            }
        }
        table.taken.push(Arc::clone(slot));
        true
    }

    /// Admits waiting connections. Peers with the fewest connections come first.
    fn settle(&self, table: &mut Table) {
        table.waiting.retain(|(_, enter)| !enter.is_closed());
        let mut tried: Vec<SlotOwner> = Vec::new();
        loop {
            let counts = table.counts(&self.most);
            let waiting = table.waiting.iter().enumerate();
            let next = waiting.filter(|(_, (slot, _))| !tried.contains(&slot.who));
            let next = next
                .min_by_key(|(_, (slot, _))| (slot.who != SlotOwner::Root, counts.of(slot.who)));
            let Some((at, (slot, _))) = next else { return };
            let slot = Arc::clone(slot);
            if self.enter(table, &slot) {
                let (_, enter) = table.waiting.remove(at);
                // A connection that has closed meanwhile releases its slot when it is dropped.
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

    fn report_refused(&self, who: SlotOwner) {
        if let Some(more) = self.refused.pass(()) {
            tracing::warn!(?who, more, "connection refused: all slots are in use");
        }
    }

    /// Returns when no connection is left.
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
    /// Waits for a slot for at most [`SLOT_WAIT`].
    pub(crate) async fn taken(mut self) -> Result<Taken, TimedOut> {
        let slots = Arc::clone(&self.taken.slots.lock());
        let deadline = Instant::now() + SLOT_WAIT;
        loop {
            let entered = tokio::time::timeout(POLL_INTERVAL, &mut self.entered).await;
            if let Ok(Ok(())) = entered {
                return Ok(self.taken);
            }
            if entered.is_ok() || Instant::now() >= deadline {
                let who = self.taken.slot.who;
                slots.report_refused(who);
                // Count the connection as timed out before it leaves the queue, so that its share
                // of the queue is never free in between.
                slots.table.lock().timed_out.push(who);
                return Err(TimedOut { slots, who });
            }
            // Connections become evictable with time. One search serves the whole queue.
            let mut table = slots.table.lock();
            let now = Instant::now();
            if table.looked.is_none_or(|looked| now.duration_since(looked) >= POLL_INTERVAL / 2) {
                table.looked = Some(now);
                slots.settle(&mut table);
            }
        }
    }
}

impl Taken {
    /// Returns the slot of the connection.
    #[cfg(test)]
    pub(crate) fn slot(&self) -> Arc<Slot> {
        Arc::clone(&self.slot)
    }

    /// Moves the slot to another table, if that table has a free slot.
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
