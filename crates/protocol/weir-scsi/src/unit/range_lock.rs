//! Range lock: makes COMPARE AND WRITE atomic, and keeps the ranges of a ROD token unchanged while
//! a command creates or uses the token. The commands are in `command`, tokens in `rod_tokens`.
//!
//! Invariants:
//! - only the holder of an exclusive lock changes its range; no writer changes a stable range;
//! - a lock waits only for earlier locks, and all ranges of one command enter the table together,
//!   so that neither deadlock nor starvation occurs;
//! - a waker in the table belongs to a lock that an earlier lock blocks. The removal of the last
//!   blocking lock calls the waker, also if that lock was never granted or its command cancelled;
//! - after its lock is granted and before its first change, a writer cancels the ROD tokens that
//!   overlap its range. No command holds the range stable then, so no command uses these tokens.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::unit::range::Range;
use crate::unit::rod_tokens::Tokens;

/// Number of fast-path counters. Two threads with different counters never write to the same cache
/// line.
const SHARDS: usize = 8;

/// Counter that fills one cache line.
#[repr(align(64))]
#[derive(Default)]
struct Shard(AtomicUsize);

/// Mode of a range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Shared: for a writer; compatible with other shared writers.
    Shared,
    /// Exclusive: for one writer.
    Exclusive,
    /// Stable: for a reader that needs unchanged data; compatible with other stable readers.
    Stable,
}

impl Hold {
    fn goes_beside(self, other: Self) -> bool {
        self == other && self != Self::Exclusive
    }

    fn writes(self) -> bool {
        self != Self::Stable
    }

    /// True if a lock in this mode excludes fast-path writers.
    fn closes(self) -> bool {
        self != Self::Shared
    }
}

pub(crate) struct Entry {
    ticket: u64,
    range: Range,
    hold: Hold,
    /// Waker of the command that waits for this lock.
    waker: Option<Waker>,
}

impl Entry {
    /// True if this lock must wait for the other, earlier one.
    fn waits_for(&self, earlier: &Self) -> bool {
        !self.hold.goes_beside(earlier.hold) && earlier.range.overlaps(self.range)
    }
}

#[derive(Default)]
pub(crate) struct Table {
    next: u64,
    /// Waiting and granted locks, in order of arrival and so of their tickets.
    pub(crate) entries: Vec<Entry>,
}

impl Table {
    fn enter(&mut self, range: Range, hold: Hold) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push(Entry { ticket, range, hold, waker: None });
        ticket
    }

    /// Returns the lock with a ticket and the earlier locks; `None` if the lock was removed.
    fn find(&mut self, ticket: u64) -> Option<(&mut Entry, &[Entry])> {
        let at = self.entries.binary_search_by_key(&ticket, |entry| entry.ticket).ok()?;
        let (earlier, rest) = self.entries.split_at_mut(at);
        Some((rest.first_mut()?, earlier))
    }

    /// True if no earlier lock blocks the lock with this ticket. The result never becomes false
    /// again, because all new locks are later.
    fn may_go(&mut self, ticket: u64) -> bool {
        let found = self.find(ticket);
        found.is_none_or(|(entry, earlier)| !earlier.iter().any(|one| entry.waits_for(one)))
    }

    /// Removes a lock, granted or waiting. Returns the wakers of the waiting locks that only this
    /// lock still blocked. Other waiting locks keep their wakers: woken now, they would find an
    /// earlier lock that blocks them, and wait again.
    fn remove(&mut self, ticket: u64) -> Vec<Waker> {
        let mut freed = Vec::new();
        let Ok(at) = self.entries.binary_search_by_key(&ticket, |entry| entry.ticket) else {
            return freed;
        };
        let removed = self.entries.remove(at);
        for later in at..self.entries.len() {
            let (earlier, rest) = self.entries.split_at_mut(later);
            let Some(entry) = rest.first_mut() else { break };
            let was_blocked = entry.waker.is_some() && entry.waits_for(&removed);
            if was_blocked && !earlier.iter().any(|one| entry.waits_for(one)) {
                freed.extend(entry.waker.take());
            }
        }
        freed
    }
}

/// Range locks of a logical unit.
///
/// A writer that never waits takes the fast path: it increments a counter, checks that no exclusive
/// or stable lock exists, and decrements the counter when it has written. Every other writer adds a
/// shared lock for its range to a table.
///
/// A command that needs an exclusive or stable lock adds that lock to the same table. It then waits
/// for earlier overlapping locks, and after that until the fast-path counters are 0. Writers that
/// start later see the exclusive or stable lock and use the table.
#[derive(Default)]
pub(crate) struct Ranges {
    /// Number of exclusive and stable locks, both waiting and granted.
    closed: AtomicUsize,
    quick: [Shard; SHARDS],
    table: Mutex<Table>,
    /// Tokens of this unit. A writer cancels the tokens whose ranges it overwrites.
    pub(crate) tokens: Tokens,
}

impl Ranges {
    /// Registers a fast-path writer. Returns `None` if an exclusive or stable lock exists; the
    /// writer must then use [`Ranges::shared`]. A registered writer calls [`Tokens::changing`]
    /// before its first change.
    pub(crate) fn quick(&self) -> Option<Quick<'_>> {
        let Shard(writers) = self.quick.get(shard_of_thread())?;
        writers.fetch_add(1, Ordering::SeqCst);
        let quick = Quick(writers);
        // Increment first, then check: either this writer sees the exclusive or stable lock, or the
        // owner of that lock sees this writer in `drain`.
        (self.closed.load(Ordering::SeqCst) == 0).then_some(quick)
    }

    /// Locks a range as a shared writer.
    pub(crate) async fn shared(&self, range: Range) -> Held<'_> {
        let held = self.enter(range, Hold::Shared);
        self.wait(range, &held).await;
        held
    }

    /// Locks a range exclusively.
    pub(crate) async fn alone(&self, range: Range) -> Held<'_> {
        let held = self.enter(range, Hold::Exclusive);
        self.wait(range, &held).await;
        held
    }

    /// Locks several ranges, which must not overlap unless all of them are held stable. A command
    /// that needs ranges of several units locks all ranges of one unit before it locks a range of
    /// the next unit, in the order of [`Ranges::place`].
    pub(crate) async fn all(&self, wanted: &[(Range, Hold)]) -> Vec<Held<'_>> {
        let held = self.enter_all(wanted);
        for (&(range, _), held) in wanted.iter().zip(&held) {
            self.wait(range, held).await;
        }
        held
    }

    /// Locks a range exclusively; returns `None` if the lock would have to wait.
    pub(crate) fn try_alone(&self, range: Range) -> Option<Held<'_>> {
        let held = self.enter(range, Hold::Exclusive);
        let free = self.table.lock().may_go(held.ticket);
        free.then(|| {
            self.let_in(range, Hold::Exclusive);
            held
        })
    }

    /// Position of this unit in the lock order of all units: its memory address.
    pub(crate) fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Waits until every fast-path writer that is registered now has finished its write.
    pub(crate) fn fence(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        self.drain();
        self.closed.fetch_sub(1, Ordering::SeqCst);
    }

    /// Waits until no fast-path writer is registered. Such a writer never waits for anything, so
    /// this function takes only as long as copying one request. No new writer can register, because
    /// the caller has incremented `closed`.
    fn drain(&self) {
        for Shard(writers) in &self.quick {
            let mut turns = 0_u32;
            while writers.load(Ordering::SeqCst) != 0 {
                turns += 1;
                if turns < 64 {
                    std::hint::spin_loop();
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }

    async fn wait(&self, range: Range, held: &Held<'_>) {
        Turn { ranges: self, ticket: held.ticket }.await;
        self.let_in(range, held.hold);
    }

    /// Grants a lock: waits for the fast-path writers if the lock excludes them, and cancels ROD
    /// tokens if the lock is for a writer. All earlier conflicting locks were already released.
    fn let_in(&self, range: Range, hold: Hold) {
        if hold.closes() {
            self.drain();
        }
        if hold.writes() {
            self.tokens.changing(range);
        }
    }

    fn enter(&self, range: Range, hold: Hold) -> Held<'_> {
        if hold.closes() {
            self.closed.fetch_add(1, Ordering::SeqCst);
        }
        let ticket = self.table.lock().enter(range, hold);
        Held { ranges: self, ticket, hold }
    }

    fn enter_all(&self, wanted: &[(Range, Hold)]) -> Vec<Held<'_>> {
        let closing = wanted.iter().filter(|(_, hold)| hold.closes()).count();
        self.closed.fetch_add(closing, Ordering::SeqCst);
        let mut table = self.table.lock();
        let held = |&(range, hold): &(Range, Hold)| {
            let ticket = table.enter(range, hold);
            Held { ranges: self, ticket, hold }
        };
        wanted.iter().map(held).collect()
    }
}

/// Counter index of this thread; it never changes while the thread lives.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

/// Registration of a fast-path writer; dropping it ends the registration.
pub(crate) struct Quick<'a>(&'a AtomicUsize);

impl Drop for Quick<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A range lock, waiting or granted; released on drop.
pub(crate) struct Held<'a> {
    ranges: &'a Ranges,
    ticket: u64,
    hold: Hold,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let freed = self.ranges.table.lock().remove(self.ticket);
        if self.hold.closes() {
            self.ranges.closed.fetch_sub(1, Ordering::SeqCst);
        }
        freed.into_iter().for_each(Waker::wake);
    }
}

/// Future that waits until no earlier lock conflicts.
struct Turn<'a> {
    ranges: &'a Ranges,
    ticket: u64,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut table = self.ranges.table.lock();
        if table.may_go(self.ticket) {
            return Poll::Ready(());
        }
        if let Some((entry, _)) = table.find(self.ticket) {
            entry.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
