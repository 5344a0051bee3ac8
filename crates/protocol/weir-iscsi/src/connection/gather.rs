//! Assembles the data of one write command from immediate data and Data-Out PDUs.
//!
//! Memory limits of the connection are in `memory`; `command` runs the assembled write.
//!
//! Spec: RFC 7143 11.7 (Data-Out), 11.8 (R2T), 13.10 to 13.19. Data arrives in order, because
//! DataPDUInOrder and DataSequenceInOrder are always Yes.
//!
//! Invariants:
//! - the assembled data of a command never exceeds its `expected_bytes`;
//! - each R2T starts at the offset at which the previous R2T ends.

use std::collections::VecDeque;

use weir_iscsi_wire::pdu::{DataOut, NO_TAG};

use crate::login::negotiated::Negotiated;

/// Data of one write command, as far as it has arrived.
pub(crate) struct Gather {
    data: Vec<u8>,
    expected_bytes: usize,
    /// Sequence of unsolicited Data-Out PDUs that has not ended; `None` if there is none.
    unsolicited: Option<Sequence>,
    /// Sequences that R2Ts solicited and that have not arrived completely, in the order of their
    /// offsets.
    open: VecDeque<Sequence>,
    /// Offset at which the next R2T starts.
    asked_to: usize,
    /// Maximum amount of unsolicited data that the command can have, immediate data included.
    unasked_bytes: usize,
    /// True if a Data-Out PDU did not match its data digest.
    pub(super) damaged: bool,
}

/// Sequence of Data-Out PDUs with the same Target Transfer Tag.
struct Sequence {
    ttt: u32,
    end: usize,
    data_sn: u32,
}

/// Range that an R2T solicits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// Result of adding the data of a Data-Out PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The data of the PDU was appended to the data of the command.
    Data,
    /// No open R2T has this tag: the PDU carries data of an aborted command that arrived late.
    Stray,
    /// The PDU is not the next PDU of its sequence, so the command's data can no longer be
    /// assembled.
    Wrong(&'static str),
}

impl Gather {
    /// Starts the assembly with the immediate data of a command.
    pub(super) fn new(
        immediate: &[u8],
        expected_bytes: usize,
        is_final: bool,
        negotiated: &Negotiated,
    ) -> Self {
        let first_end = negotiated.first_burst_bytes.min(expected_bytes);
        let mut data = Vec::with_capacity(if is_final { immediate.len() } else { first_end });
        data.extend_from_slice(immediate);
        let unsolicited =
            (!is_final).then_some(Sequence { ttt: NO_TAG, end: first_end, data_sn: 0 });
        let asked_to = data.len();
        Self {
            unasked_bytes: data.capacity(),
            data,
            expected_bytes,
            unsolicited,
            open: VecDeque::new(),
            asked_to,
            damaged: false,
        }
    }

    /// Creates the value for a command whose data has already arrived completely.
    pub(super) fn whole(data: Vec<u8>) -> Self {
        let len = data.len();
        Self {
            data,
            expected_bytes: len,
            unsolicited: None,
            open: VecDeque::new(),
            asked_to: len,
            unasked_bytes: len,
            damaged: false,
        }
    }

    /// Number of bytes that arrived or may still arrive unsolicited.
    pub(super) const fn unasked_bytes(&self) -> usize {
        self.unasked_bytes
    }

    /// Returns true if all data of the command has arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.data.len() == self.expected_bytes && self.unsolicited.is_none()
    }

    /// Returns true if the initiator sends no more unsolicited data, and the target must solicit
    /// the rest by R2T.
    pub(super) fn needs_r2t(&self) -> bool {
        self.unsolicited.is_none() && self.asked_to < self.expected_bytes
    }

    /// Length of all data of the command, in bytes.
    pub(super) const fn expected_bytes(&self) -> usize {
        self.expected_bytes
    }

    pub(super) fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// Allocates the memory for all data of the command at once, so that the buffer does not grow
    /// in steps.
    pub(super) fn reserve(&mut self) {
        self.data.reserve_exact(self.expected_bytes - self.data.len());
    }

    /// Returns the next range to solicit by an R2T with the tag `ttt`; `None` if all data is
    /// solicited or MaxOutstandingR2T is reached.
    pub(super) fn ask(&mut self, ttt: u32, negotiated: &Negotiated) -> Option<Ask> {
        if !self.needs_r2t() || self.open.len() >= negotiated.outstanding_r2t_max as usize {
            return None;
        }
        let offset = self.asked_to;
        let len = (self.expected_bytes - offset).min(negotiated.max_burst_bytes);
        self.asked_to = offset + len;
        self.open.push_back(Sequence { ttt, end: self.asked_to, data_sn: 0 });
        Some(Ask { offset, len })
    }

    /// Appends the data of a Data-Out PDU.
    pub(super) fn take(&mut self, pdu: &DataOut, data: &[u8]) -> Taken {
        let sequence =
            if pdu.ttt == NO_TAG { self.unsolicited.as_mut() } else { self.open.front_mut() };
        let Some(sequence) = sequence.filter(|sequence| sequence.ttt == pdu.ttt) else {
            let later = self.open.iter().any(|open| open.ttt == pdu.ttt);
            return if later { Taken::Wrong("data for a later R2T") } else { Taken::Stray };
        };
        let end = self.data.len() + data.len();
        if pdu.offset as usize != self.data.len() {
            return Taken::Wrong("Data-Out with an unexpected offset");
        }
        if pdu.data_sn != sequence.data_sn {
            return Taken::Wrong("Data-Out with an unexpected DataSN");
        }
        if end > sequence.end {
            return Taken::Wrong("more data than requested");
        }
        let solicited = pdu.ttt != NO_TAG;
        if pdu.is_final && solicited && end < sequence.end {
            return Taken::Wrong("less data than requested");
        }
        if !pdu.is_final && solicited && end == sequence.end {
            return Taken::Wrong("complete data without the F bit");
        }
        sequence.data_sn = sequence.data_sn.wrapping_add(1);
        self.data.extend_from_slice(data);
        if pdu.is_final {
            if solicited {
                self.open.pop_front();
            } else {
                self.unsolicited = None;
                self.asked_to = end;
            }
        }
        Taken::Data
    }
}

#[cfg(test)]
mod tests;
