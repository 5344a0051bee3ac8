//! Prepares the caches for a run of a cell, as far as this process can.
//!
//! The profile declares the cache state; `judge` decides how it affects the verdict.
//!
//! Invariant: if a declared cache state could not be established, the result contains a warning.

use std::time::Duration;

use super::{Runner, front_to_back};
use crate::judge::refused;
use crate::load::{Offer, offer};
use crate::spec::{CacheState, CellSpec, LoadSpec};
use crate::words;

/// Queue depth with which the dataset is read into caches.
const DEPTH: u32 = 8;

impl Runner<'_> {
    /// Establishes the cache state that a cell declares, before one of its runs.
    pub(super) fn prepare_caches(&mut self, cell: &CellSpec) {
        let missed = match cell.cache {
            CacheState::AsIs => None,
            CacheState::Cold => self.drop_caches(),
            // This process cannot read metadata without data, so it never establishes this state.
            CacheState::WarmMetadata => {
                let dropped = self.drop_caches();
                dropped.or(Some("metadata cannot be read separately from data".to_owned()))
            }
            CacheState::Warm => self.read_all(),
        };
        let Some(why) = missed else { return };
        let (name, state) = (&cell.name, words::cache(cell.cache));
        let warning = format!(
            "{name}: the profile declares the caches as {state}, which may be false: {why}"
        );
        if !self.result.warnings.contains(&warning) {
            self.result.warnings.push(warning);
        }
    }

    fn drop_caches(&self) -> Option<String> {
        match self.ground.target.drop_caches() {
            Ok(true) => None,
            Ok(false) => Some("this program cannot drop the target's caches".to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Reads every address of the dataset once.
    fn read_all(&mut self) -> Option<String> {
        let streams = [front_to_back(self.spec.fill.block_bytes, 100.0)];
        let load = LoadSpec::Closed { workers: 1, depth: DEPTH };
        let what = Offer {
            streams: &streams,
            load,
            warmup: Duration::ZERO,
            duration: None,
            worker_bytes: None,
        };
        let observer = &mut *self.observer;
        let read = offer(&self.ground, &what, &mut |_| observer.goes_on());
        match read {
            Ok(run) => {
                let why = refused(std::iter::once(&run));
                // The fill wrote these blocks, and the verdict on every cell includes the faults of
                // the fill phase.
                if let Some(fill) = self.result.phases.first_mut() {
                    fill.run.add_faults(run);
                }
                why
            }
            Err(error) => Some(error.to_string()),
        }
    }
}
