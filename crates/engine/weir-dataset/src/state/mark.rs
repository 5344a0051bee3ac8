//! Bookmarks of a volume in RAM.
//!
//! Not here: the calls (`snapshots::bookmarks`).
//!
//! Invariant: a mark is stored again when it changed.

use weir_base::{DatasetId, RecordSize, Txg};
use weir_format::{Bookmark, DatasetKind, DatasetRecord, DatasetState, Properties, TreeRoot};

/// What is known of a bookmark, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookmarkInfo {
    /// Its own name.
    pub name: String,
    /// The guid of the snapshot it was made of.
    pub guid: u64,
    /// The last txg before its moment.
    pub txg: Txg,
    /// Wall clock when that snapshot was asked for.
    pub created_unix_ms: u64,
}

/// One bookmark as its volume's state keeps it.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) record: DatasetRecord,
    /// Whether the record must be stored.
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

/// The record of a bookmark: nothing of a dataset but a name and a time.
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
    }
}
