//! Disks of a pool that an import found, with their labels.
//!
//! Not here: the search (`found`).
//!
//! Invariant: a disk is listed once.

use std::sync::Arc;

use weir_base::Guid;
use weir_device::Device;
use weir_format::{FormatError, Label, Owner, Uberblock, VdevRole};

/// One disk of a pool, with the contents of its labels.
pub(crate) struct FoundDisk {
    pub(crate) guid: Guid,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) label: Label,
    pub(crate) uberblocks: Vec<Uberblock>,
    pub(crate) damaged_slots: Vec<u64>,
    pub(crate) owner: Option<Owner>,
    /// True if a label copy has an older format version than this Weir writes.
    pub(crate) is_old_format: bool,
}

impl FoundDisk {
    /// True if the disk is a spare, which misses no txgs.
    pub(crate) fn is_spare(&self) -> bool {
        self.label.place().is_some_and(|(vdev, _)| self.label.vdevs[vdev].role == VdevRole::Spare)
    }
}

/// Labels of all disks of one pool.
pub(crate) struct Found {
    /// Label that describes the pool.
    pub(crate) label: Label,
    pub(crate) disks: Vec<FoundDisk>,
    /// Paths of excluded disks, each with the reason.
    pub(crate) left_out: Vec<(String, String)>,
    /// Disk of this pool that a newer Weir wrote, and its error.
    pub(crate) newer_format: Option<(String, FormatError)>,
}
