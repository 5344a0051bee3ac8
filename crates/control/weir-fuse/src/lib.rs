//! Mounts of filesystems: the Linux kernel sends the file operations of programs as FUSE requests,
//! and a mount answers them with the operations of weir-fs.
//!
//! weir-fs has the filesystem, the crate `fuser` has the protocol of the kernel. The server
//! (weir-server) selects the directories.
//!
//! Invariants:
//! - every request gets an answer: a request that the mount cannot answer fails with an error;
//! - the requests in flight, their data and the open files of a mount are bounded.

#![deny(clippy::indexing_slicing)]

mod errno;
mod error;
mod attributes;
mod limits;

// Modules, lowest layer first: `session` receives requests, `operations` performs them.
mod operations;
mod session;

pub use attributes::now;
pub use error::MountError;
pub use limits::OPENS_MAX;
pub use session::kernel_caches::KernelCaches;
pub use session::mount::{Mount, MountOptions, unmount};
pub use session::mount_table::{MountedAt, is_dead, mounts};
