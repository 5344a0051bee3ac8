//! Rerun: decides whether a repeated run reproduces the results.
//!
//! `compare` decides which of two runs is faster.
//!
//! Theory. A missing difference is no proof of equality: with few runs, no difference would ever
//! show. So the confidence interval of the ratio (new median to old median) is compared with a band
//! around 1. An interval inside the band reproduces the result; an interval outside the band
//! contradicts it. If an interval is partly inside, the runs are too few or vary too much to
//! decide.
//!
//! Invariants: only results of the same spec are compared; a cell whose verdict is not valid gets
//! no answer.

use serde::Serialize;

use super::{Comparison, Figure, text};
use crate::stats::RatioInterval;
use crate::verdict::JudgedRun;

/// Upper end of the band: the largest ratio at which two results count as equal. The lower end is
/// its inverse.
const BAND: f64 = 1.10;

/// Outcome of a rerun, or of one of its cells, ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Answer {
    /// The new result equals the old result within 10 %.
    #[serde(rename = "reproduced")]
    Reproduced,
    /// The confidence interval is too wide to decide, or a verdict is not valid.
    #[serde(rename = "cannot tell")]
    CannotTell,
    /// The new result differs from the old result by more than 10 %.
    #[serde(rename = "not reproduced")]
    NotReproduced,
}

impl Answer {
    /// Name of the outcome in texts and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::CannotTell => "cannot tell",
            Self::NotReproduced => "not reproduced",
        }
    }
}

/// Outcome of one repeated cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RerunCell {
    /// Name of the cell.
    pub name: String,
    /// Verdict on the cell in the old run.
    pub old_verdict: &'static str,
    /// Verdict on the cell in the new run.
    pub new_verdict: &'static str,
    /// Figure that decides the outcome: throughput of a closed loop, mean latency of an open loop,
    /// or rate of a phase of the bonnie test.
    pub figure: Option<Figure>,
    /// Outcome of the cell.
    pub answer: Answer,
    /// Reason why the outcome is `CannotTell`.
    pub reason: Option<String>,
}

/// Outcome of a repeated run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rerun {
    /// Worst outcome of all cells.
    pub answer: Answer,
    /// Reason why the rerun as a whole has no outcome.
    pub reason: Option<String>,
    /// Cells of the old run that the new run repeated.
    pub cells: Vec<RerunCell>,
    /// Differences between the two runs.
    pub differences: Vec<String>,
}

impl Rerun {
    /// Formats the rerun as text for a terminal.
    pub fn text(&self) -> String {
        text::rerun(self)
    }

    /// Formats the rerun as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and text are JSON")
    }
}

/// Decides whether the run `new`, a repetition of `old`, reproduces the results of `old`.
pub fn rerun(old: &JudgedRun, new: &JudgedRun) -> Rerun {
    let compared = Comparison::of(old, new);
    let differences = compared.differences;
    let (was, is) = (&old.result().spec_hash, &new.result().spec_hash);
    if was != is {
        let reason = format!(
            "the spec differs (hash {was} before, {is} now); run the spec of the old result"
        );
        let answer = Answer::CannotTell;
        return Rerun { answer, reason: Some(reason), cells: Vec::new(), differences };
    }
    let cells: Vec<RerunCell> = compared.cells.into_iter().map(again).collect();
    let worst = cells.iter().map(|cell| cell.answer).max();
    let missing = compared.unmatched.len() + usize::from(cells.is_empty());
    let reason = (missing > 0).then(|| "a cell was not measured in both runs".to_owned());
    let whole = if reason.is_some() { Answer::CannotTell } else { Answer::Reproduced };
    Rerun { answer: worst.unwrap_or(whole).max(whole), reason, cells, differences }
}

fn again(cell: super::CellComparison) -> RerunCell {
    let figure = cell.figures.into_iter().next();
    let ratio = figure.as_ref().and_then(|figure| figure.ratio);
    let (answer, reason) = match (cell.refused.is_empty(), ratio) {
        (false, _) => (Answer::CannotTell, Some(cell.refused.join("; "))),
        (true, None) => {
            let reason = "each result needs at least two runs; set `runs` to at least 3";
            (Answer::CannotTell, Some(reason.to_owned()))
        }
        (true, Some(ratio)) => within(ratio),
    };
    RerunCell {
        name: cell.name,
        old_verdict: cell.old_verdict,
        new_verdict: cell.new_verdict,
        figure,
        answer,
        reason,
    }
}

fn within(ratio: RatioInterval) -> (Answer, Option<String>) {
    let (low, high) = (1.0 / BAND, BAND);
    if ratio.low >= low && ratio.high <= high {
        return (Answer::Reproduced, None);
    }
    if ratio.low > high || ratio.high < low {
        return (Answer::NotReproduced, None);
    }
    let reason = format!(
        "the ratio is between {:.3} and {:.3}; do more or longer runs",
        ratio.low, ratio.high
    );
    (Answer::CannotTell, Some(reason))
}
