//! Status of a pool's scrub or resilver: kind, state, pace and position.
//!
//! The scan itself is in `scan`.
//!
//! Invariant: a pool has at most one scan.

use std::time::Duration;

use parking_lot::Mutex;
use weir_base::Clock;

use crate::disks::scan_kind::ScanKind;

/// State of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanState {
    /// The scan is in progress.
    Running,
    /// The user paused the scan.
    Paused,
    /// The scan visited everything.
    Finished,
    /// An administrator stopped the scan, or it could not continue.
    Stopped,
}

/// Current status of a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanStatus {
    /// Kind of the scan: scrub or resilver.
    pub kind: ScanKind,
    /// State of the scan.
    pub state: ScanState,
    /// Start time in ms since 1970.
    pub started_unix_ms: u64,
    /// End time in ms since 1970.
    pub ended_unix_ms: Option<u64>,
    /// Running time of the scan without pauses.
    pub ran: Duration,
    /// Stored bytes to examine; an estimate, because data changes during the scan.
    pub total_bytes: u64,
    /// Stored bytes examined so far.
    pub examined_bytes: u64,
    /// Bytes written to legs whose copy was bad or missing.
    pub repaired_bytes: u64,
    /// Copies that could not be rewritten.
    pub unrepaired: u64,
    /// Blocks without any good copy.
    pub damaged: u64,
}

/// Limits of one step of a scan.
#[derive(Clone, Copy)]
pub struct ScanPace<'a> {
    /// Maximum number of blocks that the step checks.
    pub blocks: usize,
    /// Maximum number of runs of blocks that are checked concurrently.
    pub runs_in_flight: usize,
    /// Maximum bytes of concurrent runs, on all legs together. One run is always allowed.
    pub bytes_in_flight: usize,
    /// Number of legs from which a run is read concurrently; 1 under client load: reads of all legs
    /// may total a mebibyte, and if disks share a device, a client request waits for all these
    /// reads.
    pub legs_in_flight: usize,
    /// The step calls this function before each run except the first; if it returns false, the step
    /// ends early.
    pub go_on: &'a (dyn Fn() -> bool + Sync),
}

/// Position in the order in which scans visit segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanPlace {
    /// Number of the physical segment on its vdev.
    pub segment: u32,
    /// Number of the vdev.
    pub vdev: u16,
}

/// The newest scan of a pool, with the time of its last start.
#[derive(Default)]
pub(crate) struct Scans(pub(crate) Mutex<Option<(ScanStatus, Duration)>>);

impl Scans {
    /// Returns the status. The running time of a scan in progress counts up to now.
    pub(crate) fn status(&self, clock: &dyn Clock) -> Option<ScanStatus> {
        let (mut status, since) = (*self.0.lock())?;
        if status.state == ScanState::Running {
            status.ran += clock.monotonic().saturating_sub(since);
        }
        Some(status)
    }
}
