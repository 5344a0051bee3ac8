//! Status of the cleaner for people: its recent work.
//!
//! Not here: the counters (`cleaner_statistics`), the cleaner (`run`).
//!
//! Invariant: a status is read without waiting for the cleaner.

use crate::segments::reserve::Reserve;
use crate::state::cleaner_statistics::{Cleaned, LATELY};
use crate::state::pool::Pool;

/// The cleaner of a pool, for people.
#[derive(Clone, Copy, Debug)]
pub struct CleanerStatus {
    /// Since the pool was opened.
    pub total: Cleaned,
    /// In the last `lately_ms`.
    pub lately: Cleaned,
    /// What that is; shorter while the pool was not open for as long.
    pub lately_ms: u64,
    /// Free segments now.
    pub free_segments: u64,
    /// Dead and cleaned ones that come back within a few txgs.
    pub pending_segments: u64,
    /// All segments.
    pub segments: u64,
    /// Below which free and pending segments it works.
    pub reserve: Reserve,
    /// RAM of the remap tables.
    pub remap_bytes: u64,
}

impl Pool {
    /// What the cleaner did, and what it goes by. Asks no disk.
    pub fn cleaner_status(&self) -> CleanerStatus {
        let now = self.clock.monotonic();
        let (total, lately) = self.cleanings.at(now);
        let (free, pending) = self.free_segments();
        CleanerStatus {
            total,
            lately,
            lately_ms: LATELY.min(now).as_millis() as u64,
            free_segments: free as u64,
            pending_segments: pending as u64,
            segments: self.segments.areas.total_segments(),
            reserve: self.reserve(),
            remap_bytes: self.segments.remap_bytes(),
        }
    }
}
