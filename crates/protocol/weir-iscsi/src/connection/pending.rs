//! Commands, task management and text exchanges under way on a connection.
//!
//! Not here: their execution (`command`, `management`, `text`).
//!
//! Invariant: each is in one table of its connection until it is answered or aborted.

use std::cell::{Cell, RefCell};

use weir_iscsi_wire::pdu::{Command, DataOut, ManagementResponse, Pdu};
use weir_iscsi_wire::text::Gathered;
use weir_scsi::Lun;

use crate::connection::gather::{Gather, Taken};

/// A command that was taken and not answered.
pub(crate) struct Task {
    pub(crate) command: Command,
    /// Its number on this connection: tags are used again.
    pub(crate) serial: u64,
    /// What the nexus had counted of aborts when it came.
    pub(crate) aborts: u64,
    /// Its answer is not wanted any more.
    pub(crate) aborted: Cell<bool>,
    /// Until the nexus has it.
    pub(crate) gather: RefCell<Option<Gather>>,
    /// What is to be set aside before it goes on: its data, or its answer.
    pub(crate) needs_bytes: Cell<usize>,
    /// That is set aside.
    pub(crate) granted: Cell<bool>,
    /// Its data that came, or may come, unasked.
    pub(crate) unasked_bytes: usize,
    /// R2Ts sent.
    pub(crate) r2ts: Cell<u32>,
}

impl Task {
    /// Whether the nexus has it.
    pub(crate) fn is_running(&self) -> bool {
        self.gather.borrow().is_none()
    }

    pub(crate) fn lun(&self) -> Lun {
        self.command.lun
    }

    /// Whether there is data to ask for.
    pub(crate) fn gathers(&self) -> bool {
        self.gather.borrow().as_ref().is_some_and(|gather| !gather.is_whole())
    }

    /// Whether the initiator is to send data for it.
    pub(crate) fn is_owed_data(&self) -> bool {
        let waits = |gather: &Gather| gather.needs_r2t() && !self.granted.get();
        self.gather.borrow().as_ref().is_some_and(|gather| !gather.is_whole() && !waits(gather))
    }

    /// Makes room for all of its data.
    pub(crate) fn reserve(&self) {
        if let Some(gather) = self.gather.borrow_mut().as_mut() {
            gather.reserve();
        }
    }

    /// Takes data that came for it.
    pub(crate) fn gather(&self, data_out: &DataOut, pdu: &Pdu<'_>) -> Taken {
        let mut gather = self.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return Taken::Stray };
        gather.damaged |= !pdu.data_intact;
        gather.take(data_out, pdu.data)
    }
}

/// An answer that waits for tasks to end.
pub(crate) struct Waiting {
    pub(crate) itt: u32,
    pub(crate) tasks: Vec<u64>,
    pub(crate) response: ManagementResponse,
    /// The sessions of the target are to end (TARGET COLD RESET).
    pub(crate) ends_sessions: bool,
}

/// What has come and what is still to be sent, while more is to come or to be sent.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) gathered: Gathered,
    /// The rest of an answer, to be fetched with this tag.
    pub(crate) rest: Vec<u8>,
    /// Targets to append to `rest`.
    pub(crate) listing: Option<Listing>,
    pub(crate) ttt: Option<u32>,
}

/// A list of targets that is not read to its end.
pub(crate) struct Listing {
    /// Name of the requested target; absent for all.
    pub(crate) wanted: Option<String>,
    /// Name of the last target that was read.
    pub(crate) after: String,
}
