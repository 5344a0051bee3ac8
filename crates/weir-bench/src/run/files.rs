//! The file test of a run, after its cells.
//!
//! Not here: doing it (bonnie).
//!
//! Invariant: where it cannot be done the run says why, and is whole without it.

use super::Runner;
use crate::bonnie::{self, BonnieError, Job};
use crate::result::TargetInfo;
use crate::spec::RunSpec;

/// For the time it will take: what a disk moves, and what small files and single bytes need.
const BYTES_PER_S: f64 = 200e6;
const PASSES: f64 = 5.0;
const OTHERS_S: f64 = 20.0;

/// Seconds that the file test of a run will take, about; 0 where there is none.
pub(super) fn expected_s(spec: &RunSpec, target: &TargetInfo, memory_bytes: u64) -> f64 {
    let bonnie = spec.bonnie.as_ref().filter(|_| bonnie::directory_of(target).is_ok());
    bonnie.map_or(0.0, |bonnie| {
        let bytes = bonnie::file_bytes(bonnie, memory_bytes) as f64;
        f64::from(bonnie.runs.max(1)) * (bytes * PASSES / BYTES_PER_S + OTHERS_S)
    })
}

impl Runner<'_> {
    /// Does it; false if the user ended it.
    pub(super) fn files(&mut self) -> bool {
        let Some(spec) = &self.spec.bonnie else { return true };
        if !self.observer.goes_on() {
            return false;
        }
        let memory_bytes = self.result.environment.memory_bytes;
        let expected_s = expected_s(self.spec, &self.result.target, memory_bytes);
        let (gone, planned) = (self.gone, self.planned);
        let (target, content) = (&self.result.target, &self.spec.content);
        let job = Job { spec, content, target, memory_bytes };
        let (runs, mut told) = (spec.runs.max(1), 0);
        let observer = &mut *self.observer;
        let done = bonnie::drive(&job, &mut |run, part| {
            if told < run {
                told = run;
                observer.begins("file test (bonnie)", run, runs);
            }
            let share = (f64::from(run - 1) + part) / f64::from(runs);
            observer.done(((gone + expected_s * share) / planned).min(1.0));
            observer.goes_on()
        });
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
                let warning = format!("the file test (bonnie) was left out: {error}");
                self.result.warnings.push(warning);
            }
        }
        self.observer.keep(&self.result);
        is_whole
    }
}
