//! Commands, task management and text exchanges in progress on a connection.
//!
//! `command`, `management` and `text` execute them.
//!
//! Invariant: each entry is in one table of its connection until it is answered or aborted.

use std::cell::{Cell, RefCell};

use weir_iscsi_wire::pdu::{Command, DataOut, ManagementResponse, Pdu};
use weir_iscsi_wire::text::Gathered;
use weir_scsi::Lun;

use crate::connection::gather::{Gather, Taken};

/// Accepted command whose response is not sent yet.
pub(crate) struct Task {
    pub(crate) command: Command,
    /// Serial number of the command on this connection. It is needed because task tags are reused.
    pub(crate) serial: u64,
    /// Abort count of the nexus when the command arrived.
    pub(crate) aborts: u64,
    /// True if a task management function of this session aborted the command; its response is then
    /// suppressed.
    pub(crate) aborted: Cell<bool>,
    /// Data of the command, until the nexus runs it.
    pub(crate) gather: RefCell<Option<Gather>>,
    /// Memory that must be reserved for the command's data or response before the command
    /// continues.
    pub(crate) needs_bytes: Cell<usize>,
    /// Whether `needs_bytes` are reserved.
    pub(crate) granted: Cell<bool>,
    /// Number of data bytes that arrived unsolicited or may still do so.
    pub(crate) unasked_bytes: usize,
    /// Number of R2Ts sent for the command.
    pub(crate) r2ts: Cell<u32>,
}

impl Task {
    /// Whether the nexus runs the command.
    pub(crate) fn is_running(&self) -> bool {
        self.gather.borrow().is_none()
    }

    pub(crate) fn lun(&self) -> Lun {
        self.command.lun
    }

    /// Whether data of the command is still missing.
    pub(crate) fn gathers(&self) -> bool {
        self.gather.borrow().as_ref().is_some_and(|gather| !gather.is_whole())
    }

    /// Whether the initiator must now send data for the command.
    pub(crate) fn is_owed_data(&self) -> bool {
        let waits = |gather: &Gather| gather.needs_r2t() && !self.granted.get();
        self.gather.borrow().as_ref().is_some_and(|gather| !gather.is_whole() && !waits(gather))
    }

    /// Allocates the memory for all data of the command.
    pub(crate) fn reserve(&self) {
        if let Some(gather) = self.gather.borrow_mut().as_mut() {
            gather.reserve();
        }
    }

    /// Appends data from a Data-Out.
    pub(crate) fn gather(&self, data_out: &DataOut, pdu: &Pdu<'_>) -> Taken {
        let mut gather = self.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return Taken::Stray };
        gather.damaged |= !pdu.data_intact;
        gather.take(data_out, pdu.data)
    }
}

/// Response to a task management function that waits for the end of tasks.
pub(crate) struct Waiting {
    pub(crate) itt: u32,
    pub(crate) tasks: Vec<u64>,
    pub(crate) response: ManagementResponse,
    /// True for TARGET COLD RESET: after the response, all sessions of the target end.
    pub(crate) ends_sessions: bool,
}

/// Text exchange of more than one PDU.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) gathered: Gathered,
    /// Rest of the response that is not sent yet; the initiator requests it with the tag `ttt`.
    pub(crate) rest: Vec<u8>,
    /// List of targets that continues after `rest`.
    pub(crate) listing: Option<Listing>,
    pub(crate) ttt: Option<u32>,
}

/// List of targets that is partially sent.
pub(crate) struct Listing {
    /// Name of the requested target; `None` for all targets.
    pub(crate) wanted: Option<String>,
    /// Name of the last target that is already in the response.
    pub(crate) after: String,
}
