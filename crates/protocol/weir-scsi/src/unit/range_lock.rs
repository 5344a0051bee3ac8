//! Who may write which blocks now: what makes COMPARE AND WRITE atomic, and keeps still what a
//! token stands for while it is made or used.
//!
//! Not here: the commands; tokens (`tokens`).
//!
//! A writer that need not wait only counts itself in and out, and looks whether any range is kept
//! from writers. Every other writer enters its range in a table. Who needs a range alone, or needs
//! it to stay as it is, enters it too, waits for those before it that overlap, and then until the
//! writers that only counted themselves are out; later ones see it and use the table.
//!
//! Invariants:
//! - between taking a range alone and letting go of it no other writer of this unit changes it;
//!   between taking it steady and letting go of it no writer at all does;
//! - entries wait only for earlier ones, and those of one command are entered as one, so that
//!   nobody waits in a circle or for ever;
//! - tokens learn of a writer after it was let in and before it changes anything: by then nobody
//!   holds its range steady.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::unit::range::Range;
use crate::unit::rod_tokens::Tokens;

/// Counters of writers that need not wait: threads on different ones do not share a cache line.
const SHARDS: usize = 8;

/// One cache line.
#[repr(align(64))]
#[derive(Default)]
struct Shard(AtomicUsize);

/// How a range is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By a writer, beside other writers.
    Shared,
    /// By a writer, and by nobody else.
    Alone,
    /// By who reads it and needs it to stay as it is, beside others of that kind.
    Steady,
}

impl Hold {
    fn goes_beside(self, other: Self) -> bool {
        self == other && self != Self::Alone
    }

    fn writes(self) -> bool {
        self != Self::Steady
    }

    /// Whether writers that only count themselves must stay out.
    fn closes(self) -> bool {
        self != Self::Shared
    }
}

pub(crate) struct Entry {
    ticket: u64,
    range: Range,
    hold: Hold,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(crate) struct Table {
    next: u64,
    /// In the order of arrival, those that wait and those that hold alike.
    pub(crate) entries: Vec<Entry>,
}

impl Table {
    fn enter(&mut self, range: Range, hold: Hold) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push(Entry { ticket, range, hold, waker: None });
        ticket
    }

    fn may_go(&self, range: Range, hold: Hold, ticket: u64) -> bool {
        !self
            .entries
            .iter()
            .take_while(|entry| entry.ticket < ticket)
            .any(|earlier| !hold.goes_beside(earlier.hold) && earlier.range.overlaps(range))
    }
}

/// The writers of a logical unit.
#[derive(Default)]
pub(crate) struct Ranges {
    /// Entries that keep a range from writers, or want to.
    closed: AtomicUsize,
    quick: [Shard; SHARDS],
    table: Mutex<Table>,
    /// What stands for ranges as they are, and must learn of changes.
    pub(crate) tokens: Tokens,
}

impl Ranges {
    /// Counts a writer in that will not wait; `None` where it must use [`Ranges::shared`]. It says
    /// what it changes by [`Tokens::changing`] before it does.
    pub(crate) fn quick(&self) -> Option<Quick<'_>> {
        let Shard(writers) = self.quick.get(shard_of_thread())?;
        writers.fetch_add(1, Ordering::SeqCst);
        let quick = Quick(writers);
        // After counting itself in: either this sees who keeps writers out, or that one sees this.
        (self.closed.load(Ordering::SeqCst) == 0).then_some(quick)
    }

    /// Takes a range beside other writers.
    pub(crate) async fn shared(&self, range: Range) -> Held<'_> {
        let held = self.enter(range, Hold::Shared);
        self.wait(range, &held).await;
        held
    }

    /// Takes a range alone.
    pub(crate) async fn alone(&self, range: Range) -> Held<'_> {
        let held = self.enter(range, Hold::Alone);
        self.wait(range, &held).await;
        held
    }

    /// Takes several ranges, which do not overlap unless all are held steady. Who needs ranges of
    /// several units takes all of one before any of the next, in the order of [`Ranges::place`].
    pub(crate) async fn all(&self, wanted: &[(Range, Hold)]) -> Vec<Held<'_>> {
        let held = self.enter_all(wanted);
        for (&(range, _), held) in wanted.iter().zip(&held) {
            self.wait(range, held).await;
        }
        held
    }

    /// Takes a range alone if nobody must be waited for.
    pub(crate) fn try_alone(&self, range: Range) -> Option<Held<'_>> {
        let held = self.enter(range, Hold::Alone);
        let free = self.table.lock().may_go(range, Hold::Alone, held.ticket);
        free.then(|| {
            self.let_in(range, Hold::Alone);
            held
        })
    }

    /// Where it stands in the order in which several units are taken.
    pub(crate) fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Waits until every writer is out that was in at the call and had only counted itself.
    pub(crate) fn fence(&self) {
        self.closed.fetch_add(1, Ordering::SeqCst);
        self.drain();
        self.closed.fetch_sub(1, Ordering::SeqCst);
    }

    /// These writers do not wait for anything, so this takes as long as copying a request; new
    /// ones stay out, as somebody keeps them out.
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
        Turn { ranges: self, ticket: held.ticket, range, hold: held.hold }.await;
        self.let_in(range, held.hold);
    }

    /// Whoever goes first has gone.
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

/// A thread keeps its counter for life.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

/// A writer that does not wait.
pub(crate) struct Quick<'a>(&'a AtomicUsize);

impl Drop for Quick<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A range held, or waited for; given back when this goes.
pub(crate) struct Held<'a> {
    ranges: &'a Ranges,
    ticket: u64,
    hold: Hold,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut woken = Vec::new();
        {
            let mut table = self.ranges.table.lock();
            let Some(at) = table.entries.iter().position(|entry| entry.ticket == self.ticket)
            else {
                return;
            };
            let gone = table.entries.remove(at);
            for entry in &mut table.entries {
                if entry.range.overlaps(gone.range) {
                    woken.extend(entry.waker.take());
                }
            }
        }
        if self.hold.closes() {
            self.ranges.closed.fetch_sub(1, Ordering::SeqCst);
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Waits until no earlier entry stands in the way.
struct Turn<'a> {
    ranges: &'a Ranges,
    ticket: u64,
    range: Range,
    hold: Hold,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut table = self.ranges.table.lock();
        if table.may_go(self.range, self.hold, self.ticket) {
            return Poll::Ready(());
        }
        if let Some(entry) = table.entries.iter_mut().find(|entry| entry.ticket == self.ticket) {
            entry.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_overlapping_writers_wait_and_in_order() {
        let ranges = Ranges::default();
        let first = ranges.shared(Range { start: 0, end: 10 }).now_or_never().unwrap();
        let beside = ranges.shared(Range { start: 5, end: 15 }).now_or_never().unwrap();
        assert!(ranges.quick().is_some());
        assert!(ranges.try_alone(Range { start: 9, end: 12 }).is_none());
        let far = ranges.try_alone(Range { start: 20, end: 30 }).unwrap();
        assert!(ranges.quick().is_none());
        let mut waiting = Box::pin(ranges.alone(Range { start: 9, end: 12 }));
        assert!(waiting.as_mut().now_or_never().is_none());
        let mut behind = Box::pin(ranges.shared(Range { start: 11, end: 13 }));
        assert!(behind.as_mut().now_or_never().is_none());
        drop(first);
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(behind.as_mut().now_or_never().is_none(), "overtook who came before");
        let alone = waiting.as_mut().now_or_never().unwrap();
        drop(alone);
        assert!(behind.as_mut().now_or_never().is_some());
        drop((far, waiting, behind));
        assert!(ranges.quick().is_some() && ranges.table.lock().entries.is_empty());
    }

    #[test]
    fn what_is_steady_is_shared_by_readers_and_by_no_writer() {
        let ranges = Ranges::default();
        let first = Range { start: 0, end: 10 };
        let second = Range { start: 20, end: 30 };
        let writer = ranges.shared(first).now_or_never().unwrap();
        let wanted = [(first, Hold::Steady), (second, Hold::Shared)];
        let mut waiting = Box::pin(ranges.all(&wanted));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(ranges.quick().is_none());
        drop(writer);
        let held = waiting.as_mut().now_or_never().unwrap();
        let beside = ranges.all(&[(first, Hold::Steady)]).now_or_never().unwrap();
        let mut writer = Box::pin(ranges.shared(first));
        assert!(writer.as_mut().now_or_never().is_none());
        assert!(ranges.shared(second).now_or_never().is_some());
        assert!(ranges.try_alone(first).is_none() && ranges.try_alone(second).is_none());
        drop((held, waiting));
        assert!(writer.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(writer.as_mut().now_or_never().is_some());
        assert!(ranges.quick().is_some() && ranges.table.lock().entries.is_empty());
    }
}
