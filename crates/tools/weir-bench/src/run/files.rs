//! Runs the file test (bonnie) of a benchmark run, after the cells of the benchmark run. The file
//! test itself has one or more runs.
//!
//! `bonnie` implements the file test.
//!
//! Invariants:
//! - if the target does not support the file test, the result has a warning and counts as complete;
//! - the observer receives the result of each run of the file test when this run ends;
//! - a benchmark run that resumes after an interruption keeps the completed runs of its file test.

use super::{Observer, Runner};
use crate::bonnie::{self, BonnieError, BonnieResult, Job};
use crate::result::{RunResult, TargetInfo};
use crate::spec::RunSpec;

/// Assumptions for the estimate of the duration: the throughput, the number of passes over the
/// large file, and the seconds for the small files and the per-byte phases.
const BYTES_PER_S: f64 = 200e6;
const PASSES: f64 = 5.0;
const OTHERS_S: f64 = 20.0;

/// Expected duration of the file test in seconds; 0 if the benchmark run has no file test.
pub(super) fn expected_s(spec: &RunSpec, target: &TargetInfo, memory_bytes: u64) -> f64 {
    let bonnie = spec.bonnie.as_ref().filter(|_| bonnie::directory_of(target).is_ok());
    bonnie.map_or(0.0, |bonnie| {
        let bytes = bonnie::file_bytes(bonnie, memory_bytes) as f64;
        f64::from(bonnie.runs.max(1)) * (bytes * PASSES / BYTES_PER_S + OTHERS_S)
    })
}

impl Runner<'_> {
    /// Runs the file test. Returns false if the user stopped the test.
    pub(super) fn files(&mut self) -> bool {
        let Some(spec) = &self.spec.bonnie else { return true };
        if !self.observer.goes_on() {
            return false;
        }
        let memory_bytes = self.result.environment.memory_bytes;
        let expected_s = expected_s(self.spec, &self.result.target, memory_bytes);
        let (target, content) = (self.result.target.clone(), &self.spec.content);
        let before = self.result.bonnie.take();
        let job = Job { spec, content, target: &target, memory_bytes, before: before.as_ref() };
        let (observer, result) = (&mut *self.observer, &mut self.result);
        let (gone, planned, runs) = (self.gone, self.planned, spec.runs.max(1));
        let mut watch = Watch { observer, result, gone, planned, expected_s, runs, told: 0 };
        let done = bonnie::drive(&job, &mut watch);
        self.gone += expected_s;
        let mut is_whole = true;
        match done {
            Ok(result) => {
                if let Some(why) = &result.failure {
                    is_whole = *why != BonnieError::Ended.to_string();
                    let (runs, asked) = (result.runs.len(), result.runs_asked);
                    let warning = format!("the file test has {runs} of {asked} runs: {why}");
                    self.result.warnings.push(warning);
                }
                self.result.bonnie = Some(result).filter(|result| !result.runs.is_empty());
            }
            Err(error) => {
                let warning = format!("the file test (bonnie) was skipped: {error}");
                self.result.warnings.push(warning);
                self.result.bonnie = before;
            }
        }
        self.observer.keep(&self.result);
        is_whole
    }
}

/// Forwards the progress of the file test to the observer of the benchmark run.
struct Watch<'a> {
    observer: &'a mut dyn Observer,
    result: &'a mut RunResult,
    /// Expected seconds of the benchmark run before the file test (`gone`) and in total
    /// (`planned`).
    gone: f64,
    planned: f64,
    expected_s: f64,
    runs: u32,
    /// Number of the last run of the file test that was reported.
    told: u32,
}

impl bonnie::Watch for Watch<'_> {
    fn goes_on(&mut self, run: u32, part: f64) -> bool {
        if self.told < run {
            self.told = run;
            self.observer.begins("file test (bonnie)", run, self.runs);
        }
        let share = (f64::from(run - 1) + part) / f64::from(self.runs);
        self.observer.done(((self.gone + self.expected_s * share) / self.planned).min(1.0));
        self.observer.goes_on()
    }

    fn keep(&mut self, result: &BonnieResult) {
        self.result.bonnie = Some(result.clone());
        self.observer.keep(self.result);
    }
}
