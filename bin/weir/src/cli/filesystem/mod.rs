//! Filesystems: their verbs, their shares, and the commands that mount them.

pub(crate) mod mount;
pub(crate) mod quota;
pub(crate) mod share;
pub(crate) mod verbs;
