//! Disks, memory, and one thread for each open pool.

pub(crate) mod clock;
pub(crate) mod flush_check;
pub(crate) mod identity;
pub mod memory;
pub(crate) mod mount_directory;
pub mod open_disks;
pub(crate) mod pool_locks;
pub(crate) mod pool_thread;
