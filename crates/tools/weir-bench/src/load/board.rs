//! Board: the figures of each second of a run, merged over all workers.
//!
//! Invariant: a second keeps its distribution in memory only until all workers have reported this
//! second, so that the memory does not grow with the length of a run.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::histogram::Latencies;
use crate::result::Interval;

/// Minimum length of a stall that is recorded: a rotating disk needs 10 ms for a random block.
pub(super) const STALL_MIN: Duration = Duration::from_millis(10);
/// Resolution of the recorded time of the target's last completion.
const ANSWER_STEP_NS: u64 = 1_000_000;

/// Figures of one worker in one second.
#[derive(Default)]
pub(super) struct Second {
    pub(super) latency: Latencies,
    pub(super) bytes: u64,
    pub(super) backlog: u64,
    pub(super) in_flight: u64,
}

#[derive(Default)]
struct Partial {
    all: Second,
    told: u32,
}

pub(super) struct Board {
    workers: u32,
    /// Time of the last completion for any worker, in nanoseconds since the start of the run.
    last_ns: AtomicU64,
    inner: Mutex<(BTreeMap<u32, Partial>, Vec<Interval>)>,
}

impl Board {
    pub(super) fn new(workers: u32) -> Self {
        Self { workers, last_ns: AtomicU64::new(0), inner: Mutex::default() }
    }

    /// Records a completion. If the completion ended a stall of at least [`STALL_MIN`], returns the
    /// length of the stall. A stall is at most as long as the operation was in flight, because a
    /// target without operations in flight owes no completion.
    pub(super) fn answered(&self, start: Instant, sent: Instant, at: Instant) -> Option<Duration> {
        let at_ns = at.saturating_duration_since(start).as_nanos() as u64;
        // All workers share the cache line of `last_ns`, so completions write `last_ns` at most
        // once per [`ANSWER_STEP_NS`] and otherwise only read it.
        let seen_ns = self.last_ns.load(Ordering::Relaxed);
        if at_ns < seen_ns + ANSWER_STEP_NS {
            return None;
        }
        let last_ns = self.last_ns.fetch_max(at_ns, Ordering::Relaxed);
        let silent = Duration::from_nanos(at_ns.saturating_sub(last_ns));
        let stall = silent.min(at.saturating_duration_since(sent));
        (stall >= STALL_MIN).then_some(stall)
    }

    /// Adds a worker's figures for one second to the board, and clears them. Each worker reports
    /// each second only once.
    pub(super) fn tell(&self, second: u32, seen: &mut Second) {
        let (partials, intervals) = &mut *self.inner.lock();
        let partial = partials.entry(second).or_default();
        partial.all.latency.add(&seen.latency);
        partial.all.bytes += seen.bytes;
        partial.all.backlog += seen.backlog;
        partial.all.in_flight += seen.in_flight;
        partial.told += 1;
        seen.latency.clear();
        (seen.bytes, seen.backlog, seen.in_flight) = (0, 0, 0);
        if partial.told == self.workers
            && let Some(whole) = partials.remove(&second)
        {
            intervals.push(interval(second, &whole.all));
        }
    }

    /// Returns the figures of all seconds. The last seconds may lack the figures of some workers.
    pub(super) fn finish(self) -> Vec<Interval> {
        let (partials, mut intervals) = self.inner.into_inner();
        intervals.extend(partials.iter().map(|(second, part)| interval(*second, &part.all)));
        intervals.sort_unstable_by_key(|interval| interval.second);
        intervals
    }
}

fn interval(second: u32, seen: &Second) -> Interval {
    let Second { latency, bytes, backlog, in_flight } = seen;
    Interval {
        second,
        ops: latency.count(),
        bytes: *bytes,
        mean_us: latency.mean_us(),
        p50_us: latency.percentile_us(50.0).unwrap_or_else(|| latency.mean_us()),
        p99_us: latency.percentile_us(99.0).unwrap_or_else(|| latency.max_us()),
        max_us: latency.max_us(),
        backlog: *backlog,
        in_flight: *in_flight,
    }
}
