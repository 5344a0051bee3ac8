//! Verdict on each figure: the findings on a cell and the recommended action for each finding.
//!
//! `summary` computes the figures of a cell; `report` prints them.
//!
//! Invariant: tables and charts take a [`JudgedRun`], which only judging creates, so the program
//! prints no figure without its verdict.

use serde::Serialize;

use crate::bonnie::{self, Column};
use crate::judge::{RULES, judge, refused};
use crate::result::{CellResult, RunResult};
use crate::summary::CellSummary;

/// Kinds of fault that a cell can have, from the most to the least harmful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The cell was not measured: the target failed, a client was lost, or the clock jumped.
    Invalid,
    /// Reads returned blocks with wrong contents, or directories lack files or list removed files.
    Corrupt,
    /// Reads returned zeros from blocks that were never written.
    Holes,
    /// The offered load exceeded the target's capacity.
    Overload,
    /// The generator limited the rate; the target did not.
    GeneratorBound,
    /// The figures contradict each other by Little's law.
    Inconsistent,
    /// The measured shares of reads, writes and metadata operations differ from the specified mix.
    MixOff,
    /// A cache can hold the working set.
    CacheResident,
    /// The figures changed during a run, or from run to run of the cell.
    Unsteady,
    /// The runs are too short or too few for the requested figures.
    UnderSampled,
}

/// One finding on a cell, with its explanation and advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Remark {
    /// Kind of fault.
    pub finding: Finding,
    /// Explanation with the figures that show the fault.
    pub detail: String,
    /// Action that the program recommends to the user.
    pub action: String,
    /// True if only latencies show the fault, so that the fault does not make a rate doubtful.
    #[serde(skip)]
    pub latency_only: bool,
}

/// Figures and verdict of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedCell {
    /// Figures of the cell.
    pub summary: CellSummary,
    /// Findings, with the worst finding first; a valid cell has none.
    pub remarks: Vec<Remark>,
    /// Conditions that a reader of the figures should know, but that do not invalidate the figures.
    pub notes: Vec<String>,
}

impl JudgedCell {
    /// Verdict in one word: `valid`, or the name of the worst finding.
    pub fn verdict(&self) -> &'static str {
        self.remarks.first().map_or("valid", |remark| remark.finding.name())
    }
}

impl Finding {
    /// All kinds of fault, from the most to the least harmful.
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

    /// Name of the finding in reports and JSON.
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

    /// Number of valid cells, and number of all cells that were specified or measured.
    pub fn quotable(&self) -> (usize, usize) {
        let valid = self.cells.iter().filter(|cell| cell.remarks.is_empty()).count();
        (valid, self.result.spec.cells.len().max(self.cells.len()))
    }

    /// Findings of all cells and of all columns of the file test, each kind once, with the worst
    /// finding first.
    pub fn findings(&self) -> Vec<Finding> {
        let columns = self.bonnie();
        let remarks = self.cells.iter().flat_map(|cell| &cell.remarks);
        let remarks = remarks.chain(columns.iter().flat_map(|column| &column.remarks));
        let mut all: Vec<Finding> = remarks.map(|remark| remark.finding).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Describes the operations that the target refused, grouped by kind and error.
    pub fn refused(&self) -> Option<String> {
        let phases = self.result.phases.iter().map(|phase| &phase.run);
        refused(phases.chain(self.result.cells.iter().flat_map(CellResult::measured)))
    }

    /// The run result that was judged.
    pub fn result(&self) -> &RunResult {
        &self.result
    }

    /// Columns of the file test, each with its verdict; empty if there was no file test.
    pub fn bonnie(&self) -> Vec<Column> {
        self.result.bonnie.as_ref().map_or_else(Vec::new, bonnie::columns)
    }

    /// Builds a judged run that has the given remarks for each cell.
    #[cfg(test)]
    pub(crate) fn with_remarks(result: RunResult, remarks: Vec<Vec<Remark>>) -> Self {
        assert_eq!(remarks.len(), result.cells.len(), "a verdict for each cell");
        let cells = judged(&result, remarks);
        Self { result, cells }
    }

    /// Judged cells, in the order of the run result.
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
