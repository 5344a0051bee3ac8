//! Unreadable parts of the dataset directory.
//!
//! `commit::directory` reads the directory.
//!
//! Invariant: the number of an unreadable dataset is never assigned again.

use std::ops::Range;

use weir_base::{DatasetId, Txg};
use weir_format::DatasetRecord;

/// Unreadable parts of the directory that the import found; kept until the pool closes.
#[derive(Debug, Default)]
pub(crate) struct DirectoryLosses {
    /// Directory indexes that the next commit clears, after an administrator abandoned their
    /// entries.
    pub(crate) emptied: Vec<Range<u64>>,
    /// Directory indexes of unreadable entries, ascending.
    pub(crate) unread: Vec<Range<u64>>,
    /// Numbers that the unreadable datasets may have.
    pub(crate) numbers: Vec<Range<u64>>,
    /// Newest birth txg of the blocks that the unreadable datasets may reference.
    pub(crate) unread_until: Txg,
    /// Directory entries of snapshots and bookmarks whose volume is unreadable.
    pub(crate) orphans: Vec<DatasetRecord>,
    /// Blocks born in this txg or earlier may belong to an unreadable snapshot that is the origin
    /// of a clone.
    pub(crate) held_for_clones: Txg,
    /// True if the directory entry of the pool itself is unreadable.
    pub(crate) own: bool,
}

impl DirectoryLosses {
    /// True if the directory entry of the dataset with this number is unreadable.
    pub(crate) fn is_unread(&self, dataset: DatasetId) -> bool {
        self.numbers.iter().any(|numbers| numbers.contains(&dataset.0))
    }

    /// Newest birth txg of the blocks that no volume may free.
    pub(crate) fn held(&self) -> Txg {
        self.held_for_clones.max(self.unread_until)
    }
}
