//! Parts of the directory of datasets that cannot be read.
//!
//! Not here: reading the directory (`commit::directory`).
//!
//! Invariant: a lost number is not given to another dataset.

use std::ops::Range;

use weir_base::{DatasetId, Txg};
use weir_format::DatasetRecord;

/// Losses of the directory, found at import and kept until the pool is closed.
#[derive(Debug, Default)]
pub(crate) struct DirectoryLosses {
    /// Places that the next commit empties: a person gave them up.
    pub(crate) emptied: Vec<Range<u64>>,
    /// Places whose records cannot be read, ascending.
    pub(crate) unread: Vec<Range<u64>>,
    /// Numbers of datasets that may be there.
    pub(crate) numbers: Vec<Range<u64>>,
    /// Newest birth of the blocks that such a dataset may have.
    pub(crate) unread_until: Txg,
    /// Records of snapshots and bookmarks without their volume.
    pub(crate) orphans: Vec<DatasetRecord>,
    /// What was born up to here may be part of a lost snapshot that a clone began as.
    pub(crate) held_for_clones: Txg,
    /// The pool's own record is among what was lost.
    pub(crate) own: bool,
}

impl DirectoryLosses {
    /// True if the record of the dataset with this number cannot be read.
    pub(crate) fn is_unread(&self, dataset: DatasetId) -> bool {
        self.numbers.iter().any(|numbers| numbers.contains(&dataset.0))
    }

    /// Newest birth of the blocks that no volume may free.
    pub(crate) fn held(&self) -> Txg {
        self.held_for_clones.max(self.unread_until)
    }
}
