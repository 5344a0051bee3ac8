//! Two runs side by side: faster, slower, no difference shown, or why that cannot be said.
//!
//! Not here: printing (text), a run done again (rerun).
//!
//! Invariants:
//! - ranking is refused, with the reason, where durability, dataset, content, protection or the
//!   workload differ, where a verdict is not valid, and where the data fits the cache of one only;
//! - nothing is said of a difference whose interval holds 1;
//! - what differs besides is listed, not judged: each target may be set up at its best;
//! - phases of a file test are held against each other as cells are.

mod differences;
mod files;
mod rerun;
#[cfg(test)]
mod tests;
mod text;

pub use rerun::{Answer, Rerun, RerunCell, rerun};

use serde::Serialize;

use crate::histogram::Latencies;
use crate::result::{CellResult, CellRun};
use crate::spec::LoadSpec;
use crate::standing::Standing;
use crate::stats::{RatioInterval, median, ratio_of_medians};
use crate::summary::{RunFigures, merged};
use crate::verdict::{JudgedCell, JudgedRun};

/// Version of the comparison as JSON.
const SCHEMA: u32 = 1;
/// Seeds the drawing of runs, so that a comparison says the same each time.
const SEED: u64 = 42;

/// What is said of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Word {
    /// The new one is, and the interval shows it.
    #[serde(rename = "faster")]
    Faster,
    /// The new one is, and the interval shows it.
    #[serde(rename = "slower")]
    Slower,
    /// They may be equal, or there are too few runs to tell.
    #[serde(rename = "no difference shown")]
    NoDifferenceShown,
}

impl Word {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifferenceShown => "no difference shown",
        }
    }
}

/// A figure of a cell in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// `IOPS`, `mean latency`, `p99 latency`; of a file test `rate`.
    pub name: &'static str,
    /// `1/s` or `us`; of a file test `KiB/s` or `per s`.
    pub unit: &'static str,
    /// Median of the old runs.
    pub old: f64,
    /// Median of the new runs.
    pub new: f64,
    /// New by old with its interval; `None` of fewer than two runs on a side.
    pub ratio: Option<RatioInterval>,
    /// `None`: ranking is refused.
    pub word: Option<Word>,
}

/// A cell, or a phase of the file test, that is in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellComparison {
    /// Its name.
    pub name: String,
    /// Verdict in the old run.
    pub old_verdict: &'static str,
    /// Verdict in the new run.
    pub new_verdict: &'static str,
    /// Throughput of a closed loop, latency of an open one; both where both were measured.
    pub figures: Vec<Figure>,
    /// Why it is not ranked; empty: it is.
    pub refused: Vec<String>,
}

/// Two runs side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Version of this form.
    pub schema: u32,
    /// What the old run measured.
    pub old: String,
    /// What the new run measured.
    pub new: String,
    /// Why no cell is ranked; empty: cells may be.
    pub refused: Vec<String>,
    /// What differs and does not forbid ranking.
    pub differences: Vec<String>,
    /// Cells of both, in the order of the new run, then phases of the file test.
    pub cells: Vec<CellComparison>,
    /// What only one of them has.
    pub unmatched: Vec<String>,
}

impl Comparison {
    /// Holds `new` against `old`, cell by cell of the same name.
    pub fn of(old: &JudgedRun, new: &JudgedRun) -> Self {
        let mut refused = differences::refusals(old.result(), new.result());
        refused.extend(differences::unknown_cache(old.result(), new.result()));
        let pairs = pairs(old, new);
        let cells = pairs.iter().map(|(old, new)| compare_cell(*old, *new, &refused));
        let cells = cells.chain(files::compare(old, new, &refused)).collect();
        Self {
            schema: SCHEMA,
            old: name(old),
            new: name(new),
            differences: differences::listed(old.result(), new.result()),
            cells,
            unmatched: unmatched(old, new),
            refused,
        }
    }

    /// True if no cell could be ranked.
    pub fn is_refused(&self) -> bool {
        !self.cells.iter().any(|cell| cell.refused.is_empty())
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        text::comparison(self)
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and text are JSON")
    }
}

type Judged<'a> = (&'a CellResult, &'a JudgedCell);

fn name(run: &JudgedRun) -> String {
    let result = run.result();
    let standing = Standing::of(result).name();
    format!("{} ({}), {standing}", result.target.address, result.spec.title)
}

fn cells(run: &JudgedRun) -> impl Iterator<Item = Judged<'_>> {
    run.result().cells.iter().zip(run.cells())
}

fn pairs<'a>(old: &'a JudgedRun, new: &'a JudgedRun) -> Vec<(Judged<'a>, Judged<'a>)> {
    let twin = |new: Judged<'a>| {
        let old = cells(old).find(|old| old.0.spec.name == new.0.spec.name)?;
        Some((old, new))
    };
    cells(new).filter_map(twin).collect()
}

fn unmatched(old: &JudgedRun, new: &JudgedRun) -> Vec<String> {
    let only = |here: &JudgedRun, there: &JudgedRun, which: &str| -> Vec<String> {
        let there = |name: &str| cells(there).any(|cell| cell.0.spec.name == name);
        let names = cells(here).map(|cell| cell.0.spec.name.as_str());
        names.filter(|name| !there(name)).map(|name| format!("{name} (only {which})")).collect()
    };
    let mut names = only(old, new, "old");
    names.extend(only(new, old, "new"));
    names.extend(files::unmatched(old, new));
    names
}

fn compare_cell(old: Judged<'_>, new: Judged<'_>, run_refused: &[String]) -> CellComparison {
    let mut refused = run_refused.to_vec();
    refused.extend(differences::cell_refusals(old, new));
    let mut figures = figures(old.0, new.0);
    if figures.is_empty() {
        refused.push("they have no figure in common: a search, or a cell without runs".to_owned());
    }
    for figure in &mut figures {
        figure.word = refused.is_empty().then(|| word(figure));
    }
    CellComparison {
        name: new.0.spec.name.clone(),
        old_verdict: old.1.verdict(),
        new_verdict: new.1.verdict(),
        figures,
        refused,
    }
}

/// What the interval of a ratio shows.
fn word(figure: &Figure) -> Word {
    let Some(ratio) = figure.ratio else { return Word::NoDifferenceShown };
    let more_is_faster = figure.unit != "us";
    match (ratio.low > 1.0, ratio.high < 1.0) {
        (true, _) if more_is_faster => Word::Faster,
        (_, true) if !more_is_faster => Word::Faster,
        (true, _) | (_, true) => Word::Slower,
        (false, false) => Word::NoDifferenceShown,
    }
}

/// The figures of two cells, over their runs. The rate of an open loop was asked for, so it says
/// nothing of the target; its latencies do.
fn figures(old: &CellResult, new: &CellResult) -> Vec<Figure> {
    let closed = |cell: &CellResult| matches!(cell.spec.load, LoadSpec::Closed { .. });
    let mut figures = Vec::new();
    if closed(old) && closed(new) {
        figures.extend(figure("IOPS", "1/s", old, new, |run| Some(RunFigures::of(run).iops)));
    }
    let data = |run: &CellRun| -> Latencies {
        merged(run.classes.iter().filter(|class| class.op.is_data()))
    };
    figures.extend(figure("mean latency", "us", old, new, |run| {
        let all = data(run);
        (all.count() > 0).then(|| all.mean_us())
    }));
    figures.extend(figure("p99 latency", "us", old, new, |run| data(run).percentile_us(99.0)));
    figures
}

fn figure(
    name: &'static str,
    unit: &'static str,
    old: &CellResult,
    new: &CellResult,
    of_run: impl Fn(&CellRun) -> Option<f64>,
) -> Option<Figure> {
    let runs = |cell: &CellResult| -> Option<Vec<f64>> {
        cell.runs.iter().filter(|run| run.is_measured()).map(&of_run).collect()
    };
    let (old, new) = (runs(old)?, runs(new)?);
    let ratio = ratio_of_medians(&new, &old, SEED);
    Some(Figure { name, unit, old: median(&old)?, new: median(&new)?, ratio, word: None })
}
