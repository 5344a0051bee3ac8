//! The verdict on every number: what is wrong with a cell, and what to do about it.
//!
//! Not here: figures of a cell (summary), printing (report).
//!
//! Invariant: tables and charts take a [`JudgedRun`], which only judging makes: no number is
//! printed without its verdict.

use serde::Serialize;

use crate::bonnie::{self, Column};
use crate::judge::{RULES, judge, refused};
use crate::result::{CellResult, RunResult};
use crate::summary::CellSummary;

/// What can be wrong with a cell; the order is that of how much it spoils.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// It was not measured: the target failed, a client was lost, the clock jumped.
    Invalid,
    /// Blocks came back that were not what was written.
    Corrupt,
    /// Parts that were never written were read.
    Holes,
    /// More was offered than the target took.
    Overload,
    /// The generator, not the target, was the limit.
    GeneratorBound,
    /// The figures contradict each other (Little's law).
    Inconsistent,
    /// Reads and writes did not come in the shares that were asked for.
    MixOff,
    /// The data fits into a cache.
    CacheResident,
    /// It changed while it was measured, or from run to run.
    Unsteady,
    /// Too short, or too few runs, for the figures asked for.
    UnderSampled,
}

/// A finding in a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remark {
    /// What.
    pub finding: Finding,
    /// With the figures that show it.
    pub detail: String,
    /// What to do about it.
    pub action: String,
}

/// A cell and what is to be said of it.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedCell {
    /// Figures.
    pub summary: CellSummary,
    /// Worst first; empty: valid.
    pub remarks: Vec<Remark>,
    /// Conditions that a reader must know and that take nothing from the figures.
    pub notes: Vec<String>,
}

impl JudgedCell {
    /// The verdict in a word: `valid`, or the worst finding.
    pub fn verdict(&self) -> &'static str {
        self.remarks.first().map_or("valid", |remark| remark.finding.name())
    }
}

impl Finding {
    /// All there are, worst first.
    pub const ALL: [Self; 10] = [
        Self::Invalid,
        Self::Corrupt,
        Self::Holes,
        Self::Overload,
        Self::GeneratorBound,
        Self::Inconsistent,
        Self::MixOff,
        Self::CacheResident,
        Self::Unsteady,
        Self::UnderSampled,
    ];

    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Corrupt => "corrupt",
            Self::Holes => "holes",
            Self::Overload => "overload",
            Self::GeneratorBound => "generator-bound",
            Self::Inconsistent => "inconsistent",
            Self::MixOff => "mix-off",
            Self::CacheResident => "cache-resident",
            Self::Unsteady => "unsteady",
            Self::UnderSampled => "under-sampled",
        }
    }
}

/// A run with a verdict on every cell.
#[derive(Clone, Debug)]
pub struct JudgedRun {
    result: RunResult,
    cells: Vec<JudgedCell>,
}

impl JudgedRun {
    /// Judges every cell.
    pub fn of(result: RunResult) -> Self {
        let cells = judged(&result, judge(&result, RULES));
        Self { result, cells }
    }

    /// Rows whose figures can be quoted, of all that were asked for.
    pub fn quotable(&self) -> (usize, usize) {
        let valid = self.cells.iter().filter(|cell| cell.remarks.is_empty()).count();
        (valid, self.result.spec.cells.len().max(self.cells.len()))
    }

    /// Findings of any row or column, each once, worst first.
    pub fn findings(&self) -> Vec<Finding> {
        let columns = self.bonnie();
        let remarks = self.cells.iter().flat_map(|cell| &cell.remarks);
        let remarks = remarks.chain(columns.iter().flat_map(|column| &column.remarks));
        let mut all: Vec<Finding> = remarks.map(|remark| remark.finding).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The operations that the target refused, by kind and error.
    pub fn refused(&self) -> Option<String> {
        let phases = self.result.phases.iter().map(|phase| &phase.run);
        refused(phases.chain(self.result.cells.iter().flat_map(CellResult::measured)))
    }

    /// What was measured.
    pub fn result(&self) -> &RunResult {
        &self.result
    }

    /// The columns of the file test, each with its verdict; empty where there was none.
    pub fn bonnie(&self) -> Vec<Column> {
        self.result.bonnie.as_ref().map_or_else(Vec::new, bonnie::columns)
    }

    /// With remarks as a test wants them, by cell.
    #[cfg(test)]
    pub(crate) fn with_remarks(result: RunResult, remarks: Vec<Vec<Remark>>) -> Self {
        assert_eq!(remarks.len(), result.cells.len(), "a verdict for each cell");
        let cells = judged(&result, remarks);
        Self { result, cells }
    }

    /// Verdicts, in the order of the result's cells.
    pub fn cells(&self) -> &[JudgedCell] {
        &self.cells
    }
}

fn judged(result: &RunResult, remarks: Vec<Vec<Remark>>) -> Vec<JudgedCell> {
    let judge = |(cell, remarks)| {
        let summary = CellSummary::of(cell);
        let notes = crate::notes::of(result, cell, &summary);
        JudgedCell { summary, remarks, notes }
    };
    result.cells.iter().zip(remarks).map(judge).collect()
}
