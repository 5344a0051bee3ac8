//! What a transport (iSCSI) hands to SCSI, and gets back.
//!
//! Not here: what commands do, how they travel.
//!
//! Spec: SAM-5 clauses 4 and 5.
//!
//! Invariants:
//! - a command is handed over with all of the data it brings; what it sends is appended to the
//!   buffer given, and nothing else in it is touched;
//! - a future stays on the thread that made it and is polled to completion: a task that is aborted
//!   loses its answer, not its future.

use futures_util::future::LocalBoxFuture;
use weir_block::{Block, OutBuf};

use crate::codec::command::{Command, Lun, Managed, Management, Status};
use crate::codec::sense::Sense;

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// How it ended.
    pub status: Status,
    /// Why, with `CheckCondition` only.
    pub sense: Option<Sense>,
    /// Bytes that the command wanted to be brought; a transport tells how many more or fewer came.
    pub wanted_bytes: u64,
}

/// One initiator port at one target port: what a transport's session talks to. Dropping it is the
/// loss of the nexus. It is used by one thread at a time, not always the same.
pub trait Nexus: Send {
    /// Runs a command at once if it need not wait; `None`, with `data_in` as it was, if it must.
    fn try_execute(&self, command: &Command<'_>, data_in: &mut OutBuf) -> Option<Completion>;

    /// Runs a READ of whole storage blocks that are in memory: appends a handle for each, of
    /// `len_bytes` in all. `None`, with `blocks` as it was, where it must go the usual way: any
    /// other command, another length, something to report.
    fn try_share(
        &self,
        command: &Command<'_>,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Option<Completion>;

    /// Runs a command; what it sends is appended to `data_in`.
    fn execute<'a>(
        &'a self,
        command: Command<'a>,
        data_in: &'a mut OutBuf,
    ) -> LocalBoxFuture<'a, Completion>;

    /// Most bytes that a command which must wait may append to `data_in`, whatever its initiator
    /// expects: a bound of the memory that it holds meanwhile.
    fn answer_bytes(&self, command: &Command<'_>) -> usize;

    /// Manages tasks. The transport ends the tasks of its own session that are meant; those of
    /// others learn it through [`Nexus::aborts`].
    fn manage(&self, lun: Lun, function: Management) -> Managed;

    /// Counts up whenever the tasks of this nexus on a logical unit were aborted by another (reset,
    /// PREEMPT AND ABORT, CLEAR TASK SET): a transport that took a command before such a count
    /// gives no answer to it, or `TaskAborted` where TAS is set.
    fn aborts(&self, lun: Lun) -> u64;

    /// Whether a task that another nexus aborted is answered with `TaskAborted` (TAS, SPC-4
    /// 7.5.8).
    fn tells_aborted(&self, lun: Lun) -> bool {
        let _ = lun;
        false
    }
}
