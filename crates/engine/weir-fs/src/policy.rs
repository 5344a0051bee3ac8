//! Settings of an open filesystem: atimes that only memory has, and the freeing of files.
//!
//! Invariant: no setting changes the content of the dataset by itself.

use weir_format::files::TimeStamp;

/// Time of the last read that the inode in the dataset lacks.
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
