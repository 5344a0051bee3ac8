//! What is measured: files, devices, NBD exports, logical units over iSCSI; and targets of known
//! behaviour, to measure the generator itself.
//!
//! Not here: what is offered to them (load), what the blocks hold (content).
//!
//! Invariants:
//! - a target is one run of addresses from 0; parts (files of a directory) lie one after another;
//! - each worker has a lane of its own and shares nothing with others;
//! - a lane has fixed slots, each with a buffer; a slot is busy from `submit` until it is reaped.

pub mod address;
mod buffers;
pub(crate) mod caches;
mod directory;
mod file;
mod guard;
mod iscsi;
pub mod memory;
mod nbd;
mod null;
mod psync;
pub mod shaped;
mod uring;

use std::path::Path;
use std::time::{Duration, Instant};

pub use address::Address;
pub use guard::{Holds, take, what_is_at, what_it_holds};

use crate::result::TargetInfo;
use crate::spec::{DatasetSpec, OpKind};

/// A server that answers nothing for so long is not measured any more: as long as operating systems
/// wait for a disk before they give it up.
#[cfg(not(test))]
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// So that tests need not wait so long.
#[cfg(test)]
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// An operation on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Kind.
    pub kind: OpKind,
    /// First byte; whole blocks of the target.
    pub offset: u64,
    /// Bytes; those of the slot's buffer from its start. 0 for a flush. COMPARE AND WRITE has twice
    /// as many there: those to compare, then those to write.
    pub len_bytes: u32,
    /// A write that is on stable media when it is done.
    pub durable: bool,
    /// Of a copy: the first byte that is copied; 0 for all others.
    pub source: u64,
}

/// An operation that is done.
#[derive(Debug)]
pub struct Done {
    /// Where it was submitted.
    pub slot: usize,
    /// What came of it.
    pub result: Result<(), std::io::Error>,
    /// When the answer was seen.
    pub at: Instant,
}

/// How long to wait for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// For one at least.
    One,
    /// For one, or until then.
    Until(Instant),
}

/// A way into a target for one worker.
pub trait Lane: Send {
    /// The buffer of a slot that is not busy.
    fn buffer(&mut self, slot: usize) -> &mut [u8];

    /// Starts an operation in a free slot. It is on its way when this returns; what the target does
    /// not take at once goes with the next `reap`.
    ///
    /// # Errors
    /// The lane is lost.
    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError>;

    /// Takes answers.
    ///
    /// # Errors
    /// The lane is lost, with all that was under way.
    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError>;
}

/// Something that can be measured.
pub trait Target: Send + Sync {
    /// What is known of it.
    fn info(&self) -> &TargetInfo;

    /// A lane with `slots` slots whose buffers hold `buffer_bytes` each.
    ///
    /// # Errors
    /// The target cannot be reached.
    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError>;

    /// Whether a read brings what was written. A target that only takes time has nothing to be
    /// judged.
    fn keeps_data(&self) -> bool {
        true
    }

    /// The server's process, if it runs on this machine and the connection names it.
    fn server_process(&self) -> Option<u32> {
        None
    }

    /// Bytes of one operation of this kind at most; 0 where the target has none.
    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        if matches!(kind, OpKind::Read | OpKind::Write | OpKind::Flush) { u64::MAX } else { 0 }
    }

    /// Drops what caches between here and the target hold; tells whether that can be done.
    ///
    /// # Errors
    /// It was tried and failed.
    fn drop_caches(&self) -> Result<bool, TargetError> {
        Ok(false)
    }
}

/// Why a target cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The address says nothing.
    #[error("bad target {text:?}: {why}")]
    Address {
        /// As given.
        text: String,
        /// In words.
        why: String,
    },
    /// It cannot be opened.
    #[error("{address}: {what}: {source}")]
    Io {
        /// Of the target.
        address: String,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is smaller than the dataset.
    #[error("{address} has {bytes} bytes, the dataset {dataset_bytes}")]
    TooSmall {
        /// Of the target.
        address: String,
        /// Its size.
        bytes: u64,
        /// What is needed.
        dataset_bytes: u64,
    },
    /// Operations would not be whole blocks of it.
    #[error("{address} takes whole blocks of {block_bytes} bytes; {bytes} is none")]
    Unaligned {
        /// Of the target.
        address: String,
        /// Its block.
        block_bytes: u32,
        /// What was asked for.
        bytes: u64,
    },
    /// The server does not speak the protocol, or refuses.
    #[error("{address}: {why}")]
    Protocol {
        /// Of the target.
        address: String,
        /// In words.
        why: String,
    },
    /// The server takes part, and does not answer.
    #[error("{address}: no answer to {what} within {seconds} s")]
    NoAnswer {
        /// Of the target.
        address: String,
        /// Unanswered part of the session.
        what: &'static str,
        /// Length of the wait.
        seconds: u64,
    },
    /// An iSCSI target cannot be talked to.
    #[error("{address}: {source}")]
    Iscsi {
        /// Of the target.
        address: String,
        /// Why.
        source: weir_initiator::InitiatorError,
    },
    /// Another program has it.
    #[error("{address} is in use by another program")]
    InUse {
        /// Of the target.
        address: String,
    },
    /// It holds something.
    #[error("{address} holds data that this program did not write")]
    HoldsData {
        /// Of the target.
        address: String,
    },
}

impl TargetError {
    /// What the user can do.
    pub fn action(&self) -> String {
        match self {
            Self::Address { .. } => "write a path, file:PATH, dir:PATH, nbd://HOST/EXPORT, \
                 nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN or null:"
                .to_owned(),
            Self::Io { .. } => "check that it exists and may be read and written".to_owned(),
            Self::TooSmall { .. } => "use a smaller dataset (--size) or a larger target".to_owned(),
            Self::Unaligned { .. } => "use block sizes that are whole blocks of it".to_owned(),
            Self::Protocol { .. } => "check the server and the name of the export".to_owned(),
            Self::NoAnswer { .. } => {
                "look at the server and its log, then repeat the run".to_owned()
            }
            Self::Iscsi { source, .. } => source.action().to_owned(),
            Self::InUse { .. } => {
                "wait for the other run, or close the pool that has it as a disk".to_owned()
            }
            Self::HoldsData { address } => {
                format!("everything on it would be lost: repeat with --destroy {address} if it may")
            }
        }
    }
}

/// Opens a target for a dataset; a file or files that are missing are made.
///
/// # Errors
/// It cannot be reached, or is too small for the dataset.
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

/// A target of known behaviour that makes no I/O at all.
pub fn null() -> impl Target {
    null::Null::new(u64::MAX / 2)
}

fn io_error(path: &Path, what: &'static str) -> impl Fn(std::io::Error) -> TargetError {
    let address = path.display().to_string();
    move |source| TargetError::Io { address: address.clone(), what, source }
}
