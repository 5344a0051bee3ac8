//! Whether what was measured is enough for what is needed: PASS or FAIL with headroom.
//!
//! Not here: whether a figure can be trusted (verdict), printing (report).
//!
//! Invariants:
//! - PASS needs a valid verdict: a figure that may be a cache's or a generator's proves nothing;
//! - a verdict under which the target only looks better than it is does not turn a FAIL around;
//! - cells that were made to test the requirement decide; only without any, every cell does.

mod advice;
mod criteria;
mod need;
#[cfg(test)]
mod tests;
mod validation;

pub use advice::{SizeRow, size_for, sizes, usd_per_gb, usd_per_iops};
pub use need::{NeedError, parse_need};
pub use validation::{ValidationError, validation};

use serde::Serialize;

use crate::result::{CellResult, CellRun, ClassResult};
use crate::spec::{Arrival, LoadSpec, Requirement};
use crate::summary::RunFigures;
use crate::verdict::{Finding, JudgedCell, JudgedRun};

/// Share by which the rate of an open loop may miss the needed rate and still be it, in percent.
pub(crate) const RATE_TOLERANCE_PCT: f64 = 1.0;

/// What came of a criterion, a cell or a requirement; the later the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is enough, and that is shown.
    Pass,
    /// The measurement cannot say.
    NotProven,
    /// It is not enough.
    Fail,
}

impl Outcome {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::NotProven => "NOT PROVEN",
            Self::Fail => "FAIL",
        }
    }
}

/// One bound of a requirement and what was measured for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// `operations per second`, `db read mean`.
    pub name: String,
    /// `iops`, `MiB/s` or `us`.
    pub unit: &'static str,
    /// The bound: at least, for rates; at most, for latencies.
    pub need: f64,
    /// What was measured; `None`: too few operations for the figure.
    pub got: Option<f64>,
    /// How much more there is than needed, in percent: of a rate what is above the need, of a
    /// latency by how much it could grow. `None` where it was not looked for.
    pub headroom_pct: Option<f64>,
    /// With the verdict taken into account.
    pub outcome: Outcome,
    /// What must be known.
    pub note: Option<String>,
}

/// A cell held against the requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellAssessment {
    /// Index of the cell in the result.
    pub cell: usize,
    /// Verdict of the cell.
    pub verdict: &'static str,
    /// Each bound, in the order of the requirement.
    pub criteria: Vec<Criterion>,
    /// With the verdict taken into account.
    pub outcome: Outcome,
    /// Why it differs from the worst of the criteria, or could not be told.
    pub reason: Option<String>,
}

/// A run held against its requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assessment {
    /// The worst of the cells.
    pub outcome: Outcome,
    /// Those that decide, in the order of the result.
    pub cells: Vec<CellAssessment>,
    /// How they were chosen.
    pub chosen: &'static str,
}

impl Assessment {
    /// The criterion with the least headroom, among those of which it is known, and that in
    /// percent.
    pub fn least_headroom(&self) -> Option<(&str, f64)> {
        let criteria = self.cells.iter().flat_map(|cell| &cell.criteria);
        let known = criteria.filter_map(|found| Some((found.name.as_str(), found.headroom_pct?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// What was measured, as a requirement sees it.
struct Measured<'a> {
    iops: f64,
    mib_s: f64,
    classes: Vec<&'a ClassResult>,
    /// Rate that was offered and not searched: more than this could not be measured.
    offered_iops: Option<f64>,
    /// Length of the shortest run.
    seconds: f64,
    /// Every run answered what was due in time.
    kept_up: bool,
    /// Arrival of the operations of an open loop.
    arrival: Arrival,
}

/// Whether a run keeps the latencies of a requirement, as far as it has operations enough to tell.
pub(crate) fn keeps_latencies(requirement: &Requirement, run: &CellRun) -> bool {
    let found = criteria::latencies(requirement, &of_run(run, Arrival::Poisson));
    found.iter().all(|criterion| criterion.outcome != Outcome::Fail)
}

/// Holds a run against the requirement of its spec; `None` where it has none or has no cells.
pub fn assess(run: &JudgedRun) -> Option<Assessment> {
    let requirement = run.result().spec.require.as_ref()?;
    let cells = &run.result().cells;
    let testing = |index: &usize| tests(&cells[*index], requirement);
    let mut chosen: Vec<usize> = (0..cells.len()).filter(testing).collect();
    let mut how = "the cells that test the requirement";
    if chosen.is_empty() {
        chosen = (0..cells.len()).collect();
        how = "every cell, since none offers just the needed rate or looks for the limit";
    }
    let assess = |index: usize| assess_cell(index, &cells[index], &run.cells()[index], requirement);
    let cells: Vec<CellAssessment> = chosen.into_iter().map(assess).collect();
    let outcome = cells.iter().map(|cell| cell.outcome).max()?;
    let outcome = if run.result().complete { outcome } else { outcome.max(Outcome::NotProven) };
    Some(Assessment { outcome, cells, chosen: how })
}

/// Whether a cell was made to test the requirement: it looks for the limit, or offers the needed
/// rate.
fn tests(cell: &CellResult, requirement: &Requirement) -> bool {
    let offers_it = match (cell.spec.load, requirement.iops) {
        (LoadSpec::Open { rate, .. }, Some(need)) => {
            let rate = rate * f64::from(cell.spec.clients.max(1));
            (rate / need - 1.0).abs() * 100.0 <= RATE_TOLERANCE_PCT
        }
        _ => false,
    };
    cell.spec.search.is_some() || offers_it
}

fn assess_cell(
    index: usize,
    cell: &CellResult,
    judged: &JudgedCell,
    requirement: &Requirement,
) -> CellAssessment {
    let mut criteria = measured(cell, judged, requirement)
        .map_or_else(Vec::new, |measured| criteria::check(requirement, &measured));
    let figures = criteria.iter().map(|found| found.outcome).max();
    let (outcome, reason) = with_verdict(figures, judged);
    for found in criteria.iter_mut().filter(|_| !judged.remarks.is_empty()) {
        let proven = found.outcome == Outcome::Fail && outcome == Outcome::Fail;
        found.outcome = if proven { Outcome::Fail } else { Outcome::NotProven };
    }
    CellAssessment { cell: index, verdict: judged.verdict(), criteria, outcome, reason }
}

/// What the figures alone say, under the verdict.
fn with_verdict(figures: Option<Outcome>, judged: &JudgedCell) -> (Outcome, Option<String>) {
    // Damaged data is not enough for any requirement, whatever else is wrong with the cell.
    let corrupt = judged.remarks.iter().find(|remark| remark.finding == Finding::Corrupt);
    let Some(figures) = figures.or(corrupt.map(|_| Outcome::NotProven)) else {
        return (Outcome::NotProven, Some("nothing was measured".to_owned()));
    };
    let Some(worst) = corrupt.or(judged.remarks.first()) else { return (figures, None) };
    let outcome = match worst.finding {
        Finding::Corrupt | Finding::Overload => Outcome::Fail,
        // The target may only look better than it is: what is not enough now is not enough.
        Finding::Holes | Finding::CacheResident => figures.max(Outcome::NotProven),
        Finding::Invalid
        | Finding::GeneratorBound
        | Finding::Inconsistent
        | Finding::MixOff
        | Finding::Unsteady
        | Finding::UnderSampled => Outcome::NotProven,
    };
    let reason = (outcome != figures)
        .then(|| format!("the cell is {}: {}", worst.finding.name(), worst.detail));
    (outcome, reason)
}

/// Of a search the highest rate that keeps the requirement's latencies, of other cells the runs.
fn measured<'a>(
    cell: &'a CellResult,
    judged: &JudgedCell,
    requirement: &Requirement,
) -> Option<Measured<'a>> {
    let arrival = match cell.spec.load {
        LoadSpec::Open { arrival, .. } => arrival,
        LoadSpec::Closed { .. } => Arrival::Constant,
    };
    if cell.points.is_empty() {
        let runs = cell.runs.iter().filter(|run| run.is_measured());
        let offered_iops = runs.clone().find_map(|run| run.offered_iops);
        let seconds = runs.clone().map(|run| run.seconds).fold(f64::INFINITY, f64::min);
        let kept_up = runs.clone().all(|run| run.keeps_up(100.0 - RATE_TOLERANCE_PCT, arrival));
        return (judged.summary.runs > 0).then(|| Measured {
            iops: judged.summary.iops.median,
            mib_s: judged.summary.mib_s.median,
            classes: runs.flat_map(|run| &run.classes).collect(),
            offered_iops,
            seconds,
            kept_up,
            arrival,
        });
    }
    let keeps = |run: &CellRun| keeps_latencies(requirement, run);
    let kept = cell.points.iter().rev().find(|point| point.met && keeps(&point.run));
    Some(of_run(&kept.or(cell.points.first())?.run, arrival))
}

fn of_run(run: &CellRun, arrival: Arrival) -> Measured<'_> {
    let figures = RunFigures::of(run);
    Measured {
        iops: figures.iops,
        mib_s: figures.mib_s,
        classes: run.classes.iter().collect(),
        offered_iops: None,
        seconds: run.seconds,
        kept_up: run.keeps_up(100.0 - RATE_TOLERANCE_PCT, arrival),
        arrival,
    }
}
