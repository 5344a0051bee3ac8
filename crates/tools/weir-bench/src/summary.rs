//! The figures of a cell over its runs.
//!
//! Not here: whether they can be trusted (verdict).
//!
//! Invariants: the headline of a cell is the median of its runs; percentiles come from merged
//! distributions; a run in which no time counted is not a run.

use serde::Serialize;

use crate::histogram::Latencies;
use crate::result::{CellResult, CellRun, ClassResult, Interval};
use crate::spec::OpKind;
use crate::stats;

/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;
/// A time without an answer is a stall if it is so many times as long as a usual operation.
const STALL_TIMES_USUAL: f64 = 10.0;
/// Part of a second by which the last interval may be shorter and still count as one.
const INTERVAL_SLACK_S: f64 = 0.05;

/// A figure over the runs of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the runs.
    pub median: f64,
    /// Lowest.
    pub min: f64,
    /// Highest.
    pub max: f64,
    /// Half the width of the 95 % confidence interval by the median; `None` of fewer than 3 runs.
    pub ci_pct: Option<f64>,
}

/// Latency in microseconds of all runs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Operations.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median; percentiles are there with ten samples beyond them.
    pub p50_us: Option<f64>,
    /// 95th percentile.
    pub p95_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// 99.9th percentile.
    pub p999_us: Option<f64>,
    /// Longest.
    pub max_us: f64,
}

/// The figures of a cell over its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CellSummary {
    /// Runs that were measured.
    pub runs: u32,
    /// Data operations per second.
    pub iops: Spread,
    /// Reads per second.
    pub read_iops: Spread,
    /// Writes per second.
    pub write_iops: Spread,
    /// Payload in MiB per second.
    pub mib_s: Spread,
    /// Of all data operations.
    pub latency: LatencySummary,
    /// Of reads.
    pub read_latency: LatencySummary,
    /// Of writes.
    pub write_latency: LatencySummary,
    /// Operations in flight on average, by Little's law.
    pub in_flight: f64,
    /// Reads by data operations, in percent.
    pub read_pct: f64,
    /// Operations that failed.
    pub errors: u64,
    /// Processor time of the generator per operation, in microseconds.
    pub cpu_us_per_op: f64,
    /// Share of the generator's threads that was busy, in percent.
    pub cpu_pct: f64,
    /// Coefficient of variation of the seconds' operations, in percent, worst run.
    pub interval_cv_pct: f64,
    /// Times in which the target answered nothing.
    pub stalls: StallSummary,
}

/// Times in which operations were in flight and the target answered none, for far longer than an
/// operation usually takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StallSummary {
    /// Number of stalls.
    pub count: u64,
    /// Seconds of all of them.
    pub total_s: f64,
    /// Seconds of the longest.
    pub longest_s: f64,
    /// Of the time measured, less what the generator waited for a core, in percent.
    pub share_pct: f64,
}

/// The figures of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunFigures {
    /// Data operations per second.
    pub iops: f64,
    /// Reads per second.
    pub read_iops: f64,
    /// Writes per second.
    pub write_iops: f64,
    /// Payload in MiB per second.
    pub mib_s: f64,
    /// Of all data operations.
    pub latency: LatencySummary,
    /// Operations in flight on average, by Little's law.
    pub in_flight: f64,
    /// Coefficient of variation of the seconds' operations, in percent; 0 of less than two seconds.
    pub interval_cv_pct: f64,
}

impl RunFigures {
    /// Those of `run`; all zero where no time counted.
    pub fn of(run: &CellRun) -> Self {
        if !run.is_measured() {
            return Self::default();
        }
        let rate = |amount: u64| amount as f64 / run.seconds;
        let data = || run.classes.iter().filter(|class| class.op.is_data());
        let waited_us: f64 = run.classes.iter().map(busy_us).sum();
        Self {
            iops: rate(data().map(|class| class.ops).sum()),
            read_iops: rate(ops(run, |op| op == OpKind::Read)),
            write_iops: rate(ops(run, |op| op == OpKind::Write)),
            mib_s: rate(data().map(|class| class.bytes).sum()) / MIB,
            latency: LatencySummary::of(&merged(data())),
            in_flight: waited_us / 1e6 / run.seconds,
            interval_cv_pct: interval_cv_pct(run),
        }
    }
}

impl CellSummary {
    /// The figures of `cell` over those of its runs in which time counted.
    pub fn of(cell: &CellResult) -> Self {
        Self::of_runs(&cell.runs)
    }

    /// The same of runs that are not those of a cell: a phase, a rate of a search.
    pub fn of_runs(runs: &[CellRun]) -> Self {
        let runs: Vec<&CellRun> = runs.iter().filter(|run| run.is_measured()).collect();
        let figures: Vec<RunFigures> = runs.iter().map(|run| RunFigures::of(run)).collect();
        let spread = |figure: fn(&RunFigures) -> f64| {
            Spread::of(&figures.iter().map(figure).collect::<Vec<_>>())
        };
        let latency = |counts: fn(OpKind) -> bool| {
            let classes = runs.iter().flat_map(|run| &run.classes);
            LatencySummary::of(&merged(classes.filter(|class| counts(class.op))))
        };
        let total =
            |counts: fn(OpKind) -> bool| -> u64 { runs.iter().map(|run| ops(run, counts)).sum() };
        let failed = |class: &ClassResult| class.errors.values().sum::<u64>();
        let cpu_s: f64 = runs.iter().map(|run| run.cpu_s.0 + run.cpu_s.1).sum();
        let thread_s: f64 = runs.iter().map(|run| run.seconds * f64::from(run.threads)).sum();
        Self {
            runs: runs.len() as u32,
            iops: spread(|run| run.iops),
            read_iops: spread(|run| run.read_iops),
            write_iops: spread(|run| run.write_iops),
            mib_s: spread(|run| run.mib_s),
            latency: latency(OpKind::is_data),
            read_latency: latency(|op| op == OpKind::Read),
            write_latency: latency(|op| op == OpKind::Write),
            in_flight: spread(|run| run.in_flight).median,
            read_pct: share(total(|op| op == OpKind::Read) as f64, total(OpKind::is_data) as f64)
                * 100.0,
            errors: runs.iter().flat_map(|run| &run.classes).map(failed).sum(),
            cpu_us_per_op: share(cpu_s * 1e6, total(|_| true) as f64),
            cpu_pct: share(cpu_s, thread_s) * 100.0,
            interval_cv_pct: figures.iter().map(|run| run.interval_cv_pct).fold(0.0, f64::max),
            stalls: StallSummary::of(&runs),
        }
    }
}

impl StallSummary {
    fn of(runs: &[&CellRun]) -> Self {
        let mut silent = Latencies::default();
        runs.iter().for_each(|run| silent.add(&run.stalls));
        let mut service = Latencies::default();
        for class in runs.iter().flat_map(|run| &run.classes) {
            service.add(class.service.as_ref().unwrap_or(&class.latency));
        }
        let usual_us = service.percentile_us(50.0).unwrap_or(0.0);
        let (count, total_us) = silent.beyond(usual_us * STALL_TIMES_USUAL);
        if count == 0 {
            return Self::default();
        }
        let seconds: f64 = runs.iter().map(|run| run.seconds).sum();
        // A generator without a core sees no answers, whatever the target does.
        let waited: f64 = runs.iter().map(|r| r.cpu_wait_s / f64::from(r.threads.max(1))).sum();
        let total_s = total_us / 1e6;
        Self {
            count,
            total_s,
            longest_s: silent.max_us() / 1e6,
            share_pct: share((total_s - waited).max(0.0), seconds) * 100.0,
        }
    }
}

impl Spread {
    /// Of one figure of each run; all zero of none.
    pub fn of(runs: &[f64]) -> Self {
        let Some(median) = stats::median(runs) else { return Self::default() };
        let interval = stats::throughput_interval(runs);
        Self {
            median,
            min: runs.iter().copied().fold(f64::INFINITY, f64::min),
            max: runs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            ci_pct: interval.and_then(|interval| interval.half_width_pct(median)),
        }
    }
}

impl LatencySummary {
    /// The figures of a distribution.
    pub fn of(all: &Latencies) -> Self {
        Self {
            count: all.count(),
            mean_us: all.mean_us(),
            p50_us: all.percentile_us(50.0),
            p95_us: all.percentile_us(95.0),
            p99_us: all.percentile_us(99.0),
            p999_us: all.percentile_us(99.9),
            max_us: all.max_us(),
        }
    }
}

/// The latencies of `classes`, merged.
pub fn merged<'a>(classes: impl IntoIterator<Item = &'a ClassResult>) -> Latencies {
    let mut all = Latencies::default();
    classes.into_iter().for_each(|class| all.add(&class.latency));
    all
}

/// The whole seconds of a run: a last one that was cut short would look like a slow one.
pub fn whole_intervals(run: &CellRun) -> impl Iterator<Item = &Interval> {
    let end = run.seconds + INTERVAL_SLACK_S;
    run.intervals.iter().filter(move |interval| f64::from(interval.second) + 1.0 <= end)
}

/// Time that operations of a class spent at the target: what waited for its turn was not there.
fn busy_us(class: &ClassResult) -> f64 {
    let spent = class.service.as_ref().unwrap_or(&class.latency);
    spent.mean_us() * spent.count() as f64
}

fn ops(run: &CellRun, counts: impl Fn(OpKind) -> bool) -> u64 {
    run.classes.iter().filter(|class| counts(class.op)).map(|class| class.ops).sum()
}

fn interval_cv_pct(run: &CellRun) -> f64 {
    let seconds: Vec<f64> = whole_intervals(run).map(|second| second.ops as f64).collect();
    stats::cv_pct(&seconds).unwrap_or(0.0)
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_cell_has_the_median_of_its_runs_and_merged_percentiles() {
        // Each run: a read of 1 ms and a write of 3 ms in the shares of three to one.
        let runs = [1000, 1100, 1300].map(|iops| fixture::closed_run(iops, 10, 75, 1000, 3000));
        let cell = fixture::cell("random 4KiB", runs.to_vec());
        let found = CellSummary::of(&cell);
        assert_eq!((found.runs, found.iops.median), (3, 1100.0));
        assert_eq!((found.iops.min, found.iops.max), (1000.0, 1300.0));
        assert!(found.iops.ci_pct.unwrap() > 20.0, "three runs that far apart: {found:?}");
        assert_eq!((found.read_iops.median, found.write_iops.median), (825.0, 275.0));
        assert!((found.mib_s.median - 1100.0 * 4096.0 / 1_048_576.0).abs() < 1e-9);
        assert!((found.read_pct - 75.0).abs() < 1e-9);
        assert_eq!(found.latency.count, 34_000);
        assert!((found.latency.mean_us - 1500.0).abs() < 5.0, "{found:?}");
        assert!((found.latency.p50_us.unwrap() - 1000.0).abs() < 2.0);
        assert!((found.latency.p99_us.unwrap() - 3000.0).abs() < 5.0);
        assert!((found.write_latency.mean_us - 3000.0).abs() < 5.0);
        // Little: 1,100 per second of 1.5 ms.
        assert!((found.in_flight - 1.65).abs() < 0.01, "{found:?}");
        assert!((found.cpu_us_per_op - 10.0).abs() < 1e-9);
        assert!(found.interval_cv_pct < 1e-9 && found.errors == 0);
    }

    #[test]
    fn of_nothing_there_are_no_figures() {
        let empty = fixture::cell("never run", vec![CellRun::default()]);
        assert_eq!(CellSummary::of(&empty), CellSummary::default());
        // A file that somebody changed must not end in a rate that is no number.
        let mut forged = fixture::closed_run(10, 1, 50, 10, 10);
        forged.seconds = 1e-320;
        assert_eq!(CellSummary::of(&fixture::cell("forged", vec![forged])).runs, 0);
    }

    #[test]
    fn a_second_that_was_cut_short_is_not_a_slow_one() {
        let mut run = fixture::closed_run(1000, 10, 100, 1000, 1000);
        run.seconds = 10.4;
        run.intervals.push(Interval { second: 10, ops: 400, ..Interval::default() });
        assert!(RunFigures::of(&run).interval_cv_pct < 1e-9);
        run.intervals[3].ops = 0;
        assert!(RunFigures::of(&run).interval_cv_pct > 30.0);
    }

    #[test]
    fn what_waits_for_its_turn_is_not_in_flight() {
        let mut run = fixture::closed_run(1000, 10, 100, 50_000, 50_000);
        run.classes.iter_mut().for_each(|class| {
            let mut service = Latencies::default();
            (0..class.ops).for_each(|_| service.record_ns(2_000_000));
            class.service = Some(service);
        });
        assert!((RunFigures::of(&run).in_flight - 2.0).abs() < 0.01);
    }
}
