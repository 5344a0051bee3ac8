//! Unreadable part of a metadata tree.
//!
//! The trees are in `metadata_trees`.
//!
//! Invariant: a part is a range of keys.

use std::ops::Range;

use weir_format::TreeRoot;

/// A part of a tree that cannot be read on any leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostPart {
    /// Level of the node; 0 is a block.
    pub level: u8,
    /// Index in its level.
    pub index: u64,
}

impl LostPart {
    /// Range of the blocks below it.
    pub fn blocks(&self) -> Range<u64> {
        let span = TreeRoot::capacity(self.level);
        self.index * span..(self.index + 1) * span
    }
}
