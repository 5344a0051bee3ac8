//! Filesystems: their verbs, and the commands that mount them.

pub(crate) mod mount;
pub(crate) mod quota;
pub(crate) mod verbs;
