//! Limits of one mount.
//!
//! Invariant: a program that uses a mount can neither take more memory of the server than these
//! limits, nor more open files.

/// Maximum number of open files and directories of one mount.
pub const OPENS_MAX: usize = 64 << 10;

/// Maximum number of requests that run at the same time.
pub(crate) const REQUESTS_MAX: usize = 256;

/// Maximum number of requests that wait for a place among the running ones. The kernel keeps
/// further requests.
pub(crate) const QUEUE_MAX: usize = 64;

/// Maximum bytes of data of the writes that run or wait.
pub(crate) const WRITE_BYTES_MAX: usize = 32 << 20;

/// Maximum bytes of one write: weir-fs makes one change of a write of this size.
pub(crate) const ONE_WRITE_BYTES_MAX: u32 = 1 << 20;

/// Time for which the kernel may use attributes and names without a request. The mount is the only
/// door to the files, and the kernel knows of every change that passes the mount.
pub(crate) const KERNEL_CACHE: std::time::Duration = std::time::Duration::from_hours(1);
