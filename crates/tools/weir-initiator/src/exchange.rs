//! Exchange: the full feature phase as a state machine without a socket (RFC 7143 4.2.2, 4.2.5,
//! 11.3 to 11.19). The exchange builds the PDUs to send and processes the received bytes. `login`
//! handles the login, `connection` the sockets, `cdb` the command descriptor blocks.
//!
//! Each command has a slot. The data of the command is in the caller's memory ([`Buffers`]); the
//! exchange copies only small amounts that were received together with other PDUs.
//!
//! Invariants:
//! - an unexpected StatSN, DataSN, R2TSN, offset or tag from the target ends the session;
//! - commands are sent in submission order, and no command is sent beyond MaxCmdSN;
//! - a slot is done when its status has arrived and all queued data of its buffer was sent;
//! - `limits` bounds the memory that a target can make the initiator hold.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use weir_iscsi_wire::pdu::{Digests, Header, NO_TAG, Residual, opcode};
use weir_scsi::Lun;

use crate::cdb::Cdb;
use crate::error::InitiatorError;
use crate::limits::TASKS_MAX;
use crate::negotiated::Negotiated;
use crate::sense::Status;

mod input;
mod output;
mod requests;
mod take;

use input::Input;
use output::Output;
use requests::{Ending, TextRequest};

/// Data buffers of the commands. The caller owns the buffers; each slot has one.
pub trait Buffers {
    /// Data that the command in this slot sends to the target.
    fn data(&self, slot: usize) -> &[u8];
    /// Buffer for the data that the command in this slot receives from the target.
    fn data_mut(&mut self, slot: usize) -> &mut [u8];
}

/// Direction and length of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// The command has no data.
    None,
    /// The initiator sends this many bytes from the start of the slot's buffer.
    Out(u32),
    /// The initiator receives at most this many bytes into the slot's buffer.
    In(u32),
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status of the command.
    pub status: Status,
    /// Sense data as received; empty if the target sent none.
    pub sense: Vec<u8>,
    /// Number of received bytes, which are at the start of the slot's buffer.
    pub received_bytes: u32,
    /// Residual count that the target reported.
    pub residual: Residual,
}

/// A completed command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Slot of the command. The slot is free again.
    pub slot: usize,
    /// Result of the command.
    pub answer: Answer,
}

/// A command that was submitted and is not done: it is in flight, or it waits for the command
/// window.
struct Task {
    itt: u32,
    cdb: Cdb,
    data: Data,
    /// For a read: number of data bytes that have arrived.
    received_bytes: u32,
    /// For a write: number of data bytes that were sent unsolicited or requested by R2Ts.
    covered_bytes: u32,
    /// DataSN of the next Data-In, or R2TSN of the next R2T.
    data_sn: u32,
    /// Number of R2Ts whose data has not been sent completely.
    r2ts_open: u32,
    /// Number of ranges of the slot's buffer that are in the output queue.
    queued: u32,
    /// True if the command was sent. Before the command is sent, no response to it is valid.
    is_sent: bool,
    answer: Option<Answer>,
}

/// Sequence numbers of the initiator and the target (RFC 7143 4.2.2).
#[expect(clippy::struct_field_names, reason = "they are called so in the RFC")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    /// CmdSN of the next command.
    pub(crate) cmd_sn: u32,
    /// Last CmdSN that the target accepts at present.
    pub(crate) max_cmd_sn: u32,
    /// StatSN that the next status must have.
    pub(crate) exp_stat_sn: u32,
}

/// Protocol state of one connection in full feature phase.
pub struct Exchange {
    negotiated: Negotiated,
    lun: Lun,
    numbers: Numbers,
    tasks: Vec<Option<Task>>,
    /// Number of submitted commands. This number is a part of each task tag, so that a tag is not
    /// reused soon.
    count: u16,
    /// Slots of submitted commands that wait until the command window admits them.
    waiting: VecDeque<usize>,
    under_way: usize,
    output: Output,
    input: Input,
    text: Option<TextRequest>,
    ending: Ending,
    done: Vec<Done>,
}

/// Range of a caller's buffer for the next bytes from the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot of the command.
    pub slot: usize,
    /// Range of the slot's buffer.
    pub range: Range<usize>,
}

/// True if `number` does not exceed `max` in serial number arithmetic (RFC 1982).
pub(crate) const fn reached(max: u32, number: u32) -> bool {
    max.wrapping_sub(number).cast_signed() >= 0
}

impl Exchange {
    pub(crate) fn new(negotiated: Negotiated, lun: u16, numbers: Numbers, slots: usize) -> Self {
        Self {
            negotiated,
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

    /// For tests and fuzzing: creates an exchange in full feature phase without a login, with the
    /// given parameters. The first CmdSN is 1, the command window ends at `max_cmd_sn`, and the
    /// next StatSN is 1.
    pub fn without_login(negotiated: Negotiated, max_cmd_sn: u32, slots: usize) -> Self {
        Self::new(negotiated, 0, Numbers { cmd_sn: 1, max_cmd_sn, exp_stat_sn: 1 }, slots)
    }

    /// Parameters that the login negotiated.
    pub const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Number of submitted commands that are not done, including commands that wait for the command
    /// window.
    pub const fn under_way(&self) -> usize {
        self.under_way
    }

    /// Number of commands that wait for the command window.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True if the command in this slot is not done.
    pub fn is_busy(&self, slot: usize) -> bool {
        self.tasks.get(slot).is_some_and(Option::is_some)
    }

    /// True if the target requested a logout or ends the session. The exchange then sends no more
    /// commands.
    pub fn is_ending(&self) -> bool {
        self.ending != Ending::No
    }

    /// Adds slots until the exchange has `slots` slots; existing slots stay.
    pub fn set_slots(&mut self, slots: usize) {
        let slots = slots.min(TASKS_MAX);
        while self.tasks.len() < slots {
            self.tasks.push(None);
        }
    }

    /// Submits a command in a free slot. The command is sent when the command window admits it.
    ///
    /// # Panics
    /// The slot is busy or does not exist, or its buffer is shorter than the command's data.
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

    /// Sends the waiting commands that the command window admits.
    fn release(&mut self, buffers: &impl Buffers) {
        while self.ending == Ending::No && reached(self.numbers.max_cmd_sn, self.numbers.cmd_sn) {
            let Some(slot) = self.waiting.pop_front() else { return };
            self.send_command(slot, buffers);
            self.numbers.cmd_sn = self.numbers.cmd_sn.wrapping_add(1);
        }
    }

    /// Queues the PDU of a command with its immediate data, followed by unsolicited Data-Out PDUs
    /// (4.2.5.2).
    fn send_command(&mut self, slot: usize, buffers: &impl Buffers) {
        let (negotiated, numbers, lun) = (self.negotiated, self.numbers, self.lun);
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else { return };
        let (flags, expected) = match task.data {
            Data::None => (0, 0),
            Data::In(len) => (0x40, len),
            Data::Out(len) => (0x20, len),
        };
        let outgoing = if flags == 0x20 { expected } else { 0 };
        let unasked = outgoing.min(negotiated.first_burst_bytes);
        let with_command =
            if negotiated.immediate_data { unasked.min(negotiated.send_data_bytes_max) } else { 0 };
        let behind = if negotiated.initial_r2t { 0 } else { unasked - with_command };
        // Set the task attribute SIMPLE, and the F bit if no unsolicited Data-Out follows.
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

    /// Queues the Data-Out PDUs of one sequence (11.7).
    fn send_burst(&mut self, burst: &Burst, buffers: &impl Buffers) {
        let Burst { slot, itt, ttt, ref range } = *burst;
        let (mut from, mut data_sn) = (range.start, 0);
        while from < range.end {
            let to = range.end.min(from + self.negotiated.send_data_bytes_max);
            let is_last = to == range.end;
            let mut header = Header::new(opcode::DATA_OUT, if is_last { 0x80 } else { 0 });
            // In a PDU without a Target Transfer Tag, the LUN field is reserved.
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

    /// Queues a PDU whose data is a range of the slot's buffer.
    fn put(
        &mut self,
        header: Header,
        slot: usize,
        range: Range<u32>,
        ends_r2t: bool,
        buffers: &impl Buffers,
    ) {
        let digests = self.negotiated.digests;
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

    /// Fills `pieces` with slices of the queued bytes, starting at the front of the queue. Returns
    /// the number of slices.
    pub fn outgoing<'a>(&'a self, buffers: &'a impl Buffers, pieces: &mut [IoSlice<'a>]) -> usize {
        self.output.pieces(buffers, pieces)
    }

    /// True if bytes are queued for sending.
    pub fn has_outgoing(&self) -> bool {
        !self.output.is_empty()
    }

    /// Records that the socket accepted this many bytes of [`Self::outgoing`].
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

    /// Completes the command in a slot if its response has arrived and the output queue no longer
    /// refers to its buffer.
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

    /// Moves the completed commands to `done`.
    pub fn take_done(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }

    /// Place for the next bytes from the socket, if these bytes belong to a read. The caller may
    /// receive the bytes there, and must then call [`Self::placed`].
    pub fn place(&self) -> Option<Place> {
        self.input.place()
    }

    /// Records that the caller received this many bytes into the place that [`Self::place`]
    /// returned.
    pub fn placed(&mut self, bytes: usize) {
        self.input.placed(bytes);
    }

    /// Processes received bytes. Returns the number of bytes used. The caller passes the unused
    /// bytes again, followed by further bytes; at most
    /// [`HEAD_BYTES_MAX`](crate::limits::HEAD_BYTES_MAX) bytes remain unused.
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

    /// Digests that the next PDUs must have.
    const fn digests(&self) -> Digests {
        self.negotiated.digests
    }
}

/// Data that the initiator sends as one sequence of Data-Out PDUs.
struct Burst {
    slot: usize,
    itt: u32,
    ttt: u32,
    range: Range<u32>,
}

#[cfg(test)]
mod tests;
