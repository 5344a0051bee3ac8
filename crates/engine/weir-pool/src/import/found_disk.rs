//! Disks that were found for a pool, with their labels.
//!
//! Not here: the search (`found`).
//!
//! Invariant: a disk is found once.

use std::sync::Arc;

use weir_base::Guid;
use weir_device::Device;
use weir_format::{Label, Owner, Uberblock};

/// A disk of a pool and what its labels say.
pub(crate) struct FoundDisk {
    pub(crate) guid: Guid,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) uberblocks: Vec<Uberblock>,
    pub(crate) damaged_slots: Vec<u64>,
    pub(crate) owner: Option<Owner>,
}

/// The labels of all disks of one pool.
pub(crate) struct Found {
    pub(crate) label: Label,
    pub(crate) disks: Vec<FoundDisk>,
    /// Disks that were left out, by path, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
}
