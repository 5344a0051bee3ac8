//! Encodes the replies of the transmission phase.
//!
//! `session` sends the replies.
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Simple reply message", "Structured reply message".
//! With structured replies, a READ reply has one content chunk, or several if memory is short and
//! the client did not set DF; BLOCK_STATUS and error replies also have chunks. All other replies
//! are simple, which the specification allows.
//!
//! Invariant: the error value of an error reply is never 0.

use weir_block::{Extent, OutBuf};

use crate::request::Negotiated;
use crate::wire::{
    BASE_ALLOCATION_ID, Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, part, state,
};

/// Length of the header of a simple reply, before its data.
///
/// ```text
/// 0       4       8        16
/// | magic | errno | cookie | data (READ)
/// ```
const SIMPLE_BYTES: usize = 16;
/// Length of the header of a chunk, before its payload.
///
/// ```text
/// 0       4       6      8        16    20
/// | magic | flags | type | cookie | len | payload
/// ```
const PART_BYTES: usize = 20;
/// Longest error text, so that an error reply fits into one small packet.
const TEXT_BYTES_MAX: usize = 512;

/// Appends a successful reply without data.
pub fn done(out: &mut OutBuf, cookie: u64) {
    simple(out, 0, cookie);
}

/// Appends the header of a READ reply; exactly `len` bytes of data must follow.
#[inline]
pub fn read_header(out: &mut OutBuf, negotiated: &Negotiated, cookie: u64, offset: u64, len: u32) {
    if !negotiated.structured {
        return simple(out, 0, cookie);
    }
    if len == 0 {
        // A content chunk must contain data, so the reply to a READ of 0 bytes is a chunk of type
        // NONE.
        return part_header(out, part::NONE, cookie, 0);
    }
    part_header(out, part::OFFSET_DATA, cookie, len + 8);
    out.put_array(offset.to_be_bytes());
}

/// Maximum number of bytes that [`read_header`] appends.
pub const READ_HEADER_BYTES_MAX: usize = PART_BYTES + 8;

/// Appends an error reply. The client receives `text` only in a structured reply.
pub fn error(out: &mut OutBuf, negotiated: &Negotiated, cookie: u64, errno: Errno, text: &str) {
    if !negotiated.structured {
        return simple(out, errno as u32, cookie);
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    let text = text.as_bytes().get(..end).unwrap_or_default();
    part_header(out, part::ERROR, cookie, 6 + text.len() as u32);
    out.put_array((errno as u32).to_be_bytes());
    out.put_array((text.len() as u16).to_be_bytes());
    out.put(text);
}

/// Appends the header of one of several content chunks of a READ reply. Used only if structured
/// replies were negotiated.
pub fn read_part(out: &mut OutBuf, cookie: u64, offset: u64, len: u32, is_last: bool) {
    let flags = if is_last { part::FLAG_DONE } else { 0 };
    flagged_part_header(out, flags, part::OFFSET_DATA, cookie, 8 + len);
    out.put_array(offset.to_be_bytes());
}

/// Appends at most `max` extents of `base:allocation`, with equal neighbours merged. The extents
/// cover at most `len` bytes in total. Returns false and appends nothing if there are no extents.
pub fn block_status(
    out: &mut OutBuf,
    cookie: u64,
    len: u32,
    max: usize,
    extents: &[Extent],
) -> bool {
    let mut joined: Vec<(u32, u32)> = Vec::with_capacity(extents.len().min(max));
    let mut left = u64::from(len);
    for extent in extents {
        let take = extent.len_bytes.min(left) as u32;
        if take == 0 {
            continue;
        }
        let flags = if extent.hole { state::HOLE | state::ZERO } else { 0 };
        let full = joined.len() == max;
        match joined.last_mut() {
            Some(last) if last.1 == flags => last.0 += take,
            _ if full => break,
            _ => joined.push((take, flags)),
        }
        left -= u64::from(take);
    }
    if joined.is_empty() {
        return false;
    }
    part_header(out, part::BLOCK_STATUS, cookie, 4 + 8 * joined.len() as u32);
    out.put_array(BASE_ALLOCATION_ID.to_be_bytes());
    for (len, flags) in joined {
        out.put_array(len.to_be_bytes());
        out.put_array(flags.to_be_bytes());
    }
    true
}

#[inline]
fn simple(out: &mut OutBuf, errno: u32, cookie: u64) {
    let space = out.space(SIMPLE_BYTES);
    let fields =
        u128::from(SIMPLE_REPLY_MAGIC) << 96 | u128::from(errno) << 64 | u128::from(cookie);
    space.copy_from_slice(&fields.to_be_bytes());
}

/// Appends the header of a reply with a single chunk, which therefore has DONE set.
#[inline]
fn part_header(out: &mut OutBuf, kind: u16, cookie: u64, len: u32) {
    flagged_part_header(out, part::FLAG_DONE, kind, cookie, len);
}

#[inline]
fn flagged_part_header(out: &mut OutBuf, flags: u16, kind: u16, cookie: u64, len: u32) {
    let fields = u128::from(STRUCTURED_REPLY_MAGIC) << 96
        | u128::from(flags) << 80
        | u128::from(kind) << 64
        | u128::from(cookie);
    out.put_array(fields.to_be_bytes());
    out.put_array(len.to_be_bytes());
}

#[cfg(test)]
mod tests;
