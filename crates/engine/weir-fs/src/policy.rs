//! Settings of an open filesystem that a server chooses: atimes and the freeing of files.
//!
//! Invariant: no setting changes the content of the dataset by itself.

use weir_format::files::TimeStamp;

/// Rule by which reads set the atime of an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtimePolicy {
    /// A read sets the atime if the atime is not after the last change, or is older than 24 hours
    /// (mount option `relatime` of Linux).
    #[default]
    Relative,
    /// No read sets the atime.
    Off,
    /// Each read sets the atime.
    On,
}

/// Times of reads of an inode, while the inode in the dataset has an older atime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadTime {
    pub(crate) newest: TimeStamp,
    /// Time of the first read since the inode was written.
    pub(crate) first: TimeStamp,
}

/// Limits of the freeing of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeingLimits {
    /// A file with at most this number of records is freed at once.
    pub at_once: u64,
    /// Maximum number of records that a background task frees in one txg.
    pub part: u64,
}

impl Default for FreeingLimits {
    fn default() -> Self {
        Self { at_once: 1024, part: 1 << 16 }
    }
}
