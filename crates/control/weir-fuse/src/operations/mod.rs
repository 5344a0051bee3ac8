//! The operations of the kernel, on the operations of weir-fs.

pub(crate) mod content;
pub(crate) mod directories;
pub(crate) mod inodes;
pub(crate) mod names;
pub(crate) mod opens;
pub(crate) mod other_changes;
pub(crate) mod places;
pub(crate) mod project;
pub(crate) mod served;
pub(crate) mod snapshots;
pub(crate) mod xattrs;
