//! Soak results: one JSON line for each finished piece, and the report of a commit.
//!
//! Not here: the list of the pieces (plan.rs) and how they run (soak.rs).
//!
//! Invariants:
//! - soak only appends lines to the file, each after its piece has ended;
//! - a result counts only for the commit under test; results of a modified work tree are separate.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::plan::{Kind, Piece, RECOVERIES, load_minutes};

/// The source tree under test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tree {
    pub(super) commit: String,
    /// True if the work tree differed from the commit.
    pub(super) dirty: bool,
}

/// Result of one piece of the soak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    #[serde(flatten)]
    pub(super) tree: Tree,
    pub(super) piece: String,
    pub(super) kind: Kind,
    /// First and last seed of the scenarios that the piece ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) seeds: Option<(u64, u64)>,
    /// Number of crash recoveries that the piece checked.
    #[serde(default)]
    pub(super) recoveries: u64,
    pub(super) seconds: f64,
    pub(super) verdict: Verdict,
    /// The memory limit and, for a failed piece, the cause and the last log lines.
    pub(super) detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Passed,
    Failed,
}

/// Reads all results; returns none if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Vec<Outcome>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let parse = |(number, line): (usize, &str)| {
        let place = || format!("{}, line {}", path.display(), number + 1);
        serde_json::from_str(line).with_context(place)
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
}

/// Appends a result.
pub(super) fn append(path: &Path, outcome: &Outcome) -> Result<()> {
    let line = format!("{}\n", serde_json::to_string(outcome)?);
    let file = OpenOptions::new().create(true).append(true).open(path);
    let mut file = file.with_context(|| path.display().to_string())?;
    file.write_all(line.as_bytes()).with_context(|| path.display().to_string())
}

/// Returns the results for this tree: the last one of each piece.
pub(super) fn of_tree<'a>(outcomes: &'a [Outcome], tree: &Tree) -> Vec<&'a Outcome> {
    let mut last: Vec<&Outcome> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.tree == *tree) {
        last.retain(|one| one.piece != outcome.piece);
        last.push(outcome);
    }
    last
}

/// Returns a report: the pieces that passed, failed or have not run.
pub(super) fn report(plan: &[Piece], tree: &Tree, results: &[&Outcome]) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        // A write to a string cannot fail.
        writeln!(text, "{words}").ok();
    };
    let state = if tree.dirty { ", with changes that are in no commit" } else { "" };
    line(format!("commit {}{state}", tree.commit));
    let passed = |kind: Kind| {
        let is_meant = move |one: &&&Outcome| one.kind == kind && one.verdict == Verdict::Passed;
        results.iter().filter(is_meant).copied()
    };
    let recoveries: u64 = passed(Kind::Recoveries).map(|one| one.recoveries).sum();
    let seeds = passed(Kind::Recoveries).filter_map(|one| one.seeds);
    let seeds: Vec<String> = seeds.map(|(first, last)| format!("{first} to {last}")).collect();
    line(format!("recoveries: {recoveries} of {RECOVERIES}; seeds: {}", list(&seeds)));
    let seeds: Vec<String> = passed(Kind::Seeds).map(|one| one.piece.clone()).collect();
    line(format!("filesystems and NFS clients: {}", list(&seeds)));
    let minutes = passed(Kind::Load).count() as u64 * load_minutes(1);
    let wanted = plan.iter().filter(|piece| piece.kind() == Kind::Load).count() as u64;
    line(format!("load: {minutes} of {} minutes", load_minutes(wanted)));
    let fuzz: Vec<String> = passed(Kind::Fuzz).map(|one| one.piece.clone()).collect();
    line(format!("fuzz, {} s each: {}", super::plan::FUZZ_SECONDS, list(&fuzz)));
    let tests: Vec<String> = passed(Kind::Tests).map(|one| one.piece.clone()).collect();
    line(format!("long end-to-end tests: {}", list(&tests)));
    let deny = passed(Kind::Deny).next().is_some();
    line(format!("cargo-deny: {}", if deny { "passed" } else { "not passed" }));
    let failed = results.iter().filter(|one| one.verdict == Verdict::Failed);
    for one in failed.clone() {
        line(format!("FAILED {}: {}", one.piece, one.detail));
    }
    let done = |piece: &&Piece| results.iter().any(|one| one.piece == piece.name());
    let left = plan.iter().filter(|piece| !done(piece)).count();
    let (passed, failed) = (results.len() - failed.clone().count(), failed.count());
    line(format!("{passed} pieces passed, {failed} failed, {left} left"));
    text.trim_end().to_owned()
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::*;

    fn tree(commit: &str, dirty: bool) -> Tree {
        Tree { commit: commit.to_owned(), dirty }
    }

    fn outcome(tree: &Tree, piece: &str, kind: Kind, verdict: Verdict) -> Outcome {
        let is_recoveries = kind == Kind::Recoveries;
        Outcome {
            tree: tree.clone(),
            piece: piece.to_owned(),
            kind,
            seeds: is_recoveries.then_some((1, 90)),
            recoveries: if is_recoveries { 25_000 } else { 0 },
            seconds: 7.5,
            verdict,
            detail: "said".to_owned(),
        }
    }

    #[test]
    fn results_persist_and_count_only_for_their_tree() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.jsonl");
        assert_eq!(read(&path).unwrap(), []);
        let all = [
            outcome(&tree("a", false), "deny", Kind::Deny, Verdict::Failed),
            outcome(&tree("a", true), "load-1", Kind::Load, Verdict::Passed),
            outcome(&tree("b", false), "recoveries-01", Kind::Recoveries, Verdict::Passed),
            outcome(&tree("a", false), "deny", Kind::Deny, Verdict::Passed),
        ];
        for one in &all {
            append(&path, one).unwrap();
        }
        let read = read(&path).unwrap();
        assert_eq!(read, all);
        assert_eq!(of_tree(&read, &tree("a", false)), [&all[3]]);
        assert_eq!(of_tree(&read, &tree("a", true)), [&all[1]]);
        assert_eq!(of_tree(&read, &tree("c", false)).len(), 0);
        fs::write(&path, "no JSON\n").unwrap();
        assert!(super::read(&path).is_err());
    }

    #[test]
    fn report_adds_up_passed_pieces() {
        let tree = tree("a", false);
        let plan = plan::pieces(&["label".to_owned()]);
        let all = [
            outcome(&tree, "recoveries-01", Kind::Recoveries, Verdict::Passed),
            outcome(&tree, "recoveries-02", Kind::Recoveries, Verdict::Failed),
            outcome(&tree, "load-1", Kind::Load, Verdict::Passed),
            outcome(&tree, "fuzz-label", Kind::Fuzz, Verdict::Passed),
        ];
        let text = report(&plan, &tree, &all.iter().collect::<Vec<_>>());
        for part in [
            "recoveries: 25000 of 500000; seeds: 1 to 90\n",
            "filesystems and NFS clients: none\n",
            "load: 12 of 60 minutes\n",
            "fuzz, 60 s each: fuzz-label\n",
            "long end-to-end tests: none\n",
            "cargo-deny: not passed\n",
            "FAILED recoveries-02: said\n",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        let left = plan.len() - 4;
        assert!(text.ends_with(&format!("3 pieces passed, 1 failed, {left} left")), "{text}");
    }
}
