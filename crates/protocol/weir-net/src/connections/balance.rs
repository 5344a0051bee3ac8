//! Which worker is to give sessions to which.
//!
//! Not here: how a session goes from one to the other (`worker`).
//!
//! Workers begin with as many sessions each, but not with as much of a core: what else runs on the
//! machine takes more from one than from another, and sessions that end leave gaps. Where a worker
//! uses all that it gets, its sessions get less than those of others. The kernel counts how long a
//! thread ran and how long it waited for a core (Documentation/scheduler/sched-stats.rst); sessions
//! move so that each has as much of one.
//!
//! Invariants:
//! - nothing moves while every worker gets what it needs;
//! - no session gets less where it goes than those that stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::limits::BALANCE_SPAN;

/// A worker that rested for less of a span than this has all the work it can do.
const IDLE_MIN: f64 = 0.1;
/// What the newest span counts for in the average.
const NEWEST: f64 = 0.5;

/// What everybody knows of one worker.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) connections: AtomicUsize,
    /// Its thread, as the kernel knows it; 0 until it runs.
    thread: AtomicI32,
    /// Counts spans of time.
    span: AtomicU32,
    /// Sessions that had something to do in this one.
    active: AtomicUsize,
}

impl Load {
    /// The worker runs on the calling thread.
    pub(crate) fn runs_here(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// The present span.
    pub(crate) fn span(&self) -> u32 {
        self.span.load(Ordering::Relaxed)
    }

    /// A session has something to do for the first time in this span.
    pub(crate) fn count_active(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    fn end_span(&self) -> usize {
        self.span.fetch_add(1, Ordering::Relaxed);
        self.active.swap(0, Ordering::Relaxed)
    }
}

/// Sessions that are to move, by the numbers of their workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) count: usize,
}

/// Looks at the workers once a span.
pub(crate) struct Balancer {
    workers: Vec<Worker>,
    last: Instant,
}

struct Worker {
    load: Arc<Load>,
    times: Option<Times>,
    /// Of a core, on average.
    capacity: f64,
}

/// What a thread has had so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    ran: Duration,
    waited: Duration,
}

/// One worker over a span.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Of a core: what it used, and what it could have.
    capacity: f64,
    is_busy: bool,
    /// Sessions that had something to do.
    active: usize,
}

impl Balancer {
    pub(crate) fn new(loads: impl Iterator<Item = Arc<Load>>) -> Self {
        let worker = |load| Worker { load, times: None, capacity: 1.0 };
        Self { workers: loads.map(worker).collect(), last: Instant::now() }
    }

    /// When to look next; `None` while there is nothing to balance.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let connections = |worker: &Worker| worker.load.connections.load(Ordering::Relaxed);
        let all: usize = self.workers.iter().map(connections).sum();
        let is_needed = self.workers.len() > 1 && all > 1;
        is_needed.then(|| BALANCE_SPAN.saturating_sub(self.last.elapsed()))
    }

    /// What is to move, if a span has ended.
    pub(crate) fn look(&mut self) -> Option<Move> {
        if !self.rest()?.is_zero() {
            return None;
        }
        let span = self.last.elapsed();
        self.last = Instant::now();
        let shares = self.workers.iter_mut().map(|worker| worker.share(span));
        let shares: Vec<Option<Share>> = shares.collect();
        // A span with a pause in it says little of now.
        if span > 2 * BALANCE_SPAN {
            return None;
        }
        decide(&shares.into_iter().collect::<Option<Vec<_>>>()?)
    }
}

impl Worker {
    fn share(&mut self, span: Duration) -> Option<Share> {
        let active = self.load.end_span();
        let now = times(self.load.thread.load(Ordering::Relaxed));
        let (now, before) = (now?, std::mem::replace(&mut self.times, now)?);
        let part = |now: Duration, before: Duration| {
            (now.saturating_sub(before).as_secs_f64() / span.as_secs_f64()).min(1.0)
        };
        let (ran, waited) = (part(now.ran, before.ran), part(now.waited, before.waited));
        self.capacity += NEWEST * (1.0 - waited - self.capacity);
        let is_busy = ran + waited > 1.0 - IDLE_MIN;
        Some(Share { capacity: self.capacity, is_busy, active })
    }
}

/// Of `/proc/self/task/THREAD/schedstat`; `None` where the kernel does not count.
fn times(thread: i32) -> Option<Times> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten().map(Duration::from_nanos);
    Some(Times { ran: next()?, waited: next()? })
}

/// From the busy worker whose sessions have least, to where they would have most.
fn decide(shares: &[Share]) -> Option<Move> {
    let each = |capacity: f64, active: usize| capacity / active as f64;
    let (from, giver) =
        shares.iter().enumerate().filter(|(_, share)| share.is_busy && share.active > 1).min_by(
            |(_, a), (_, b)| each(a.capacity, a.active).total_cmp(&each(b.capacity, b.active)),
        )?;
    let (to, taker) = shares
        .iter()
        .enumerate()
        .filter(|(to, share)| *to != from && share.capacity > 0.0)
        .max_by(|(_, a), (_, b)| {
            each(a.capacity, a.active + 1).total_cmp(&each(b.capacity, b.active + 1))
        })?;
    let leaves_no_less = |count: &usize| {
        each(taker.capacity, taker.active + count) >= each(giver.capacity, giver.active - count)
    };
    let count = (1..giver.active).take_while(leaves_no_less).last()?;
    Some(Move { from, to, count })
}

#[cfg(test)]
mod tests;
