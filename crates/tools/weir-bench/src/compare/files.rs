//! Compares the bonnie tests of two runs.
//!
//! `differences` decides whether the runs as a whole may be ranked.
//!
//! Invariants: a phase is ranked only by its rate, and only if both runs performed the same test
//! and the phase has a valid verdict in both.

use super::{CellComparison, Figure, SEED, word};
use crate::bonnie::{BonnieResult, Column, Phase};
use crate::stats::{median, ratio_of_medians};
use crate::verdict::JudgedRun;
use crate::words;

/// Prefix of the names of phases in the comparison.
const NAME: &str = "file test";

/// Compares the phases that both runs have, in execution order.
pub(super) fn compare(old: &JudgedRun, new: &JudgedRun, refused: &[String]) -> Vec<CellComparison> {
    let (Some(was), Some(is)) = (&old.result().bonnie, &new.result().bonnie) else {
        return Vec::new();
    };
    let (old, new) = (old.bonnie(), new.bonnie());
    let twin = |new: &Column| {
        let old = old.iter().find(|old| old.phase == new.phase)?;
        let mut refused = refused.to_vec();
        refused.extend(differences(was, is));
        refused.extend(remarks(old, "old").into_iter().chain(remarks(new, "new")));
        let rates = (rates(was, new.phase), rates(is, new.phase));
        let mut figure = Figure {
            name: "rate",
            unit: new.phase.unit(),
            old: median(&rates.0)?,
            new: median(&rates.1)?,
            ratio: ratio_of_medians(&rates.1, &rates.0, SEED),
            word: None,
        };
        figure.word = refused.is_empty().then(|| word(&figure));
        Some(CellComparison {
            name: format!("{NAME}: {}", new.phase.label()),
            old_verdict: old.verdict(),
            new_verdict: new.verdict(),
            figures: vec![figure],
            refused,
        })
    };
    new.iter().filter_map(twin).collect()
}

/// Returns the name of the bonnie test if only one run has the test; otherwise the names of the
/// phases that only one run has.
pub(super) fn unmatched(old: &JudgedRun, new: &JudgedRun) -> Vec<String> {
    let (old, new) = (old.bonnie(), new.bonnie());
    match (old.is_empty(), new.is_empty()) {
        (true, true) => return Vec::new(),
        (false, true) => return vec![format!("{NAME} (only old)")],
        (true, false) => return vec![format!("{NAME} (only new)")],
        (false, false) => {}
    }
    let only = |here: &[Column], there: &[Column], which: &str| -> Vec<String> {
        let is_there = |phase: Phase| there.iter().any(|column| column.phase == phase);
        let missing = here.iter().filter(|column| !is_there(column.phase));
        missing.map(|column| format!("{NAME}: {} (only {which})", column.phase.label())).collect()
    };
    let mut names = only(&old, &new, "old");
    names.extend(only(&new, &old, "new"));
    names
}

fn rates(result: &BonnieResult, phase: Phase) -> Vec<f64> {
    let figures = result.runs.iter().flat_map(|run| &run.figures);
    figures.filter(|figure| figure.phase == phase).map(|figure| figure.rate).collect()
}

/// Lists the parameters that differ between two bonnie tests, so that the tests cannot be compared.
fn differences(old: &BonnieResult, new: &BonnieResult) -> Vec<String> {
    let mut reasons = Vec::new();
    if old.file_bytes != new.file_bytes {
        let (old, new) = (words::bytes(old.file_bytes), words::bytes(new.file_bytes));
        reasons.push(format!("the file of the file test differs: {old} before, {new} now"));
    }
    if old.files != new.files {
        let (old, new) = (old.files, new.files);
        reasons.push(format!("the small files of the file test differ: {old} before, {new} now"));
    }
    reasons
}

fn remarks(column: &Column, which: &str) -> Option<String> {
    let worst = column.remarks.first()?;
    Some(format!("the {which} figure is {}: {}", worst.finding.name(), worst.detail))
}
