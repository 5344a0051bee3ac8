//! Interface between a transport (iSCSI) and the SCSI target.
//!
//! The modules in `command` execute commands; the transport encodes commands and responses.
//!
//! Spec: SAM-5 clauses 4 and 5.
//!
//! Invariants:
//! - the transport passes a command with all of its Data-Out; the target appends the Data-In to the
//!   buffer that the transport supplies, and changes no other bytes of the buffer;
//! - the transport polls each future to completion on the thread that created the future. If a task
//!   is aborted, the transport drops the response, never the future.

use futures_util::future::LocalBoxFuture;
use weir_block::{Block, OutBuf};

use crate::codec::command::{Command, Lun, Management, Status, TaskManagementResponse};
use crate::codec::sense::Sense;

/// Response to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Status of the command.
    pub status: Status,
    /// Sense data. Present only if the status is `CheckCondition`.
    pub sense: Option<Sense>,
    /// Data-Out bytes that the command requires. The transport computes the residual count from
    /// `wanted_bytes`.
    pub wanted_bytes: u64,
}

/// An I_T nexus: one initiator port at one target port. Each session of a transport holds one I_T
/// nexus; dropping the value is the loss of the nexus. Only one thread at a time uses the nexus,
/// but the session can move to another thread.
pub trait Nexus: Send {
    /// Runs a command if it can complete without waiting. Otherwise returns `None` and leaves
    /// `data_in` unchanged.
    fn try_execute(&self, command: &Command<'_>, data_in: &mut OutBuf) -> Option<Completion>;

    /// Runs a READ of whole storage blocks that are in memory, and appends a handle for each block
    /// to `blocks`. The blocks add up to `len_bytes`. Returns `None` and leaves `blocks` unchanged
    /// for any other command, for another length, or if a unit attention is pending. The caller
    /// then uses [`Nexus::try_execute`] or [`Nexus::execute`].
    fn try_share(
        &self,
        command: &Command<'_>,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Option<Completion>;

    /// Runs a command and appends its Data-In to `data_in`.
    fn execute<'a>(
        &'a self,
        command: Command<'a>,
        data_in: &'a mut OutBuf,
    ) -> LocalBoxFuture<'a, Completion>;

    /// Upper bound of the Data-In bytes that [`Nexus::execute`] appends for a command, whatever
    /// data length its initiator expects. The transport reserves this memory before it calls
    /// `execute`.
    fn answer_bytes(&self, command: &Command<'_>) -> usize;

    /// Performs a task management function. The transport ends the affected tasks of its own
    /// session; the sessions of other nexuses learn of the abort from [`Nexus::aborts`].
    fn manage(&self, lun: Lun, function: Management) -> TaskManagementResponse;

    /// Number of times that another nexus aborted the tasks of this nexus on a logical unit (reset,
    /// PREEMPT AND ABORT). If this count has increased since the transport accepted a command, the
    /// transport sends no response to that command, or `TaskAborted` if TAS is set.
    fn aborts(&self, lun: Lun) -> u64;

    /// Returns true if a task that another nexus aborted ends with `TaskAborted` (TAS, SPC-4
    /// 7.5.8). Returns false if the transport sends no response for it.
    fn tells_aborted(&self, lun: Lun) -> bool {
        let _ = lun;
        false
    }
}
