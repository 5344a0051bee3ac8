//! Calls about snapshots and bookmarks.

pub(crate) mod bookmark_calls;
pub(crate) mod snapshot_calls;
