//! The session of a mount: receives the kernel's requests, and performs them.

pub(crate) mod adapter;
pub(crate) mod fusermount;
pub(crate) mod gate;
pub(crate) mod kernel_caches;
pub(crate) mod mount;
pub(crate) mod mount_table;
mod notifier;
pub(crate) mod readers;
pub(crate) mod worker;
