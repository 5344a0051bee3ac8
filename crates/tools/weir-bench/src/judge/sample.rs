//! Rules about the sample: too little was measured for any figure.
//!
//! Not here: the figures.
//!
//! Invariant: these rules ask how much was measured, never how fast it was.

use super::Evidence;
use crate::spec::Scale;
use crate::summary::whole_intervals;

/// Runs needed to see how far runs differ; the median of three is not moved by one odd run.
const RUNS_MIN: u32 = 3;
/// Whole seconds needed to see whether a run was steady: a line through two points always fits.
pub(super) const SECONDS_MIN: usize = 3;

pub(super) fn smoke(evidence: &Evidence<'_>) -> Option<String> {
    let is_smoke = evidence.result.spec.scale == Scale::Smoke;
    is_smoke.then(|| "smoke scale only shows that everything runs".to_owned())
}

pub(super) fn few_operations(evidence: &Evidence<'_>) -> Option<String> {
    let latency = &evidence.summary.latency;
    let count = latency.count;
    let is_few = latency.p99_us.is_none();
    is_few.then(|| format!("{count} operations are too few for a 99th percentile"))
}

pub(super) fn few_runs(evidence: &Evidence<'_>) -> Option<String> {
    let runs = evidence.summary.runs;
    let say = if runs == 1 { "one run says" } else { "two runs say" };
    (runs < RUNS_MIN).then(|| format!("{say} little of how far runs differ"))
}

pub(super) fn few_seconds(evidence: &Evidence<'_>) -> Option<String> {
    let runs = evidence.cell.runs.iter();
    let shortest = runs.map(|run| whole_intervals(run).count()).min().unwrap_or(0);
    (shortest < SECONDS_MIN)
        .then(|| format!("{shortest} whole seconds are too few to tell whether it is steady"))
}
