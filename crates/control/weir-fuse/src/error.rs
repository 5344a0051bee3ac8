//! Errors of mounts.
//!
//! Invariant: an error names the step of the start that failed.

use std::io;

use weir_base::ErrorKind;

/// Device of the FUSE protocol.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// Reason why a mount could not start.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or the server may not use it.
    #[error("{DEVICE} cannot be opened: {0}")]
    Device(io::Error),
    /// A server without root needs a program to mount.
    #[error("only root can mount without fusermount3, and it is not installed")]
    NoHelper,
    /// The program that mounts for a server without root refused the mount.
    #[error("{0}")]
    Helper(io::Error),
    /// The kernel refused the mount.
    #[error("the kernel refused the mount: {0}")]
    Mount(io::Error),
    /// The kernel and this program could not agree on the protocol.
    #[error("the mount did not start: {0}")]
    Session(io::Error),
    /// A thread or its runtime could not be started.
    #[error("no thread for the mount: {0}")]
    Thread(io::Error),
}

impl MountError {
    /// Returns the kind that the API maps to its own codes.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Device(error) | Self::Mount(error) => match error.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Unavailable,
            },
            Self::NoHelper | Self::Helper(_) => ErrorKind::Permission,
            Self::Session(_) | Self::Thread(_) => ErrorKind::Unavailable,
        }
    }
}
