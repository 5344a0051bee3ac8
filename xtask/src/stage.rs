//! Named, timed stages, and the table of their results.
//!
//! Not here: the stages of a task (check.rs, test.rs).
//!
//! Invariants:
//! - a failed stage does not stop later stages, so that one run reports all failures. The run stops
//!   only if [`SETUP`] fails, the stage that installs the tools of later stages;
//! - below the table are the failed tests, each with the command that runs it again;
//! - the last printed line is `N passed, N failed`. A skipped stage is marked in the table and
//!   counts neither as passed nor as failed.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use weir_command::command;

use crate::runner::report::{self, Ran};
use crate::runner::{self, Suite};

/// Work of a stage.
pub(crate) enum Step {
    /// A cargo call.
    Cargo(Vec<String>),
    /// A suite of tests. All of its tests run even if some fail.
    Tests(Suite),
    /// A function of this crate.
    Task(fn() -> Result<()>),
}

impl Step {
    /// Returns a cargo call with these arguments, which spaces separate.
    pub(crate) fn cargo(line: &str) -> Self {
        Self::Cargo(line.split_whitespace().map(str::to_owned).collect())
    }
}

/// A stage: one line in the table of results.
pub(crate) struct Stage {
    /// Name in the table.
    pub(crate) name: &'static str,
    /// Work of the stage.
    pub(crate) step: Step,
}

/// Name of the stage that installs tools.
pub(crate) const SETUP: &str = "setup";

/// A finished stage.
struct Done {
    time: Duration,
    failure: Option<anyhow::Error>,
}

/// Runs the stages in order.
pub(crate) fn run(stages: &[Stage]) -> Result<()> {
    let mut done: Vec<Done> = Vec::new();
    let mut tests = Vec::new();
    for (index, stage) in stages.iter().enumerate() {
        eprintln!("== {}/{} {}", index + 1, stages.len(), stage.name);
        let start = Instant::now();
        let result = match &stage.step {
            Step::Cargo(args) => command::cargo(args),
            Step::Tests(suite) => run_tests(suite, &mut tests),
            Step::Task(task) => task(),
        };
        let failure = result.err();
        let stops = failure.is_some() && stage.name == SETUP;
        done.push(Done { time: start.elapsed(), failure });
        if stops {
            break;
        }
    }
    let mut lines = report::slowest(&tests);
    lines.extend(table(stages, &done));
    lines.extend(report::unsteady(&tests));
    lines.extend(report::remedies(&tests));
    println!("{}", lines.join("\n"));
    let failed = done.iter().filter(|done| done.failure.is_some()).count();
    println!("{} passed, {failed} failed", done.len() - failed);
    if failed > 0 {
        let failed = stages.iter().zip(&done).filter(|(_, done)| done.failure.is_some());
        let names: Vec<_> = failed.map(|(stage, _)| stage.name).collect();
        bail!("failed: {}", names.join(", "));
    }
    Ok(())
}

/// Runs a suite of tests and appends its results to `all`.
fn run_tests(suite: &Suite, all: &mut Vec<Ran>) -> Result<()> {
    let ran = runner::run(suite)?;
    let failed = ran.iter().filter(|ran| ran.has_failed()).count();
    all.extend(ran);
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    Ok(())
}

fn table(stages: &[Stage], done: &[Done]) -> Vec<String> {
    let mut lines = vec![String::new(), "stage         result     seconds".to_owned()];
    for (index, stage) in stages.iter().enumerate() {
        let (result, seconds) = match done.get(index) {
            None => ("not run", String::new()),
            Some(Done { time, failure }) => {
                let result = if failure.is_some() { "FAILED" } else { "passed" };
                (result, format!("{:.1}", time.as_secs_f64()))
            }
        };
        lines.push(format!("{:<12}  {result:<8}  {seconds:>8}", stage.name));
    }
    let total: Duration = done.iter().map(|done| done.time).sum();
    lines.push(format!("{:<12}  {:<8}  {:>8.1}", "total", "", total.as_secs_f64()));
    for (stage, done) in stages.iter().zip(done) {
        if let Some(error) = &done.failure {
            lines.push(format!("stage {} failed: {error:#}", stage.name));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages() -> [Stage; 3] {
        [
            Stage { name: "one", step: Step::Task(|| Ok(())) },
            Stage { name: "two", step: Step::Task(|| bail!("planted")) },
            Stage { name: "three", step: Step::Task(|| bail!("planted as well")) },
        ]
    }

    #[test]
    fn later_stages_run_after_a_failure() {
        let error = run(&stages()).expect_err("two stages fail");
        assert_eq!(error.to_string(), "failed: two, three");
        assert!(run(&stages()[..1]).is_ok());
    }

    #[test]
    fn failed_setup_stops_the_run() {
        let mut stages = stages();
        stages[1].name = SETUP;
        let error = run(&stages).expect_err("setup fails");
        assert_eq!(error.to_string(), "failed: setup");
    }

    #[test]
    fn table_shows_each_result() {
        let passed = Done { time: Duration::from_secs(1), failure: None };
        let failure = Some(anyhow::anyhow!("planted"));
        let failed = Done { time: Duration::from_secs(2), failure };
        let lines = table(&stages(), &[passed, failed]);
        assert!(lines[2].starts_with("one") && lines[2].contains("passed"));
        assert!(lines[3].starts_with("two") && lines[3].contains("FAILED"));
        assert!(lines[4].starts_with("three") && lines[4].contains("not run"));
        assert!(lines[5].ends_with("3.0"));
        assert_eq!(lines[6..], ["stage two failed: planted"]);
    }
}
