//! Interface between the load generator and a target: lanes, operations and their completions.
//!
//! The other files of this folder implement the interface.
//!
//! Invariants:
//! - each worker has its own lane and shares no state with other workers;
//! - a lane has a fixed number of slots, each with a buffer; a slot is busy from the `submit` of an
//!   operation until `reap` returns the completion of the operation.

use std::time::{Duration, Instant};

use super::error::TargetError;
use super::metadata::MetadataOp;
use crate::result::TargetInfo;
use crate::spec::OpKind;

/// Maximum time without a completion, after which a server counts as lost. The value equals the
/// usual disk timeout of operating systems.
#[cfg(not(test))]
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Limit in unit tests, shorter than the real limit, so that the tests end soon.
#[cfg(test)]
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

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

    /// Moves the data of completed writes to stable media if the target may still lose it in a
    /// crash of the server. Called once, at the end of a load, when the worker starts no more
    /// operations.
    ///
    /// # Errors
    /// If the lane is lost, or the target lost data.
    fn finish(&mut self) -> Result<(), TargetError> {
        Ok(())
    }
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

    /// Moves all data that any lane wrote to stable media. Returns false if a flush operation of
    /// one lane covers the whole target.
    ///
    /// # Errors
    /// A file of the target could not be flushed. The other files may be flushed or not.
    fn flush_files(&self) -> Result<bool, TargetError> {
        Ok(false)
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

/// Files and directories of a target. Paths are relative to the root of the target, and their
/// components are names of this file.
///
/// The functions other than [`Self::lane`] prepare and clean up a run outside its measured time.
/// They may wait for the target.
pub trait FileTree: Send + Sync {
    /// Opens a lane that executes data operations and metadata operations, with `slots` slots, each
    /// with a buffer of `buffer_bytes`. At most `depth` operations are in flight at any time.
    ///
    /// # Errors
    /// If the target cannot be reached.
    fn lane(
        &self,
        slots: usize,
        depth: usize,
        buffer_bytes: usize,
    ) -> Result<Box<dyn Lane>, TargetError>;

    /// Creates a directory. A directory that exists already is no error.
    ///
    /// # Errors
    /// If the directory cannot be created.
    fn make_directory(&self, path: &str) -> Result<(), TargetError>;

    /// Removes an empty directory. A missing directory is no error.
    ///
    /// # Errors
    /// If the directory is not empty, or cannot be removed.
    fn remove_directory(&self, path: &str) -> Result<(), TargetError>;

    /// Passes the name of each entry of a directory to `each`, without `.` and `..`. Returns false
    /// if the directory does not exist. Names that are not UTF-8 are passed with replacement
    /// characters.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, TargetError>;
}
