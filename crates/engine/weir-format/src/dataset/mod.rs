//! Records of datasets in the dataset directory: their fields, and their encoding in this format
//! and in format 8.

mod body;
mod encoding;
mod record;
mod v8;

pub use record::{
    ANCESTORS_MAX, Ancestor, BOOKMARKS_MAX, Bookmark, DatasetKind, DatasetRecord, DatasetState,
    Descent, HOLD_BYTES_MAX, HOLDS_MAX, ObjectTable, Origin, Receiving, SnapshotFields,
};
