//! Report of a test run: the result of each test, the slowest tests, and the commands that repeat
//! failed tests.
//!
//! Not here: the table of stages (stage.rs).
//!
//! Invariant: the lines have the format of libtest, which CI systems parse.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::build::Case;

/// Number of tests in the list of slowest tests.
const SLOWEST: usize = 25;

/// Result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// The test failed, and passed when the runner ran it again alone.
    Unsteady,
    /// The test failed for this reason.
    Failed(String),
    Ignored,
}

/// A test that has ended, or that is ignored.
#[derive(Clone, Debug)]
pub(crate) struct Ran {
    /// Package, target and name of the test.
    pub(crate) id: String,
    pub(crate) verdict: Verdict,
    pub(crate) time: Duration,
    /// Processor time.
    pub(crate) cpu: Duration,
    /// Path of the log file.
    pub(crate) log: PathBuf,
    /// Command line with which a developer runs only this test.
    pub(crate) typed: String,
}

impl Ran {
    pub(super) fn of(case: &Case, folder: &Path, verdict: Verdict) -> Self {
        let (id, log, typed) = (case.id(), case.log(folder), case.typed());
        Self { id, verdict, time: Duration::ZERO, cpu: Duration::ZERO, log, typed }
    }

    pub(crate) fn has_failed(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }

    /// Returns the line that the runner prints when the test ends.
    pub(super) fn line(&self) -> String {
        let word = if self.has_failed() { "FAILED" } else { "ok" };
        format!("test {} ... {word} ({:.1} s)", self.id, self.time.as_secs_f64())
    }
}

/// Returns the summary line of the run in the format of libtest.
pub(super) fn closing_line(ran: &[Ran], time: Duration) -> String {
    let count = |is: fn(&Ran) -> bool| ran.iter().filter(|ran| is(ran)).count();
    let failed = count(Ran::has_failed);
    let ignored = count(|ran| ran.verdict == Verdict::Ignored);
    let passed = ran.len() - failed - ignored;
    let word = if failed == 0 { "ok" } else { "FAILED" };
    format!(
        "test result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; \
         0 filtered out; finished in {:.2} s",
        time.as_secs_f64()
    )
}

/// Lists the slowest tests, slowest first; empty if no test ran.
pub(crate) fn slowest(ran: &[Ran]) -> Vec<String> {
    let mut ran: Vec<&Ran> = ran.iter().filter(|ran| ran.verdict != Verdict::Ignored).collect();
    ran.sort_by_key(|ran| std::cmp::Reverse(ran.time));
    ran.truncate(SLOWEST);
    let line = |ran: &&Ran| {
        format!("{:>8.1}  {:>5.1}  {}", ran.time.as_secs_f64(), ran.cpu.as_secs_f64(), ran.id)
    };
    let lines: Vec<String> = ran.iter().map(line).collect();
    if lines.is_empty() {
        return lines;
    }
    let head = format!("\n seconds    CPU  the {} slowest tests", lines.len());
    std::iter::once(head).chain(lines).collect()
}

/// Returns one line for each test that passed only in its second run.
pub(crate) fn unsteady(ran: &[Ran]) -> Vec<String> {
    let unsteady = ran.iter().filter(|ran| ran.verdict == Verdict::Unsteady);
    let line = |ran: &Ran| {
        let log = ran.log.with_extension("first.log");
        format!("unsteady: {} failed, then passed; log of the failure: {}", ran.id, log.display())
    };
    unsteady.map(line).collect()
}

/// Returns, for each failed test, the command that repeats it and the path of its log.
pub(crate) fn remedies(ran: &[Ran]) -> Vec<String> {
    let mut lines = Vec::new();
    for ran in ran {
        if let Verdict::Failed(why) = &ran.verdict {
            lines.push(format!("failed test: {}: {why}", ran.id));
            lines.push(format!("  run it alone: {}", ran.typed));
            lines.push(format!("  its log:      {}", ran.log.display()));
        }
    }
    lines
}
