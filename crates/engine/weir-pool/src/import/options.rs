//! Options of an import.
//!
//! Not here: the import (`open_pool`).
//!
//! Invariant: the default opens the newest state and respects the owner.

use weir_base::Guid;

use crate::state::claim::Identity;
use crate::state::moment::PoolMoment;

/// How to import.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Accept an older uberblock or a damaged log when the newest cannot be used, a missing log,
    /// the newest of halves that diverged, disks whose history lacks `newest_seen`, and a pool that
    /// another server has open; the other server then stops using it.
    pub force: bool,
    /// The newest txg that the caller has seen of the pool. Import refuses disks whose history
    /// lacks it: an old leg alone, or disks whose newest uberblocks are damaged in every copy.
    pub newest_seen: Option<PoolMoment>,
    /// The process that opens the pool and checks for another owner; `None` if the import writes
    /// nothing to the disks.
    pub owner: Option<&'static Identity>,
    /// Wait for unresponsive disks, however long: the pool is known to have run without some disk,
    /// and the responding disks may lack its last writes.
    pub waits_for_all: bool,
    /// Drawn at random: names this opening of the pool in its history.
    pub opening: Guid,
}

impl ImportOptions {
    /// An import without force, by a caller that has seen nothing of the pool and does not own it.
    pub const fn new(opening: Guid) -> Self {
        Self { force: false, newest_seen: None, owner: None, waits_for_all: false, opening }
    }
}
