//! Byte range of a logical unit.
//!
//! Range locks are in `range_lock`.
//!
//! Invariant: a range lies within the logical unit for which it was created.

/// Bytes from `start` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Offset of the first byte.
    pub(crate) start: u64,
    /// Offset after the last byte.
    pub(crate) end: u64,
}

impl Range {
    /// True if the ranges have bytes in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl Range {
    /// Number of bytes.
    pub(crate) const fn len_bytes(self) -> u64 {
        self.end - self.start
    }

    /// True if the range is empty.
    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}
