//! A run done again: does it come out the same?
//!
//! Not here: which of two is faster.
//!
//! Theory. That no difference is shown does not show that there is none; with few runs nothing
//! would ever differ. So the interval of the ratio is held against a band: wholly inside, the
//! result is reproduced; wholly outside, it is not; otherwise the runs are too few or too far
//! apart to tell.
//!
//! Invariants: only results of the same spec are held against each other; a cell that is not valid
//! tells nothing.

use serde::Serialize;

use super::{Comparison, Figure, text};
use crate::stats::RatioInterval;
use crate::verdict::JudgedRun;

/// Ratio from 1 by which a result may differ and still be the same.
const BAND: f64 = 1.10;

/// What is said of a run done again; the later the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Answer {
    /// It came out the same within 10 %.
    #[serde(rename = "reproduced")]
    Reproduced,
    /// The intervals are too wide, or a verdict is not valid.
    #[serde(rename = "cannot tell")]
    CannotTell,
    /// It differs by more than 10 %.
    #[serde(rename = "not reproduced")]
    NotReproduced,
}

impl Answer {
    /// As it is printed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::CannotTell => "cannot tell",
            Self::NotReproduced => "not reproduced",
        }
    }
}

/// A cell done again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RerunCell {
    /// Its name.
    pub name: String,
    /// Verdict in the old run.
    pub old_verdict: &'static str,
    /// Verdict in the new run.
    pub new_verdict: &'static str,
    /// The figure that decides: throughput of a closed loop, mean latency of an open one, rate of a
    /// phase of the file test.
    pub figure: Option<Figure>,
    /// What is said of it.
    pub answer: Answer,
    /// Why it cannot be told.
    pub reason: Option<String>,
}

/// A run done again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rerun {
    /// The worst of the cells.
    pub answer: Answer,
    /// Why the whole cannot be told.
    pub reason: Option<String>,
    /// Each cell of the old run that was done again.
    pub cells: Vec<RerunCell>,
    /// What is not as it was.
    pub differences: Vec<String>,
}

impl Rerun {
    /// As text for a terminal.
    pub fn text(&self) -> String {
        text::rerun(self)
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("numbers and text are JSON")
    }
}

/// Whether `new` came out as `old`, of which it is a repetition.
pub fn rerun(old: &JudgedRun, new: &JudgedRun) -> Rerun {
    let compared = Comparison::of(old, new);
    let differences = compared.differences;
    let (was, is) = (&old.result().spec_hash, &new.result().spec_hash);
    if was != is {
        let reason = format!(
            "another spec was run (hash {was} before, {is} now); run the old result's own spec"
        );
        let answer = Answer::CannotTell;
        return Rerun { answer, reason: Some(reason), cells: Vec::new(), differences };
    }
    let cells: Vec<RerunCell> = compared.cells.into_iter().map(again).collect();
    let worst = cells.iter().map(|cell| cell.answer).max();
    let missing = compared.unmatched.len() + usize::from(cells.is_empty());
    let reason = (missing > 0).then(|| "not every cell was measured both times".to_owned());
    let whole = if reason.is_some() { Answer::CannotTell } else { Answer::Reproduced };
    Rerun { answer: worst.unwrap_or(whole).max(whole), reason, cells, differences }
}

fn again(cell: super::CellComparison) -> RerunCell {
    let figure = cell.figures.into_iter().next();
    let ratio = figure.as_ref().and_then(|figure| figure.ratio);
    let (answer, reason) = match (cell.refused.is_empty(), ratio) {
        (false, _) => (Answer::CannotTell, Some(cell.refused.join("; "))),
        (true, None) => {
            let reason = "two runs each time are needed: set `runs` to at least 3";
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
        "the ratio may be anything from {:.3} to {:.3}: do more or longer runs",
        ratio.low, ratio.high
    );
    (Answer::CannotTell, Some(reason))
}
