//! State of a connection in full feature phase: accepts requests in order and answers them.
//! `session` receives and sends, weir-iscsi-wire encodes PDUs, and the nexus runs SCSI commands. A
//! command that the nexus can complete without waiting runs at once, and its response goes directly
//! into the buffer of the next send. Other commands become tasks on the same thread.
//!
//! Spec: RFC 7143 4.2.2 (numbering), 4.2.3 (task management), 7 (errors; recovery level 0).
//!
//! Invariants:
//! - a request with a CmdSN is processed only once, and in CmdSN order;
//! - an accepted command gets one response, unless it was aborted or the connection is broken;
//! - when its last command has ended, the connection drops the nexus, then the session's table
//!   entry.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use weir_iscsi_wire::Credentials;
use weir_iscsi_wire::pdu::{
    self, AsyncEvent, AsyncMessage, Digests, Framed, HEADER_BYTES, Header, Logout, LogoutReason,
    LogoutResponse, NO_TAG, NopIn, NopOut, Pdu, RejectReason, Request, opcode,
};
use weir_net::{BusyPoll, MemoryGrant, Outgoing, Signal};
use weir_scsi::Nexus;

use super::outbox::Outbox;
use super::sequence::{Admission, Sequence};
use crate::connection::pending::{Exchange, Task, Waiting};
use crate::error::IscsiError;
use crate::limits::{
    BUSY_POLL_COMMANDS_MAX, COMMANDS_MAX, HELD_BYTES_MAX, MANAGEMENT_MAX, REPLY_BYTES_MAX,
};
use crate::login::negotiated::Negotiated;
use crate::target::session_table::Place;
use crate::target::targets::{Applicant, Targets};

/// Parts of a connection: its state at the start, and again when it moves to another thread.
pub(crate) struct Parts {
    pub(crate) nexus: Option<Box<dyn Nexus>>,
    pub(crate) place: Place,
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) grant: MemoryGrant,
    pub(crate) applicant: Applicant,
    /// Credentials that CHAP verified; `None` after a login without CHAP.
    pub(crate) proven: Option<Credentials>,
    pub(crate) target: Option<String>,
    pub(crate) negotiated: Negotiated,
    pub(crate) cid: u16,
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    /// Target Transfer Tag that was allocated last.
    pub(crate) ttt: u32,
}

/// State that the reader, the writer and the tasks of one connection share.
pub(crate) struct Connection {
    // Keep `nexus` first and `place` last: Rust drops the fields in this order, and the session's
    // table entry must outlive the nexus.
    pub(super) nexus: Option<Box<dyn Nexus>>,
    pub(super) targets: Arc<dyn Targets>,
    pub(super) applicant: Applicant,
    pub(super) proven: Option<Credentials>,
    pub(super) target: Option<String>,
    pub(super) cid: u16,
    pub(super) negotiated: Cell<Negotiated>,
    pub(super) outbox: Outbox,
    pub(super) stat_sn: Cell<u32>,
    pub(super) sequence: Cell<Sequence>,
    /// Requests that wait for their CmdSN, by CmdSN. `held_bytes` is the sum of their lengths.
    pub(super) held: RefCell<HashMap<u32, Held>>,
    pub(super) held_bytes: Cell<usize>,
    /// Accepted commands without a response, by Initiator Task Tag (ITT).
    pub(super) tasks: RefCell<HashMap<u32, Rc<Task>>>,
    pub(super) tasks_begun: Cell<u64>,
    /// Number of commands that the nexus runs now.
    pub(super) running: Cell<usize>,
    /// Bytes of memory reserved for the responses of running commands.
    pub(super) running_bytes: Cell<usize>,
    /// Bytes of memory reserved for write data that R2Ts solicit.
    pub(super) gathering_bytes: Cell<usize>,
    /// Bytes that the commands in `tasks` may receive as unsolicited write data.
    pub(super) unasked_bytes: Cell<usize>,
    /// Commands that wait for memory, for their data or for their response, by ITT and serial
    /// number.
    pub(super) to_grant: RefCell<VecDeque<(u32, u64)>>,
    pub(super) grant: MemoryGrant,
    /// Number of ORDERED commands in `tasks`.
    pub(super) ordered: Cell<usize>,
    /// Commands that wait for earlier commands because of task attributes, by ITT and serial
    /// number.
    pub(super) dormant: RefCell<Vec<(u32, u64)>>,
    pub(super) waiting: RefCell<Vec<Waiting>>,
    pub(super) exchange: RefCell<Option<Exchange>>,
    pub(super) last_ttt: Cell<u32>,
    /// ITT of the Logout Request. The target responds to it after all commands have ended.
    pub(super) logout: Cell<Option<u32>>,
    /// True once the connection accepts no further request; the writer ends after it has sent all
    /// responses.
    ended: Cell<bool>,
    /// True once the socket has failed, or the connection cannot send a response.
    broken: Cell<bool>,
    /// Signals that a response is ready to send, or that the session ended.
    pub(crate) to_send: Signal,
    /// Signals that a send or a command completed.
    pub(crate) progress: Signal,
    receives: Cell<u64>,
    pub(super) commands: Cell<u64>,
    commands_answered: Cell<u64>,
    busy_poll: BusyPoll,
    /// Number of complete PDUs received, and the time of the last one.
    heard: Cell<(u64, Instant)>,
    /// Time at which the initiator last sent write data, or at which the target began to wait for
    /// it.
    data_moved: Cell<Instant>,
    /// True while the reader is paused. A paused reader receives no PDUs, so missing PDUs are no
    /// sign of an idle initiator.
    pub(super) takes_nothing: Cell<bool>,
    /// Action that the initiator failed to take in time, and its time limit in seconds; the
    /// connection ends for this reason.
    stuck: Cell<Option<(&'static str, u64)>>,
    pub(super) place: Place,
}

/// Request that waits for its CmdSN.
pub(super) enum Held {
    /// Initiator Task Tag of the request, and the PDU of the request followed by its Data-Out PDUs.
    Pdus(u32, Vec<Vec<u8>>),
    /// The request was aborted before its arrival; the target skips its CmdSN.
    Aborted,
}

/// Decision whether the reader continues with the next PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Go,
    /// The reader stops and accepts no further request.
    End,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        // The reader continues while commands wait for memory, so the budget may evict this
        // connection even during such a wait.
        parts.grant.hears_client();
        Rc::new(Self {
            nexus: parts.nexus,
            targets: parts.targets,
            applicant: parts.applicant,
            proven: parts.proven,
            target: parts.target,
            cid: parts.cid,
            negotiated: Cell::new(parts.negotiated),
            outbox: Outbox::default(),
            stat_sn: Cell::new(parts.stat_sn),
            sequence: Cell::new(Sequence::new(parts.cmd_sn, COMMANDS_MAX)),
            held: RefCell::default(),
            held_bytes: Cell::new(0),
            tasks: RefCell::default(),
            tasks_begun: Cell::new(0),
            running: Cell::new(0),
            running_bytes: Cell::new(0),
            gathering_bytes: Cell::new(0),
            unasked_bytes: Cell::new(0),
            to_grant: RefCell::default(),
            grant: parts.grant,
            ordered: Cell::new(0),
            dormant: RefCell::default(),
            waiting: RefCell::default(),
            exchange: RefCell::default(),
            last_ttt: Cell::new(parts.ttt),
            logout: Cell::new(None),
            ended: Cell::new(false),
            broken: Cell::new(false),
            to_send: Signal::default(),
            progress: Signal::default(),
            receives: Cell::new(0),
            commands: Cell::new(0),
            commands_answered: Cell::new(0),
            busy_poll: BusyPoll::default(),
            heard: Cell::new((0, Instant::now())),
            data_moved: Cell::new(Instant::now()),
            takes_nothing: Cell::new(false),
            stuck: Cell::new(None),
            place: parts.place,
        })
    }

    pub(crate) const fn digests(&self) -> Digests {
        self.negotiated.get().digests
    }

    /// Longest data segment that this target accepts, in bytes.
    pub(crate) const fn receive_data_bytes_max(&self) -> usize {
        self.negotiated.get().receive_data_bytes_max
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Reason for the end of the session, if the server or another login ended it.
    pub(crate) fn ending(&self) -> Option<&'static str> {
        self.place.ending()
    }

    /// Returns true if the nexus runs commands now.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get() > 0
    }

    /// Breaks the connection. The commands in progress get no response.
    pub(crate) fn give_up(&self) {
        self.broken.set(true);
        self.to_send.notify();
        self.progress.notify();
    }

    /// Breaks the connection because the initiator did not do `what` within `limit`.
    pub(crate) fn get_stuck(&self, what: &'static str, limit: Duration) {
        self.stuck.set(Some((what, limit.as_secs())));
        self.give_up();
    }

    /// Action that the initiator did not take in time, and its time limit in seconds.
    pub(crate) const fn stuck(&self) -> Option<(&'static str, u64)> {
        self.stuck.get()
    }

    /// Stops accepting requests, and drops the commands that the nexus does not run yet: their data
    /// can no longer arrive.
    pub(crate) fn stop_taking(&self) {
        self.to_grant.borrow_mut().clear();
        self.dormant.borrow_mut().clear();
        self.held.borrow_mut().clear();
        self.held_bytes.set(0);
        let given_up: Vec<_> =
            self.tasks.borrow().values().filter(|task| !task.is_running()).map(Rc::clone).collect();
        given_up.iter().for_each(|task| self.remove(task));
    }

    /// True if this is a discovery session.
    pub(crate) const fn is_discovery(&self) -> bool {
        self.target.is_none()
    }

    /// Waits until the server asks for a logout. Returns the seconds within which the initiator
    /// must log out.
    pub(crate) async fn logout_wanted(&self) -> u16 {
        self.place.logout_wanted().await
    }

    /// Asks the initiator to log out, by an Asynchronous Message.
    pub(crate) fn request_logout(&self, seconds: u16) {
        let event = AsyncEvent::RequestsLogout;
        self.answer(AsyncMessage { event, cid: self.cid, seconds }.encode(), &[]);
        self.to_send.notify();
    }

    /// Announces that the target drops the session, by an Asynchronous Message.
    pub(crate) fn announce_end(&self) {
        let event = AsyncEvent::DropsSession;
        let header = AsyncMessage { event, cid: self.cid, seconds: 1 }.encode();
        self.answer(header, &[]);
        self.to_send.notify();
    }

    /// Ends the session after its last command. The writer ends after it has sent all responses.
    pub(crate) fn end(&self) {
        if let Some(itt) = self.logout.take() {
            self.answer(LogoutResponse::Closed.encode(itt), &[]);
        }
        self.ended.set(true);
        self.to_send.notify();
    }

    /// Returns true if the memory limits of the connection allow another request.
    pub(crate) fn has_room(&self) -> bool {
        let held = self.outbox.held_bytes() + self.running_bytes.get();
        !self.outbox.is_full() && held <= REPLY_BYTES_MAX && !self.must_end_some()
    }

    /// Waits until [`Connection::has_room`] returns true or the connection is broken.
    pub(crate) async fn wait_for_room(&self) {
        self.takes_nothing.set(true);
        while !self.has_room() && !self.is_broken() {
            self.flush();
            self.progress.wait().await;
        }
        self.takes_nothing.set(false);
        // The initiator could not be heard during the pause, so restart its time limits.
        self.heard.update(|(pdus, _)| (pdus + 1, Instant::now()));
        self.data_moves();
    }

    /// Wakes the writer if responses wait.
    pub(crate) fn flush(&self) {
        if !self.outbox.is_empty() {
            self.to_send.notify();
        }
    }

    /// Frees unused memory; called when the reader has no more input.
    pub(crate) fn idle(&self) {
        if self.tasks.borrow().is_empty() && self.outbox.idle() {
            self.account();
        }
    }

    // --- used by the writer ---

    pub(crate) fn next_send(&self) -> Option<Outgoing> {
        let next = self.outbox.next_send();
        self.made_room();
        next
    }

    /// Busy polls for the next request, if the initiator sends one command at a time. The writer
    /// calls this when it has nothing to send.
    pub(crate) async fn busy_poll(&self) {
        let commands = self.commands.get();
        let answered = self.commands_answered.replace(commands);
        if commands - answered > BUSY_POLL_COMMANDS_MAX || self.is_running() {
            return;
        }
        let receives = self.receives.get();
        self.busy_poll
            .while_quiet(|| self.receives.get() == receives && !self.to_send.is_set())
            .await;
    }

    pub(crate) fn sent(&self, sent: Outgoing) {
        let is_tight = self.grant.is_tight() || !self.to_grant.borrow().is_empty();
        self.outbox.sent(sent, is_tight);
        self.made_room();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.broken.get() || self.ended.get()
    }

    pub(crate) fn discard_answers(&self) {
        self.outbox.discard();
    }

    // --- used by the reader ---

    /// Counts a completed receive.
    pub(crate) fn received(&self, bytes: usize) {
        self.grant.moved(bytes);
        self.receives.update(|n| n + 1);
        self.busy_poll.end();
    }

    /// Number of complete PDUs received, and the time at which the last PDU arrived.
    pub(crate) const fn heard(&self) -> (u64, Instant) {
        self.heard.get()
    }

    /// Returns true if the reader accepts PDUs, so that a response to a NOP-In would arrive.
    pub(crate) const fn is_listening(&self) -> bool {
        !self.takes_nothing.get()
    }

    /// Returns true if the initiator owes write data, and has sent none of it for at least `limit`.
    pub(crate) fn is_owed_data_since(&self, limit: Duration) -> bool {
        self.is_listening() && self.data_moved.get().elapsed() >= limit && self.is_owed_data()
    }

    /// Returns true if the target waits for the initiator to send write data.
    pub(crate) fn is_owed_data(&self) -> bool {
        self.tasks.borrow().values().any(|task| task.is_owed_data())
    }

    /// Restarts the time limit for owed data, because some of it arrived or the target begins to
    /// wait for it.
    pub(super) fn data_moves(&self) {
        self.data_moved.set(Instant::now());
    }

    /// Sends a NOP-In that requests a response.
    pub(crate) fn ping(&self) {
        let header = NopIn { itt: NO_TAG, ttt: self.fresh_ttt() }.encode();
        self.answer_unnumbered(header);
        self.to_send.notify();
    }

    /// Processes a PDU; `raw` is the whole PDU as received.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub(crate) fn take(self: &Rc<Self>, pdu: &Pdu<'_>, raw: &[u8]) -> Result<Flow, IscsiError> {
        self.heard.update(|(pdus, _)| (pdus + 1, Instant::now()));
        let header = &pdu.header;
        if header.opcode() == opcode::DATA_OUT {
            return self.take_data(pdu, raw);
        }
        if !pdu.data_intact {
            // Reject the whole PDU and execute nothing. The initiator may send the PDU again with
            // the same CmdSN (7.8).
            self.reject(RejectReason::DataDigest, header);
            return Ok(Flow::Go);
        }
        let unnumbered = header.is_immediate()
            || header.opcode() == opcode::SNACK
            || header.opcode() == opcode::NOP_OUT && header.itt() == NO_TAG;
        if unnumbered {
            return self.dispatch(pdu);
        }
        let mut sequence = self.sequence.get();
        match sequence.admission(header.cmd_sn()) {
            Admission::Never => Ok(Flow::Go),
            Admission::Later => self.hold(header, raw),
            Admission::Now => {
                sequence.advance();
                self.sequence.set(sequence);
                match self.dispatch(pdu)? {
                    Flow::Go => self.take_held(),
                    Flow::End => Ok(Flow::End),
                }
            }
        }
    }

    /// Keeps a request that arrived ahead of its CmdSN.
    fn hold(&self, header: &Header, raw: &[u8]) -> Result<Flow, IscsiError> {
        let mut held = self.held.borrow_mut();
        if !held.contains_key(&header.cmd_sn()) {
            let entry = Held::Pdus(header.itt(), vec![raw.to_vec()]);
            held.insert(header.cmd_sn(), entry);
        }
        self.check_held(&held)
    }

    fn check_held(&self, held: &HashMap<u32, Held>) -> Result<Flow, IscsiError> {
        let bytes = |one: &Held| match one {
            Held::Pdus(_, pdus) => pdus.iter().map(Vec::len).sum(),
            Held::Aborted => 0,
        };
        let len = held.values().map(bytes).sum();
        self.held_bytes.set(len);
        if len > HELD_BYTES_MAX {
            let expected = self.sequence.get().expected();
            return Err(IscsiError::OutOfOrder { len, expected });
        }
        Ok(Flow::Go)
    }

    /// Processes kept requests, as long as the request with the next CmdSN is among them.
    fn take_held(self: &Rc<Self>) -> Result<Flow, IscsiError> {
        loop {
            let mut sequence = self.sequence.get();
            let Some(held) = self.held.borrow_mut().remove(&sequence.expected()) else {
                return Ok(Flow::Go);
            };
            sequence.advance();
            self.sequence.set(sequence);
            let Held::Pdus(_, pdus) = held else { continue };
            let len: usize = pdus.iter().map(Vec::len).sum();
            self.held_bytes.update(|n| n.saturating_sub(len));
            for raw in pdus {
                let framed = pdu::frame(&raw, self.digests(), self.receive_data_bytes_max())?;
                let Framed::Pdu(pdu, _) = framed else { continue };
                let flow = match pdu.header.opcode() {
                    opcode::DATA_OUT => self.take_data(&pdu, &raw)?,
                    _ => self.dispatch(&pdu)?,
                };
                if flow == Flow::End {
                    return Ok(Flow::End);
                }
            }
        }
    }

    /// Keeps a Data-Out together with its command if the command waits for its CmdSN. Otherwise
    /// drops the Data-Out and returns false.
    pub(super) fn hold_data(&self, itt: u32, raw: &[u8]) -> Result<bool, IscsiError> {
        let mut held = self.held.borrow_mut();
        let found = held.values_mut().find_map(|one| match one {
            Held::Pdus(of, pdus) if *of == itt => Some(pdus),
            _ => None,
        });
        let Some(pdus) = found else { return Ok(false) };
        pdus.push(raw.to_vec());
        self.check_held(&held).map(|_| true)
    }

    /// Processes a request whose CmdSN is the next one.
    fn dispatch(self: &Rc<Self>, pdu: &Pdu<'_>) -> Result<Flow, IscsiError> {
        let request = match Request::decode(pdu) {
            Ok(request) => request,
            Err(reason) => {
                self.reject(reason, &pdu.header);
                return Ok(Flow::Go);
            }
        };
        match request {
            Request::Command(command) => self.take_command(command, pdu),
            Request::NopOut(request) => self.echo(request, pdu.data),
            Request::Management(request) => {
                if self.waiting.borrow().len() >= MANAGEMENT_MAX {
                    self.reject(RejectReason::TooManyImmediate, &pdu.header);
                } else {
                    self.manage(&request);
                }
            }
            Request::Text(request) => self.take_text(&request, pdu)?,
            Request::Logout(request) => return Ok(self.log_out(request)),
            // `take` has already handled Data-Out, because a Data-Out has no CmdSN.
            Request::DataOut(_) => {}
        }
        Ok(Flow::Go)
    }

    fn echo(&self, request: NopOut, data: &[u8]) {
        if self.tasks.borrow().is_empty() && self.outbox.is_empty() {
            // No command is in progress: the initiator is idle, and the connection needs no pooled
            // buffers.
            self.outbox.give_up_pool();
        }
        if request.itt == NO_TAG {
            return;
        }
        let data = data.get(..self.negotiated.get().send_data_bytes_max).unwrap_or(data);
        self.answer(NopIn { itt: request.itt, ttt: NO_TAG }.encode(), data);
    }

    fn log_out(&self, request: Logout) -> Flow {
        let refusal = match request.reason {
            LogoutReason::CloseConnection if request.cid != self.cid => {
                LogoutResponse::NoConnection
            }
            LogoutReason::CloseSession | LogoutReason::CloseConnection => {
                self.logout.set(Some(request.itt));
                return Flow::End;
            }
            LogoutReason::RemoveForRecovery => LogoutResponse::NoRecovery,
        };
        self.answer(refusal.encode(request.itt), &[]);
        Flow::Go
    }

    // --- responses ---

    /// Appends a response that advances StatSN.
    pub(super) fn answer(&self, mut header: Header, data: &[u8]) {
        self.number(&mut header);
        pdu::put(&mut self.outbox.gathering(), header, data, self.digests());
    }

    /// Appends a PDU that does not advance StatSN.
    pub(super) fn answer_unnumbered(&self, mut header: Header) {
        header.set_word(24, self.stat_sn.get());
        self.number_commands(&mut header);
        pdu::put(&mut self.outbox.gathering(), header, &[], self.digests());
    }

    pub(super) fn reject(&self, reason: RejectReason, rejected: &Header) {
        tracing::debug!(?reason, opcode = rejected.opcode(), "iSCSI PDU rejected");
        let number = |header: &mut Header| self.number(header);
        let mut out = self.outbox.gathering();
        pdu::reject(&mut out, reason, rejected, number, self.digests());
    }

    /// Writes the next StatSN and the command window into a PDU header, and advances StatSN.
    pub(super) fn number(&self, header: &mut Header) {
        let stat_sn = self.stat_sn.get();
        header.set_word(24, stat_sn);
        self.stat_sn.set(stat_sn.wrapping_add(1));
        self.number_commands(header);
    }

    /// Writes the command window into a PDU header as ExpCmdSN and MaxCmdSN. The window has the
    /// number of commands that the connection can still accept.
    pub(super) fn number_commands(&self, header: &mut Header) {
        let mut sequence = self.sequence.get();
        let tasks = self.tasks.borrow().len() as u32;
        sequence.open(COMMANDS_MAX.saturating_sub(tasks));
        self.sequence.set(sequence);
        header.set_word(28, sequence.expected());
        header.set_word(32, sequence.max());
    }

    /// Sends a NOP-In with the new command window if the window was closed: the initiator waits for
    /// the new window, and perhaps no response follows that would carry it.
    pub(super) fn open_window(&self) {
        if self.sequence.get().is_closed() {
            self.answer_unnumbered(NopIn { itt: NO_TAG, ttt: NO_TAG }.encode());
            self.to_send.notify();
        }
    }

    pub(super) fn fresh_ttt(&self) -> u32 {
        let next = self.last_ttt.get().wrapping_add(1);
        self.last_ttt.set(if next == NO_TAG { 1 } else { next });
        self.last_ttt.get()
    }

    /// Length of the header before the data of a Data-In PDU, with its digest if there is one.
    pub(super) const fn header_room(&self) -> usize {
        HEADER_BYTES + if self.negotiated.get().digests.header { 4 } else { 0 }
    }
}
