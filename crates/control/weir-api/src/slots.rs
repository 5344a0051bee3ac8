//! Connection table of one listener: limits by owner, eviction, and the queue for a slot.
//!
//! `server` serves connections, `call_queue` limits calls. If no slot is free, a new connection
//! evicts one without progress, in the order of [`Phase`]. An owner (address or user) with its
//! maximum evicts one of its own. Otherwise the new connection waits in the queue, unread.
//!
//! Invariants:
//! - the queue has at most [`WAITING_MAX`] connections, including connections that receive a 503;
//! - at most [`SlotLimits::all`] connections have a slot, and root can have [`SlotLimits::of_root`]
//!   more; each other owner has at most [`SlotLimits::of_one`];
//! - a running call is never interrupted; its connection is evicted only after the response was
//!   sent, or if the client reads nothing of the response for [`ANSWER_GIVES_WAY`].

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

/// Minimum interval between log lines about refused connections. The next line has the number of
/// connections that were refused since the previous one.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which the queue searches for connections that have become evictable.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time in which a connection whose call must finish early has to send its response and close.
const CUT_SHORT_LIMIT: Duration = Duration::from_secs(1);

tokio::task_local! {
    static SLOT: Arc<Taken>;
}

/// Returns the slot of the connection that the current task serves, if it has one.
pub(crate) fn current() -> Option<Arc<Slot>> {
    SLOT.try_with(|taken| Arc::clone(&taken.slot)).ok()
}

/// Moves the connection that the current task serves to a slot of another table. Returns false if
/// that table has no free slot.
pub(crate) fn move_current_to(slots: &Arc<Slots>) -> bool {
    SLOT.try_with(|taken| taken.move_to(slots)).unwrap_or(true)
}

/// Waits until a call on this slot must finish early. Never returns for a connection without a
/// slot.
pub(crate) async fn hurried(slot: Option<&Arc<Slot>>) {
    match slot {
        Some(slot) => slot.hurried().await,
        None => std::future::pending().await,
    }
}

/// Runs `task` with its slot as [`current`], and releases the slot when the task ends. If the slot
/// is evicted, ends the task.
pub(crate) async fn within(taken: Taken, task: impl Future<Output = ()>) {
    let taken = Arc::new(taken);
    tokio::select! {
        // `biased` polls the task first: if a request has arrived meanwhile, its call runs, and the
        // connection is not evicted.
        biased;
        () = SLOT.scope(Arc::clone(&taken), task) => {}
        () = taken.slot.left() => tracing::debug!("a silent connection gives way"),
    }
}

/// Owner of a connection. A limit for each owner counts the slots of all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SlotOwner {
    /// An IP address. For IPv6 the address is the /64 network, because one machine can use all
    /// addresses of its network.
    Address(IpAddr),
    /// Root, or the user of the server, on a unix socket.
    Root,
    /// Another user of this machine; `None` if the kernel does not report the user.
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

/// Phase of a connection, in the order of eviction: connections in the first phase are evicted
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Waits for a complete request header.
    Waits,
    /// Receives the body of a request.
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

/// A connection that receives a body, or whose call waits for a permit, can be evicted after this
/// multiple of the grace period. The longer time prevents that a burst of short calls is refused.
const LONG_GRACES: u32 = 4;

impl Phase {
    /// Returns the time after which a connection in this phase can be evicted; `None` for never.
    /// `grace` is the time for a connection without a complete header.
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
    /// Start of the phase. In the phase `Answers`, the last time that the client read a part of the
    /// response.
    since: Instant,
    calls: usize,
    stall_limit: Duration,
    /// Memory that is charged for unsent responses.
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

    /// Starts a call after its complete header has arrived. The connection cannot be evicted until
    /// the returned value is dropped.
    pub(crate) fn call(self: &Arc<Self>) -> Call {
        let mut state = self.state.lock();
        state.calls += 1;
        state.stall_limit = STALL_LIMIT;
        if state.phase == Phase::Leaving {
            // The request arrived while the connection was being evicted. The server answers the
            // request before it closes the connection.
            self.hurry.notify_one();
        } else {
            (state.phase, state.since) = (Phase::Busy, Instant::now());
        }
        Call(Arc::clone(self))
    }

    /// Records whether the call is receiving its body; `false` after the body is complete.
    pub(crate) fn receives_body(&self, receives: bool) {
        self.enter(if receives { Phase::Body } else { Phase::Busy });
    }

    /// Waits until the call must finish early because another connection needs the slot. The call
    /// must finish early only while it receives its body or waits ([`Slot::polls`],
    /// [`Slot::queues`]).
    pub(crate) async fn hurried(&self) {
        self.hurry.notified().await;
    }

    /// Marks the call as waiting for events until the returned value is dropped. If another
    /// connection needs the slot meanwhile, [`Slot::hurried`] returns.
    pub(crate) fn polls(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Polls);
        Yields(Arc::clone(self))
    }

    /// Marks the call as waiting for a permit or for memory, like [`Slot::polls`].
    pub(crate) fn queues(self: &Arc<Self>) -> Yields {
        self.enter(Phase::Queues);
        Yields(Arc::clone(self))
    }

    /// True if the connection is being evicted. The connection closes after the next response at
    /// the latest.
    pub(crate) fn is_leaving(&self) -> bool {
        self.state.lock().phase == Phase::Leaving
    }

    /// Keeps the memory of a response charged until the response has been sent.
    pub(crate) fn hold(&self, charge: Charge) {
        self.state.lock().charges.push(charge);
    }

    /// Returns the time in which the client must read [`STALL_BYTES`] of the response.
    pub(crate) fn stall_limit(&self) -> Duration {
        self.state.lock().stall_limit
    }

    /// Sets [`Slot::stall_limit`] for the response of the running call.
    pub(crate) fn set_stall_limit(&self, limit: Duration) {
        self.state.lock().stall_limit = limit;
    }

    /// Records that the client has read a part of a response.
    pub(crate) fn moved(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Answers {
            state.since = Instant::now();
        }
    }

    /// Records that the kernel has taken all bytes of the response.
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

    /// Waits until the connection must close because another connection needs its slot.
    async fn left(&self) {
        self.leave.notified().await;
        if self.state.lock().calls > 0 {
            // The call of this connection must finish early; give it time to send its response.
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

    /// Returns the rank of the connection for eviction; `None` if it cannot be evicted now.
    fn rank(&self, now: Instant, grace: Duration) -> Option<(Phase, Instant)> {
        let state = self.state.lock();
        let after = state.phase.gives_way_after(grace)?;
        (now.duration_since(state.since) >= after).then_some((state.phase, state.since))
    }
}

/// A running call. The value is dropped when the response has been passed to hyper; see
/// [`Slot::call`].
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

/// A call that waits, so that its connection can be evicted; see [`Slot::polls`].
pub(crate) struct Yields(Arc<Slot>);

impl Drop for Yields {
    fn drop(&mut self) {
        self.0.enter(Phase::Busy);
    }
}

/// Limits of a table of connections and of its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotLimits {
    /// Maximum number of connections with a slot.
    pub(crate) all: usize,
    /// Maximum number of connections of one address or user with a slot.
    pub(crate) of_one: usize,
    /// Number of additional slots that only root can use.
    pub(crate) of_root: usize,
    /// Maximum number of connections in the queue.
    pub(crate) waiting: usize,
    /// Maximum number of connections of one address or user in the queue.
    pub(crate) waiting_of_one: usize,
    /// Time after which a connection without a complete header can be evicted.
    pub(crate) grace: Duration,
}

/// The slots of a listener, or of one kind of connections of a listener.
pub(crate) struct Slots {
    most: SlotLimits,
    table: Mutex<Table>,
    refused: LogLimiter<()>,
    freed: Notify,
}

#[derive(Default)]
struct Table {
    taken: Vec<Arc<Slot>>,
    /// Connections that wait for a slot, in the order of their arrival.
    waiting: Vec<(Arc<Slot>, oneshot::Sender<()>)>,
    /// Owners of the connections that waited too long and are being answered with 503.
    timed_out: Vec<SlotOwner>,
    /// Time of the last search for connections to evict.
    looked: Option<Instant>,
}

/// Numbers of connections with a slot. Connections that are being evicted are not counted.
struct Counts {
    of: HashMap<SlotOwner, usize>,
    /// Connections that do not use the additional slots of root.
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

    /// Returns the number of connections of `who` that do not use the additional slots of root.
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

/// The slot of a connection, or its position in the queue; dropping the value releases the slot or
/// the position.
pub(crate) struct Taken {
    slots: Mutex<Arc<Slots>>,
    slot: Arc<Slot>,
}

/// Result of [`Slots::knock`], with which a new connection requests a slot.
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

/// A connection that got no slot within [`SLOT_WAIT`]. The connection counts against the limits of
/// the queue until this value is dropped, so keep the value while the 503 is sent.
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

    /// Requests a slot for a new connection. If none is free, requests a position in the queue.
    pub(crate) fn knock(self: &Arc<Self>, who: SlotOwner) -> Entrance {
        let slot = Slot::new(who);
        let taken = Taken { slots: Mutex::new(Arc::clone(self)), slot: Arc::clone(&slot) };
        let mut table = self.table.lock();
        // A new connection must wait if an earlier connection of the same owner waits.
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

    /// Gives the connection a slot, and evicts another connection if necessary. Returns false if no
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
            // Start the grace period only now: while the connection waited in the queue, the server
            // read nothing of its request.
            let mut state = slot.state.lock();
            if state.phase == Phase::Waits {
                state.since = now;
            }
        }
        table.taken.push(Arc::clone(slot));
        true
    }

    /// Gives free slots to waiting connections: first to root, then to owners with the fewest
    /// connections.
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
                // If the waiting connection has closed meanwhile, its slot is released when it is
                // dropped.
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

    /// Waits until no connection holds a slot.
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
    /// Waits for a slot, for at most [`SLOT_WAIT`].
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
                // Count the connection as timed out before it leaves the queue, so that its owner
                // cannot use its position for another connection in between.
                slots.table.lock().timed_out.push(who);
                return Err(TimedOut { slots, who });
            }
            // Connections become evictable as time passes. One search serves all waiting
            // connections.
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
