//! Task management functions.
//!
//! The nexus aborts the tasks of other sessions; this module aborts tasks of this connection.
//!
//! Spec: RFC 7143 11.5, 11.6.1 (order of the responses), 4.2.3.
//!
//! Invariant: the target responds to an abort only after the nexus has ended all aborted commands,
//! so no aborted command writes after the response.

use std::rc::Rc;

use weir_iscsi_wire::pdu::{Management, ManagementResponse};
use weir_scsi::{Management as Function, TaskManagementResponse};

use super::sequence::Admission;
use super::state::{Connection, Held};
use crate::connection::pending::{Task, Waiting};

impl Connection {
    pub(super) fn manage(&self, request: &Management) {
        const ABORT_TASK: u8 = 1;
        const TASK_REASSIGN: u8 = 8;
        let function = match request.function {
            ABORT_TASK => return self.abort_task(request),
            2 => Function::AbortTaskSet,
            4 => Function::ClearTaskSet,
            5 => Function::LunReset,
            6 | 7 => Function::TargetReset,
            TASK_REASSIGN => return self.managed(request.itt, ManagementResponse::NoReassign),
            _ => return self.managed(request.itt, ManagementResponse::Unsupported),
        };
        let Some(nexus) = &self.nexus else {
            return self.managed(request.itt, ManagementResponse::Rejected);
        };
        let response = match nexus.manage(request.lun, function) {
            TaskManagementResponse::Complete => ManagementResponse::Complete,
            TaskManagementResponse::NoLun => {
                return self.managed(request.itt, ManagementResponse::NoLun);
            }
            TaskManagementResponse::Unsupported => {
                return self.managed(request.itt, ManagementResponse::Unsupported);
            }
        };
        let every_lun = function == Function::TargetReset;
        let tasks = self.abort(|task| {
            let earlier = task.command.cmd_sn.wrapping_sub(request.cmd_sn).cast_signed() < 0;
            // Include immediate commands in any case: they carry the CmdSN of the next command, so
            // `earlier` can be false although they arrived earlier.
            (every_lun || task.lun() == request.lun) && (earlier || task.command.immediate)
        });
        let ends_sessions = request.function == 7;
        self.respond_after(Waiting { itt: request.itt, tasks, response, ends_sessions });
    }

    fn abort_task(&self, request: &Management) {
        let found = self.tasks.borrow().get(&request.referenced_itt).map(Rc::clone);
        if let Some(task) = found.filter(|task| task.lun() == request.lun) {
            let serial = task.serial;
            let tasks = self.abort(|task| task.serial == serial);
            let response = ManagementResponse::Complete;
            let waiting = Waiting { itt: request.itt, tasks, response, ends_sessions: false };
            return self.respond_after(waiting);
        }
        let before = request.ref_cmd_sn.wrapping_sub(request.cmd_sn).cast_signed();
        let admission = self.sequence.get().admission(request.ref_cmd_sn);
        if admission == Admission::Never || before >= 0 {
            return self.managed(request.itt, ManagementResponse::NoTask);
        }
        // The command to abort has not arrived. Mark its CmdSN, which counts as received (11.6.1).
        self.held.borrow_mut().insert(request.ref_cmd_sn, Held::Aborted);
        self.skip_aborted();
        self.managed(request.itt, ManagementResponse::Complete);
    }

    /// Advances ExpCmdSN past commands that were aborted before their arrival.
    fn skip_aborted(&self) {
        let mut held = self.held.borrow_mut();
        let mut sequence = self.sequence.get();
        while matches!(held.get(&sequence.expected()), Some(Held::Aborted)) {
            held.remove(&sequence.expected());
            sequence.advance();
        }
        self.sequence.set(sequence);
    }

    /// Marks tasks as aborted. Removes the tasks that the nexus does not run yet, and returns the
    /// serial numbers of the others: the response waits for their end.
    fn abort(&self, chosen: impl Fn(&Task) -> bool) -> Vec<u64> {
        let tasks: Vec<_> =
            self.tasks.borrow().values().filter(|task| chosen(task)).map(Rc::clone).collect();
        let mut running = Vec::new();
        for task in tasks {
            task.aborted.set(true);
            if task.is_running() {
                running.push(task.serial);
            } else {
                self.remove(&task);
            }
        }
        running
    }

    fn respond_after(&self, waiting: Waiting) {
        self.waiting.borrow_mut().push(waiting);
        self.respond_to_ended();
    }

    /// Removes an ended task from the task management responses that wait for the task. Sends each
    /// response that waits for no other task.
    pub(super) fn task_ended(&self, serial: u64) {
        for waiting in self.waiting.borrow_mut().iter_mut() {
            waiting.tasks.retain(|task| *task != serial);
        }
        self.respond_to_ended();
    }

    fn respond_to_ended(&self) {
        let is_due = |waiting: &Waiting| waiting.tasks.is_empty();
        let due: Vec<_> = self.waiting.borrow_mut().extract_if(.., |one| is_due(one)).collect();
        for waiting in due {
            self.managed(waiting.itt, waiting.response);
            if let Some(target) = self.target.as_ref().filter(|_| waiting.ends_sessions) {
                self.targets.sessions().end_target(target);
            }
        }
    }

    fn managed(&self, itt: u32, response: ManagementResponse) {
        self.answer(response.encode(itt), &[]);
        self.to_send.notify();
    }
}
