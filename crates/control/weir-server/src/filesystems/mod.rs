//! Filesystems and their mounts.

pub(crate) mod filesystem_calls;
pub(crate) mod mount_calls;
pub(crate) mod quota_calls;
