//! The answer of a disk to a read of its labels.
//!
//! Not here: the reads (`late_disks`).
//!
//! Invariant: a disk without an answer in time is late, not absent.

use std::sync::Arc;

use weir_device::{Device, DeviceError};
use weir_format::FormatError;

use crate::disks::labels::DiskLabels;

/// Why a disk has no usable label.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unlabelled {
    #[error(transparent)]
    Device(DeviceError),
    #[error(transparent)]
    Format(FormatError),
}

/// What one disk answered.
pub(crate) struct Answer {
    pub(crate) disk: Arc<dyn Device>,
    pub(crate) labels: Result<DiskLabels, Unlabelled>,
}
