//! The seconds of a run, put together from what each worker saw.
//!
//! Invariant: only seconds that some worker has not told yet are held with their distribution, so
//! memory does not grow with the length of a run.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::histogram::Latencies;
use crate::result::Interval;

/// What one worker saw of a second.
#[derive(Default)]
pub(super) struct Second {
    pub(super) latency: Latencies,
    pub(super) bytes: u64,
    pub(super) backlog: u64,
}

#[derive(Default)]
struct Partial {
    all: Second,
    told: u32,
}

pub(super) struct Board {
    workers: u32,
    inner: Mutex<(BTreeMap<u32, Partial>, Vec<Interval>)>,
}

impl Board {
    pub(super) fn new(workers: u32) -> Self {
        Self { workers, inner: Mutex::default() }
    }

    /// Takes what a worker saw of a second, each once, and leaves nothing of it.
    pub(super) fn tell(&self, second: u32, seen: &mut Second) {
        let (partials, intervals) = &mut *self.inner.lock();
        let partial = partials.entry(second).or_default();
        partial.all.latency.add(&seen.latency);
        partial.all.bytes += seen.bytes;
        partial.all.backlog += seen.backlog;
        partial.told += 1;
        seen.latency.clear();
        (seen.bytes, seen.backlog) = (0, 0);
        if partial.told == self.workers
            && let Some(whole) = partials.remove(&second)
        {
            intervals.push(interval(second, &whole.all));
        }
    }

    /// All seconds, the last ones perhaps not told by every worker.
    pub(super) fn finish(self) -> Vec<Interval> {
        let (partials, mut intervals) = self.inner.into_inner();
        intervals.extend(partials.iter().map(|(second, part)| interval(*second, &part.all)));
        intervals.sort_unstable_by_key(|interval| interval.second);
        intervals
    }
}

fn interval(second: u32, Second { latency, bytes, backlog }: &Second) -> Interval {
    Interval {
        second,
        ops: latency.count(),
        bytes: *bytes,
        mean_us: latency.mean_us(),
        p99_us: latency.percentile_us(99.0).unwrap_or_else(|| latency.max_us()),
        max_us: latency.max_us(),
        backlog: *backlog,
    }
}
