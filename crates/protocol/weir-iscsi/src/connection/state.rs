//! A connection in full feature phase: takes requests in order and answers them.
//!
//! Not here: receiving and sending (`session`), bytes (`pdu`), commands of SCSI (the nexus).
//!
//! A command runs at once where the nexus can do it without waiting; its answer goes straight
//! into the buffer of the next send. The rest become tasks of the same thread.
//!
//! Spec: RFC 7143 4.2.2 (numbering), 4.2.3 (task management), 7 (errors; recovery level 0).
//!
//! Invariants:
//! - a request that has a CmdSN is taken once, and in order;
//! - a command that was taken gets one answer, or was aborted, or the connection is broken;
//! - the nexus is dropped, and then the session's place given up, when nothing is under way.

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
use weir_net::{Linger, Outgoing, Share, Signal};
use weir_scsi::Nexus;

use super::outbox::Outbox;
use super::sequence::{Sequence, Turn};
use crate::connection::pending::{Exchange, Task, Waiting};
use crate::error::IscsiError;
use crate::limits::{
    COMMANDS_MAX, HELD_BYTES_MAX, LINGER_COMMANDS_MAX, MANAGEMENT_MAX, REPLY_BYTES_MAX,
};
use crate::login::negotiated::Terms;
use crate::target::session_table::Place;
use crate::target::targets::{Applicant, Targets};

/// What a connection is made of, when it begins and when it is at rest.
pub(crate) struct Parts {
    pub(crate) nexus: Option<Box<dyn Nexus>>,
    pub(crate) place: Place,
    pub(crate) targets: Arc<dyn Targets>,
    pub(crate) share: Share,
    pub(crate) applicant: Applicant,
    /// What it proved by CHAP.
    pub(crate) proven: Option<Credentials>,
    pub(crate) target: Option<String>,
    pub(crate) terms: Terms,
    pub(crate) cid: u16,
    pub(crate) cmd_sn: u32,
    pub(crate) stat_sn: u32,
    /// The last target transfer tag that was given.
    pub(crate) ttt: u32,
}

/// What reader, writer and tasks of one connection share.
pub(crate) struct Connection {
    // The nexus first and the place last: fields are dropped in this order.
    pub(super) nexus: Option<Box<dyn Nexus>>,
    pub(super) targets: Arc<dyn Targets>,
    pub(super) applicant: Applicant,
    pub(super) proven: Option<Credentials>,
    pub(super) target: Option<String>,
    pub(super) cid: u16,
    pub(super) terms: Cell<Terms>,
    pub(super) outbox: Outbox,
    pub(super) stat_sn: Cell<u32>,
    pub(super) sequence: Cell<Sequence>,
    /// Requests that came before their turn, by CmdSN, and their bytes.
    pub(super) held: RefCell<HashMap<u32, Held>>,
    pub(super) held_bytes: Cell<usize>,
    /// Commands taken and not answered, by initiator task tag.
    pub(super) tasks: RefCell<HashMap<u32, Rc<Task>>>,
    pub(super) tasks_begun: Cell<u64>,
    /// Commands that the nexus has.
    pub(super) running: Cell<usize>,
    /// Room that their answers may take.
    pub(super) running_bytes: Cell<usize>,
    /// Write data that was asked for.
    pub(super) gathering_bytes: Cell<usize>,
    /// Write data that came unasked.
    pub(super) unasked_bytes: Cell<usize>,
    /// Commands that wait for memory: to ask for their data, or to run.
    pub(super) to_grant: RefCell<VecDeque<(u32, u64)>>,
    pub(super) share: Share,
    /// Of the tasks, those that are ordered.
    pub(super) ordered: Cell<usize>,
    /// Commands that wait until others before them have ended.
    pub(super) dormant: RefCell<Vec<(u32, u64)>>,
    pub(super) waiting: RefCell<Vec<Waiting>>,
    pub(super) exchange: RefCell<Option<Exchange>>,
    pub(super) last_ttt: Cell<u32>,
    /// The answer to a logout, to be given when nothing is under way.
    pub(super) logout: Cell<Option<u32>>,
    /// No further request comes; the writer ends once all is sent.
    ended: Cell<bool>,
    /// The socket failed or an answer cannot be given.
    broken: Cell<bool>,
    /// There is something to send, or the end was reached.
    pub(crate) to_send: Signal,
    /// Something was sent or finished.
    pub(crate) progress: Signal,
    receives: Cell<u64>,
    pub(super) commands: Cell<u64>,
    commands_answered: Cell<u64>,
    linger: Linger,
    /// Whole PDUs that came, and when the last one did.
    heard: Cell<(u64, Instant)>,
    /// When data last came that this side waits for, or began to be waited for.
    data_moved: Cell<Instant>,
    /// The reader waits for room: silence is no sign of anything.
    pub(super) takes_nothing: Cell<bool>,
    /// What the initiator did not do, and for how many seconds.
    stuck: Cell<Option<(&'static str, u64)>>,
    pub(super) place: Place,
}

/// A request that came before its turn.
pub(super) enum Held {
    /// Its PDU, and those of its data.
    Pdus(u32, Vec<Vec<u8>>),
    /// It was aborted before it came: nothing is to be done at its turn.
    Aborted,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Go,
    /// No further request is to be taken.
    End,
}

impl Connection {
    pub(crate) fn new(parts: Parts) -> Rc<Self> {
        // Commands that wait for memory hold up no other request.
        parts.share.hears_client();
        Rc::new(Self {
            nexus: parts.nexus,
            targets: parts.targets,
            applicant: parts.applicant,
            proven: parts.proven,
            target: parts.target,
            cid: parts.cid,
            terms: Cell::new(parts.terms),
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
            share: parts.share,
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
            linger: Linger::default(),
            heard: Cell::new((0, Instant::now())),
            data_moved: Cell::new(Instant::now()),
            takes_nothing: Cell::new(false),
            stuck: Cell::new(None),
            place: parts.place,
        })
    }

    pub(crate) const fn digests(&self) -> Digests {
        self.terms.get().digests
    }

    /// Longest data segment that is taken.
    pub(crate) const fn receive_data_bytes_max(&self) -> usize {
        self.terms.get().receive_data_bytes_max
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Why the session is to end, if somebody outside wants that.
    pub(crate) fn ending(&self) -> Option<&'static str> {
        self.place.ending()
    }

    /// Whether the nexus has commands.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get() > 0
    }

    /// Ends the connection without an answer to what is under way.
    pub(crate) fn give_up(&self) {
        self.broken.set(true);
        self.to_send.notify();
        self.progress.notify();
    }

    /// Ends the connection, as nothing moves.
    pub(crate) fn get_stuck(&self, what: &'static str, limit: Duration) {
        self.stuck.set(Some((what, limit.as_secs())));
        self.give_up();
    }

    /// What the initiator did not do, and for how many seconds.
    pub(crate) const fn stuck(&self) -> Option<(&'static str, u64)> {
        self.stuck.get()
    }

    /// No further request comes: commands whose data is not here never get it.
    pub(crate) fn stop_taking(&self) {
        self.to_grant.borrow_mut().clear();
        self.dormant.borrow_mut().clear();
        self.held.borrow_mut().clear();
        self.held_bytes.set(0);
        let given_up: Vec<_> =
            self.tasks.borrow().values().filter(|task| !task.is_running()).map(Rc::clone).collect();
        given_up.iter().for_each(|task| self.remove(task));
    }

    /// Whether there is no target to it.
    pub(crate) const fn is_discovery(&self) -> bool {
        self.target.is_none()
    }

    /// Within how many seconds the initiator is to log out, once that is wanted.
    pub(crate) async fn logout_wanted(&self) -> u16 {
        self.place.logout_wanted().await
    }

    /// Asks the initiator to log out.
    pub(crate) fn request_logout(&self, seconds: u16) {
        let event = AsyncEvent::RequestsLogout;
        self.answer(AsyncMessage { event, cid: self.cid, seconds }.encode(), &[]);
        self.to_send.notify();
    }

    /// Says that the session is about to be dropped by this side.
    pub(crate) fn announce_end(&self) {
        let event = AsyncEvent::DropsSession;
        let header = AsyncMessage { event, cid: self.cid, seconds: 1 }.encode();
        self.answer(header, &[]);
        self.to_send.notify();
    }

    /// Nothing is under way any more: the writer ends once all is sent.
    pub(crate) fn end(&self) {
        if let Some(itt) = self.logout.take() {
            self.answer(LogoutResponse::Closed.encode(itt), &[]);
        }
        self.ended.set(true);
        self.to_send.notify();
    }

    /// Whether another request may be taken.
    pub(crate) fn has_room(&self) -> bool {
        let held = self.outbox.held_bytes() + self.running_bytes.get();
        !self.outbox.is_full() && held <= REPLY_BYTES_MAX && !self.must_end_some()
    }

    /// Waits until [`Connection::has_room`], or the connection is broken.
    pub(crate) async fn wait_for_room(&self) {
        self.takes_nothing.set(true);
        while !self.has_room() && !self.is_broken() {
            self.flush();
            self.progress.wait().await;
        }
        self.takes_nothing.set(false);
        // The silence of this time was ours.
        self.heard.update(|(pdus, _)| (pdus + 1, Instant::now()));
        self.data_moves();
    }

    /// Lets the writer send what there is.
    pub(crate) fn flush(&self) {
        if !self.outbox.is_empty() {
            self.to_send.notify();
        }
    }

    /// Called where nothing is left to do for now.
    pub(crate) fn idle(&self) {
        if self.tasks.borrow().is_empty() && self.outbox.idle() {
            self.account();
        }
    }

    // --- the writer's side ---

    pub(crate) fn next_send(&self) -> Option<Outgoing> {
        let next = self.outbox.next_send();
        self.made_room();
        next
    }

    /// Called when there is nothing to send: waits awake for the next request of an initiator
    /// that sends one at a time.
    pub(crate) async fn linger(&self) {
        let commands = self.commands.get();
        let answered = self.commands_answered.replace(commands);
        if commands - answered > LINGER_COMMANDS_MAX || self.is_running() {
            return;
        }
        let receives = self.receives.get();
        self.linger.while_quiet(|| self.receives.get() == receives && !self.to_send.is_set()).await;
    }

    pub(crate) fn sent(&self, sent: Outgoing) {
        let is_tight = self.share.is_tight() || !self.to_grant.borrow().is_empty();
        self.outbox.sent(sent, is_tight);
        self.made_room();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.broken.get() || self.ended.get()
    }

    pub(crate) fn discard_answers(&self) {
        self.outbox.discard();
    }

    // --- the reader's side ---

    /// A receive was done.
    pub(crate) fn received(&self, bytes: usize) {
        self.share.moved(bytes);
        self.receives.update(|n| n + 1);
        self.linger.end();
    }

    /// Whole PDUs that came, and when the last one did.
    pub(crate) const fn heard(&self) -> (u64, Instant) {
        self.heard.get()
    }

    /// Whether an answer could be heard.
    pub(crate) const fn is_listening(&self) -> bool {
        !self.takes_nothing.get()
    }

    /// Whether the initiator has owed data for so long, without a bit of it.
    pub(crate) fn is_owed_data_since(&self, limit: Duration) -> bool {
        self.is_listening() && self.data_moved.get().elapsed() >= limit && self.is_owed_data()
    }

    /// Whether the initiator is to send data for a command.
    pub(crate) fn is_owed_data(&self) -> bool {
        self.tasks.borrow().values().any(|task| task.is_owed_data())
    }

    /// Data came that was waited for, or begins to be waited for.
    pub(super) fn data_moves(&self) {
        self.data_moved.set(Instant::now());
    }

    /// Asks whether the initiator is there.
    pub(crate) fn ping(&self) {
        let header = NopIn { itt: NO_TAG, ttt: self.fresh_ttt() }.encode();
        self.answer_unnumbered(header);
        self.to_send.notify();
    }

    /// Takes a PDU; `raw` is all of it, as it came.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub(crate) fn take(self: &Rc<Self>, pdu: &Pdu<'_>, raw: &[u8]) -> Result<Flow, IscsiError> {
        self.heard.update(|(pdus, _)| (pdus + 1, Instant::now()));
        let header = &pdu.header;
        if header.opcode() == opcode::DATA_OUT {
            return self.take_data(pdu, raw);
        }
        if !pdu.data_intact {
            // Not taken at all: it may come again with the same CmdSN (7.8).
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
        match sequence.turn(header.cmd_sn()) {
            Turn::Never => Ok(Flow::Go),
            Turn::Later => self.hold(header, raw),
            Turn::Now => {
                sequence.advance();
                self.sequence.set(sequence);
                match self.dispatch(pdu)? {
                    Flow::Go => self.take_held(),
                    Flow::End => Ok(Flow::End),
                }
            }
        }
    }

    /// Keeps a request until its turn.
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

    /// Takes requests whose turn has come.
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

    /// Data of a command that waits for its turn waits with it; false where there is none.
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

    /// Does what a request asks for, at its turn.
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
            // Taken before, as it has no CmdSN.
            Request::DataOut(_) => {}
        }
        Ok(Flow::Go)
    }

    fn echo(&self, request: NopOut, data: &[u8]) {
        if self.tasks.borrow().is_empty() && self.outbox.is_empty() {
            // Who has time to ask whether this side is there needs no buffers for now.
            self.outbox.give_up_pool();
        }
        if request.itt == NO_TAG {
            return;
        }
        let data = data.get(..self.terms.get().send_data_bytes_max).unwrap_or(data);
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

    // --- answers ---

    /// Puts in an answer that has a StatSN of its own.
    pub(super) fn answer(&self, mut header: Header, data: &[u8]) {
        self.number(&mut header);
        pdu::put(&mut self.outbox.gathering(), header, data, self.digests());
    }

    /// Puts in a PDU that takes no StatSN.
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

    /// Sets StatSN, which counts up, and the window of commands.
    pub(super) fn number(&self, header: &mut Header) {
        let stat_sn = self.stat_sn.get();
        header.set_word(24, stat_sn);
        self.stat_sn.set(stat_sn.wrapping_add(1));
        self.number_commands(header);
    }

    /// Sets ExpCmdSN and MaxCmdSN: as many commands may come as there is room for tasks.
    pub(super) fn number_commands(&self, header: &mut Header) {
        let mut sequence = self.sequence.get();
        let tasks = self.tasks.borrow().len() as u32;
        sequence.open(COMMANDS_MAX.saturating_sub(tasks));
        self.sequence.set(sequence);
        header.set_word(28, sequence.expected());
        header.set_word(32, sequence.max());
    }

    /// Tells of room that no answer tells of.
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

    /// Bytes in front of the data of a Data-In.
    pub(super) const fn header_room(&self) -> usize {
        HEADER_BYTES + if self.terms.get().digests.header { 4 } else { 0 }
    }
}
