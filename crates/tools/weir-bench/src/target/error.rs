//! Reasons why the program cannot measure a target.
//!
//! Invariant: each error contains the address of the target, and has an action for the user.

use std::path::Path;

/// Forms of addresses of the targets with files, for messages.
pub(crate) const WITH_FILES: &str = "dir:PATH or nfs://HOST/EXPORT/DIR";

/// Reason why the program cannot measure a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The address is malformed.
    #[error("bad target {text:?}: {why}")]
    Address {
        /// Address as given by the user.
        text: String,
        /// Reason for which the address is malformed.
        why: String,
    },
    /// The program cannot open or access the target.
    #[error("{address}: {what}: {source}")]
    Io {
        /// Address of the target.
        address: String,
        /// Operation that failed.
        what: &'static str,
        /// Error that the operating system returned.
        source: std::io::Error,
    },
    /// The target is smaller than the dataset.
    #[error("{address} has {bytes} bytes, the dataset needs {dataset_bytes}")]
    TooSmall {
        /// Address of the target.
        address: String,
        /// Size of the target in bytes.
        bytes: u64,
        /// Required size in bytes.
        dataset_bytes: u64,
    },
    /// The length or offset of operations is not a multiple of the target's block size.
    #[error("{address} requires multiples of {block_bytes} bytes, not {bytes}")]
    Unaligned {
        /// Address of the target.
        address: String,
        /// Block size of the target.
        block_bytes: u32,
        /// Length or offset that the operations would use, in bytes.
        bytes: u64,
    },
    /// The server does not speak the protocol, or refused a request.
    #[error("{address}: {why}")]
    Protocol {
        /// Address of the target.
        address: String,
        /// Description of the protocol error, or of the refused request.
        why: String,
    },
    /// The server stopped answering.
    #[error("{address}: no answer to {what} within {seconds} s")]
    NoAnswer {
        /// Address of the target.
        address: String,
        /// Step of the session that got no answer.
        what: &'static str,
        /// Length of the wait in seconds.
        seconds: u64,
    },
    /// An iSCSI session failed.
    #[error("{address}: {source}")]
    Iscsi {
        /// Address of the target.
        address: String,
        /// Error of the initiator.
        source: weir_initiator::InitiatorError,
    },
    /// A mount, a call or a connection of NFS failed.
    #[error("{address}: {source}")]
    Nfs {
        /// Address of the target.
        address: String,
        /// Error of the client.
        source: weir_nfs_client::NfsError,
    },
    /// The target has blocks but no files, so it has no metadata operations.
    #[error("{address} has no files, so it has no metadata operations")]
    NoFiles {
        /// Address of the target.
        address: String,
    },
    /// Another program uses the target.
    #[error("{address} is in use by another program")]
    InUse {
        /// Address of the target.
        address: String,
    },
    /// The directory of an NFS server has the lock file of another run.
    #[error("{address} is in use by another run of weir bench ({holder})")]
    Locked {
        /// Address of the target.
        address: String,
        /// Content of the lock file: process, host and time.
        holder: String,
    },
    /// The target holds data of another program.
    #[error("{address} holds data that this program did not write")]
    HoldsData {
        /// Address of the target.
        address: String,
    },
}

impl TargetError {
    /// Action that the program recommends to the user.
    pub fn action(&self) -> String {
        match self {
            Self::Address { .. } => "write a path, file:PATH, dir:PATH, nbd://HOST/EXPORT, \
                 nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN, nfs://HOST/EXPORT/DIR or \
                 null:"
                .to_owned(),
            Self::Io { .. } => "check that it exists and is readable and writable".to_owned(),
            Self::TooSmall { .. } => "use a smaller dataset (--size) or a larger target".to_owned(),
            Self::Unaligned { .. } => "use multiples of its block size".to_owned(),
            Self::Protocol { .. } => "check the server and the name of the export".to_owned(),
            Self::NoAnswer { .. } => {
                "check that the server runs, check its log, and then repeat the run".to_owned()
            }
            Self::Iscsi { source, .. } => source.action().to_owned(),
            Self::Nfs { source, .. } => source.action().to_owned(),
            Self::NoFiles { .. } => format!("use a target with files: {WITH_FILES}"),
            Self::InUse { .. } => {
                "wait for the other run, or export the pool that uses it as a disk".to_owned()
            }
            Self::Locked { .. } => {
                "wait for the other run; if that process has ended, repeat with \
                 --remove-lock"
                    .to_owned()
            }
            Self::HoldsData { address } => {
                format!(
                    "the run overwrites everything on it; to allow that, repeat with --destroy \
                     {address}"
                )
            }
        }
    }
}

/// Adds the path and the failed operation to an error of the operating system.
pub(super) fn io_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> TargetError {
    let address = path.display().to_string();
    move |source| TargetError::Io { address: address.clone(), what, source }
}
