//! Requests for scans, and the progress of the running scan.
//!
//! `scan` runs the scans.
//!
//! Invariant: a newer request replaces the older one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tokio::sync::Notify;
use weir_pool::{ScanPlace, ScanStatus};

/// Requested state of the scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    #[default]
    Nothing,
    Running,
    Paused,
}

/// Requests for the scans of one pool, and their state.
#[derive(Default)]
pub(crate) struct ScanDesk {
    pub(crate) wanted: parking_lot::Mutex<Wanted>,
    /// Scrub of an earlier import epoch that is to be resumed.
    pub(crate) resume: parking_lot::Mutex<Option<(ScanStatus, ScanPlace)>>,
    /// Positions of the segments that the scrub reads and has read.
    pub(crate) places: parking_lot::Mutex<Places>,
    /// Number of times that scrubs were stopped. A scrub that started at a lower number ends, even
    /// if the next scrub is already requested.
    pub(crate) stops: AtomicU64,
    /// Consecutive unsuccessful resilvers.
    pub(crate) failures: parking_lot::Mutex<u32>,
    /// Time of the last verification of the metadata trees.
    pub(crate) own_trees_at: parking_lot::Mutex<Option<Duration>>,
    /// Consecutive recounts that corrected a counter.
    pub(crate) recounts: AtomicU32,
    /// True if clients used the pool during the last step of a scan.
    pub(crate) saw_load: AtomicBool,
    pub(crate) wake: Notify,
}

/// Position of a scrub, in scan order.
#[derive(Default)]
pub(crate) struct Places {
    /// Segments that the scrub reads now.
    pub(crate) under_way: BTreeSet<ScanPlace>,
    /// Last segment that the scrub completed.
    pub(crate) last: ScanPlace,
}

impl Places {
    /// Position before which the scrub has read everything.
    pub(crate) fn place(&self) -> ScanPlace {
        self.under_way.first().copied().unwrap_or(self.last)
    }

    pub(crate) fn end(&mut self, place: ScanPlace) {
        self.under_way.remove(&place);
        self.last = self.last.max(place);
    }
}
