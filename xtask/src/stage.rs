//! Named, timed stages that stop at the first failure, and the table at the end.
//!
//! Not here: which stages there are (check.rs, test.rs).
//!
//! Invariants: the last line printed is `N passed, N failed`; a stage that was not reached is
//! shown as such and counts as neither.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::command;

/// What a stage does.
pub(crate) enum Step {
    /// One cargo call.
    Cargo(&'static [&'static str]),
    /// A task of this crate.
    Task(fn() -> Result<()>),
}

/// One line of a task's table.
pub(crate) struct Stage {
    /// How it is called when it fails.
    pub(crate) name: &'static str,
    /// What it does.
    pub(crate) step: Step,
}

/// Runs the stages in order until one fails.
pub(crate) fn run(stages: &[Stage]) -> Result<()> {
    let mut times = Vec::new();
    let mut failure = None;
    for (index, stage) in stages.iter().enumerate() {
        eprintln!("== {}/{} {}", index + 1, stages.len(), stage.name);
        let start = Instant::now();
        let result = match stage.step {
            Step::Cargo(args) => command::cargo(args),
            Step::Task(task) => task(),
        };
        times.push(start.elapsed());
        if let Err(error) = result {
            failure = Some((stage.name, error));
            break;
        }
    }
    let failed = usize::from(failure.is_some());
    println!("{}", table(stages, &times, failed == 1));
    if let Some((name, error)) = &failure {
        println!("stage {name} failed: {error:#}");
    }
    println!("{} passed, {failed} failed", times.len() - failed);
    if let Some((name, _)) = failure {
        bail!("stage {name} failed");
    }
    Ok(())
}

fn table(stages: &[Stage], times: &[Duration], last_failed: bool) -> String {
    let mut lines = vec![String::new(), "stage         result     seconds".to_owned()];
    for (index, stage) in stages.iter().enumerate() {
        let (result, seconds) = match times.get(index) {
            None => ("not run", String::new()),
            Some(time) => {
                let failed = last_failed && index + 1 == times.len();
                (if failed { "FAILED" } else { "passed" }, format!("{:.1}", time.as_secs_f64()))
            }
        };
        lines.push(format!("{:<12}  {result:<8}  {seconds:>8}", stage.name));
    }
    let total: Duration = times.iter().sum();
    lines.push(format!("{:<12}  {:<8}  {:>8.1}", "total", "", total.as_secs_f64()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages() -> [Stage; 3] {
        [
            Stage { name: "one", step: Step::Task(|| Ok(())) },
            Stage { name: "two", step: Step::Task(|| bail!("planted")) },
            Stage { name: "three", step: Step::Task(|| panic!("runs after a failure")) },
        ]
    }

    #[test]
    fn stops_at_the_first_failure_and_names_it() {
        let error = run(&stages()).expect_err("stage two fails");
        assert_eq!(error.to_string(), "stage two failed");
        assert!(run(&stages()[..1]).is_ok());
    }

    #[test]
    fn the_table_tells_the_three_results_apart() {
        let text = table(&stages(), &[Duration::from_secs(1), Duration::from_secs(2)], true);
        let lines: Vec<&str> = text.trim().lines().collect();
        assert!(lines[1].starts_with("one") && lines[1].contains("passed"));
        assert!(lines[2].starts_with("two") && lines[2].contains("FAILED"));
        assert!(lines[3].starts_with("three") && lines[3].contains("not run"));
        assert!(lines[4].ends_with("3.0"));
    }
}
