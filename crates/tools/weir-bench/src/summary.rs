//! Summary figures of a cell over its runs.
//!
//! `verdict` decides whether the figures are valid.
//!
//! Invariants: the headline figure of a cell is the median of its runs; percentiles come from the
//! merged latency distributions of all runs; runs without measured time are excluded.

use serde::Serialize;

use crate::histogram::Latencies;
use crate::result::{CellResult, CellRun, ClassResult, Interval};
use crate::spec::OpKind;
use crate::stats;

/// Bytes in one MiB.
const MIB: f64 = 1_048_576.0;
/// A period without a completion is a stall if the period is longer than this multiple of the
/// median service time.
const STALL_TIMES_USUAL: f64 = 10.0;
/// Number of seconds by which the last interval of a run may be short and still count as a whole
/// second.
const INTERVAL_SLACK_S: f64 = 0.05;

/// Median and spread of a figure over the runs of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the runs.
    pub median: f64,
    /// Lowest value of the runs.
    pub min: f64,
    /// Highest value of the runs.
    pub max: f64,
    /// Half the width of the 95 % confidence interval in percent of the median; `None` for fewer
    /// than 3 runs.
    pub ci_pct: Option<f64>,
}

/// Latency of the operations of all runs, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Number of operations.
    pub count: u64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency. `None` for any percentile means that fewer than ten samples lie beyond it.
    pub p50_us: Option<f64>,
    /// 95th percentile of the latency.
    pub p95_us: Option<f64>,
    /// 99th percentile of the latency.
    pub p99_us: Option<f64>,
    /// 99.9th percentile of the latency.
    pub p999_us: Option<f64>,
    /// Longest latency.
    pub max_us: f64,
}

/// Summary figures of a cell over its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CellSummary {
    /// Number of measured runs.
    pub runs: u32,
    /// Operations per second, without flushes and the metadata operations of a mix.
    pub iops: Spread,
    /// Reads per second.
    pub read_iops: Spread,
    /// Writes per second.
    pub write_iops: Spread,
    /// Metadata operations per second in a mix with reads and writes.
    pub metadata_iops: Spread,
    /// Payload in MiB per second.
    pub mib_s: Spread,
    /// Latency of the operations that `iops` counts.
    pub latency: LatencySummary,
    /// Latency of reads.
    pub read_latency: LatencySummary,
    /// Latency of writes.
    pub write_latency: LatencySummary,
    /// Latency of the metadata operations of a mix.
    pub metadata_latency: LatencySummary,
    /// Mean number of operations in flight, by Little's law.
    pub in_flight: f64,
    /// Reads in percent of the operations that `iops` counts.
    pub read_pct: f64,
    /// Metadata operations of a mix in percent of all operations without flushes.
    pub metadata_pct: f64,
    /// Number of operations that failed.
    pub errors: u64,
    /// CPU time of the generator for each operation, in microseconds.
    pub cpu_us_per_op: f64,
    /// Utilisation of the generator's threads, in percent.
    pub cpu_pct: f64,
    /// Coefficient of variation of the operations per second within a run, in percent; the largest
    /// of all runs.
    pub interval_cv_pct: f64,
    /// Stalls of the target during the runs.
    pub stalls: StallSummary,
}

/// Stalls: periods in which operations were in flight but none completed, far longer than the usual
/// service time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StallSummary {
    /// Number of stalls.
    pub count: u64,
    /// Total length of all stalls in seconds.
    pub total_s: f64,
    /// Length of the longest stall in seconds.
    pub longest_s: f64,
    /// Stall time less the time that the generator waited for a CPU core, in percent of the
    /// measured time.
    pub share_pct: f64,
}

/// Figures of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RunFigures {
    /// Operations per second, without flushes and the metadata operations of a mix.
    pub iops: f64,
    /// Reads per second.
    pub read_iops: f64,
    /// Writes per second.
    pub write_iops: f64,
    /// Metadata operations per second in a mix with reads and writes.
    pub metadata_iops: f64,
    /// Payload in MiB per second.
    pub mib_s: f64,
    /// Latency of the operations that `iops` counts.
    pub latency: LatencySummary,
    /// Mean number of operations in flight, by Little's law.
    pub in_flight: f64,
    /// Coefficient of variation of the operations per second within the run, in percent; 0 for a
    /// run of less than two seconds.
    pub interval_cv_pct: f64,
}

impl RunFigures {
    /// Computes the figures of `run`; all figures are zero if no time was measured.
    pub fn of(run: &CellRun) -> Self {
        if !run.is_measured() {
            return Self::default();
        }
        let rate = |amount: u64| amount as f64 / run.seconds;
        let counted = || run.classes.iter().filter(|class| class.op.is_counted());
        let waited_us: f64 = run.classes.iter().map(busy_us).sum();
        Self {
            iops: rate(counted().map(|class| class.ops).sum()),
            read_iops: rate(ops(run, |op| op == OpKind::Read)),
            write_iops: rate(ops(run, |op| op == OpKind::Write)),
            metadata_iops: rate(ops(run, |op| op == OpKind::Metadata)),
            mib_s: rate(counted().map(|class| class.bytes).sum()) / MIB,
            latency: LatencySummary::of(&merged(counted())),
            in_flight: waited_us / 1e6 / run.seconds,
            interval_cv_pct: interval_cv_pct(run),
        }
    }
}

impl RunFigures {
    /// Operations per second that an open loop must offer for these figures: with the metadata
    /// operations of a mix.
    pub fn all_iops(&self) -> f64 {
        self.iops + self.metadata_iops
    }
}

impl CellSummary {
    /// Summarises the measured runs of `cell`.
    pub fn of(cell: &CellResult) -> Self {
        Self::of_runs(&cell.runs)
    }

    /// Summarises runs outside a cell: the runs of a phase, or the runs at one rate of a load
    /// search.
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
            metadata_iops: spread(|run| run.metadata_iops),
            mib_s: spread(|run| run.mib_s),
            latency: latency(OpKind::is_counted),
            read_latency: latency(|op| op == OpKind::Read),
            write_latency: latency(|op| op == OpKind::Write),
            metadata_latency: latency(|op| op == OpKind::Metadata),
            in_flight: spread(|run| run.in_flight).median,
            read_pct: share(
                total(|op| op == OpKind::Read) as f64,
                total(OpKind::is_counted) as f64,
            ) * 100.0,
            metadata_pct: share(
                total(|op| op == OpKind::Metadata) as f64,
                total(|op| op != OpKind::Flush) as f64,
            ) * 100.0,
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
        // Subtract the time in which the generator waited for a CPU core: meanwhile it receives no
        // completions, even from a target that does not stall.
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
    /// Summarises one figure over the runs; the median and both extremes are zero if there are no
    /// runs.
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
    /// Summarises a distribution of latencies.
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

/// Merges the latencies of `classes`.
pub fn merged<'a>(classes: impl IntoIterator<Item = &'a ClassResult>) -> Latencies {
    let mut all = Latencies::default();
    classes.into_iter().for_each(|class| all.add(&class.latency));
    all
}

/// Whole seconds of a run. A partial last second is excluded, because it would look like a slow
/// second.
pub fn whole_intervals(run: &CellRun) -> impl Iterator<Item = &Interval> {
    let end = run.seconds + INTERVAL_SLACK_S;
    run.intervals.iter().filter(move |interval| f64::from(interval.second) + 1.0 <= end)
}

/// Total service time of a class of operations; excludes the time that operations wait in the
/// backlog of the generator.
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
    fn cell_reports_median_of_runs_and_merged_percentiles() {
        // Each run has reads of 1 ms and writes of 3 ms in the ratio 3:1.
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
        // Little's law: 1,100 operations per second at 1.5 ms are 1.65 operations in flight.
        assert!((found.in_flight - 1.65).abs() < 0.01, "{found:?}");
        assert!((found.cpu_us_per_op - 10.0).abs() < 1e-9);
        assert!(found.interval_cv_pct < 1e-9 && found.errors == 0);
    }

    #[test]
    fn cell_without_measured_time_has_no_figures() {
        let empty = fixture::cell("never run", vec![CellRun::default()]);
        assert_eq!(CellSummary::of(&empty), CellSummary::default());
        // A manipulated result file must not produce a rate that is not a number.
        let mut forged = fixture::closed_run(10, 1, 50, 10, 10);
        forged.seconds = 1e-320;
        assert_eq!(CellSummary::of(&fixture::cell("forged", vec![forged])).runs, 0);
    }

    #[test]
    fn partial_last_second_does_not_count_as_slow() {
        let mut run = fixture::closed_run(1000, 10, 100, 1000, 1000);
        run.seconds = 10.4;
        run.intervals.push(Interval { second: 10, ops: 400, ..Interval::default() });
        assert!(RunFigures::of(&run).interval_cv_pct < 1e-9);
        run.intervals[3].ops = 0;
        assert!(RunFigures::of(&run).interval_cv_pct > 30.0);
    }

    #[test]
    fn backlog_does_not_count_as_in_flight() {
        let mut run = fixture::closed_run(1000, 10, 100, 50_000, 50_000);
        run.classes.iter_mut().for_each(|class| {
            let mut service = Latencies::default();
            (0..class.ops).for_each(|_| service.record_ns(2_000_000));
            class.service = Some(service);
        });
        assert!((RunFigures::of(&run).in_flight - 2.0).abs() < 0.01);
    }
}
