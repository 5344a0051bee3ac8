//! Worker processes, which perform the steps of the load.
//!
//! A worker reads one step per line from its stdin, as JSON, and prints one answer per line.
//!
//! Invariants: a worker ends with the process that started it; the time of a step includes neither
//! the start of a process nor the preparation of a step.

use std::io::{BufRead, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use weir_command::process::{Process, guarded};

use super::steps::{Done, Step};

/// Subcommand of this program that starts a worker.
pub(crate) const SUBCOMMAND: &str = "files-worker";

/// Performs the steps on stdin until its end.
pub(crate) fn main() -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        let step: Step = serde_json::from_str(&line?)?;
        let answer = step.perform().map_err(|error| format!("{error:#}"));
        println!("{}", serde_json::to_string(&answer)?);
    }
    Ok(())
}

/// A running worker process.
pub(super) struct Worker {
    steps: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Ends the process when the worker is dropped.
    _process: Process,
}

impl Worker {
    pub(super) fn start() -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut command = guarded(&program.display().to_string());
        command.arg(SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start a worker")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Process::new(child);
        let (steps, answers) = pipes.context("a worker without pipes")?;
        Ok(Self { steps, answers: BufReader::new(answers), _process: process })
    }

    /// Starts a step. The caller then waits with [`Self::answer`].
    pub(super) fn send(&mut self, step: &Step) -> Result<()> {
        let line = serde_json::to_string(step)? + "\n";
        Ok(self.steps.write_all(line.as_bytes())?)
    }

    /// Waits for the end of the step.
    pub(super) fn answer(&mut self) -> Result<Done> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let answer: Result<Done, String> =
            serde_json::from_str(&line).context("a worker ended without an answer")?;
        answer.map_err(|error| anyhow!("{error}"))
    }
}

/// Performs one step for each worker, concurrently. Returns the total number of operations, and the
/// time until the last worker was done.
pub(super) fn perform(workers: &mut [Worker], steps: &[Step]) -> Result<(u64, Duration)> {
    let start = Instant::now();
    for (worker, step) in workers.iter_mut().zip(steps) {
        worker.send(step)?;
    }
    let mut ops = 0;
    for (worker, _) in workers.iter_mut().zip(steps) {
        ops += worker.answer()?.ops;
    }
    Ok((ops, start.elapsed()))
}
