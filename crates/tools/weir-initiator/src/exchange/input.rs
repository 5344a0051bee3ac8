//! Input parser: splits the received PDUs into header, data, padding and digest.
//!
//! `take` interprets the PDUs.
//!
//! ```text
//! Head -> Data (of a read, to the slot's memory) -> Tail -> Head
//!      \-> Own (everything else, kept here)      -/
//! ```
//!
//! Invariants: a header that does not match its digest is never interpreted; a data segment longer
//! than the initiator declared ends the session.

use std::ops::Range;

use weir_iscsi_wire::pdu::{Digests, HEADER_BYTES, Header, digest, opcode, padded};

use super::{Buffers, Exchange, Place};
use crate::error::InitiatorError;

/// Stage of the parser within a PDU.
#[derive(Default)]
enum Stage {
    #[default]
    Head,
    /// Data of a read; the range `missing` of the slot's buffer has not yet arrived.
    Data { slot: usize, whole: Range<usize>, missing: Range<usize> },
    /// Data that the parser keeps itself; `missing` bytes have not arrived yet.
    Own { missing: usize },
    /// Padding and digest after the data.
    Tail { data: Option<(usize, Range<usize>)> },
}

pub(super) struct Input {
    stage: Stage,
    /// Header of the current PDU.
    header: Header,
    /// Data segment of the current PDU, unless the data belongs to a read.
    own: Vec<u8>,
}

impl Default for Input {
    fn default() -> Self {
        Self { stage: Stage::Head, header: Header([0; HEADER_BYTES]), own: Vec::new() }
    }
}

impl Input {
    pub(super) fn place(&self) -> Option<Place> {
        match &self.stage {
            Stage::Data { slot, missing, .. } if !missing.is_empty() => {
                Some(Place { slot: *slot, range: missing.clone() })
            }
            _ => None,
        }
    }

    pub(super) fn placed(&mut self, bytes: usize) {
        if let Stage::Data { missing, .. } = &mut self.stage {
            missing.start += bytes.min(missing.len());
        }
    }
}

/// Number of padding and digest bytes that follow a data segment of `data_bytes` bytes.
fn tail_bytes(data_bytes: usize, digests: Digests) -> usize {
    let digest_bytes = if digests.data && data_bytes > 0 { 4 } else { 0 };
    padded(data_bytes) - data_bytes + digest_bytes
}

impl Exchange {
    /// Advances the parser by one stage. Returns the number of bytes used, or `None` if the stage
    /// needs more bytes.
    pub(super) fn step(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<Option<usize>, InitiatorError> {
        match &mut self.input.stage {
            Stage::Head => self.take_head(bytes, buffers),
            Stage::Data { slot, whole, missing } => {
                let now = missing.len().min(bytes.len());
                let place = missing.start..missing.start + now;
                let from = bytes.get(..now).unwrap_or_default();
                if let Some(place) = buffers.data_mut(*slot).get_mut(place) {
                    place.copy_from_slice(from);
                }
                missing.start += now;
                if missing.start == missing.end {
                    self.input.stage = Stage::Tail { data: Some((*slot, whole.clone())) };
                    return Ok(Some(now));
                }
                Ok((now > 0).then_some(now))
            }
            Stage::Own { missing } => {
                let now = (*missing).min(bytes.len());
                self.input.own.extend_from_slice(bytes.get(..now).unwrap_or_default());
                *missing -= now;
                if *missing == 0 {
                    self.input.stage = Stage::Tail { data: None };
                    return Ok(Some(now));
                }
                Ok((now > 0).then_some(now))
            }
            Stage::Tail { .. } => self.take_tail(bytes, buffers),
        }
    }

    fn take_head(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<Option<usize>, InitiatorError> {
        let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header(*head);
        let head_bytes = HEADER_BYTES + header.ahs_bytes();
        let digest_bytes = if self.digests().header { 4 } else { 0 };
        let Some(sum) = bytes.get(head_bytes..head_bytes + digest_bytes) else { return Ok(None) };
        if digest_bytes > 0 && bytes.get(..head_bytes).is_none_or(|head| digest(head) != *sum) {
            return Err(InitiatorError::HeaderDigest);
        }
        let len = header.data_bytes();
        if len > self.negotiated.receive_data_bytes_max as usize {
            let why = "a data segment is longer than the declared MaxRecvDataSegmentLength";
            return Err(InitiatorError::Protocol { why });
        }
        self.input.header = header;
        self.input.own.clear();
        self.input.stage = if header.opcode() == opcode::DATA_IN {
            let (slot, whole) = self.begin_data_in(&header, buffers)?;
            Stage::Data { slot, whole: whole.clone(), missing: whole }
        } else {
            Stage::Own { missing: len }
        };
        Ok(Some(head_bytes + digest_bytes))
    }

    fn take_tail(
        &mut self,
        bytes: &[u8],
        buffers: &mut impl Buffers,
    ) -> Result<Option<usize>, InitiatorError> {
        let (header, digests) = (self.input.header, self.digests());
        let need = tail_bytes(header.data_bytes(), digests);
        let Some(tail) = bytes.get(..need) else { return Ok(None) };
        let Stage::Tail { data } = std::mem::take(&mut self.input.stage) else { return Ok(None) };
        let of_slot = data
            .as_ref()
            .map(|(slot, range)| buffers.data(*slot).get(range.clone()).unwrap_or_default());
        if digests.data && header.data_bytes() > 0 {
            let (padding, sum) = tail.split_at(need - 4);
            let data = of_slot.unwrap_or(&self.input.own);
            let computed = crc32c::crc32c_append(crc32c::crc32c(data), padding);
            if computed.to_le_bytes() != *sum {
                return Err(InitiatorError::DataDigest);
            }
        }
        match data {
            Some((slot, range)) => self.end_data_in(slot, range.len() as u32, &header)?,
            None => {
                let own = std::mem::take(&mut self.input.own);
                let taken = self.take_pdu(&header, &own, buffers);
                self.input.own = own;
                taken?;
            }
        }
        Ok(Some(need))
    }
}
