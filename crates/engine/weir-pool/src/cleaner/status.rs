//! Cleaner status for display: recent work and free space.
//!
//! Not here: the counters (`cleaner_statistics`), the cleaner (`run`).
//!
//! Invariant: reading the status does not wait for the cleaner.

use crate::segments::reserve::Reserve;
use crate::state::cleaner_statistics::{Cleaned, LATELY};
use crate::state::pool::Pool;

/// Status of a pool's cleaner.
#[derive(Clone, Copy, Debug)]
pub struct CleanerStatus {
    /// Work since the pool was opened.
    pub total: Cleaned,
    /// Work in the last `lately_ms`.
    pub lately: Cleaned,
    /// Length of the period of `lately`; shorter than usual if the pool was opened within it.
    pub lately_ms: u64,
    /// Number of free segments.
    pub free_segments: u64,
    /// Number of dead and cleaned segments that become free within a few txgs.
    pub pending_segments: u64,
    /// Number of all segments.
    pub segments: u64,
    /// Watermarks: the cleaner works while free and pending segments are below them.
    pub reserve: Reserve,
    /// RAM of the remap tables.
    pub remap_bytes: u64,
}

impl Pool {
    /// Statistics and watermarks of the cleaner. Does no I/O.
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
