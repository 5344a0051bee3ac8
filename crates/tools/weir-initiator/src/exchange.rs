//! Full feature phase as a machine: what is sent and what becomes of what comes, without a socket.
//!
//! Not here: the login (`login`), sockets and waiting (`connection`), what commands are (`cdb`).
//!
//! A command has a slot. What it sends and what it brings lies in memory of the caller's
//! ([`Buffers`]), by slot; nothing of it is copied here, but for small pieces that came together
//! with others.
//!
//! Invariants:
//! - a number the target sends is compared with what it must be: StatSN, DataSN, R2TSN, offsets,
//!   tags; one that is not ends the session;
//! - commands are sent in the order in which they were submitted, and none beyond MaxCmdSN;
//! - a slot is done when its status has come and nothing of its memory is still to be sent;
//! - what a target can make this side hold is bounded by `limits`.
//!
//! Spec: RFC 7143 4.2.2 (numbering), 4.2.5 (data), 11.3 to 11.19 (PDUs).

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use weir_iscsi_wire::pdu::{Digests, Header, NO_TAG, Residual, opcode};
use weir_scsi::Lun;

use crate::cdb::Cdb;
use crate::error::InitiatorError;
use crate::limits::TASKS_MAX;
use crate::sense::Status;
use crate::terms::Terms;

mod input;
mod output;
mod requests;
mod take;

use input::Input;
use output::Output;
use requests::{Ending, TextRequest};

/// The caller's memory of commands, by slot.
pub trait Buffers {
    /// What a command in that slot sends.
    fn data(&self, slot: usize) -> &[u8];
    /// Where what it brings belongs.
    fn data_mut(&mut self, slot: usize) -> &mut [u8];
}

/// Which way data of a command goes, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// There is none.
    None,
    /// To the target: the first bytes of the slot's memory.
    Out(u32),
    /// From the target: at most so many.
    In(u32),
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: Status,
    /// Sense data as it came; empty where there was none.
    pub sense: Vec<u8>,
    /// Bytes that it brought: the first of the slot's memory.
    pub received_bytes: u32,
    /// What the target says of how much it moved.
    pub residual: Residual,
}

/// A command that came to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Its slot, which is free again.
    pub slot: usize,
    /// How it ended.
    pub answer: Answer,
}

/// A command under way.
struct Task {
    itt: u32,
    cdb: Cdb,
    data: Data,
    /// Of a read: bytes that came.
    received_bytes: u32,
    /// Of a write: bytes that were sent unasked, or asked for.
    covered_bytes: u32,
    /// Number of the next Data-In or R2T.
    data_sn: u32,
    /// R2Ts whose data is not all sent.
    r2ts_open: u32,
    /// Pieces of its memory that are to be sent.
    queued: u32,
    /// It is on its way; before, nothing can answer it.
    is_sent: bool,
    answer: Option<Answer>,
}

/// Numbers that both sides count (RFC 7143 4.2.2).
#[expect(clippy::struct_field_names, reason = "they are called so in the RFC")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// Of the next command.
    pub(crate) cmd_sn: u32,
    /// The last that the target takes now.
    pub(crate) max_cmd_sn: u32,
    /// Of the next status.
    pub(crate) exp_stat_sn: u32,
}

/// One connection in full feature phase.
pub struct Exchange {
    terms: Terms,
    lun: Lun,
    numbers: Numbers,
    tasks: Vec<Option<Task>>,
    /// Counts commands, for tags that do not come again soon.
    count: u16,
    /// Submitted, and not sent because the window is closed.
    waiting: VecDeque<usize>,
    under_way: usize,
    output: Output,
    input: Input,
    text: Option<TextRequest>,
    ending: Ending,
    done: Vec<Done>,
}

/// Where the next bytes of the socket belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot.
    pub slot: usize,
    /// Bytes of its memory.
    pub range: Range<usize>,
}

/// Whether one serial number is not behind another (RFC 1982).
pub(crate) const fn reached(max: u32, number: u32) -> bool {
    max.wrapping_sub(number).cast_signed() >= 0
}

impl Exchange {
    pub(crate) fn new(terms: Terms, lun: u16, numbers: Numbers, slots: usize) -> Self {
        Self {
            terms,
            lun: Lun::new(lun),
            numbers,
            tasks: (0..slots.min(TASKS_MAX)).map(|_| None).collect(),
            count: 0,
            waiting: VecDeque::new(),
            under_way: 0,
            output: Output::default(),
            input: Input::default(),
            text: None,
            ending: Ending::No,
            done: Vec::new(),
        }
    }

    /// For tests and fuzzing: full feature phase with these terms, without a login. Commands begin
    /// with CmdSN 1, the window is closed at `max_cmd_sn`, the next StatSN is 1.
    pub fn without_login(terms: Terms, max_cmd_sn: u32, slots: usize) -> Self {
        Self::new(terms, 0, Numbers { cmd_sn: 1, max_cmd_sn, exp_stat_sn: 1 }, slots)
    }

    /// What was agreed on.
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Commands that were submitted and are not done, waiting ones included.
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Commands that wait for the target to take more.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the command in a slot is under way.
    pub fn is_busy(&self, slot: usize) -> bool {
        self.tasks.get(slot).is_some_and(Option::is_some)
    }

    /// Whether the target asked for the end of the session: nothing more is sent.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Makes room for so many slots; those that are there stay.
    pub fn set_slots(&mut self, slots: usize) {
        let slots = slots.min(TASKS_MAX);
        while self.tasks.len() < slots {
            self.tasks.push(None);
        }
    }

    /// Gives a command to a slot that is free. It is sent when the target takes it.
    ///
    /// # Panics
    /// The slot is busy or does not exist, or its memory is shorter than the data.
    pub fn submit(&mut self, slot: usize, cdb: Cdb, data: Data, buffers: &impl Buffers) {
        let data = match data {
            Data::None | Data::Out(0) | Data::In(0) => Data::None,
            Data::Out(len) | Data::In(len) => {
                let room = buffers.data(slot).len();
                assert!(room >= len as usize, "the slot has no room for the command's data");
                data
            }
        };
        self.count = self.count.wrapping_add(1) & 0x7fff;
        let task = Task {
            itt: u32::from(self.count) << 16 | slot as u32,
            cdb,
            data,
            received_bytes: 0,
            covered_bytes: 0,
            data_sn: 0,
            r2ts_open: 0,
            queued: 0,
            is_sent: false,
            answer: None,
        };
        let place = self.tasks.get_mut(slot).expect("there is such a slot");
        assert!(place.is_none(), "the slot is free");
        *place = Some(task);
        self.under_way += 1;
        self.waiting.push_back(slot);
        self.release(buffers);
    }

    /// Sends what waits, as far as the window is open.
    fn release(&mut self, buffers: &impl Buffers) {
        while self.ending == Ending::No && reached(self.numbers.max_cmd_sn, self.numbers.cmd_sn) {
            let Some(slot) = self.waiting.pop_front() else { return };
            self.send_command(slot, buffers);
            self.numbers.cmd_sn = self.numbers.cmd_sn.wrapping_add(1);
        }
    }

    /// The command's PDU with immediate data, and unsolicited Data-Out behind it (4.2.5.2).
    fn send_command(&mut self, slot: usize, buffers: &impl Buffers) {
        let (terms, numbers, lun) = (self.terms, self.numbers, self.lun);
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return };
        let (flags, expected) = match task.data {
            Data::None => (0, 0),
            Data::In(len) => (0x40, len),
            Data::Out(len) => (0x20, len),
        };
        let outgoing = if flags == 0x20 { expected } else { 0 };
        let unasked = outgoing.min(terms.first_burst_bytes);
        let with_command =
            if terms.immediate_data { unasked.min(terms.send_data_bytes_max) } else { 0 };
        let behind = if terms.initial_r2t { 0 } else { unasked - with_command };
        // SIMPLE; F where no Data-Out follows unasked.
        let is_final = if behind == 0 { 0x80 } else { 0 };
        let mut header = Header::new(opcode::COMMAND, is_final | flags | 0x01);
        header.set(8, lun.0);
        header.set_word(16, task.itt);
        header.set_word(20, expected);
        header.set_word(24, numbers.cmd_sn);
        header.set_word(28, numbers.exp_stat_sn);
        header.set(32, task.cdb);
        task.covered_bytes = with_command + behind;
        task.is_sent = true;
        let itt = task.itt;
        self.put(header, slot, 0..with_command, false, buffers);
        if behind > 0 {
            let burst =
                Burst { slot, itt, ttt: NO_TAG, range: with_command..with_command + behind };
            self.send_burst(&burst, buffers);
        }
    }

    /// A sequence of Data-Out PDUs (11.7).
    fn send_burst(&mut self, burst: &Burst, buffers: &impl Buffers) {
        let Burst { slot, itt, ttt, ref range } = *burst;
        let (mut from, mut data_sn) = (range.start, 0);
        while from < range.end {
            let to = range.end.min(from + self.terms.send_data_bytes_max);
            let is_last = to == range.end;
            let mut header = Header::new(opcode::DATA_OUT, if is_last { 0x80 } else { 0 });
            // Without a tag of the target the field is reserved.
            if ttt != NO_TAG {
                header.set(8, self.lun.0);
            }
            header.set_word(16, itt);
            header.set_word(20, ttt);
            header.set_word(28, self.numbers.exp_stat_sn);
            header.set_word(36, data_sn);
            header.set_word(40, from);
            self.put(header, slot, from..to, is_last && ttt != NO_TAG, buffers);
            (from, data_sn) = (to, data_sn + 1);
        }
    }

    /// Queues a PDU with a part of a slot's memory.
    fn put(
        &mut self,
        header: Header,
        slot: usize,
        range: Range<u32>,
        ends_r2t: bool,
        buffers: &impl Buffers,
    ) {
        let digests = self.terms.digests;
        if range.is_empty() {
            return self.output.put(header, &[], digests);
        }
        let range = range.start as usize..range.end as usize;
        let data = buffers.data(slot).get(range.clone()).unwrap_or_default();
        self.output.put_piece(header, slot, range, data, ends_r2t, digests);
        if let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) {
            task.queued += 1;
        }
    }

    /// What is to be sent, from the front on: as many pieces as fit; how many there are.
    pub fn outgoing<'a>(&'a self, buffers: &'a impl Buffers, pieces: &mut [IoSlice<'a>]) -> usize {
        self.output.pieces(buffers, pieces)
    }

    /// Whether anything is to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.output.is_empty()
    }

    /// So many bytes of [`Self::outgoing`] were sent.
    pub fn sent(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let Some(piece) = self.output.sent(&mut bytes) else { continue };
            let Some(task) = self.tasks.get_mut(piece.slot).and_then(Option::as_mut) else {
                continue;
            };
            task.queued = task.queued.saturating_sub(1);
            if piece.ends_r2t {
                task.r2ts_open = task.r2ts_open.saturating_sub(1);
            }
            self.finish(piece.slot);
        }
    }

    /// Ends the command of a slot if its answer has come and its memory is not needed any more.
    fn finish(&mut self, slot: usize) {
        let Some(place) = self.tasks.get_mut(slot) else { return };
        let is_done = |task: &mut Task| task.queued == 0 && task.answer.is_some();
        if let Some(task) = place.take_if(is_done)
            && let Some(answer) = task.answer
        {
            self.under_way -= 1;
            self.done.push(Done { slot, answer });
        }
    }

    /// Takes commands that came to their end.
    pub fn take_done(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }

    /// Where the next bytes of the socket belong, if those are data of a read; those may be
    /// received there, and told by [`Self::placed`].
    pub fn place(&self) -> Option<Place> {
        self.input.place()
    }

    /// So many bytes were received to [`Self::place`].
    pub fn placed(&mut self, bytes: usize) {
        self.input.placed(bytes);
    }

    /// Takes bytes from the socket; how many were used. The others come again, with more behind
    /// them: at most [`HEAD_BYTES_MAX`](crate::limits::HEAD_BYTES_MAX)
    /// are left.
    ///
    /// # Errors
    /// The session is lost.
    pub fn take(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<usize, InitiatorError> {
        let mut used = 0;
        loop {
            let rest = bytes.get(used..).unwrap_or_default();
            match self.step(rest, buffers)? {
                Some(now) => used += now,
                None => return Ok(used),
            }
        }
    }

    /// What digests the next PDUs have.
    const fn digests(&self) -> Digests {
        self.terms.digests
    }
}

/// Data that is sent as one sequence.
struct Burst {
    slot: usize,
    itt: u32,
    ttt: u32,
    range: Range<u32>,
}

#[cfg(test)]
mod tests;
