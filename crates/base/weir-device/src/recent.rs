//! Computes the 99th percentile of recent operation times.
//!
//! The module keeps the times of two intervals, so that the percentile covers the last 30 to 60 s.
//! `watch` has the times since a disk was opened.
//!
//! Invariant: memory is bounded by two histograms of fixed size.

use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

/// Length of one interval.
pub const RECENT_INTERVAL: Duration = Duration::from_secs(30);

/// Upper bound of the times in the histograms: a day, in microseconds. A longer time counts as a
/// day.
pub(crate) const LONGEST_US: u64 = 86_400_000_000;

/// Times of the current and the previous interval, with an error of at most 6 %.
#[derive(Debug)]
pub struct RecentTimes(Mutex<Intervals>);

#[derive(Debug)]
struct Intervals {
    /// Start of the current interval.
    since_us: u64,
    current: Histogram<u32>,
    previous: Histogram<u32>,
}

impl Default for RecentTimes {
    fn default() -> Self {
        let new = || Histogram::new_with_bounds(1, LONGEST_US, 1).expect("the bounds are in order");
        Self(Mutex::new(Intervals { since_us: 0, current: new(), previous: new() }))
    }
}

impl RecentTimes {
    /// Records the time of an operation; `now_us` is the monotonic time at which the operation
    /// ended.
    pub fn record(&self, now_us: u64, took_us: u64) {
        let mut intervals = self.0.lock();
        intervals.advance(now_us);
        intervals.current.saturating_record(took_us);
    }

    /// Returns the 99th percentile of the recent times; `None` without a recent operation.
    pub fn p99_us(&self, now_us: u64) -> Option<u64> {
        let mut intervals = self.0.lock();
        intervals.advance(now_us);
        let mut both = intervals.current.clone();
        both.add(&intervals.previous).expect("the bounds are equal");
        (!both.is_empty()).then(|| both.value_at_quantile(0.99))
    }
}

impl Intervals {
    fn advance(&mut self, now_us: u64) {
        let interval_us = RECENT_INTERVAL.as_micros() as u64;
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us < interval_us {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.reset();
        if elapsed_us >= 2 * interval_us {
            self.previous.reset();
        }
        self.since_us = now_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL_US: u64 = 30_000_000;

    #[test]
    fn times_leave_after_two_intervals() {
        let times = RecentTimes::default();
        assert_eq!(times.p99_us(5), None);
        for at in 0..100 {
            times.record(INTERVAL_US + at, 100_000);
        }
        let now = |intervals: u64| times.p99_us(intervals * INTERVAL_US + 1_000);
        assert!(now(1).is_some_and(|us| (94_000..107_000).contains(&us)), "{:?}", now(1));
        for at in 0..10_000 {
            times.record(2 * INTERVAL_US + at, 1_000);
        }
        // 100 of 10,100 operations are slow: less than 1 %.
        assert!(now(2).is_some_and(|us| us < 2_000), "{:?}", now(2));
        assert!(now(3).is_some_and(|us| us < 2_000), "{:?}", now(3));
        assert_eq!(now(6), None);
    }

    #[test]
    fn slow_operations_above_one_percent_show() {
        let times = RecentTimes::default();
        for at in 0..1000 {
            times.record(at, if at % 50 == 0 { 1_000_000 } else { 100 });
        }
        assert!(times.p99_us(1000).is_some_and(|us| us > 900_000));
    }
}
