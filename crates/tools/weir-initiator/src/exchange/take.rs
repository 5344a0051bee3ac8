//! Interprets the PDUs from the target.
//!
//! `input` splits the PDUs into their parts.
//!
//! Invariants: the session ends if a sequence number is unexpected, if a tag matches no command in
//! flight, or if data arrives where none is allowed. With error recovery level 0 and one
//! connection, the initiator cannot recover from any of these errors.

use std::ops::Range;

use weir_iscsi_wire::pdu::{Header, NO_TAG, Residual, opcode};

use super::{Answer, Buffers, Burst, Data, Exchange, reached};
use crate::error::InitiatorError;
use crate::limits::OUTPUT_BYTES_MAX;
use crate::sense::Status;

type Taken = Result<(), InitiatorError>;

fn broken<T>(why: &'static str) -> Result<T, InitiatorError> {
    Err(InitiatorError::Protocol { why })
}

/// Returns the residual count in a header (11.4.1), or an error if both flags of the residual are
/// set.
fn residual(header: &Header) -> Result<Residual, InitiatorError> {
    match (header.flags() & 0x06, header.word(44)) {
        (0x00, _) => Ok(Residual::None),
        (0x04, bytes) => Ok(Residual::Overflow(bytes)),
        (0x02, bytes) => Ok(Residual::Underflow(bytes)),
        _ => broken("a residual count with both overflow and underflow"),
    }
}

impl Exchange {
    /// Processes ExpCmdSN and MaxCmdSN, which every PDU from the target contains (4.2.2.1). Ignores
    /// a MaxCmdSN below ExpCmdSN - 1, and a MaxCmdSN that would shrink the window.
    fn take_window(&mut self, header: &Header, buffers: &impl Buffers) {
        let (exp, max) = (header.word(28), header.word(32));
        if reached(max, exp.wrapping_sub(1)) && reached(max, self.numbers.max_cmd_sn) {
            self.numbers.max_cmd_sn = max;
            self.release(buffers);
        }
    }

    /// Checks the StatSN of a PDU that carries a status.
    fn take_stat_sn(&mut self, header: &Header) -> Taken {
        if header.word(24) != self.numbers.exp_stat_sn {
            return broken("an unexpected StatSN");
        }
        self.numbers.exp_stat_sn = self.numbers.exp_stat_sn.wrapping_add(1);
        Ok(())
    }

    /// Returns the slot of a task tag. The command of this slot must be in flight without a
    /// response; otherwise returns an error.
    fn slot_of(&self, itt: u32) -> Result<usize, InitiatorError> {
        let slot = (itt & 0xffff) as usize;
        let task = self.tasks.get(slot).and_then(Option::as_ref);
        match task.filter(|task| task.itt == itt && task.is_sent && task.answer.is_none()) {
            Some(_) => Ok(slot),
            None => broken("a response to an unknown command"),
        }
    }

    /// Returns the place for the data of a Data-In (11.7). The data must arrive in order.
    pub(super) fn begin_data_in(
        &mut self,
        header: &Header,
        buffers: &impl Buffers,
    ) -> Result<(usize, Range<usize>), InitiatorError> {
        let slot = self.slot_of(header.itt())?;
        self.take_window(header, buffers);
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else {
            return broken("data for an unknown command");
        };
        let Data::In(expected) = task.data else {
            return broken("data for a command that reads no data");
        };
        if (header.word(36), header.word(40)) != (task.data_sn, task.received_bytes) {
            return broken("data out of sequence");
        }
        let from = task.received_bytes as usize;
        let to = from + header.data_bytes();
        if to > expected as usize {
            return broken("more data than expected");
        }
        let (flags, has_status) = (header.flags(), header.flags() & 0x01 != 0);
        if has_status && flags & 0x80 == 0 {
            return broken("a status before the final data");
        }
        task.data_sn = task.data_sn.wrapping_add(1);
        Ok((slot, from..to))
    }

    /// Records read data that arrived and matches its digest.
    pub(super) fn end_data_in(&mut self, slot: usize, bytes: u32, header: &Header) -> Taken {
        if let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) {
            task.received_bytes += bytes;
        }
        if header.flags() & 0x01 == 0 {
            return Ok(());
        }
        self.take_stat_sn(header)?;
        self.answer(slot, Status(header.byte(3)), Vec::new(), residual(header)?);
        self.settle();
        Ok(())
    }

    fn answer(&mut self, slot: usize, status: Status, sense: Vec<u8>, residual: Residual) {
        if let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) {
            let received_bytes = task.received_bytes;
            task.answer = Some(Answer { status, sense, received_bytes, residual });
        }
        self.finish(slot);
    }

    /// Processes a PDU that carries no read data.
    pub(super) fn take_pdu(
        &mut self,
        header: &Header,
        data: &[u8],
        buffers: &impl Buffers,
    ) -> Taken {
        self.take_window(header, buffers);
        match header.opcode() {
            opcode::RESPONSE => self.take_response(header, data)?,
            opcode::R2T => self.take_r2t(header, data, buffers)?,
            opcode::NOP_IN => self.take_nop_in(header)?,
            opcode::ASYNC => self.take_async(header)?,
            opcode::TEXT_RESPONSE => self.take_text(header, data)?,
            opcode::LOGOUT_RESPONSE => return self.take_logout(header),
            opcode::REJECT => {
                let rejected = data.first().copied().unwrap_or(0) & opcode::MASK;
                let reason = header.byte(2);
                return Err(InitiatorError::Rejected { reason, opcode: rejected });
            }
            _ => return broken("an unexpected PDU"),
        }
        self.settle();
        if self.output.own_bytes() > OUTPUT_BYTES_MAX {
            return broken("it sends requests and does not read the responses");
        }
        Ok(())
    }

    /// Processes a SCSI Response (11.4).
    fn take_response(&mut self, header: &Header, data: &[u8]) -> Taken {
        let slot = self.slot_of(header.itt())?;
        self.take_stat_sn(header)?;
        // A response with a code other than 0 (command completed) contains no status.
        let status = if header.byte(2) == 0 { Status(header.byte(3)) } else { Status::NONE };
        let sense = match data.split_first_chunk::<2>() {
            Some((len, rest)) => {
                let len = usize::from(u16::from_be_bytes(*len));
                match rest.get(..len) {
                    Some(sense) => sense.to_vec(),
                    None => return broken("sense data that is longer than its PDU"),
                }
            }
            None => Vec::new(),
        };
        self.answer(slot, status, sense, residual(header)?);
        Ok(())
    }

    /// Processes a Ready To Transfer (11.8). The R2T must be in order, within the command's data
    /// and within the negotiated limits.
    fn take_r2t(&mut self, header: &Header, data: &[u8], buffers: &impl Buffers) -> Taken {
        let slot = self.slot_of(header.itt())?;
        let (ttt, sn, offset, len) =
            (header.word(20), header.word(36), header.word(40), header.word(44));
        let negotiated = self.negotiated;
        let Some(task) = self.tasks.get_mut(slot).and_then(Option::as_mut) else {
            return broken("an R2T for an unknown command");
        };
        let Data::Out(expected) = task.data else {
            return broken("an R2T for a command that writes no data");
        };
        if !data.is_empty() || ttt == NO_TAG || (sn, offset) != (task.data_sn, task.covered_bytes) {
            return broken("an R2T out of sequence");
        }
        let end = offset.checked_add(len).filter(|end| *end <= expected);
        let Some(end) = end.filter(|_| (1..=negotiated.max_burst_bytes).contains(&len)) else {
            return broken("an R2T beyond the command's data or the negotiated MaxBurstLength");
        };
        if task.r2ts_open >= negotiated.outstanding_r2t_max {
            return broken("more R2Ts for one command than negotiated");
        }
        task.r2ts_open += 1;
        task.data_sn = task.data_sn.wrapping_add(1);
        task.covered_bytes = end;
        let burst = Burst { slot, itt: task.itt, ttt, range: offset..end };
        self.send_burst(&burst, buffers);
        Ok(())
    }
}
