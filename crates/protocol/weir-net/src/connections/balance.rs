//! Decides which sessions move between workers; `worker` moves the sessions.
//!
//! Workers start with equal numbers of sessions, but the CPU time for each session differs: other
//! processes of the machine use some cores more than others, and clients close sessions. Sessions
//! of a saturated worker then get less CPU time than other sessions. The balancer decides from two
//! times that the kernel counts for each thread: the run time, and the wait time for a core
//! (Documentation/scheduler/sched-stats.rst).
//!
//! Invariants:
//! - no session moves while every worker has enough CPU time;
//! - a session gets no less CPU time after its move than the sessions of its former worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::limits::BALANCE_SPAN;

/// A worker is saturated if it is idle for less than this part of a span ([`BALANCE_SPAN`]).
const IDLE_MIN: f64 = 0.1;
/// Weight of the newest span in the moving average of `Worker::capacity`.
const NEWEST: f64 = 0.5;

/// Load of one worker, readable by all threads of the server.
#[derive(Default)]
pub(crate) struct Load {
    pub(crate) connections: AtomicUsize,
    /// Kernel thread id of the worker; 0 until the worker runs.
    thread: AtomicI32,
    /// Number of the current span ([`BALANCE_SPAN`]).
    span: AtomicU32,
    /// Number of sessions that had a request in the current span.
    active: AtomicUsize,
}

impl Load {
    /// Records the calling thread as the thread of the worker.
    pub(crate) fn runs_here(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Number of the current span.
    pub(crate) fn span(&self) -> u32 {
        self.span.load(Ordering::Relaxed)
    }

    /// Counts a session when its first request in this span arrives.
    pub(crate) fn count_active(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    fn end_span(&self) -> usize {
        self.span.fetch_add(1, Ordering::Relaxed);
        self.active.swap(0, Ordering::Relaxed)
    }
}

/// Decision to move sessions from one worker to another, both given by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) count: usize,
}

/// Samples the load of all workers once in each span.
pub(crate) struct Balancer {
    workers: Vec<Worker>,
    last: Instant,
}

struct Worker {
    load: Arc<Load>,
    times: Option<Times>,
    /// Part of a core that the worker uses or could use, as a moving average.
    capacity: f64,
}

/// Run time of a thread and its wait time for a core, both since the thread started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    ran: Duration,
    waited: Duration,
}

/// Load of one worker during one span.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// Part of a core that was available to the worker: the time in which it ran or was idle.
    capacity: f64,
    is_busy: bool,
    /// Number of sessions that had a request in the span.
    active: usize,
}

impl Balancer {
    pub(crate) fn new(loads: impl Iterator<Item = Arc<Load>>) -> Self {
        let worker = |load| Worker { load, times: None, capacity: 1.0 };
        Self { workers: loads.map(worker).collect(), last: Instant::now() }
    }

    /// Returns the time until the next sample; `None` with one worker or fewer than two sessions.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let connections = |worker: &Worker| worker.load.connections.load(Ordering::Relaxed);
        let all: usize = self.workers.iter().map(connections).sum();
        let is_needed = self.workers.len() > 1 && all > 1;
        is_needed.then(|| BALANCE_SPAN.saturating_sub(self.last.elapsed()))
    }

    /// Samples the workers at the end of a span, and decides whether sessions move.
    pub(crate) fn look(&mut self) -> Option<Move> {
        if !self.rest()?.is_zero() {
            return None;
        }
        let span = self.last.elapsed();
        self.last = Instant::now();
        let shares = self.workers.iter_mut().map(|worker| worker.share(span));
        let shares: Vec<Option<Share>> = shares.collect();
        // After a pause of the acceptor, the samples cover a long time and do not show the current
        // load.
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

/// Reads `/proc/self/task/THREAD/schedstat`; `None` if the kernel keeps no such statistics.
fn times(thread: i32) -> Option<Times> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok());
    let mut next = || numbers.next().flatten().map(Duration::from_nanos);
    Some(Times { ran: next()?, waited: next()? })
}

/// Chooses a move of sessions from the busy worker whose sessions get the least CPU time to the
/// worker at which one more session would get the most.
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
