//! Detects growth of the target's queue in an open loop.
//!
//! `judge` gives the verdict; `result` decides whether the target completed enough of the load.
//!
//! Theory. If the offered rate exceeds the target's rate by any amount, the number of outstanding
//! operations grows without bound. The share of completed operations shows the growth only if the
//! target is much slower. The number of outstanding operations at the end of each second shows even
//! a small difference, if the run is long enough. Bursts of arrivals also lengthen the queue:
//! [`of_arrivals`] computes this growth from the known arrivals of each second.
//!
//! Invariant: neither random variation nor a single step from one level to another counts as growth
//! of the queue.

use std::fmt;

use crate::result::{CellRun, Interval};
use crate::spec::Arrival;
use crate::stats::{CHANCE_DEVIATIONS, median};
use crate::summary::whole_intervals;

/// Minimum number of whole seconds in a run that can show growth: three seconds in each third of
/// the run. If a queue does not grow, each third exceeds the preceding one in only one of 1,680
/// runs of nine seconds.
const SECONDS_MIN: usize = 9;
/// Growth that is always allowed, in operations: inexact timers move operations from one second to
/// the next.
const OPERATIONS_MIN: f64 = 4.0;

/// Median numbers of outstanding operations in the first and the last third of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Median in the first third of the run.
    pub first: f64,
    /// Median in the last third of the run.
    pub last: f64,
}

impl fmt::Display for Growth {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the queue grew from {:.0} to {:.0} operations", self.first, self.last)
    }
}

/// Returns the growth of the queue in `run`, which is an open loop; `None` if the queue does not
/// grow, or if the run has fewer than `SECONDS_MIN` whole seconds.
///
/// The queue grows if both conditions hold:
/// - every second of a third has more outstanding operations than all seconds of the preceding
///   third;
/// - the median rises from the first to the last third by at least the median of the first third,
///   by at least `OPERATIONS_MIN`, and with Poisson arrivals by more than chance explains
///   (`CHANCE_DEVIATIONS`).
pub fn growth(run: &CellRun, arrival: Arrival) -> Option<Growth> {
    let rate = run.offered_iops?;
    let outstanding = |second: &Interval| (second.in_flight + second.backlog) as f64;
    let seconds: Vec<f64> = whole_intervals(run).map(outstanding).collect();
    let count = seconds.len();
    if count < SECONDS_MIN {
        return None;
    }
    let third = |number: usize| &seconds[number * count / 3..(number + 1) * count / 3];
    let (first, middle, last) = (third(0), third(1), third(2));
    if highest(first) >= lowest(middle) || highest(middle) >= lowest(last) {
        return None;
    }
    let found = Growth { first: median(first)?, last: median(last)? };
    let by_chance = match arrival {
        Arrival::Constant => 0.0,
        // The variance is the number of arrivals between the middle of the first third and the
        // middle of the last third.
        Arrival::Poisson => CHANCE_DEVIATIONS * (rate * count as f64 * 2.0 / 3.0).sqrt(),
    };
    let allowed = OPERATIONS_MIN.max(found.first).max(by_chance);
    (found.last - found.first >= allowed).then_some(found)
}

/// Number of operations by which the arrivals alone lengthen the queue in `run`: the growth of the
/// queue at an imaginary target that completes exactly the offered rate. Constant arrivals add no
/// operations.
pub fn of_arrivals(run: &CellRun, arrival: Arrival) -> f64 {
    let Some(rate) = run.offered_iops.filter(|_| arrival == Arrival::Poisson) else { return 0.0 };
    let outstanding = |second: &Interval| (second.in_flight + second.backlog) as f64;
    let mut seconds = whole_intervals(run);
    // The length of the queue at the start of the first second is unknown, so begin with the length
    // at the end of that second.
    let Some(first) = seconds.next().map(outstanding) else { return 0.0 };
    let (mut before, mut queue) = (first, first);
    for second in seconds {
        let arrivals = second.ops as f64 + outstanding(second) - before;
        queue = (queue + arrivals - rate).max(0.0);
        before = outstanding(second);
    }
    (queue - first).max(0.0)
}

/// Number of operations by which the target fell behind the offered rate in `run`: the growth of
/// its queue, without the growth by [`of_arrivals`] and without the usual number in flight. With
/// constant arrivals, growth in the last second does not count, because any stall in this second
/// would look the same.
pub fn shortfall(run: &CellRun, arrival: Arrival) -> f64 {
    let outstanding = |second: &Interval| second.in_flight + second.backlog;
    let late = match (arrival, run.intervals.as_slice()) {
        (Arrival::Constant, [_, .., before, end]) => {
            outstanding(end).saturating_sub(outstanding(before))
        }
        _ => 0,
    };
    let unanswered = run.due.saturating_sub(run.answered).saturating_sub(late) as f64;
    unanswered - of_arrivals(run, arrival) - run.usually_in_flight()
}

fn lowest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn highest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    /// Returns an open-loop run at 1,000 operations per second with these numbers of operations in
    /// flight, one for each second.
    fn run(in_flight: impl IntoIterator<Item = u64>) -> CellRun {
        let in_flight: Vec<u64> = in_flight.into_iter().collect();
        let mut run = fixture::closed_run(1000, in_flight.len() as u32, 75, 5_000, 5_000);
        run.offered_iops = Some(1000.0);
        run.intervals.iter_mut().zip(in_flight).for_each(|(second, n)| second.in_flight = n);
        run
    }

    #[test]
    fn target_half_a_percent_too_slow_shows_growth() {
        let slow = run((1..=10).map(|second| 5 + 5 * second));
        let found = growth(&slow, Arrival::Constant).unwrap();
        assert_eq!(found, Growth { first: 15.0, last: 47.5 });
        assert_eq!(found.to_string(), "the queue grew from 15 to 48 operations");
        let mut closed = slow;
        closed.offered_iops = None;
        assert_eq!(growth(&closed, Arrival::Constant), None, "a closed loop has no queue");
    }

    #[test]
    fn operations_that_wait_for_a_slot_are_outstanding() {
        let mut waits = run([64; 12]);
        (0..).zip(&mut waits.intervals).for_each(|(second, one)| one.backlog = 20 * second);
        assert!(growth(&waits, Arrival::Constant).is_some());
    }

    // With Poisson arrivals, chance can explain a growth by 245 operations in 10 s.
    #[test]
    fn poisson_arrivals_need_a_larger_growth() {
        let grows = |each: u64, seconds: u64| run((1..=seconds).map(move |second| each * second));
        assert_eq!(growth(&grows(20, 10), Arrival::Poisson), None);
        assert!(growth(&grows(60, 10), Arrival::Poisson).is_some());
        assert!(growth(&grows(20, 60), Arrival::Poisson).is_some());
    }

    #[test]
    fn steps_noise_and_short_runs_are_no_growth() {
        let none = |seconds: &[u64]| {
            assert_eq!(growth(&run(seconds.iter().copied()), Arrival::Constant), None);
        };
        none(&[5, 5, 5, 5, 5, 50, 50, 50, 50, 50]);
        none(&[5, 9, 3, 8, 30, 6, 7, 4, 9, 31]);
        none(&[1, 1, 1, 2, 2, 2, 3, 3, 3]);
        none(&[100, 101, 102, 110, 111, 112, 120, 121, 122]);
        none(&[10, 20, 30, 40, 50, 60, 70, 80]);
        none(&[60, 50, 40, 35, 30, 25, 20, 15, 10]);
    }
}
