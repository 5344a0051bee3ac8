//! Bookmarks of a volume in RAM.
//!
//! `snapshots::bookmarks` implements the calls.
//!
//! Invariant: a changed bookmark is stored again.

use weir_base::{DatasetId, RecordSize, Txg};
use weir_format::{Bookmark, DatasetKind, DatasetRecord, DatasetState, Properties, TreeRoot};

/// Description of a bookmark, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookmarkInfo {
    /// Name of the bookmark, without the volume's name.
    pub name: String,
    /// Guid of the bookmark's snapshot.
    pub guid: u64,
    /// Txg of the bookmark's snapshot.
    pub txg: Txg,
    /// Time at which a client requested the bookmark's snapshot, by the wall clock.
    pub created_unix_ms: u64,
}

/// Bookmark in the state of its volume.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) record: DatasetRecord,
    /// True if the commit must write the bookmark's directory entry.
    pub(crate) dirty: bool,
}

impl Mark {
    pub(crate) fn new(record: DatasetRecord, dirty: bool) -> Self {
        Self { record, dirty }
    }

    pub(crate) fn bookmark(&self) -> Bookmark {
        match self.record.kind {
            DatasetKind::Bookmark(bookmark) => bookmark,
            _ => unreachable!("only bookmarks are in a volume's list of them"),
        }
    }

    pub(crate) fn info(&self) -> BookmarkInfo {
        let Bookmark { txg, guid, .. } = self.bookmark();
        let DatasetRecord { ref name, created_unix_ms, .. } = self.record;
        BookmarkInfo { name: name.clone(), guid, txg, created_unix_ms }
    }
}

/// Directory entry of a bookmark: apart from its kind it has only a name and a time.
pub(crate) fn record(
    id: DatasetId,
    name: &str,
    of: Bookmark,
    created_unix_ms: u64,
) -> DatasetRecord {
    DatasetRecord {
        id,
        kind: DatasetKind::Bookmark(of),
        state: DatasetState::Active,
        name: name.to_owned(),
        size_bytes: 0,
        record_size: RecordSize::BLOCK,
        properties: Properties::default(),
        created_txg: of.txg,
        created_unix_ms,
        root: TreeRoot::default(),
        used_blocks: 0,
        stored_units: 0,
        shared_units: 0,
        tree_units: 0,
        born_units: 0,
        freed_to: 0,
        objects: None,
    }
}
