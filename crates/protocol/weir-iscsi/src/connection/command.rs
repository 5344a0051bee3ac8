//! SCSI commands: collects their write data, runs the commands and sends the responses.
//!
//! The nexus implements the commands; `answer` encodes the responses.
//!
//! Spec: RFC 7143 11.3, 11.7, 11.8; 11.4.7.2 for sense data of transport errors.
//!
//! Invariants:
//! - the nexus gets a command only with all of its data;
//! - the nexus runs a command to its end; an abort only suppresses the response;
//! - a command that waits for memory holds no memory that other commands wait for.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use weir_base::BLOCK_BYTES;
use weir_block::OutBuf;
use weir_iscsi_wire::pdu::{Command, Pdu, R2t, RejectReason, Request};
use weir_net::limits::KEEP_BYTES_MAX;
use weir_scsi::sense::key;
use weir_scsi::{Attribute, Command as ScsiCommand, Completion, Nexus, Sense, Status};

use super::gather::{Gather, Taken};
use super::memory;
use super::state::{Connection, Flow};
use crate::connection::pending::Task;
use crate::error::IscsiError;
use crate::limits::{
    COMMANDS_MAX, MANAGEMENT_MAX, OWN_BYTES_MIN, SHARE_BYTES_MAX, SHARE_BYTES_MIN,
    TRANSFER_BYTES_MAX,
};

const ABORTED_COMMAND: u8 = 0x0b;

/// Command that the nexus runs now. The command counts as running until this value is dropped.
struct Running {
    connection: Rc<Connection>,
    task: Rc<Task>,
    bytes: usize,
    answered: bool,
}

impl Running {
    /// `bytes` is the memory that the response of the command may need.
    fn new(connection: &Rc<Connection>, task: Rc<Task>, bytes: usize) -> Self {
        connection.running.update(|n| n + 1);
        connection.running_bytes.update(|n| n + bytes);
        Self { connection: Rc::clone(connection), task, bytes, answered: false }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.running.update(|n| n - 1);
        connection.running_bytes.update(|n| n - self.bytes);
        if !self.answered {
            // The task was dropped or panicked, so nothing will answer the command. End the
            // connection; otherwise the initiator waits for ever.
            connection.give_up();
        }
        connection.made_room();
    }
}

impl Connection {
    /// Accepts a command that has the next CmdSN or is immediate.
    pub(super) fn take_command(self: &Rc<Self>, command: Command, pdu: &Pdu<'_>) {
        let Some(nexus) = &self.nexus else {
            return self.reject(RejectReason::Unsupported, &pdu.header);
        };
        self.commands.update(|n| n + 1);
        let tasks = self.tasks.borrow().len();
        if self.tasks.borrow().contains_key(&command.itt) {
            return self.reject(RejectReason::TaskInProgress, &pdu.header);
        }
        if tasks >= COMMANDS_MAX as usize + MANAGEMENT_MAX {
            return self.reject(RejectReason::TooManyImmediate, &pdu.header);
        }
        if let Err(sense) = self.check(&command, pdu.data.len()) {
            return self.fail(&command, 0, sense);
        }
        let expected = if command.write { command.expected_bytes as usize } else { 0 };
        if command.is_final && pdu.data.len() == expected {
            return self.run_now(&**nexus, command, pdu.data);
        }
        let gather = Gather::new(pdu.data, expected, command.is_final, &self.negotiated.get());
        let task = self.new_task(&**nexus, command, Some(gather));
        self.data_moves();
        self.ask_for_data(&task);
    }

    fn new_task(&self, nexus: &dyn Nexus, command: Command, gather: Option<Gather>) -> Rc<Task> {
        self.tasks_begun.update(|n| n + 1);
        let unasked_bytes = gather.as_ref().map_or(0, Gather::unasked_bytes);
        self.unasked_bytes.update(|n| n + unasked_bytes);
        if command.attribute == Attribute::Ordered {
            self.ordered.update(|n| n + 1);
        }
        let task = Rc::new(Task {
            serial: self.tasks_begun.get(),
            aborts: nexus.aborts(command.lun),
            aborted: Cell::new(false),
            needs_bytes: Cell::new(gather.as_ref().map_or(0, Gather::expected_bytes)),
            gather: RefCell::new(gather),
            granted: Cell::new(false),
            unasked_bytes,
            r2ts: Cell::new(0),
            command,
        });
        self.tasks.borrow_mut().insert(task.command.itt, Rc::clone(&task));
        task
    }

    /// Checks the data lengths and the task attribute of a command against the negotiated
    /// parameters.
    fn check(&self, command: &Command, immediate_bytes: usize) -> Result<(), Sense> {
        let negotiated = self.negotiated.get();
        let unexpected = Err(Sense::new(ABORTED_COMMAND, 0x0c, 0x0c));
        let too_much = Err(Sense::new(ABORTED_COMMAND, 0x0c, 0x0d));
        if immediate_bytes > 0 && !(command.write && negotiated.immediate_data) {
            return unexpected;
        }
        if !command.is_final && negotiated.initial_r2t {
            return unexpected;
        }
        let first_burst = negotiated.first_burst_bytes.min(command.expected_bytes as usize);
        if immediate_bytes > first_burst {
            return too_much;
        }
        if command.attribute == Attribute::Aca {
            // An ACA task attribute: the target does not support ACA (SAM-5 8.6.5).
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x49, 0));
        }
        // Refuse bidirectional commands, which have a second data length in an AHS: no initiator
        // sends any.
        let both = command.read && command.write && command.expected_bytes > 0;
        let too_long = command.write && command.expected_bytes as usize > TRANSFER_BYTES_MAX;
        if both || too_long { Err(Sense::new(key::ILLEGAL_REQUEST, 0x24, 0)) } else { Ok(()) }
    }

    /// Processes a Data-Out.
    pub(super) fn take_data(
        self: &Rc<Self>,
        pdu: &Pdu<'_>,
        raw: &[u8],
    ) -> Result<Flow, IscsiError> {
        let Ok(Request::DataOut(data_out)) = Request::decode(pdu) else {
            return Ok(Flow::Go);
        };
        let task = self.tasks.borrow().get(&data_out.itt).map(Rc::clone);
        let Some(task) = task.filter(|task| !task.is_running()) else {
            // Either the command waits for its CmdSN, and its data waits with it, or the data
            // arrived late for an aborted command and is dropped.
            self.hold_data(data_out.itt, raw)?;
            return Ok(Flow::Go);
        };
        if !pdu.data_intact {
            self.reject(RejectReason::DataDigest, &pdu.header);
        }
        self.data_moves();
        match task.gather(&data_out, pdu) {
            Taken::Data => self.ask_for_data(&task),
            Taken::Stray => {}
            Taken::Wrong(why) => {
                self.reject(RejectReason::Protocol, &pdu.header);
                return Err(IscsiError::Protocol { why });
            }
        }
        Ok(Flow::Go)
    }

    /// Runs a command if all its data has arrived. Otherwise solicits more data by R2T, once memory
    /// for the data is available.
    fn ask_for_data(self: &Rc<Self>, task: &Rc<Task>) {
        let (is_whole, needs_r2t) = match task.gather.borrow().as_ref() {
            Some(gather) => (gather.is_whole(), gather.needs_r2t()),
            None => return,
        };
        if is_whole {
            self.run_gathered(task);
        } else if needs_r2t && task.granted.get() {
            self.send_r2ts(task);
        } else if needs_r2t {
            self.wait_for_memory(task);
            self.grant();
        }
    }

    pub(super) fn send_r2ts(&self, task: &Task) {
        let negotiated = self.negotiated.get();
        let mut gather = task.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return };
        loop {
            let ttt = self.fresh_ttt();
            let Some(ask) = gather.ask(ttt, &negotiated) else { return };
            let r2t_sn = task.r2ts.get();
            task.r2ts.set(r2t_sn + 1);
            let (lun, itt) = (task.command.lun, task.command.itt);
            let (offset, len) = (ask.offset as u32, ask.len as u32);
            self.answer_unnumbered(R2t { lun, itt, ttt, r2t_sn, offset, len }.encode());
        }
    }

    /// Removes a task from the task table and releases its memory, so that waiting commands may
    /// continue.
    pub(super) fn remove(&self, task: &Task) {
        self.tasks.borrow_mut().remove(&task.command.itt);
        self.unasked_bytes.update(|n| n - task.unasked_bytes);
        if task.command.attribute == Attribute::Ordered {
            self.ordered.update(|n| n - 1);
        }
        if task.command.write && task.granted.replace(false) {
            self.gathering_bytes.update(|n| n - task.needs_bytes.get());
        }
        self.made_room();
    }

    /// Runs a command whose data has arrived completely. The command first waits for earlier
    /// commands as its task attribute demands, and then for memory.
    pub(super) fn run_gathered(self: &Rc<Self>, task: &Rc<Task>) {
        let Command { lun, attribute, .. } = task.command;
        if self.is_dormant(lun, attribute, task.serial) {
            return self.wait_for_others(task);
        }
        let answer_bytes = memory::answer_bytes(&task.command);
        if answer_bytes > 0 && !task.granted.get() && !self.may_hold(answer_bytes) {
            task.needs_bytes.set(answer_bytes);
            return self.wait_for_memory(task);
        }
        let Some(gather) = task.gather.borrow_mut().take() else { return };
        let Some(nexus) = &self.nexus else { return };
        if self.is_aborted(task) {
            self.remove(task);
            return self.end_aborted(task);
        }
        if gather.damaged {
            self.remove(task);
            let sense = Sense::new(ABORTED_COMMAND, 0x47, 0x05);
            return self.fail(&task.command, task.r2ts.get(), sense);
        }
        let data = gather.into_data();
        match self.try_run(&**nexus, &task.command, &data) {
            Some((out, completion)) => {
                self.remove(task);
                self.finish(out, &task.command, task.r2ts.get(), &completion);
            }
            None => self.run_later(&**nexus, task, data),
        }
    }

    /// Runs a command whose data is complete and still in the receive buffer.
    fn run_now(self: &Rc<Self>, nexus: &dyn Nexus, command: Command, data: &[u8]) {
        let answer_bytes = memory::answer_bytes(&command);
        if self.is_dormant(command.lun, command.attribute, u64::MAX) {
            let gather = Gather::whole(data.to_vec());
            let task = self.new_task(nexus, command, Some(gather));
            return self.wait_for_others(&task);
        }
        if !self.may_hold(answer_bytes) {
            let gather = Gather::whole(data.to_vec());
            let task = self.new_task(nexus, command, Some(gather));
            task.needs_bytes.set(answer_bytes);
            return self.wait_for_memory(&task);
        }
        if self.answer_with_blocks(nexus, &command) {
            return;
        }
        match self.try_run(nexus, &command, data) {
            Some((out, completion)) => self.finish(out, &command, 0, &completion),
            None => {
                let gather = Gather::whole(data.to_vec());
                let task = self.new_task(nexus, command, Some(gather));
                let data = task.gather.borrow_mut().take().map(Gather::into_data);
                self.run_later(nexus, &task, data.unwrap_or_default());
            }
        }
    }

    /// Answers a large read with blocks from the cache. Returns false if the read is too small or
    /// too large for that, or if not all of its blocks are cached.
    fn answer_with_blocks(&self, nexus: &dyn Nexus, command: &Command) -> bool {
        let len_bytes = command.expected_bytes;
        if !command.read
            || !(SHARE_BYTES_MIN..=SHARE_BYTES_MAX).contains(&len_bytes)
            || !self.sends_whole_blocks()
        {
            return false;
        }
        let mut blocks = Vec::with_capacity(len_bytes as usize / BLOCK_BYTES);
        let shared = nexus.try_share(&scsi(command, &[]), len_bytes.into(), &mut blocks);
        let Some(completion) = shared else { return false };
        let answer = self.shared_answer(command, blocks, completion.status);
        self.outbox.push_send(answer);
        true
    }

    /// Runs a command that must wait for storage, once the memory for its whole response is
    /// reserved. The response can be longer than the Expected Data Transfer Length if the CDB
    /// requests more.
    fn run_later(self: &Rc<Self>, nexus: &dyn Nexus, task: &Rc<Task>, data: Vec<u8>) {
        let command = &task.command;
        let set_aside = if task.granted.get() && !command.write {
            task.needs_bytes.get()
        } else {
            memory::answer_bytes(command)
        };
        let answer_bytes = nexus.answer_bytes(&scsi(command, &data)).min(TRANSFER_BYTES_MAX);
        let answer_bytes = answer_bytes.max(memory::answer_bytes(command));
        if command.write && answer_bytes > OWN_BYTES_MIN {
            // Refuse a command that has the W bit and a long response. No working initiator sends
            // such a command.
            self.remove(task);
            let sense = Sense::new(key::ILLEGAL_REQUEST, 0x24, 0);
            return self.fail(&task.command, task.r2ts.get(), sense);
        }
        if answer_bytes > set_aside && !command.write && !self.may_hold(answer_bytes) {
            task.granted.set(false);
            task.gather.replace(Some(Gather::whole(data)));
            task.needs_bytes.set(answer_bytes);
            return self.wait_for_memory(task);
        }
        self.spawn(Rc::clone(task), data, answer_bytes);
    }

    /// Runs a command if it can complete without waiting. Appends its Data-In to the responses that
    /// the next send takes. Returns `None` if the command must wait.
    fn try_run(
        &self,
        nexus: &dyn Nexus,
        command: &Command,
        data_out: &[u8],
    ) -> Option<(usize, Completion)> {
        let mut out = self.outbox.gathering();
        let mark = out.len();
        out.space(self.header_room());
        let completion = nexus.try_execute(&scsi(command, data_out), &mut out);
        if completion.is_none() {
            out.truncate(mark);
        }
        completion.map(|completion| (mark, completion))
    }

    fn finish(&self, mark: usize, command: &Command, r2ts: u32, completion: &Completion) {
        let mut out = self.outbox.gathering();
        self.put_answer(&mut out, mark, command, r2ts, completion);
        // The nexus may have read more data than the initiator expects, so free the memory of the
        // excess.
        out.give_up_room(KEEP_BYTES_MAX);
    }

    /// Ends a command with sense data, without passing the command to the nexus.
    fn fail(&self, command: &Command, r2ts: u32, sense: Sense) {
        tracing::debug!(
            itt = command.itt,
            ?sense,
            "SCSI command refused before it reached the logical unit"
        );
        self.answer_without_data(command, r2ts, Status::CheckCondition, Some(sense));
    }

    fn answer_without_data(
        &self,
        command: &Command,
        r2ts: u32,
        status: Status,
        sense: Option<Sense>,
    ) {
        let completion = Completion { status, sense, wanted_bytes: 0 };
        let mut out = self.outbox.gathering();
        let mark = out.len();
        self.put_answer(&mut out, mark, command, r2ts, &completion);
    }

    fn spawn(self: &Rc<Self>, task: Rc<Task>, data: Vec<u8>, answer_bytes: usize) {
        let mut running = Running::new(self, Rc::clone(&task), answer_bytes);
        let connection = Rc::clone(self);
        let work = async move {
            let Some(nexus) = &connection.nexus else { return };
            let room = connection.header_room();
            let mut out = connection.outbox.buffer(room + running.bytes);
            out.space(room);
            let completion = nexus.execute(scsi(&task.command, &data), &mut out).await;
            drop(data);
            running.answered = true;
            connection.end_task(&running.task, out, &completion);
        };
        compio::runtime::spawn(work).detach();
    }

    /// Ends a task that the nexus completed: sends its response, unless the task was aborted.
    fn end_task(&self, task: &Task, mut out: OutBuf, completion: &Completion) {
        let aborted = self.is_aborted(task);
        self.remove(task);
        if aborted {
            self.outbox.give_back(out, self.grant.is_tight());
            self.end_aborted(task);
        } else if !self.is_broken() {
            self.put_answer(&mut out, 0, &task.command, task.r2ts.get(), completion);
            out.give_up_room(KEEP_BYTES_MAX);
            self.outbox.push(out, self.grant.is_tight());
        }
        self.task_ended(task.serial);
        self.to_send.notify();
    }

    /// Ends an aborted task. Sends TASK ABORTED if another nexus aborted the task and TAS is set;
    /// otherwise sends no response.
    fn end_aborted(&self, task: &Task) {
        let lun = task.lun();
        let tells = self.nexus.as_ref().is_some_and(|nexus| nexus.tells_aborted(lun));
        if task.aborted.get() || !tells || self.is_broken() {
            return self.open_window();
        }
        let status = Status::TaskAborted;
        self.answer_without_data(&task.command, task.r2ts.get(), status, None);
    }

    fn is_aborted(&self, task: &Task) -> bool {
        let aborts = self.nexus.as_ref().map_or(0, |nexus| nexus.aborts(task.lun()));
        task.aborted.get() || aborts != task.aborts
    }
}

fn scsi<'a>(command: &'a Command, data_out: &'a [u8]) -> ScsiCommand<'a> {
    let Command { lun, attribute, .. } = *command;
    ScsiCommand { lun, cdb: command.cdb.bytes(), data_out, attribute }
}
