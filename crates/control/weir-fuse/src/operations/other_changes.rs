//! Changes by other protocols, such as NFS, which share the filesystem with the mount.
//!
//! The kernel stores the attributes of most answers without a comparison with notifications: a
//! lookup can read the attributes before a change, and the kernel can store them after the
//! notification about the change. Only the attributes in an answer to GETATTR have a version: the
//! kernel ignores them if a notification came since the request (Linux `fs/fuse/inode.c`,
//! `fuse_change_attributes_i`). So other answers carry attributes that expire at once, and the
//! kernel asks with GETATTR before it uses them. Without other protocols this is unnecessary.
//!
//! Invariant: the first notification of a mount comes after the kernel has stored all attributes
//! that do not expire.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::limits::FIRST_CHANGE_WAIT;

/// State of the changes by other protocols since the start of the mount.
#[derive(Clone, Debug, Default)]
pub(crate) struct OtherChanges(Arc<OnceLock<Instant>>);

impl OtherChanges {
    /// Records a change. Returns the earliest time of its notification.
    pub(crate) fn record(&self) -> Instant {
        *self.0.get_or_init(Instant::now) + FIRST_CHANGE_WAIT
    }

    /// True if another protocol has changed the filesystem.
    pub(crate) fn exist(&self) -> bool {
        self.0.get().is_some()
    }
}
