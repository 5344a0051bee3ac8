//! Targets of a benchmark: files, devices, NBD exports, iSCSI logical units, and synthetic targets
//! with known behaviour that measure the generator itself.
//!
//! `load` generates the load on a target; `content` generates and checks the contents of blocks.
//!
//! Invariants:
//! - a target has one address space that starts at 0; files of a directory are consecutive ranges
//!   of it;
//! - each worker has its own lane and shares no state with other workers;
//! - a lane has a fixed number of slots, each with a buffer; a slot is busy from the `submit` of an
//!   operation until `reap` returns the completion of the operation.

pub mod address;
mod buffers;
pub(crate) mod caches;
mod calls;
mod directory;
mod file;
mod guard;
mod inline;
mod iscsi;
pub mod memory;
pub mod metadata;
mod nbd;
mod null;
mod psync;
pub mod shaped;
mod tree;
mod uring;

use std::path::Path;
use std::time::{Duration, Instant};

pub use address::Address;
pub use guard::{Holds, take, what_is_at, what_it_holds};
pub use metadata::{FileTree, MetadataCall, MetadataOp};

use crate::result::TargetInfo;
use crate::spec::{DatasetSpec, OpKind};

/// Maximum time without a completion, after which a server counts as lost. The value equals the
/// usual disk timeout of operating systems.
#[cfg(not(test))]
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Limit in unit tests, shorter than the real limit, so that the tests end soon.
#[cfg(test)]
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Forms of addresses of the targets with files, for messages.
pub(crate) const WITH_FILES: &str = "dir:PATH";

/// An operation on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Kind of the operation.
    pub kind: OpKind,
    /// Offset of the first byte; a multiple of the target's block size.
    pub offset: u64,
    /// Length in bytes of the data, which begins at the start of the slot's buffer; 0 for a flush.
    /// COMPARE AND WRITE has twice this length in the buffer: the data to compare, then the data to
    /// write.
    pub len_bytes: u32,
    /// True if a write must be on stable media when it completes.
    pub durable: bool,
    /// Offset of the first byte that a copy reads; 0 for all other operations.
    pub source: u64,
}

/// A completed operation.
#[derive(Debug)]
pub struct Done {
    /// Slot of the operation.
    pub slot: usize,
    /// Result of the operation.
    pub result: Result<(), std::io::Error>,
    /// Time at which the lane received the completion.
    pub at: Instant,
}

/// Limit of the wait in [`Lane::reap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    No,
    /// Wait for at least one completion.
    One,
    /// Wait for at least one completion or until this time.
    Until(Instant),
}

/// I/O channel between one worker and a target.
pub trait Lane: Send {
    /// Buffer of a slot that has no operation in flight.
    fn buffer(&mut self, slot: usize) -> &mut [u8];

    /// Starts an operation in a free slot and sends it. If the target does not accept the whole
    /// request at once, the next `reap` sends the rest.
    ///
    /// # Errors
    /// If the lane is lost.
    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError>;

    /// Starts a metadata operation in a free slot and sends it; `reap` returns its completion. Only
    /// lanes from [`FileTree::lane`] execute metadata operations. The operations in flight may
    /// complete in any order.
    ///
    /// # Errors
    /// If the lane is lost, or has no files.
    fn submit_metadata(&mut self, _slot: usize, _op: &MetadataOp) -> Result<(), TargetError> {
        Err(TargetError::NoFiles { address: "this target".to_owned() })
    }

    /// Appends the completions of operations to `done`.
    ///
    /// # Errors
    /// If the lane is lost, together with all its operations in flight.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError>;
}

/// A measurable target.
pub trait Target: Send + Sync {
    /// Known properties of the target.
    fn info(&self) -> &TargetInfo;

    /// Opens a lane with `slots` slots, each with a buffer of `buffer_bytes`.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError>;

    /// True if a read returns the data that was written. The run does not verify data of other
    /// targets, which are synthetic.
    fn keeps_data(&self) -> bool {
        true
    }

    /// PID of the server, if the server runs on this machine and the connection reveals the PID.
    fn server_process(&self) -> Option<u32> {
        None
    }

    /// Maximum size of an operation of this kind; 0 if the target does not support the kind.
    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        if matches!(kind, OpKind::Read | OpKind::Write | OpKind::Flush) { u64::MAX } else { 0 }
    }

    /// Files of the target, for metadata operations; `None` if the target has only blocks.
    fn files(&self) -> Option<&dyn FileTree> {
        None
    }

    /// Drops the caches between this process and the storage of the target. Returns false if the
    /// target does not support dropping caches.
    ///
    /// # Errors
    /// If dropping the caches failed.
    fn drop_caches(&self) -> Result<bool, TargetError> {
        Ok(false)
    }
}

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
                 nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN or null:"
                .to_owned(),
            Self::Io { .. } => "check that it exists and is readable and writable".to_owned(),
            Self::TooSmall { .. } => "use a smaller dataset (--size) or a larger target".to_owned(),
            Self::Unaligned { .. } => "use multiples of its block size".to_owned(),
            Self::Protocol { .. } => "check the server and the name of the export".to_owned(),
            Self::NoAnswer { .. } => {
                "check that the server runs, check its log, and then repeat the run".to_owned()
            }
            Self::Iscsi { source, .. } => source.action().to_owned(),
            Self::NoFiles { .. } => format!("use a target with files: {WITH_FILES}"),
            Self::InUse { .. } => {
                "wait for the other run, or export the pool that uses it as a disk".to_owned()
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

/// Opens a target for a dataset. Creates files that are missing.
///
/// # Errors
/// If the target cannot be reached or is too small for the dataset.
pub fn open(address: &Address, dataset: &DatasetSpec) -> Result<Box<dyn Target>, TargetError> {
    let opened: Box<dyn Target> = match address {
        Address::Null { bytes } => Box::new(null::Null::new(bytes.unwrap_or(u64::MAX / 2))),
        Address::File(path) => Box::new(file::open(path, dataset.total_bytes())?),
        Address::Directory(path) => Box::new(directory::open(path, dataset)?),
        Address::Nbd(nbd) => Box::new(nbd::Nbd::open(nbd.clone())?),
        Address::Iscsi(url) => Box::new(iscsi::Iscsi::open(url)?),
    };
    let (info, dataset_bytes) = (opened.info(), dataset.total_bytes());
    if info.bytes < dataset_bytes {
        let (address, bytes) = (info.address.clone(), info.bytes);
        return Err(TargetError::TooSmall { address, bytes, dataset_bytes });
    }
    Ok(opened)
}

/// Creates a target that completes every operation at once, without I/O.
pub fn null() -> impl Target {
    null::Null::new(u64::MAX / 2)
}

fn io_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> TargetError {
    let address = path.display().to_string();
    move |source| TargetError::Io { address: address.clone(), what, source }
}
