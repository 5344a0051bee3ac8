//! Memory budget that the connections of all block protocols share.
//!
//! Each protocol decides which memory of a connection counts as used. [`Budget`] describes the
//! rules.
//!
//! Invariants:
//! - a grant never raises the used bytes above the budget, with one exception: while no connection
//!   holds budget memory, one grant may be larger than the budget;
//! - no later request overtakes a waiting connection that holds none of the budget;
//! - a waiting connection that already holds budget memory delays no other connection;
//! - idle connections together keep at most a fraction of the budget ([`MemoryGrant::keep_bytes`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::limits::{
    INPUT_BYTES, KEEP_BYTES_MAX, STALL_CHECK, STALL_FRACTION, STALL_POLL_INTERVAL,
};

/// Large receive buffers together take at most the size of the budget divided by this number. Their
/// memory is not part of the budget.
const LARGE_INPUTS: usize = 8;
/// Idle connections together may keep at most the size of the budget divided by this number. Each
/// connection may keep an equal part of that memory.
const KEPT: usize = 16;

/// Size of the memory that each connection may use without asking the budget (its guaranteed
/// memory): `total_bytes` divided by the number of connections, but at least `least_bytes` and at
/// most `most_bytes`.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Minimum guaranteed memory of one connection, even if the server has the maximum number of
    /// connections.
    pub least_bytes: usize,
    /// Maximum guaranteed memory of one connection, even if it is the only one.
    pub most_bytes: usize,
    /// Sum of the guaranteed memory of all connections. With many connections the sum is larger,
    /// because each one still has `least_bytes`.
    pub total_bytes: usize,
}

impl From<usize> for Own {
    /// Guaranteed memory of exactly `bytes` for each connection. The number of connections has no
    /// effect, because minimum and maximum are equal.
    fn from(bytes: usize) -> Self {
        Self { least_bytes: bytes, most_bytes: bytes, total_bytes: bytes }
    }
}

/// Memory budget of a server.
///
/// Each connection has a little guaranteed memory ([`Own`]), so that small requests never wait; the
/// more connections exist, the less each connection has. All other memory comes from one budget.
///
/// A connection that holds budget memory gets more only if it then holds no more than the budget
/// has left: a single connection gets up to half of the budget, each of n connections gets 1/(n+1),
/// and the same amount remains for one more connection (dynamic thresholds: Choudhury and Hahne,
/// IEEE/ACM Transactions on Networking 6(2), 1998). A connection without budget memory gets its
/// bytes as soon as they are available, in FIFO order.
///
/// A client can also keep memory in use: for replies that it does not read, or for a payload that
/// it does not complete. While other connections wait for memory, such a client must send or
/// receive a minimum in each [`STALL_CHECK`] interval: one sixteenth ([`STALL_FRACTION`]) of the
/// budget bytes that its connection holds. If it transfers less, its connection is evicted
/// ([`MemoryGrant::evicted`]). A connection that waits for the storage is never evicted.
pub struct Budget {
    limit_bytes: usize,
    own: Own,
    /// Copy of `WaitQueue::used_bytes` that readers can load without the lock of `line`.
    used_bytes: AtomicUsize,
    shares: AtomicUsize,
    /// Number of connections with a large receive buffer.
    large_inputs: AtomicUsize,
    line: Mutex<WaitQueue>,
}

#[derive(Default)]
struct WaitQueue {
    used_bytes: usize,
    waiting: VecDeque<Arc<Account>>,
    /// Accounts of all connections; [`MemoryGrant::end_stalls`] checks them.
    accounts: Vec<Weak<Account>>,
    looked: Option<Instant>,
}

/// Memory account of one connection, changed only under the lock of `Budget::line`.
#[derive(Default)]
struct Account {
    /// Budget bytes that the connection holds or may use now. A grant counts only after the
    /// connection has claimed it by another [`MemoryGrant::ask`].
    charged_bytes: AtomicUsize,
    wanted_bytes: AtomicUsize,
    /// True if the connection is in the queue, or has a grant that it has not claimed yet.
    is_waiting: AtomicBool,
    granted_bytes: AtomicUsize,
    /// True if the connection reads its client's requests even while it waits for memory.
    hears_client: AtomicBool,
    wake: Notify,
    /// Number of sends and receives of the connection that wait for its client now.
    awaits_client: AtomicUsize,
    /// Number of bytes transferred over the socket so far; the number wraps.
    moved_bytes: AtomicUsize,
    /// Start of the current [`STALL_CHECK`] interval, and `moved_bytes` at that time; `None` while
    /// no check is running.
    stall: Mutex<Option<(Instant, usize)>>,
    is_evicted: AtomicBool,
    evict: Notify,
}

impl Budget {
    /// Creates a budget of `limit_bytes`, which does not include the guaranteed memory.
    pub fn new(limit_bytes: usize, own: impl Into<Own>) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            own: own.into(),
            used_bytes: AtomicUsize::new(0),
            shares: AtomicUsize::new(0),
            large_inputs: AtomicUsize::new(0),
            line: Mutex::default(),
        })
    }

    /// Opens the account of a new connection.
    pub fn grant(self: &Arc<Self>) -> MemoryGrant {
        let account = Arc::<Account>::default();
        let mut line = self.line.lock();
        let count = self.shares.fetch_add(1, Ordering::Relaxed);
        // Remove the accounts of closed connections occasionally: `accounts` then has at most about
        // twice as many entries as there are connections.
        if line.accounts.len() > 2 * count + 16 {
            line.accounts.retain(|account| account.strong_count() > 0);
        }
        line.accounts.push(Arc::downgrade(&account));
        let has_large_input = AtomicBool::new(false);
        MemoryGrant { budget: Arc::clone(self), account, has_large_input }
    }

    /// Number of bytes that connections hold in addition to their guaranteed memory.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Number of used bytes above the limit. There are three causes: a request larger than the
    /// budget, which runs alone; unsolicited data of iSCSI; and memory that was guaranteed while
    /// fewer connections existed.
    pub fn excess_bytes(&self) -> usize {
        self.used_bytes().saturating_sub(self.limit_bytes)
    }

    /// Maximum number of bytes that all connections may hold in addition to their guaranteed
    /// memory.
    pub const fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Guaranteed memory of each connection, with as many connections as there are now.
    pub fn own_bytes(&self) -> usize {
        let Own { least_bytes, most_bytes, total_bytes } = self.own;
        let shares = self.shares.load(Ordering::Relaxed).max(1);
        (total_bytes / shares).clamp(least_bytes, most_bytes)
    }

    /// Returns true if the rules of the budget allow `more_bytes` for this account now.
    fn fits(&self, line: &WaitQueue, account: &Account, more_bytes: usize) -> bool {
        let charged = account.charged_bytes.load(Ordering::Relaxed);
        let room = self.limit_bytes.saturating_sub(line.used_bytes);
        match room.checked_sub(more_bytes) {
            Some(left) => charged == 0 || charged + more_bytes <= left,
            // A request larger than the budget runs while no other connection holds budget memory.
            None => line.used_bytes == 0,
        }
    }

    /// Adds and removes used bytes, then grants memory to waiting connections.
    fn change(&self, line: &mut WaitQueue, add: usize, remove: usize) {
        line.used_bytes = (line.used_bytes + add).saturating_sub(remove);
        let mut at = 0;
        while let Some(account) = line.waiting.get(at) {
            let charged = account.charged_bytes.load(Ordering::Relaxed);
            let wanted = account.wanted_bytes.load(Ordering::Relaxed);
            if self.fits(line, account, wanted) {
                line.used_bytes += wanted;
                account.granted_bytes.store(wanted, Ordering::Relaxed);
                account.wake.notify_one();
                line.waiting.remove(at);
            } else if charged == 0 {
                break;
            } else {
                at += 1;
            }
        }
        self.used_bytes.store(line.used_bytes, Ordering::Relaxed);
    }
}

/// Memory account of one connection; dropping this value releases all of its memory.
pub struct MemoryGrant {
    budget: Arc<Budget>,
    account: Arc<Account>,
    has_large_input: AtomicBool,
}

impl MemoryGrant {
    /// Requests `more_bytes` in addition to `held_bytes`. If it returns true, the bytes are
    /// reserved until the next [`MemoryGrant::hold`]. If it returns false, the connection waits in
    /// the queue; the caller waits for [`MemoryGrant::turn`] and then calls this function again.
    pub fn ask(&self, held_bytes: usize, more_bytes: usize) -> bool {
        let own = self.budget.own_bytes();
        if held_bytes.saturating_add(more_bytes) <= own {
            return true;
        }
        let account = &self.account;
        let mut line = self.budget.line.lock();
        self.take_granted();
        let charged = account.charged_bytes.load(Ordering::Relaxed);
        if charged.saturating_sub(held_bytes.saturating_sub(own)) >= more_bytes {
            return true;
        }
        if line.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, account)) {
            return false;
        }
        account.wanted_bytes.store(more_bytes, Ordering::Relaxed);
        account.is_waiting.store(true, Ordering::Relaxed);
        line.waiting.push_back(Arc::clone(account));
        self.budget.change(&mut line, 0, 0);
        self.take_granted() > 0
    }

    /// Returns true if the connection may have a large receive buffer. Large buffers together take
    /// at most an eighth of the budget's size. These buffers do not count as used bytes of the
    /// budget: a connection that waits for memory keeps its receive buffer, so other connections
    /// must not wait for that memory.
    pub fn take_large_input(&self) -> bool {
        if self.has_large_input.load(Ordering::Relaxed) {
            return true;
        }
        let most = self.budget.limit_bytes / LARGE_INPUTS / INPUT_BYTES;
        let taken =
            self.budget.large_inputs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |inputs| {
                (inputs < most).then_some(inputs + 1)
            });
        self.has_large_input.store(taken.is_ok(), Ordering::Relaxed);
        taken.is_ok()
    }

    /// Records that the connection has returned to a small receive buffer.
    pub fn give_back_large_input(&self) {
        if self.has_large_input.swap(false, Ordering::Relaxed) {
            self.budget.large_inputs.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Cancels the connection's waiting request for memory. If the request was already granted but
    /// not claimed, returns the granted memory to the budget.
    pub fn cancel(&self) {
        if !self.account.is_waiting.load(Ordering::Relaxed) {
            return;
        }
        let mut line = self.budget.line.lock();
        line.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.account));
        let granted = self.account.granted_bytes.swap(0, Ordering::Relaxed);
        self.account.is_waiting.store(false, Ordering::Relaxed);
        self.budget.change(&mut line, 0, granted);
    }

    /// Like [`MemoryGrant::ask`], but does not join the queue if too little memory is available.
    pub fn try_take(&self, held_bytes: usize, more_bytes: usize) -> bool {
        let own = self.budget.own_bytes();
        let wanted = held_bytes.saturating_add(more_bytes);
        if wanted <= own {
            return true;
        }
        let account = &self.account;
        if wanted - own <= account.charged_bytes.load(Ordering::Relaxed) {
            return true;
        }
        let mut line = self.budget.line.lock();
        let charged = account.charged_bytes.load(Ordering::Relaxed);
        let more = (wanted - own).saturating_sub(charged);
        let room = self.budget.limit_bytes.saturating_sub(line.used_bytes);
        // A request larger than the budget must wait in the queue, so refuse it here.
        let fits = more <= room && self.budget.fits(&line, account, more);
        if !line.waiting.is_empty() || !fits {
            return false;
        }
        account.charged_bytes.fetch_add(more, Ordering::Relaxed);
        self.budget.change(&mut line, more, 0);
        true
    }

    /// Records how many bytes the connection holds now.
    pub fn hold(&self, held_bytes: usize) {
        let now = held_bytes.saturating_sub(self.budget.own_bytes());
        if now == self.account.charged_bytes.load(Ordering::Relaxed) {
            return;
        }
        let mut line = self.budget.line.lock();
        let before = self.account.charged_bytes.swap(now, Ordering::Relaxed);
        self.budget.change(&mut line, now, before);
    }

    /// Guaranteed memory of this connection.
    pub fn own_bytes(&self) -> usize {
        self.budget.own_bytes()
    }

    /// Returns true if all connections together hold more than the budget; [`Budget::excess_bytes`]
    /// lists the causes.
    pub fn is_exhausted(&self) -> bool {
        self.budget.used_bytes() > self.budget.limit_bytes
    }

    /// Returns true if the connection should free the memory that it keeps for its next request,
    /// because more than half of the budget is used.
    pub fn is_tight(&self) -> bool {
        self.budget.used_bytes() > self.budget.limit_bytes / 2
    }

    /// Number of bytes that this connection may keep while it runs no request. The budget does not
    /// wake an idle connection when other connections need memory, so this number is small if there
    /// are many connections.
    pub fn keep_bytes(&self) -> usize {
        let shares = self.budget.shares.load(Ordering::Relaxed).max(1);
        (self.budget.limit_bytes / KEPT / shares).min(KEEP_BYTES_MAX).max(self.budget.own_bytes())
    }

    /// Waits until the requested memory is granted, or until [`MemoryGrant::nudge`] is called.
    pub async fn turn(&self) {
        self.account.wake.notified().await;
    }

    /// Makes the present or next call of [`MemoryGrant::turn`] return.
    pub fn nudge(&self) {
        self.account.wake.notify_one();
    }

    /// Marks the connection as waiting for its client to read replies or to send data, until the
    /// returned value is dropped. [`MemoryGrant::end_stalls`] evicts only marked connections.
    pub fn awaits_client(&self) -> AwaitsClient {
        self.account.awaits_client.fetch_add(1, Ordering::Relaxed);
        AwaitsClient(Arc::clone(&self.account))
    }

    /// Records that the connection reads requests even while it waits for memory. If its client
    /// transfers nothing during such a wait, the client itself causes the stall, so the connection
    /// can be evicted although it waits in the queue.
    pub fn hears_client(&self) {
        self.account.hears_client.store(true, Ordering::Relaxed);
    }

    /// Counts bytes that the connection transferred over the socket.
    pub fn moved(&self, bytes: usize) {
        self.account.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Evicts connections that hold memory for which this connection waits and whose clients
    /// transfer too little. A waiting connection calls this function repeatedly.
    pub fn end_stalls(&self) {
        let mut line = self.budget.line.lock();
        let now = Instant::now();
        if line.looked.is_some_and(|looked| now - looked < STALL_CHECK / 4) {
            return;
        }
        line.looked = Some(now);
        for account in line.accounts.iter().filter_map(Weak::upgrade) {
            account.judge(now);
        }
    }

    /// Waits until the requested memory is granted, for at most [`STALL_POLL_INTERVAL`]; then
    /// checks for stalled clients. In both cases the caller calls [`MemoryGrant::ask`] again.
    pub async fn wait(&self) {
        if compio::time::timeout(STALL_POLL_INTERVAL, self.turn()).await.is_err() {
            self.end_stalls();
        }
    }

    /// Waits until this connection is evicted because its client stalls other connections.
    pub async fn evicted(&self) {
        while !self.account.is_evicted.load(Ordering::Acquire) {
            self.account.evict.notified().await;
        }
    }

    /// True if [`MemoryGrant::evicted`] would return immediately.
    pub fn is_evicted(&self) -> bool {
        self.account.is_evicted.load(Ordering::Acquire)
    }

    /// Claims a grant: charges its bytes to the connection. The caller holds the lock of `line`.
    fn take_granted(&self) -> usize {
        let granted = self.account.granted_bytes.swap(0, Ordering::Relaxed);
        self.account.charged_bytes.fetch_add(granted, Ordering::Relaxed);
        if granted > 0 {
            self.account.is_waiting.store(false, Ordering::Relaxed);
        }
        granted
    }
}

impl Account {
    /// Evicts the connection if its client transferred less than the charged bytes divided by
    /// [`STALL_FRACTION`] in the last [`STALL_CHECK`] interval.
    fn judge(&self, now: Instant) {
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        let charged = self.charged_bytes.load(Ordering::Relaxed);
        let mut stall = self.stall.lock();
        let is_waiting =
            self.hears_client.load(Ordering::Relaxed) && self.is_waiting.load(Ordering::Relaxed);
        let concerns_others = charged > 0 || is_waiting;
        if !concerns_others || self.awaits_client.load(Ordering::Relaxed) == 0 {
            *stall = None;
            return;
        }
        let (since, before) = *stall.get_or_insert((now, moved));
        if now - since < STALL_CHECK {
            return;
        }
        *stall = Some((now, moved));
        if moved.wrapping_sub(before) < charged / STALL_FRACTION + 1 {
            self.is_evicted.store(true, Ordering::Release);
            self.evict.notify_one();
        }
    }
}

/// Marks the connection as waiting for its client while this value exists; see
/// [`MemoryGrant::awaits_client`].
pub struct AwaitsClient(Arc<Account>);

impl Drop for AwaitsClient {
    fn drop(&mut self) {
        self.0.awaits_client.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for MemoryGrant {
    fn drop(&mut self) {
        self.give_back_large_input();
        let mut line = self.budget.line.lock();
        self.budget.shares.fetch_sub(1, Ordering::Relaxed);
        line.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.account));
        self.take_granted();
        let charged = self.account.charged_bytes.swap(0, Ordering::Relaxed);
        self.budget.change(&mut line, 0, charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: usize = 10;

    #[test]
    fn guaranteed_memory_never_waits() {
        let budget = Budget::new(100, OWN);
        let (one, other) = (budget.grant(), budget.grant());
        assert!(one.ask(0, 100));
        one.hold(110);
        assert_eq!(budget.used_bytes(), 100);
        assert!(other.ask(0, OWN));
        other.hold(OWN);
        assert!(!other.ask(OWN, 1), "all of the budget is in use");
        drop(one);
        assert!(other.ask(OWN, 1));
        assert_eq!(budget.used_bytes(), 1);
        drop(other);
        assert_eq!(budget.used_bytes(), 0);
    }

    /// Requests `part` bytes again and again until the budget refuses a request. Returns the total
    /// number of granted bytes.
    fn take_all(grant: &MemoryGrant, part: usize) -> usize {
        let mut held = OWN;
        while grant.ask(held, part) {
            held += part;
            grant.hold(held);
        }
        held - OWN
    }

    #[test]
    fn greedy_connection_gets_half_of_the_free_memory() {
        let budget = Budget::new(1200, OWN);
        let greedy: Vec<_> = (0..3).map(|_| budget.grant()).collect();
        let parts: Vec<_> = greedy.iter().map(|grant| take_all(grant, 1)).collect();
        assert_eq!(parts, [600, 300, 150], "a half of what each finds");
        let late = budget.grant();
        assert!(late.ask(OWN, 100), "who has nothing yet is let in past those that wait");
        late.hold(OWN + 100);
        // After connection 0 has freed its memory, connection 1 still waits: with 500 more bytes it
        // would hold more than the budget has left.
        greedy[0].hold(OWN);
        assert!(!greedy[1].ask(OWN + 300, 500));
        assert!(budget.used_bytes() <= 1200);
    }

    #[test]
    fn waiter_without_budget_memory_is_never_overtaken() {
        let budget = Budget::new(100, OWN);
        let [first, large, small] = [0; 3].map(|_| budget.grant());
        assert!(first.ask(OWN, 50));
        first.hold(OWN + 50);
        assert!(!large.ask(OWN, 80));
        assert!(!small.ask(OWN, 10), "though there is so much");
        first.hold(OWN);
        assert!(large.ask(OWN, 80), "its turn came");
        large.hold(OWN + 80);
        assert!(small.ask(OWN, 10));
        assert_eq!(budget.used_bytes(), 90);
        drop(large);
        drop(small);
        assert!(first.ask(OWN, 1000), "more than there is goes alone");
        first.hold(OWN + 1000);
        assert_eq!((budget.used_bytes(), budget.excess_bytes()), (1000, 900));
        assert!(!first.ask(OWN + 1000, 1000), "one such at a time");
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn cancelled_request_frees_its_memory_for_others() {
        let budget = Budget::new(100, OWN);
        let [first, second, third] = [0; 3].map(|_| budget.grant());
        assert!(first.ask(OWN, 90));
        first.hold(OWN + 90);
        assert!(!second.ask(OWN, 80));
        assert!(!third.ask(OWN, 80));
        second.cancel();
        first.hold(OWN);
        assert!(third.ask(OWN, 80), "it is the first in the line now");
        assert!(!second.ask(OWN, 80));
        third.hold(OWN);
        assert_eq!(budget.used_bytes(), 80, "granted");
        second.cancel();
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn try_take_never_overtakes_a_waiter() {
        let budget = Budget::new(1 << 20, OWN);
        let [large, next, small] = [0; 3].map(|_| budget.grant());
        assert!(large.try_take(OWN, 700 << 10));
        large.hold(OWN + (700 << 10));
        assert!(!next.ask(OWN, 400 << 10));
        assert!(!small.try_take(OWN, 4 << 10));
        drop(next);
        assert!(small.try_take(OWN, 4 << 10));
        assert!(!large.try_take(OWN + (700 << 10), 4 << 10), "it has more than its part");
        small.hold(OWN + (4 << 10));
        assert_eq!(budget.used_bytes(), 704 << 10);
    }

    #[test]
    fn client_that_holds_memory_and_moves_nothing_is_evicted() {
        let budget = Budget::new(1 << 20, OWN);
        let [stalled, slow, storage] = [0; 3].map(|_| budget.grant());
        let guards = [stalled.awaits_client(), slow.awaits_client()];
        for grant in [&stalled, &slow, &storage] {
            assert!(grant.ask(OWN, 32 << 10));
            grant.hold(OWN + (32 << 10));
        }
        let start = Instant::now();
        let look = |after: std::time::Duration| {
            let accounts = [&stalled, &slow, &storage].map(|grant| Arc::clone(&grant.account));
            accounts.iter().for_each(|account| account.judge(start + after));
        };
        look(std::time::Duration::ZERO);
        slow.moved((32 << 10) / STALL_FRACTION + 1);
        look(STALL_CHECK / 2);
        assert!(!stalled.is_evicted(), "it has some time");
        look(STALL_CHECK);
        assert!(stalled.is_evicted());
        assert!(!slow.is_evicted() && !storage.is_evicted());
        drop(guards);
    }

    // Regression: many stalled clients waited in the queue, and each of them delayed the clients
    // behind it by one `STALL_CHECK`.
    #[test]
    fn stalled_waiter_is_evicted_only_if_its_requests_are_read() {
        let budget = Budget::new(1 << 20, OWN);
        let [holder, heard, unheard] = [0; 3].map(|_| budget.grant());
        heard.hears_client();
        assert!(holder.ask(OWN, 1 << 20));
        holder.hold(OWN + (1 << 20));
        assert!(!heard.ask(OWN, 4096) && !unheard.ask(OWN, 4096));
        let guards = [heard.awaits_client(), unheard.awaits_client()];
        let start = Instant::now();
        for after in [std::time::Duration::ZERO, STALL_CHECK] {
            [&heard, &unheard].iter().for_each(|grant| grant.account.judge(start + after));
        }
        assert!(heard.is_evicted());
        assert!(!unheard.is_evicted(), "this side may be what keeps its client from reading");
        drop(guards);
    }

    #[test]
    fn guaranteed_memory_shrinks_with_more_connections() {
        let own = Own { least_bytes: 10, most_bytes: 100, total_bytes: 400 };
        let budget = Budget::new(1000, own);
        let mut shares: Vec<_> = (0..4).map(|_| budget.grant()).collect();
        assert_eq!(shares[0].own_bytes(), 100);
        shares[0].hold(100);
        assert_eq!(budget.used_bytes(), 0);
        shares.extend((4..8).map(|_| budget.grant()));
        assert_eq!(shares[0].own_bytes(), 50);
        shares[0].hold(100);
        assert_eq!(budget.used_bytes(), 50, "the rest is asked for like anything else");
        shares.extend((8..100).map(|_| budget.grant()));
        assert_eq!(shares[0].own_bytes(), 10);
        drop(shares);
        assert_eq!((budget.own_bytes(), budget.used_bytes()), (100, 0));
    }

    #[test]
    fn idle_connections_keep_less_with_more_connections() {
        let budget = Budget::new(64 << 20, OWN);
        let shares: Vec<_> = (0..1000).map(|_| budget.grant()).collect();
        let kept: usize = (1..=1000).map(|n| ((64 << 20) / KEPT / n).min(KEEP_BYTES_MAX)).sum();
        assert!(kept < (64 << 20) / 2, "{kept} at most");
        assert!(shares[0].keep_bytes() < 8 << 10);
        drop(shares);
        assert_eq!(budget.grant().keep_bytes(), 4 << 20);
    }

    #[test]
    fn large_receive_buffers_take_at_most_an_eighth() {
        let budget = Budget::new(8 << 20, OWN);
        let shares: Vec<_> = (0..6).map(|_| budget.grant()).collect();
        let has: Vec<_> = shares.iter().map(MemoryGrant::take_large_input).collect();
        assert_eq!(has, [true, true, true, true, false, false], "4 of 256 KiB");
        assert!(shares[0].take_large_input(), "it has one and takes no second");
        assert!(!shares[4].take_large_input());
        shares[0].give_back_large_input();
        shares[0].give_back_large_input();
        assert!(shares[4].take_large_input());
        assert!(!shares[5].take_large_input(), "one was given back");
        drop(shares);
        assert!(budget.grant().take_large_input());
        assert_eq!(budget.used_bytes(), 0, "they are beside the budget");
    }

    #[test]
    fn grant_survives_a_hold_and_ends_with_its_connection() {
        let budget = Budget::new(100, OWN);
        let (one, other) = (budget.grant(), budget.grant());
        assert!(one.ask(OWN, 90));
        one.hold(OWN + 90);
        assert!(!other.ask(0, 40));
        one.hold(0);
        // The connection fills its guaranteed memory before it claims the grant.
        other.hold(OWN);
        assert_eq!(budget.used_bytes(), 40);
        assert!(other.ask(OWN, 40));
        one.hold(OWN + 60);
        assert!(!one.ask(OWN + 60, 40));
        drop(other);
        drop(one);
        assert_eq!(budget.used_bytes(), 0);
    }
}
