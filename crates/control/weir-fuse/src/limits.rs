//! Limits of one mount.
//!
//! Invariant: these limits bound the memory and the open files of the server that a program can
//! take through a mount.

use std::time::Duration;

/// Maximum number of open files and directories of one mount.
pub const OPENS_MAX: usize = 64 << 10;

/// Maximum number of requests that run at the same time on the worker thread.
pub(crate) const REQUESTS_MAX: usize = 1024;

/// Maximum number of requests that no program waits for, such as reads ahead. The kernel holds
/// further ones.
pub(crate) const BACKGROUND_MAX: u16 = 256;

/// Maximum number of requests that wait while [`REQUESTS_MAX`] requests run. The kernel keeps
/// further requests.
pub(crate) const QUEUE_MAX: usize = 64;

/// Maximum bytes of data of the writes that run or wait.
pub(crate) const WRITE_BYTES_MAX: usize = 32 << 20;

/// Maximum bytes of the answers of the reads that run. Further reads wait.
pub(crate) const READ_BYTES_MAX: u32 = 32 << 20;

/// Maximum bytes of one write. weir-fs applies a write of this size as a single change.
pub(crate) const ONE_WRITE_BYTES_MAX: u32 = 1 << 20;

/// Time for which the kernel may use attributes and names without a request. The kernel knows every
/// change: changes of the files pass the mount, or the server reports them
/// (`KernelCaches::invalidate`). Only changes of set-id bits are an exception (`cache_time`).
/// For names in a case-insensitive filesystem the time is zero (`Served::name_cache`).
pub(crate) const KERNEL_CACHE: Duration = Duration::from_hours(1);

/// Maximum number of threads of a mount that read requests and perform them.
pub(crate) const READERS_MAX: usize = 16;

/// Maximum number of changes by other protocols that wait for the kernel. Further callers wait. A
/// change has at most two names and four inodes, so the queue takes at most 4 MiB.
pub(crate) const CHANGES_MAX: usize = 4096;

/// Time after which the caller of a change no longer waits for the kernel. The kernel waits for the
/// requests of the same file or directory, which usually take milliseconds, and seconds while disks
/// are slow. NFS clients repeat a call after 60 s (nfs(5), `timeo`) and report a dead server then.
pub(crate) const KERNEL_ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Time between the first change by another protocol and its notification, once for a mount
/// (`OtherChanges`). A program stores the attributes of an answer within milliseconds. An answer to
/// READDIRPLUS may wait for disks.
pub(crate) const FIRST_CHANGE_WAIT: Duration = Duration::from_secs(1);
