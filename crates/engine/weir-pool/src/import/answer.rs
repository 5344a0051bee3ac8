//! Result of reading the labels of one disk.
//!
//! Not here: the reads (`late_disks`).
//!
//! Invariant: a disk that does not answer in time is late; it does not count as absent.

use std::sync::Arc;

use weir_device::{Device, DeviceError};
use weir_format::FormatError;

use crate::disks::labels::DiskLabels;

/// Reason why a disk has no usable label.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unlabelled {
    #[error(transparent)]
    Device(DeviceError),
    #[error(transparent)]
    Format(FormatError),
}

/// One disk and the labels read from it.
pub(crate) struct Answer {
    pub(crate) disk: Arc<dyn Device>,
    pub(crate) labels: Result<DiskLabels, Unlabelled>,
}
