//! Compares two runs. The conclusion on a figure is "faster", "slower" or "no difference shown", or
//! the reason why the figure cannot be ranked.
//!
//! `text` formats the comparison; `rerun` decides whether a repeated run reproduces a result.
//!
//! Invariants:
//! - the comparison refuses to rank, with the reason, if the runs differ in durability, dataset,
//!   content, protection or workload, if a verdict is not valid, if the cache of a target is
//!   unknown, or if the data fits the cache of only one target;
//! - if the confidence interval of a ratio contains 1, the report says "no difference shown";
//! - other differences between the runs are only listed: each target may run in its best setup;
//! - phases of a file test are compared in the same way as cells.

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
use crate::spec::{LoadSpec, OpKind, StreamSpec};
use crate::standing::Standing;
use crate::stats::{RatioInterval, median, ratio_of_medians};
use crate::summary::{RunFigures, merged};
use crate::verdict::{JudgedCell, JudgedRun};

/// Schema version of the comparison's JSON form.
const SCHEMA: u32 = 1;
/// Seed of the resampling, fixed so that a comparison always gives the same result.
const SEED: u64 = 42;

/// Conclusion about one figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Word {
    /// The new run is faster: the whole confidence interval of the ratio is above 1 (for a latency:
    /// below 1).
    #[serde(rename = "faster")]
    Faster,
    /// The new run is slower: the whole confidence interval of the ratio is below 1 (for a latency:
    /// above 1).
    #[serde(rename = "slower")]
    Slower,
    /// The two runs may be equally fast, or there are too few runs for a conclusion.
    #[serde(rename = "no difference shown")]
    NoDifferenceShown,
}

impl Word {
    /// Text of the conclusion, in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifferenceShown => "no difference shown",
        }
    }
}

/// One figure of a cell, in the old run and in the new run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// `IOPS`, `mean latency` or `p99 latency`, each also for the metadata operations of a mix;
    /// `rate` for a file test.
    pub name: &'static str,
    /// `1/s` or `us`; `KiB/s` or `per s` for a file test.
    pub unit: &'static str,
    /// Median over the cell's runs in the old result.
    pub old: f64,
    /// Median over the cell's runs in the new result.
    pub new: f64,
    /// New median divided by the old median, with the confidence interval of this ratio; `None` if
    /// the cell has fewer than two runs in the old or in the new result.
    pub ratio: Option<RatioInterval>,
    /// Conclusion about the figure; `None` if the comparison refuses to rank the cell.
    pub word: Option<Word>,
}

/// Comparison of a cell, or of a phase of the file test, that exists in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellComparison {
    /// Name of the cell or phase.
    pub name: String,
    /// Verdict on the cell in the old run.
    pub old_verdict: &'static str,
    /// Verdict on the cell in the new run.
    pub new_verdict: &'static str,
    /// Latencies, and IOPS if both loads are closed loops. A phase of the file test has only a
    /// rate.
    pub figures: Vec<Figure>,
    /// Reasons why the cell is not ranked; empty if the cell is ranked.
    pub refused: Vec<String>,
}

/// Comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Schema version.
    pub schema: u32,
    /// Target, profile title and cache state of the old run.
    pub old: String,
    /// Target, profile title and cache state of the new run.
    pub new: String,
    /// Reasons why no cell of the runs may be ranked; empty if cells may be ranked.
    pub refused: Vec<String>,
    /// Differences between the runs that do not forbid ranking.
    pub differences: Vec<String>,
    /// Cells that exist in both runs, in the order of the new run, followed by the phases of the
    /// file test.
    pub cells: Vec<CellComparison>,
    /// Names of the cells and phases that exist in only one of the two runs.
    pub unmatched: Vec<String>,
}

impl Comparison {
    /// Compares the run `new` with the run `old`. Cells are matched by name.
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

    /// True if the comparison ranks no cell.
    pub fn is_refused(&self) -> bool {
        !self.cells.iter().any(|cell| cell.refused.is_empty())
    }

    /// Formats the comparison as text for a terminal.
    pub fn text(&self) -> String {
        text::comparison(self)
    }

    /// Formats the comparison as JSON.
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
        refused.push("no common figure: one is a search or has no runs".to_owned());
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

/// Derives the conclusion from the confidence interval of a figure's ratio.
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

/// Figures of two cells over all their runs. The clock fixes the rate of an open loop, so only the
/// latencies of an open loop are compared.
fn figures(old: &CellResult, new: &CellResult) -> Vec<Figure> {
    let closed = |cell: &CellResult| matches!(cell.spec.load, LoadSpec::Closed { .. });
    let mut figures = Vec::new();
    if closed(old) && closed(new) {
        figures.extend(figure("IOPS", "1/s", old, new, |run| Some(RunFigures::of(run).iops)));
    }
    let of = |run: &CellRun, counts: fn(OpKind) -> bool| -> Latencies {
        merged(run.classes.iter().filter(|class| counts(class.op)))
    };
    let mean = |all: &Latencies| (all.count() > 0).then(|| all.mean_us());
    let counted = OpKind::is_counted;
    figures.extend(figure("mean latency", "us", old, new, |run| mean(&of(run, counted))));
    let p99 = |all: &Latencies| all.percentile_us(99.0);
    figures.extend(figure("p99 latency", "us", old, new, |run| p99(&of(run, counted))));
    let has_mix = |cell: &CellResult| cell.spec.streams.iter().any(StreamSpec::has_mix);
    if has_mix(old) && has_mix(new) {
        let metadata: fn(OpKind) -> bool = |op| op == OpKind::Metadata;
        if closed(old) && closed(new) {
            let iops = |run: &CellRun| Some(RunFigures::of(run).metadata_iops);
            figures.extend(figure("metadata IOPS", "1/s", old, new, iops));
        }
        let mean_of = |run: &CellRun| mean(&of(run, metadata));
        figures.extend(figure("metadata mean latency", "us", old, new, mean_of));
        let p99_of = |run: &CellRun| p99(&of(run, metadata));
        figures.extend(figure("metadata p99 latency", "us", old, new, p99_of));
    }
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
