//! Requests for scans, and the progress of the running scan.
//!
//! Not here: the scans (`scan`).
//!
//! Invariant: a newer request replaces the older one.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use tokio::sync::Notify;
use weir_pool::{ScanPlace, ScanStatus};

/// What was asked of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wanted {
    #[default]
    Nothing,
    Running,
    Paused,
}

/// What people ask of the scans of one pool.
#[derive(Default)]
pub(crate) struct ScanDesk {
    pub(crate) wanted: parking_lot::Mutex<Wanted>,
    /// A scrub of an earlier opening, to be resumed.
    pub(crate) resume: parking_lot::Mutex<Option<(ScanStatus, ScanPlace)>>,
    /// Position of the scrub.
    pub(crate) places: parking_lot::Mutex<Places>,
    /// Scrubs that were stopped: a walk that began before ends, also if the next one was asked for.
    pub(crate) stops: AtomicU64,
    /// Resilvers in a row that did not succeed.
    pub(crate) failures: parking_lot::Mutex<u32>,
    /// When the pool's own trees were last verified.
    pub(crate) own_trees_at: parking_lot::Mutex<Option<Duration>>,
    /// Recounts in a row that corrected something.
    pub(crate) recounts: AtomicU32,
    /// Clients used the pool during the last step.
    pub(crate) saw_load: AtomicBool,
    pub(crate) wake: Notify,
}

/// Position of a scrub, in the order of places.
#[derive(Default)]
pub(crate) struct Places {
    /// Segments that the scrub reads now.
    pub(crate) under_way: BTreeSet<ScanPlace>,
    /// Last segment that the scrub completed.
    pub(crate) last: ScanPlace,
}

impl Places {
    /// Place before which the scrub has read everything.
    pub(crate) fn place(&self) -> ScanPlace {
        self.under_way.first().copied().unwrap_or(self.last)
    }

    pub(crate) fn end(&mut self, place: ScanPlace) {
        self.under_way.remove(&place);
        self.last = self.last.max(place);
    }
}
