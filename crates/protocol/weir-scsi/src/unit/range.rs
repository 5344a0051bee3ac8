//! A range of blocks of a logical unit.
//!
//! Not here: locks on ranges (`range_lock`).
//!
//! Invariant: a range lies within the logical unit it was made for.

/// Bytes from `start` up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// First.
    pub(crate) start: u64,
    /// First one behind it.
    pub(crate) end: u64,
}

impl Range {
    /// Whether they have bytes in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl Range {
    /// How many bytes.
    pub(crate) const fn len_bytes(self) -> u64 {
        self.end - self.start
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}
