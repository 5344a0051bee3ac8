//! Who may write which blocks now: what makes COMPARE AND WRITE atomic.
//!
//! Not here: the commands.
//!
//! A writer that need not wait only counts itself in and out, and looks whether any range is held
//! alone. Every other writer enters its range in a table. Who needs a range alone enters it too,
//! waits for those before it that overlap, and then until the writers that only counted
//! themselves are out; later ones see it and use the table.
//!
//! Invariants:
//! - between taking a range alone and letting go of it no other writer of this unit changes it;
//! - entries wait only for earlier ones, so that nobody waits in a circle or for ever.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Counters of writers that need not wait: threads on different ones do not share a cache line.
const SHARDS: usize = 8;

/// One cache line.
#[repr(align(64))]
#[derive(Default)]
struct Shard(AtomicUsize);

/// Bytes from `start` up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First.
    pub(crate) start: u64,
    /// First one behind it.
    pub(crate) end: u64,
}

impl Range {
    fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

struct Entry {
    ticket: u64,
    range: Range,
    alone: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// In the order of arrival, those that wait and those that hold alike.
    entries: Vec<Entry>,
}

impl Table {
    fn enter(&mut self, range: Range, alone: bool) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.entries.push(Entry { ticket, range, alone, waker: None });
        ticket
    }

    fn may_go(&self, range: Range, alone: bool, ticket: u64) -> bool {
        !self
            .entries
            .iter()
            .take_while(|entry| entry.ticket < ticket)
            .any(|earlier| (alone || earlier.alone) && earlier.range.overlaps(range))
    }
}

/// The writers of a logical unit.
#[derive(Default)]
pub(crate) struct Ranges {
    /// Entries that want a range alone.
    alone: AtomicUsize,
    quick: [Shard; SHARDS],
    table: Mutex<Table>,
}

impl Ranges {
    /// Counts a writer in that will not wait; `None` where it must use [`Ranges::shared`].
    pub(crate) fn quick(&self) -> Option<Quick<'_>> {
        let Shard(writers) = self.quick.get(shard_of_thread())?;
        writers.fetch_add(1, Ordering::SeqCst);
        let quick = Quick(writers);
        // After counting itself in: either this sees who wants to be alone, or that one sees this.
        (self.alone.load(Ordering::SeqCst) == 0).then_some(quick)
    }

    /// Takes a range beside other writers.
    pub(crate) async fn shared(&self, range: Range) -> Held<'_> {
        self.hold(range, false).await
    }

    /// Takes a range alone.
    pub(crate) async fn alone(&self, range: Range) -> Held<'_> {
        let held = self.hold(range, true).await;
        self.drain();
        held
    }

    /// Takes a range alone if nobody must be waited for.
    pub(crate) fn try_alone(&self, range: Range) -> Option<Held<'_>> {
        let held = self.enter(range, true);
        let free = self.table.lock().may_go(range, true, held.ticket);
        free.then(|| {
            self.drain();
            held
        })
    }

    /// Waits until every writer is out that was in at the call and had only counted itself.
    pub(crate) fn fence(&self) {
        self.alone.fetch_add(1, Ordering::SeqCst);
        self.drain();
        self.alone.fetch_sub(1, Ordering::SeqCst);
    }

    /// These writers do not wait for anything, so this takes as long as copying a request; new
    /// ones stay out, as somebody wants to be alone.
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

    async fn hold(&self, range: Range, alone: bool) -> Held<'_> {
        let held = self.enter(range, alone);
        Turn { ranges: self, ticket: held.ticket, range, alone }.await;
        held
    }

    fn enter(&self, range: Range, alone: bool) -> Held<'_> {
        if alone {
            self.alone.fetch_add(1, Ordering::SeqCst);
        }
        let ticket = self.table.lock().enter(range, alone);
        Held { ranges: self, ticket, alone }
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
    alone: bool,
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
        if self.alone {
            self.ranges.alone.fetch_sub(1, Ordering::SeqCst);
        }
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Waits until no earlier entry stands in the way.
struct Turn<'a> {
    ranges: &'a Ranges,
    ticket: u64,
    range: Range,
    alone: bool,
}

impl Future for Turn<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut table = self.ranges.table.lock();
        if table.may_go(self.range, self.alone, self.ticket) {
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
}
