//! Snapshots, clones and bookmarks.

pub(crate) mod bookmarks;
pub(crate) mod directory;
pub(crate) mod lookup;
pub(crate) mod take;
