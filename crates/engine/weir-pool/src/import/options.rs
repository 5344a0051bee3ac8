//! Options of an import.
//!
//! Not here: the import (`open_pool`).
//!
//! Invariant: the default opens the newest state and respects the owner.

use weir_base::Guid;

use crate::state::claim::Identity;
use crate::state::moment::HistoryPoint;

/// Options of one import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Import the pool even with one of these defects: the newest uberblock or log batch is
    /// unusable, so that an older one must be used; the log is missing; disks diverged, so that one
    /// side must be chosen; the history of the disks lacks `newest_seen`; or another server has the
    /// pool open (that server then stops using the pool).
    pub force: bool,
    /// Newest txg of the pool that the caller has seen. Import refuses disks whose history lacks
    /// this txg: an old leg alone, or disks whose newest uberblocks are damaged in every copy.
    pub newest_seen: Option<HistoryPoint>,
    /// Process that opens the pool and checks whether another process owns it; `None` if the import
    /// writes nothing to the disks.
    pub owner: Option<&'static Identity>,
    /// Wait for unresponsive disks without a time limit. Used for a pool that ran without one of
    /// its disks, because the responding disks may lack the last writes.
    pub waits_for_all: bool,
    /// Random id of this import epoch in the pool's history.
    pub import_epoch: Guid,
}

impl ImportOptions {
    /// Options without force, for a caller that has seen no txg of the pool and does not own it.
    pub const fn new(import_epoch: Guid) -> Self {
        Self { force: false, newest_seen: None, owner: None, waits_for_all: false, import_epoch }
    }
}
