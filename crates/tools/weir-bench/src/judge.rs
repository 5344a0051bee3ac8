//! Judging: the rules that find the faults of a cell.
//!
//! `verdict` has the names of the findings, `summary` the figures, and the files in `judge/` the
//! conditions of the rules.
//!
//! Invariants:
//! - every finding about a cell comes from one of the rules in [`RULES`];
//! - a unit test switches off each rule in turn, and expects that a case then gets a wrong verdict;
//! - each bound of a rule is one constant, whose comment gives the reason.

mod data;
mod load;
mod sample;
mod steady;

use std::slice;

use crate::result::{CellResult, CellRun, RunResult};
use crate::summary::CellSummary;
use crate::verdict::{Finding, Remark};

pub(crate) use data::refused;
pub(crate) use load::SMALL_DEPTH;

/// Rule: a condition that every valid cell satisfies.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    #[cfg_attr(not(test), expect(dead_code, reason = "a failing test prints the name"))]
    name: &'static str,
    scope: Scope,
    finding: Finding,
    /// Returns a text with the figures that violate the rule; `None` if the cell satisfies the
    /// rule.
    broken: fn(&Evidence<'_>) -> Option<String>,
    /// Action that the user should take if a cell violates the rule.
    action: &'static str,
    /// True if the rule compares only latencies.
    latency_only: bool,
}

/// Cells to which a rule applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// Every cell, whether it has measured runs or not.
    Any,
    /// Cells with at least one measured run.
    Measured,
    /// Measured cells that have the same load in all runs, so no cells with a search.
    SameLoad,
}

/// Cell, with the figures that the rules need.
struct Evidence<'a> {
    result: &'a RunResult,
    cell: &'a CellResult,
    /// All runs of the cell, including the runs of a search.
    all: Vec<&'a CellRun>,
    /// Figures of the cell that the report prints.
    summary: CellSummary,
}

use Finding::{
    CacheResident, Corrupt, GeneratorBound, Holes, Inconsistent, Invalid, MixOff, Overload,
    UnderSampled, Unsteady,
};
use Scope::{Any, Measured, SameLoad};

/// All rules. If several rules have the same finding, their remarks are reported in this order.
pub(crate) const RULES: &[Rule] = &[
    rule("failed", Any, Invalid, data::failed, "fix the cause and measure again"),
    rule("not measured", Any, Invalid, data::not_measured, "measure it"),
    rule("refused operations", Any, Invalid, data::refusals, CHECK_LOGS),
    rule("unreadable blocks", Any, Invalid, data::unreadable, CHECK_LOGS),
    rule(
        "clock jump",
        Any,
        Invalid,
        data::clock_jumped,
        "wait until the clock is synchronized and measure again",
    ),
    rule(
        "late client",
        Measured,
        Invalid,
        load::late_client,
        "check the clients' load and network",
    ),
    rule(
        "corrupt blocks",
        Any,
        Corrupt,
        data::corrupt,
        "do not store data on this target; check its logs",
    ),
    rule(
        "missing files",
        Any,
        Corrupt,
        data::files,
        "do not store data on this target; check its logs",
    ),
    rule(
        "blocks of another run",
        Any,
        Invalid,
        data::other_run,
        "stop other runs on this target and measure again",
    ),
    rule("holes", Any, Holes, data::holes, "fill the dataset first and do not trim it"),
    rule("missed rate", SameLoad, Overload, load::overload, OFFER_LESS),
    rule("search without result", Measured, Overload, load::nothing_reached, OFFER_LESS),
    rule(
        "busy generator",
        Measured,
        GeneratorBound,
        load::busy_generator,
        "use more workers, more clients or larger blocks",
    ),
    rule(
        "late generator",
        Measured,
        GeneratorBound,
        load::late_generator,
        "use more workers or a less busy client",
    ),
    rule(
        "operations in flight",
        SameLoad,
        Inconsistent,
        load::in_flight,
        "the generator took that time; use more workers, or report this depth",
    ),
    rule(
        "share of reads",
        SameLoad,
        MixOff,
        load::mix,
        "check failed operations, and measure longer",
    ),
    rule(
        "share of metadata operations",
        SameLoad,
        MixOff,
        load::metadata_mix,
        "check failed operations, and measure longer",
    ),
    rule(
        "dataset fits a cache",
        Measured,
        CacheResident,
        load::cached_dataset,
        "use a dataset of several times the cache, or report the cache with the figure",
    ),
    rule(
        "above a stated limit",
        Measured,
        CacheResident,
        load::above_limit,
        "a cache served the reads, or the stated limit is wrong; use a larger dataset, or correct \
         the limit",
    ),
    rule(
        "stalls",
        Measured,
        Unsteady,
        steady::stalls,
        "check the target's logs for that time; an open loop shows the latency that clients see",
    ),
    rule(
        "rates of runs",
        SameLoad,
        Unsteady,
        steady::runs_differ,
        "precondition, measure longer, and stop other load",
    ),
    rule("slope of the rate", SameLoad, Unsteady, steady::slope, WARM_UP),
    rule(
        "dip of the rate",
        SameLoad,
        Unsteady,
        steady::dip,
        "check the target's logs for that time, and stop other load",
    ),
    latency_rule(
        "latencies of runs",
        steady::latencies_differ,
        "precondition, measure longer, and stop other load",
    ),
    latency_rule("latency within a run", steady::latency_changes, WARM_UP),
    rule("smoke scale", Measured, UnderSampled, sample::smoke, "measure with --scale standard"),
    rule("operations", SameLoad, UnderSampled, sample::few_operations, "measure longer"),
    rule("number of runs", SameLoad, UnderSampled, sample::few_runs, "do three runs or more"),
    rule(
        "seconds",
        SameLoad,
        UnderSampled,
        sample::few_seconds,
        "measure for 3 s or longer, or use more files",
    ),
];

const CHECK_LOGS: &str = "check the target's logs";
const OFFER_LESS: &str = "offer a lower rate, or search for the limit";
const WARM_UP: &str = "precondition, or warm up longer";

const fn rule(
    name: &'static str,
    scope: Scope,
    finding: Finding,
    broken: fn(&Evidence<'_>) -> Option<String>,
    action: &'static str,
) -> Rule {
    Rule { name, scope, finding, broken, action, latency_only: false }
}

/// Creates a rule that compares only latencies.
const fn latency_rule(
    name: &'static str,
    broken: fn(&Evidence<'_>) -> Option<String>,
    action: &'static str,
) -> Rule {
    Rule { latency_only: true, ..rule(name, SameLoad, Unsteady, broken, action) }
}

/// Applies `rules` to each cell. Returns the remarks on each cell, worst first.
pub(crate) fn judge(result: &RunResult, rules: &[Rule]) -> Vec<Vec<Remark>> {
    result.cells.iter().map(|cell| judge_cell(&Evidence::of(result, cell), rules)).collect()
}

fn judge_cell(evidence: &Evidence<'_>, rules: &[Rule]) -> Vec<Remark> {
    let mut remarks: Vec<Remark> = rules
        .iter()
        .filter(|rule| evidence.is_in(rule.scope))
        .filter_map(|Rule { finding, broken, action, latency_only, .. }| {
            let (detail, action) = (broken(evidence)?, (*action).to_owned());
            Some(Remark { finding: *finding, detail, action, latency_only: *latency_only })
        })
        .collect();
    remarks.sort_by_key(|remark| remark.finding);
    remarks
}

impl<'a> Evidence<'a> {
    fn of(result: &'a RunResult, cell: &'a CellResult) -> Self {
        // The report prints one rate of a search: the best rate, or the lowest if the target
        // reached none.
        let summary = match cell.best_or_lowest() {
            Some(run) if cell.runs.is_empty() => CellSummary::of_runs(slice::from_ref(run)),
            _ => CellSummary::of(cell),
        };
        Self { result, cell, all: cell.measured().collect(), summary }
    }

    fn is_measured(&self) -> bool {
        self.all.iter().any(|run| run.is_measured())
    }

    fn is_in(&self, scope: Scope) -> bool {
        match scope {
            Any => true,
            Measured => self.is_measured(),
            SameLoad => self.is_measured() && self.cell.points.is_empty(),
        }
    }
}

#[cfg(test)]
mod mutations;
#[cfg(test)]
mod tests;
