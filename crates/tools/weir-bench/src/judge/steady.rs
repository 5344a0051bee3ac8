//! Rules about changes over time: stalls, slopes, dips, and runs that differ from each other.
//!
//! `sample` judges whether the sample is large enough.
//!
//! Invariant: for an open loop, the rules of this file also check latencies, because the clock sets
//! the rate of an open loop, so a slower target may change only the latencies.

use super::Evidence;
use super::sample::SECONDS_MIN;
use crate::result::CellRun;
use crate::spec::LoadSpec;
use crate::stats::{self, CHANCE_DEVIATIONS, median};
use crate::summary::{RunFigures, whole_intervals};

/// Maximum difference between the highest and the lowest run, in percent of the median run.
const RUNS_SPREAD_PCT_MAX: f64 = 20.0;
/// Maximum change of the best-fit line over a run, in percent of the mean rate.
const SLOPE_PCT_MAX: f64 = 10.0;
/// A second with fewer operations than this percentage of the median second is a dip, if the median
/// second has at least [`DIP_OPS_MIN`] operations.
const DIP_PCT: f64 = 50.0;
/// Minimum number of operations in the median second for a dip. Half of 64 is four standard
/// deviations below 64, so chance does not explain such a dip.
const DIP_OPS_MIN: f64 = 64.0;
/// Maximum share of a run's time in which the target may be stalled, in percent.
const STALLED_PCT_MAX: f64 = 3.0;
/// Maximum length of a single stall in seconds, whatever the length of the run.
const STALL_S_MAX: f64 = 1.0;
/// Maximum factor between two median latencies of an open loop: near its maximum rate, the queue of
/// a correct disk makes one second twice as slow as another. A difference of at most
/// [`LATENCY_US_MIN`] is allowed in any case.
const LATENCY_FACTOR_MAX: f64 = 3.0;
/// Difference between two latencies in microseconds that is always allowed, because kernel timers
/// alone can cause it.
const LATENCY_US_MIN: f64 = 200.0;

/// Reports stalls. In a closed loop the generator waits during a stall, so percentiles do not show
/// it.
pub(super) fn stalls(evidence: &Evidence<'_>) -> Option<String> {
    let found = evidence.summary.stalls;
    (found.share_pct > STALLED_PCT_MAX || found.longest_s >= STALL_S_MAX).then(|| {
        format!(
            "the target completed no operation {} times, {:.1} s in total, {:.2} s at the longest",
            found.count, found.total_s, found.longest_s
        )
    })
}

pub(super) fn runs_differ(evidence: &Evidence<'_>) -> Option<String> {
    let iops = evidence.summary.iops;
    let spread = 100.0 * (iops.max - iops.min) / iops.median.max(1e-9);
    (evidence.cell.runs.len() > 1 && spread > RUNS_SPREAD_PCT_MAX)
        .then(|| format!("the runs differ by {spread:.0} % of their median"))
}

pub(super) fn slope(evidence: &Evidence<'_>) -> Option<String> {
    let rise = rates(evidence).iter().find_map(|seconds| rise_pct(seconds))?;
    Some(format!("the rate changed by {rise:+.0} % from start to end"))
}

pub(super) fn dip(evidence: &Evidence<'_>) -> Option<String> {
    let (second, pct) = rates(evidence).iter().find_map(|seconds| first_dip(seconds))?;
    Some(format!("second {second} had {pct:.0} % of the operations of the median one"))
}

pub(super) fn latencies_differ(evidence: &Evidence<'_>) -> Option<String> {
    let runs = open_runs(evidence).iter();
    let medians: Vec<f64> = runs.filter_map(|run| RunFigures::of(run).latency.p50_us).collect();
    let (low, high) = differing(&medians)?;
    Some(format!("the median latency was {low:.0} us in one run and {high:.0} us in another"))
}

pub(super) fn latency_changes(evidence: &Evidence<'_>) -> Option<String> {
    let (low, high) = open_runs(evidence).iter().find_map(|run| differing(&thirds(run)))?;
    Some(format!(
        "the median latency was {low:.0} us in one third of a run, {high:.0} us in another"
    ))
}

/// Median latency of each third of a run, computed from the median latencies of the third's
/// seconds, so that one slow second has no effect.
fn thirds(run: &CellRun) -> Vec<f64> {
    let seconds = whole_intervals(run).filter(|second| second.ops > 0);
    let medians: Vec<f64> = seconds.map(|second| second.p50_us).collect();
    let edge = |third: usize| third * medians.len() / 3;
    (0..3).filter_map(|third| median(&medians[edge(third)..edge(third + 1)])).collect()
}

/// Runs of an open loop. Empty for a closed loop, because the rate of a closed loop already
/// reflects its latency.
fn open_runs<'a>(evidence: &Evidence<'a>) -> &'a [CellRun] {
    match evidence.cell.spec.load {
        LoadSpec::Open { .. } => &evidence.cell.runs,
        LoadSpec::Closed { .. } => &[],
    }
}

/// Returns the lowest and the highest latency, if their difference exceeds the limits.
fn differing(latencies: &[f64]) -> Option<(f64, f64)> {
    let low = latencies.iter().copied().reduce(f64::min)?;
    let high = latencies.iter().copied().reduce(f64::max)?;
    let is_much = high > low * LATENCY_FACTOR_MAX && high - low > LATENCY_US_MIN;
    is_much.then_some((low, high))
}

/// Number of operations in each second, for each run that is long enough to judge.
fn rates(evidence: &Evidence<'_>) -> Vec<Vec<f64>> {
    let seconds = |run| whole_intervals(run).map(|second| second.ops as f64).collect();
    let runs = evidence.cell.runs.iter().map(seconds);
    runs.filter(|seconds: &Vec<f64>| seconds.len() >= SECONDS_MIN).collect()
}

/// Change of the best-fit line over the seconds of a run, if the change exceeds the limit.
fn rise_pct(seconds: &[f64]) -> Option<f64> {
    let rule = stats::SteadyRule {
        window: seconds.len().max(2),
        range_pct: f64::MAX,
        slope_pct: SLOPE_PCT_MAX,
    };
    let rise_pct = stats::steadiness(seconds, rule)?.rise_pct;
    // Chance alone tilts the best-fit line: the number of operations in a second varies by its
    // square root. Over n seconds, the variance of the least-squares rise is 12 (n - 1) / n / (n +
    // 1) times the variance of one second.
    let n = seconds.len() as f64;
    let mean = seconds.iter().sum::<f64>() / n;
    let deviation = (12.0 * (n - 1.0) / n / (n + 1.0) / mean.max(1.0)).sqrt();
    let allowed_pct = SLOPE_PCT_MAX + 100.0 * CHANCE_DEVIATIONS * deviation;
    (rise_pct.abs() > allowed_pct).then_some(rise_pct)
}

/// Returns the first second that is a dip, and its operations in percent of the median second.
fn first_dip(seconds: &[f64]) -> Option<(usize, f64)> {
    let median = median(seconds).filter(|median| *median >= DIP_OPS_MIN)?;
    let share_pct = |ops: &f64| 100.0 * ops / median;
    let found = seconds.iter().map(share_pct).enumerate().find(|(_, pct)| *pct < DIP_PCT)?;
    Some((found.0 + 1, found.1))
}
