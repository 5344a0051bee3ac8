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
    /// Level of the unreadable node; 0: a block.
    pub level: u8,
    /// Index of the node or block in its level.
    pub index: u64,
}

impl LostPart {
    /// Range of the blocks below the unreadable node.
    pub fn blocks(&self) -> Range<u64> {
        let span = TreeRoot::capacity(self.level);
        self.index * span..(self.index + 1) * span
    }
}
