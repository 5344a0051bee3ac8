//! Commands, task management and text exchanges in progress on a connection.
//!
//! `command`, `management` and `text` execute the requests.
//!
//! Invariant: each request is in one table of its connection until it is answered or aborted.

use std::cell::{Cell, RefCell};

use weir_iscsi_wire::pdu::{Command, DataOut, ManagementResponse, Pdu};
use weir_iscsi_wire::text::Gathered;
use weir_scsi::Lun;

use crate::connection::gather::{Gather, Taken};

/// Accepted command whose response has not been sent yet.
pub(crate) struct Task {
    pub(crate) command: Command,
    /// Serial number of the command on this connection. Initiators reuse task tags, but a serial
    /// number is unique.
    pub(crate) serial: u64,
    /// Abort count of the nexus when the command arrived. If the count has increased since, another
    /// nexus aborted the command.
    pub(crate) aborts: u64,
    /// True if a task management function of this session aborted the command; the target then
    /// sends no response.
    pub(crate) aborted: Cell<bool>,
    /// Data of the command that has arrived; `None` once the nexus runs the command.
    pub(crate) gather: RefCell<Option<Gather>>,
    /// Bytes of memory for the command's data or response. The command waits until they are
    /// reserved.
    pub(crate) needs_bytes: Cell<usize>,
    /// True if the memory of `needs_bytes` is reserved.
    pub(crate) granted: Cell<bool>,
    /// Number of bytes that arrived or may still arrive unsolicited.
    pub(crate) unasked_bytes: usize,
    /// Number of R2Ts sent for the command.
    pub(crate) r2ts: Cell<u32>,
}

impl Task {
    /// True if the nexus runs the command now.
    pub(crate) fn is_running(&self) -> bool {
        self.gather.borrow().is_none()
    }

    pub(crate) fn lun(&self) -> Lun {
        self.command.lun
    }

    /// Returns true if some data of the command has not arrived yet.
    pub(crate) fn gathers(&self) -> bool {
        self.gather.borrow().as_ref().is_some_and(|gather| !gather.is_whole())
    }

    /// Returns true if the target waits for the initiator: the command lacks data that the
    /// initiator sends unsolicited or that an R2T has solicited.
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

    /// Appends the data of a Data-Out PDU.
    pub(crate) fn gather(&self, data_out: &DataOut, pdu: &Pdu<'_>) -> Taken {
        let mut gather = self.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return Taken::Stray };
        gather.damaged |= !pdu.data_intact;
        gather.take(data_out, pdu.data)
    }
}

/// Response to a task management function, which waits until the aborted tasks have ended.
pub(crate) struct Waiting {
    pub(crate) itt: u32,
    pub(crate) tasks: Vec<u64>,
    pub(crate) response: ManagementResponse,
    /// True for TARGET COLD RESET: after the response, all sessions of the target end.
    pub(crate) ends_sessions: bool,
}

/// Text exchange that takes more than one PDU.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) gathered: Gathered,
    /// Rest of the response. The initiator requests it with the Target Transfer Tag `ttt`.
    pub(crate) rest: Vec<u8>,
    /// List of targets that follows `rest` in the response.
    pub(crate) listing: Option<Listing>,
    pub(crate) ttt: Option<u32>,
}

/// Target list that the target has sent only in part.
pub(crate) struct Listing {
    /// Name of the requested target; `None` for a list of all targets.
    pub(crate) wanted: Option<String>,
    /// Name of the last target that the response already contains.
    pub(crate) after: String,
}
