//! PDU framing and header fields.
//!
//! weir-iscsi (`login`, `connection`) interprets the PDUs; key=value text is in `text`.
//!
//! Spec: RFC 7143 section 11; digests are CRC32C (13.1), sent lowest byte first.
//!
//! Invariants:
//! - for an incomplete PDU, `frame` returns a length that exceeds the length of its input;
//! - if a header does not match its digest, no field of the header is used, not even its length.

use crate::error::WireError;

mod request;
mod response;

pub use request::{
    CdbBuffer, Command, DataOut, Login, Logout, LogoutReason, Management, NopOut, Request, Text,
};
pub use response::{
    AsyncEvent, AsyncMessage, CommandResponse, DataIn, LoginResponse, LogoutResponse,
    ManagementResponse, NopIn, R2t, RejectReason, Residual, TextResponse, reject,
};

/// Length of the basic header segment.
pub const HEADER_BYTES: usize = 48;

/// Reserved tag value, which refers to no task.
pub const NO_TAG: u32 = 0xffff_ffff;

/// Opcodes of PDUs (RFC 7143 11.2.1.2).
pub mod opcode {
    /// NOP-Out.
    pub const NOP_OUT: u8 = 0x00;
    /// SCSI Command.
    pub const COMMAND: u8 = 0x01;
    /// Task Management Function Request.
    pub const MANAGEMENT: u8 = 0x02;
    /// Login Request.
    pub const LOGIN: u8 = 0x03;
    /// Text Request.
    pub const TEXT: u8 = 0x04;
    /// SCSI Data-Out.
    pub const DATA_OUT: u8 = 0x05;
    /// Logout Request.
    pub const LOGOUT: u8 = 0x06;
    /// SNACK Request.
    pub const SNACK: u8 = 0x10;
    /// NOP-In.
    pub const NOP_IN: u8 = 0x20;
    /// SCSI Response.
    pub const RESPONSE: u8 = 0x21;
    /// Task Management Function Response.
    pub const MANAGEMENT_RESPONSE: u8 = 0x22;
    /// Login Response.
    pub const LOGIN_RESPONSE: u8 = 0x23;
    /// Text Response.
    pub const TEXT_RESPONSE: u8 = 0x24;
    /// SCSI Data-In.
    pub const DATA_IN: u8 = 0x25;
    /// Logout Response.
    pub const LOGOUT_RESPONSE: u8 = 0x26;
    /// Ready To Transfer.
    pub const R2T: u8 = 0x31;
    /// Asynchronous Message.
    pub const ASYNC: u8 = 0x32;
    /// Reject.
    pub const REJECT: u8 = 0x3f;
    /// Bits of byte 0 that contain the opcode.
    pub const MASK: u8 = 0x3f;
    /// Bit of byte 0 that marks an immediate request, which is processed outside of CmdSN order.
    pub const IMMEDIATE: u8 = 0x40;
}

/// Basic header segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header(pub [u8; HEADER_BYTES]);

impl Header {
    /// Creates a header with an opcode and flags; all other fields are zero.
    pub fn new(opcode: u8, flags: u8) -> Self {
        let mut header = Self([0; HEADER_BYTES]);
        header.set(0, [opcode]);
        header.set(1, [flags]);
        header
    }

    /// Opcode without the immediate bit.
    pub fn opcode(&self) -> u8 {
        self.byte(0) & opcode::MASK
    }

    /// True if the request is immediate: the target processes it outside of CmdSN order.
    pub fn is_immediate(&self) -> bool {
        self.byte(0) & opcode::IMMEDIATE != 0
    }

    /// Flags in byte 1.
    pub fn flags(&self) -> u8 {
        self.byte(1)
    }

    /// Length of the additional header segments, in bytes.
    pub fn ahs_bytes(&self) -> usize {
        4 * usize::from(self.byte(4))
    }

    /// Length of the data segment in bytes, without padding.
    pub fn data_bytes(&self) -> usize {
        let [high, middle, low] = self.bytes(5);
        u32::from_be_bytes([0, high, middle, low]) as usize
    }

    /// Sets the length of the data segment; `len` is below 2^24.
    pub fn set_data_bytes(&mut self, len: usize) {
        let [_, high, middle, low] = (len as u32).to_be_bytes();
        self.set(5, [high, middle, low]);
    }

    /// Initiator Task Tag.
    pub fn itt(&self) -> u32 {
        self.word(16)
    }

    /// CmdSN of a request.
    pub fn cmd_sn(&self) -> u32 {
        self.word(24)
    }

    /// Byte at an offset below 48 in the header.
    #[inline]
    pub fn byte(&self, at: usize) -> u8 {
        let [byte] = self.bytes(at);
        byte
    }

    /// Big-endian 32-bit number at an offset in the header.
    #[inline]
    pub fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    /// `N` bytes from an offset in the header; zeros if they would extend beyond its end.
    #[inline]
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    /// Sets bytes from an offset in the header; does nothing if they would extend beyond its end.
    #[inline]
    pub fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        if let Some(place) = self.0.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *place = bytes;
        }
    }

    /// Sets a big-endian 32-bit number at an offset.
    #[inline]
    pub fn set_word(&mut self, at: usize, value: u32) {
        self.set(at, value.to_be_bytes());
    }
}

/// Digests that the connection negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// True if a CRC32C follows the header segments.
    pub header: bool,
    /// True if a CRC32C follows the data segment.
    pub data: bool,
}

/// Complete PDU.
///
/// ```text
/// 48 bytes  basic header segment      byte 0 opcode, 4 AHS length in words, 5..8 data length
/// 4 n       additional header segments
/// 4         header digest, if negotiated
/// m         data segment, then zeros to a multiple of 4
/// 4         data digest, if negotiated and m > 0; covers the zeros too
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pdu<'a> {
    /// Basic header segment.
    pub header: Header,
    /// Additional header segments.
    pub ahs: &'a [u8],
    /// Data segment, without padding.
    pub data: &'a [u8],
    /// False if the data does not match the data digest.
    pub data_intact: bool,
}

/// Result of framing the bytes at the start of the input.
#[derive(Debug)]
pub enum Framed<'a> {
    /// The PDU is incomplete. The number is the total length of the PDU in bytes, as far as the
    /// received bytes show it.
    Need(usize),
    /// A complete PDU, and its length in the input.
    Pdu(Pdu<'a>, usize),
}

/// Computes the CRC32C of `bytes`, in wire byte order.
pub fn digest(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).to_le_bytes()
}

/// Like [`digest`], for bytes that are in several slices.
pub fn digest_of<'a>(parts: impl Iterator<Item = &'a [u8]>) -> [u8; 4] {
    parts.fold(0, crc32c::crc32c_append).to_le_bytes()
}

/// Returns `len` rounded up to a multiple of 4, as a data segment with its padding.
pub const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// Parses the PDU at the start of `input`.
///
/// # Errors
/// The header does not match its digest, or the data is longer than `data_bytes_max`. The caller
/// then does not know where the PDU ends, so it cannot read the rest of the stream.
pub fn frame(
    input: &[u8],
    digests: Digests,
    data_bytes_max: usize,
) -> Result<Framed<'_>, WireError> {
    let Some(bytes) = input.first_chunk::<HEADER_BYTES>() else {
        return Ok(Framed::Need(HEADER_BYTES));
    };
    let header = Header(*bytes);
    let head_bytes = HEADER_BYTES + header.ahs_bytes();
    let header_digest_bytes = if digests.header { 4 } else { 0 };
    let data_at = head_bytes + header_digest_bytes;
    if digests.header {
        let Some(sent) = input.get(head_bytes..data_at) else {
            return Ok(Framed::Need(data_at));
        };
        if input.get(..head_bytes).is_none_or(|head| digest(head) != *sent) {
            return Err(WireError::HeaderDigest);
        }
    }
    let len = header.data_bytes();
    if len > data_bytes_max {
        return Err(WireError::DataTooLong { len, max: data_bytes_max });
    }
    let with_digest = digests.data && len > 0;
    let data_end = data_at + padded(len);
    let end = data_end + if with_digest { 4 } else { 0 };
    if input.len() < end {
        return Ok(Framed::Need(end));
    }
    let part = |from: usize, to: usize| input.get(from..to).unwrap_or_default();
    let data_intact = !with_digest || digest(part(data_at, data_end)) == *part(data_end, end);
    let data = part(data_at, data_at + len);
    let ahs = part(HEADER_BYTES, head_bytes);
    Ok(Framed::Pdu(Pdu { header, ahs, data, data_intact }, end))
}

/// Appends a PDU without additional header segments. Sets the data length in its header.
pub fn put(out: &mut weir_block::OutBuf, mut header: Header, data: &[u8], digests: Digests) {
    header.set_data_bytes(data.len());
    out.put_array(header.0);
    if digests.header {
        out.put_array(digest(&header.0));
    }
    let start = out.len();
    out.put(data);
    finish_data(out, start, digests);
}

/// Pads the data segment, which is everything from `start` to the end of `out`, and appends its
/// digest.
pub(crate) fn finish_data(out: &mut weir_block::OutBuf, start: usize, digests: Digests) {
    let len = out.len() - start;
    if len == 0 {
        return;
    }
    out.space(padded(len) - len).fill(0);
    if digests.data {
        let sum = digest(out.filled().get(start..).unwrap_or_default());
        out.put_array(sum);
    }
}

#[cfg(test)]
mod tests;
