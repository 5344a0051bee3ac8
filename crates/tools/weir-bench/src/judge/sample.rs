//! Rules about the sample: a cell has too few operations, runs or seconds for valid figures.
//!
//! `summary` computes the figures.
//!
//! Invariant: the rules of this file check only the size of the sample, never the performance.

use super::Evidence;
use crate::spec::Scale;
use crate::summary::whole_intervals;

/// Minimum number of runs of a cell: an outlier does not change the median of three runs.
const RUNS_MIN: u32 = 3;
/// Minimum number of whole seconds for a slope: two points always lie on a line.
pub(super) const SECONDS_MIN: usize = 3;

pub(super) fn smoke(evidence: &Evidence<'_>) -> Option<String> {
    let is_smoke = evidence.result.spec.scale == Scale::Smoke;
    is_smoke.then(|| "smoke scale only checks that the profile runs".to_owned())
}

pub(super) fn few_operations(evidence: &Evidence<'_>) -> Option<String> {
    let latency = &evidence.summary.latency;
    let count = latency.count;
    let is_few = latency.p99_us.is_none();
    is_few.then(|| format!("{count} operations are too few for a 99th percentile"))
}

pub(super) fn few_runs(evidence: &Evidence<'_>) -> Option<String> {
    let runs = evidence.summary.runs;
    let say = if runs == 1 { "one run shows" } else { "two runs show" };
    (runs < RUNS_MIN).then(|| format!("{say} little about how much runs differ"))
}

pub(super) fn few_seconds(evidence: &Evidence<'_>) -> Option<String> {
    let runs = evidence.cell.runs.iter();
    let shortest = runs.map(|run| whole_intervals(run).count()).min().unwrap_or(0);
    (shortest < SECONDS_MIN)
        .then(|| format!("{shortest} whole seconds are too few to judge if it is steady"))
}
