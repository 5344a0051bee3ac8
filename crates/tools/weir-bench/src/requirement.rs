//! Compares the results of a run with a requirement: PASS or FAIL, with the headroom.
//!
//! `verdict` judges the validity of figures; `report` prints the comparison.
//!
//! Invariants:
//! - a PASS needs a valid verdict, because a figure that a cache or the generator limited proves
//!   nothing. A rate without latency bounds is an exception: a busy or late generator cannot raise
//!   a rate, and changing latencies do not make a rate doubtful;
//! - a verdict that means that the figures flatter the target (holes, cache-resident) never changes
//!   a FAIL;
//! - only cells that were made to test the requirement decide the outcome; if there are none, all
//!   cells decide.

mod advice;
mod criteria;
mod need;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod validation;

pub use advice::{SizeRow, size_for, sizes, usd_per_gb, usd_per_iops};
pub use need::{NeedError, parse_need};
pub use validation::{ValidationError, validation};

use serde::Serialize;

use crate::result::{CellResult, CellRun, ClassResult, CurvePoint};
use crate::run::search;
use crate::spec::{Arrival, LoadSpec, Requirement};
use crate::stats::CHANCE_DEVIATIONS;
use crate::summary::RunFigures;
use crate::verdict::{Finding, JudgedCell, JudgedRun, Remark};

/// Difference in percent up to which the rate of an open loop counts as equal to the rate that the
/// requirement needs.
pub(crate) const RATE_TOLERANCE_PCT: f64 = 1.0;

/// Outcome of a criterion, a cell or a requirement, ordered from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The measurement proves that the requirement is met.
    Pass,
    /// The measurement proves neither PASS nor FAIL.
    NotProven,
    /// The measurement proves that the requirement is not met.
    Fail,
}

impl Outcome {
    /// Name of the outcome in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::NotProven => "NOT PROVEN",
            Self::Fail => "FAIL",
        }
    }
}

/// One bound of a requirement, with the measurement that is compared with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Criterion {
    /// Name of the figure, such as `operations per second` or `db read mean latency`.
    pub name: String,
    /// Unit of the figure: `iops`, `MiB/s` or `us`.
    pub unit: &'static str,
    /// Bound that the requirement sets: a minimum for a rate, a maximum for a latency.
    pub need: f64,
    /// Measured figure; `None` if the figure has too few operations.
    pub got: Option<f64>,
    /// Headroom in percent: by how much a rate exceeds the bound, or by how much a latency could
    /// grow until it reaches the bound. `None` if the headroom is not known.
    pub headroom_pct: Option<f64>,
    /// Outcome of the criterion, after the cell's verdict was applied.
    pub outcome: Outcome,
    /// Note on the measurement, for readers.
    pub note: Option<String>,
}

/// Comparison of one cell with the requirement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellAssessment {
    /// Index of the cell in the result of the run.
    pub cell: usize,
    /// Verdict on the cell.
    pub verdict: &'static str,
    /// Result for each bound, in the order of the requirement.
    pub criteria: Vec<Criterion>,
    /// Outcome of the cell, after its verdict was applied.
    pub outcome: Outcome,
    /// Reason why the verdict changed the outcome, why a criterion is not proven, or why nothing
    /// was measured; `None` if none of these applies.
    pub reason: Option<String>,
}

/// Comparison of a run with the requirement of its spec.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Assessment {
    /// Worst outcome of the cells that decide. If the run is incomplete, the outcome is at best
    /// `NotProven`.
    pub outcome: Outcome,
    /// Cells that decide the outcome, in the order of the result.
    pub cells: Vec<CellAssessment>,
    /// Description of the rule that chose the deciding cells.
    pub chosen: &'static str,
}

impl Assessment {
    /// Name and headroom (in percent) of the criterion that has the least headroom. Criteria whose
    /// headroom is not known do not count.
    pub fn least_headroom(&self) -> Option<(&str, f64)> {
        let criteria = self.cells.iter().flat_map(|cell| &cell.criteria);
        let known = criteria.filter_map(|found| Some((found.name.as_str(), found.headroom_pct?)));
        known.min_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Measured figures of a cell that are compared with a requirement.
struct Measured<'a> {
    iops: f64,
    mib_s: f64,
    classes: Vec<&'a ClassResult>,
    /// Rate that an open loop offered, which the measured rate cannot exceed; `None` for a closed
    /// loop or a search.
    offered_iops: Option<f64>,
    /// Length of the shortest run of the cell in seconds.
    seconds: f64,
    /// True if the target completed the due operations of every run in time.
    kept_up: bool,
    /// Distribution of the arrivals of an open loop.
    arrival: Arrival,
    /// Limit of the target that a search found; `None` for cells without a search.
    limit: Option<Limit>,
}

/// Limit of a target that a search found. Rates are in operations per second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Limit {
    /// Highest rate that the target sustained within the bounds.
    carried: f64,
    /// Lowest rate above `carried` that the target missed; infinite if it missed none.
    missed: f64,
    /// Capacity of the target, if a run of the search was long enough and offered enough load to
    /// measure it.
    capacity: Option<f64>,
    /// Length in seconds of the search's runs; prolonged runs do not count.
    run_s: f64,
    arrival: Arrival,
}

/// True if no latency of a run exceeds a bound of the requirement. A bound with too few operations
/// counts as met.
pub(crate) fn keeps_latencies(requirement: &Requirement, run: &CellRun) -> bool {
    let found = criteria::latencies(requirement, &of_run(run, Arrival::Poisson));
    found.iter().all(|criterion| criterion.outcome != Outcome::Fail)
}

/// Compares a run with the requirement of its spec; `None` if the spec has no requirement or the
/// run has no cells.
pub fn assess(run: &JudgedRun) -> Option<Assessment> {
    let requirement = run.result().spec.require.as_ref()?;
    let cells = &run.result().cells;
    let testing = |index: &usize| tests(&cells[*index], requirement);
    let mut chosen: Vec<usize> = (0..cells.len()).filter(testing).collect();
    let mut how = "the cells that test the requirement";
    if chosen.is_empty() {
        chosen = (0..cells.len()).collect();
        how = "every cell, because none offers exactly the required rate or searches for the limit";
    }
    let assess = |index: usize| assess_cell(index, &cells[index], &run.cells()[index], requirement);
    let cells: Vec<CellAssessment> = chosen.into_iter().map(assess).collect();
    let outcome = cells.iter().map(|cell| cell.outcome).max()?;
    let outcome = if run.result().complete { outcome } else { outcome.max(Outcome::NotProven) };
    Some(Assessment { outcome, cells, chosen: how })
}

/// True if a cell was made to test the requirement: the cell searches for the limit of the target,
/// or offers the rate that the requirement needs.
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
    let (outcome, reason) = with_verdict(figures, judged, requirement);
    let open =
        |found: &Criterion| found.note.clone().filter(|_| found.outcome == Outcome::NotProven);
    let reason = reason.or_else(|| criteria.iter().find_map(open));
    let is_changed = !judged.remarks.is_empty() && outcome != Outcome::Pass;
    for found in criteria.iter_mut().filter(|_| is_changed) {
        let proven = found.outcome == Outcome::Fail && outcome == Outcome::Fail;
        found.outcome = if proven { Outcome::Fail } else { Outcome::NotProven };
    }
    CellAssessment { cell: index, verdict: judged.verdict(), criteria, outcome, reason }
}

/// Applies the verdict on a cell to the outcome of its figures. If the verdict changes the outcome,
/// also returns the reason.
fn with_verdict(
    figures: Option<Outcome>,
    judged: &JudgedCell,
    requirement: &Requirement,
) -> (Outcome, Option<String>) {
    // A cell with corrupt data fails every requirement, whatever its other findings.
    let corrupt = judged.remarks.iter().find(|remark| remark.finding == Finding::Corrupt);
    let Some(figures) = figures.or(corrupt.map(|_| Outcome::NotProven)) else {
        return (Outcome::NotProven, Some("nothing was measured".to_owned()));
    };
    let is_rate_reached = figures == Outcome::Pass && requirement.latency.is_empty();
    // A late or busy generator does not put a reached rate in doubt, and neither do changing
    // latencies.
    let is_harmless =
        |remark: &Remark| remark.finding == Finding::GeneratorBound || remark.latency_only;
    let matters = |remark: &&Remark| !(is_rate_reached && is_harmless(remark));
    let Some(worst) = corrupt.or(judged.remarks.iter().find(matters)) else {
        return (figures, None);
    };
    let outcome = match worst.finding {
        Finding::Corrupt | Finding::Overload => Outcome::Fail,
        // With these findings the figures look better than the target is, so FAIL remains FAIL, and
        // PASS becomes "not proven".
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

/// Figures of a cell. For a search, these are the figures of the highest rate that meets the
/// latency bounds; for other cells, the figures of the runs.
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
            iops: judged.summary.iops.median + judged.summary.metadata_iops.median,
            mib_s: judged.summary.mib_s.median,
            classes: runs.flat_map(|run| &run.classes).collect(),
            offered_iops,
            seconds,
            kept_up,
            arrival,
            limit: None,
        });
    }
    let keeps = |run: &CellRun| keeps_latencies(requirement, run);
    let kept = cell.points.iter().rev().find(|point| point.met && keeps(&point.run));
    let limit = kept.map(|kept| limit(cell, kept, arrival));
    let measured = of_run(&kept.or(cell.points.first())?.run, arrival);
    Some(Measured { iops: limit.map_or(measured.iops, |limit| limit.carried), limit, ..measured })
}

/// Limit that a search found, if `kept` is the highest point that met the bounds.
fn limit(cell: &CellResult, kept: &CurvePoint, arrival: Arrival) -> Limit {
    let above = |point: &&CurvePoint| !point.met && point.offered_iops > kept.offered_iops;
    let missed: Vec<&CurvePoint> = cell.points.iter().filter(above).collect();
    let capacity = missed.iter().find_map(|point| search::capacity(&point.run, arrival));
    let run = &kept.run;
    let operations = run.due as f64;
    // Operations that the target did not complete in time lower the rate that the target sustained.
    let answered = if run.due == 0 { 1.0 } else { (run.answered as f64 / operations).min(1.0) };
    let carried = kept.offered_iops * answered;
    // Random arrivals may have offered less than the rate, so the capacity, which does not depend
    // on the arrivals, limits the rate as well. A much lower capacity is ignored: it means that the
    // target slows down under overload.
    let chance = match arrival {
        Arrival::Constant => 0.0,
        Arrival::Poisson => carried * CHANCE_DEVIATIONS / operations.max(1.0).sqrt(),
    };
    let by_chance = capacity.filter(|capacity| *capacity >= carried - chance);
    Limit {
        carried: by_chance.map_or(carried, |capacity| carried.min(capacity)),
        missed: missed.first().map_or(f64::INFINITY, |point| point.offered_iops),
        capacity,
        run_s: cell.points.iter().map(|point| point.run.seconds).fold(f64::INFINITY, f64::min),
        arrival,
    }
}

fn of_run(run: &CellRun, arrival: Arrival) -> Measured<'_> {
    let figures = RunFigures::of(run);
    Measured {
        iops: figures.all_iops(),
        mib_s: figures.mib_s,
        classes: run.classes.iter().collect(),
        offered_iops: None,
        seconds: run.seconds,
        kept_up: run.keeps_up(100.0 - RATE_TOLERANCE_PCT, arrival),
        arrival,
        limit: None,
    }
}
