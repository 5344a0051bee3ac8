//! The scan of a pool: its kind, state, pace and place.
//!
//! Not here: the scan (`scan`).
//!
//! Invariant: a pool has one scan.

use std::time::Duration;

use parking_lot::Mutex;
use weir_base::Clock;

use crate::disks::scan_kind::ScanKind;

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanState {
    /// Under way.
    Running,
    /// Waits to be continued.
    Paused,
    /// It saw everything.
    Finished,
    /// A person stopped it, or it could not go on.
    Stopped,
}

/// A scan as it is now.
#[derive(Clone, Copy, Debug)]
pub struct ScanStatus {
    /// What it is for.
    pub kind: ScanKind,
    /// How far it is.
    pub state: ScanState,
    /// When it began, ms since 1970.
    pub started_unix_ms: u64,
    /// When it ended.
    pub ended_unix_ms: Option<u64>,
    /// Time it ran, pauses left out.
    pub ran: Duration,
    /// Stored bytes it has to look at; an estimate, data changes meanwhile.
    pub total_bytes: u64,
    /// Stored bytes it looked at.
    pub examined_bytes: u64,
    /// Bytes written to legs whose copy was bad or missing.
    pub repaired_bytes: u64,
    /// Copies that could not be rewritten.
    pub unrepaired: u64,
    /// Blocks without any good copy.
    pub damaged: u64,
}

/// How much a step takes on.
#[derive(Clone, Copy)]
pub struct ScanPace<'a> {
    /// Blocks at most.
    pub blocks: usize,
    /// Runs of blocks at the same time ...
    pub runs_in_flight: usize,
    /// ... and bytes of all legs; one run is always taken.
    pub bytes_in_flight: usize,
    /// Legs of a run that are read at the same time. Beside clients it is one: what all legs give
    /// at once may be a mebibyte, and a client waits behind all of it where disks share a device.
    pub legs_in_flight: usize,
    /// Asked before each run but the first: false ends the step early.
    pub go_on: &'a (dyn Fn() -> bool + Sync),
}

/// A place in the order in which scans look at segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScanPlace {
    /// Number of a segment's place on its vdev.
    pub segment: u32,
    /// Number of the vdev.
    pub vdev: u16,
}

/// The newest scan of a pool.
#[derive(Default)]
pub(crate) struct Scans(pub(crate) Mutex<Option<(ScanStatus, Duration)>>);

impl Scans {
    /// A scan that runs counts its time up to now.
    pub(crate) fn status(&self, clock: &dyn Clock) -> Option<ScanStatus> {
        let (mut status, since) = (*self.0.lock())?;
        if status.state == ScanState::Running {
            status.ran += clock.monotonic().saturating_sub(since);
        }
        Some(status)
    }
}
