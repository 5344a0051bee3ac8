//! Responses to SCSI commands: encodes data, status and sense data as PDUs.
//!
//! `command` runs the commands.
//!
//! Spec: RFC 7143 11.4 (SCSI Response, sense data in 11.4.7), 11.7 (Data-In; the last Data-In
//! carries the status if the command has no sense data).
//!
//! Invariant: the target never sends more data than the command's Expected Data Transfer Length.

use weir_base::BLOCK_BYTES;
use weir_block::{Block, OutBuf};
use weir_iscsi_wire::pdu::{self, Command, CommandResponse, DataIn, Header, Residual};
use weir_net::Outgoing;
use weir_scsi::{Completion, Sense, Status};

use super::state::Connection;

/// Part of the data of a command, as long as one Data-In PDU may be.
#[derive(Clone, Copy)]
struct Part {
    offset: usize,
    len: usize,
    is_final: bool,
}

impl Connection {
    /// Builds the response to a command. From offset `mark`, `out` contains space for a PDU header,
    /// then the Data-In that the nexus appended.
    pub(super) fn put_answer(
        &self,
        out: &mut OutBuf,
        mark: usize,
        command: &Command,
        data_sn: u32,
        completion: &Completion,
    ) {
        let room = self.header_room();
        let produced = out.len().saturating_sub(mark + room);
        let good = completion.status == Status::Good;
        let produced = if good { produced } else { 0 };
        let moved = if command.write { completion.wanted_bytes } else { produced as u64 };
        let expected = if command.read || command.write { command.expected_bytes } else { 0 };
        let residual = Residual::of(moved, expected);
        let send = if command.read { produced.min(expected as usize) } else { 0 };
        // Count bytes as written only after a successful command: at most as many as the CDB
        // requires and the initiator announced. A failed command may have written bytes, too, but
        // the initiator cannot rely on these bytes.
        let written = if command.write && good { moved.min(expected.into()) } else { 0 };
        self.place.counters().count(send as u64, written);
        if send == 0 {
            out.truncate(mark);
            return self.put_response(out, command.itt, data_sn, residual, completion);
        }
        out.truncate(mark + room + send);
        self.put_data(out, mark, command.itt, (completion.status, residual));
    }

    /// Builds the response to a read from cached blocks. Without data digests the target does not
    /// read the contents of the blocks, only sends them.
    pub(super) fn shared_answer(
        &self,
        command: &Command,
        blocks: Vec<Block>,
        status: Status,
    ) -> Outgoing {
        let (room, digests) = (self.header_room(), self.digests());
        let len = blocks.len() * BLOCK_BYTES;
        self.place.counters().count(len as u64, 0);
        let parts = self.parts(len);
        let digest_room = if digests.data { 4 } else { 0 };
        let head = self.outbox.buffer(parts.len() * (room + digest_room));
        let mut answer = Outgoing::new(head, blocks);
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            let residual = Residual::of(len as u64, command.expected_bytes);
            let status = is_last.then_some((status, residual));
            let header = self.data_in(command.itt, index, part, status);
            answer.head.put(&header.0);
            if digests.header {
                answer.head.put(&pdu::digest(&header.0));
            }
            let ends = (part.offset + part.len) / BLOCK_BYTES;
            answer.cut(ends);
            if digests.data {
                let of_part = answer.blocks.get(part.offset / BLOCK_BYTES..ends);
                let sum =
                    pdu::digest_of(of_part.unwrap_or_default().iter().map(|block| &block[..]));
                answer.head.put(&sum);
            }
        }
        answer
    }

    /// Returns true if every Data-In PDU and every burst ends at a block boundary, so that blocks
    /// can be sent without a copy.
    pub(super) fn sends_whole_blocks(&self) -> bool {
        let negotiated = self.negotiated.get();
        let whole = |bytes: usize| bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES);
        whole(negotiated.send_data_bytes_max) && whole(negotiated.max_burst_bytes)
    }

    fn put_response(
        &self,
        out: &mut OutBuf,
        itt: u32,
        exp_data_sn: u32,
        residual: Residual,
        completion: &Completion,
    ) {
        let status = completion.status;
        let mut header = CommandResponse { itt, status, residual, exp_data_sn }.encode();
        self.number(&mut header);
        match &completion.sense {
            Some(sense) => pdu::put(out, header, &sense_segment(sense), self.digests()),
            None => pdu::put(out, header, &[], self.digests()),
        }
    }

    /// Turns the data in `out` into Data-In PDUs; the data begins after `mark` and space for one
    /// header. The last PDU carries the status. If there are several PDUs, all data after the first
    /// part is moved once to make space for the other headers.
    fn put_data(&self, out: &mut OutBuf, mark: usize, itt: u32, status: (Status, Residual)) {
        let (room, digests) = (self.header_room(), self.digests());
        let len = out.len() - mark - room;
        let parts = self.parts(len);
        let digest_room = if digests.data { 4 } else { 0 };
        let total = parts.len() * (room + digest_room) + pdu::padded(len);
        // `space` only extends the buffer: the data that is already in it does not change.
        out.space((mark + total).saturating_sub(out.len()));
        out.truncate(mark);
        let bytes = out.space(total);
        for (index, part) in parts.iter().enumerate().skip(1).rev() {
            let source = room + part.offset;
            let destination = source + index * (room + digest_room);
            bytes.copy_within(source..source + part.len, destination);
        }
        let last = parts.len() - 1;
        let mut rest = bytes;
        for (index, part) in parts.iter().enumerate() {
            let header = self.data_in(itt, index, part, (index == last).then_some(status));
            let (head, behind) = rest.split_at_mut(room);
            let (data, behind) = behind.split_at_mut(pdu::padded(part.len));
            let (sum, behind) = behind.split_at_mut(digest_room);
            let (basic, header_sum) = head.split_at_mut(pdu::HEADER_BYTES);
            basic.copy_from_slice(&header.0);
            if digests.header {
                header_sum.copy_from_slice(&pdu::digest(&header.0));
            }
            data.iter_mut().skip(part.len).for_each(|byte| *byte = 0);
            if digests.data {
                sum.copy_from_slice(&pdu::digest(data));
            }
            rest = behind;
        }
    }

    /// Header of a Data-In PDU. Only a Data-In that carries the status gets the next StatSN.
    fn data_in(
        &self,
        itt: u32,
        index: usize,
        part: &Part,
        status: Option<(Status, Residual)>,
    ) -> Header {
        let data_in = DataIn {
            itt,
            is_final: part.is_final,
            status,
            data_sn: index as u32,
            offset: part.offset as u32,
            data_bytes: part.len,
        };
        let mut header = data_in.encode();
        if status.is_some() {
            self.number(&mut header);
        } else {
            self.number_commands(&mut header);
        }
        header
    }

    /// Splits data into parts, one for each Data-In PDU. A sequence of PDUs ends at MaxBurstLength.
    fn parts(&self, len: usize) -> Vec<Part> {
        let negotiated = self.negotiated.get();
        let burst = negotiated.max_burst_bytes & !3;
        let most = negotiated.send_data_bytes_max.min(burst);
        let mut parts = Vec::with_capacity(len.div_ceil(most));
        let mut offset = 0;
        while offset < len {
            let burst_end = (offset / burst + 1) * burst;
            let end = (offset + most).min(burst_end).min(len);
            let is_final = end == len || end == burst_end;
            parts.push(Part { offset, len: end - offset, is_final });
            offset = end;
        }
        parts
    }
}

/// Data segment of a SCSI Response: SenseLength and sense data.
fn sense_segment(sense: &Sense) -> Vec<u8> {
    let bytes = sense.to_bytes();
    let mut segment = (bytes.len() as u16).to_be_bytes().to_vec();
    segment.extend(bytes);
    segment
}
