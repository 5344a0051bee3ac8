//! Replies as bytes.
//!
//! Not here: when they are sent (`session`).
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Simple reply message", "Structured reply message".
//! READ gets one content part per reply, or several where memory is short and the client did not
//! ask for one (DF). Other commands get a simple reply
//! on success and, where structured replies were agreed on, an error part with a text on failure;
//! the specification allows both.
//!
//! Invariant: a reply's errno is never 0 where it reports an error.

use weir_block::{Extent, OutBuf};

use crate::request::Terms;
use crate::wire::{
    BASE_ALLOCATION_ID, Errno, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, part, state,
};

/// Bytes before the data of a simple reply.
const SIMPLE_BYTES: usize = 16;
/// Bytes before the payload of a part.
const PART_BYTES: usize = 20;
/// Longest error text: keeps an error reply within one small packet.
const TEXT_BYTES_MAX: usize = 512;

/// Appends a reply without content.
pub fn done(out: &mut OutBuf, cookie: u64) {
    simple(out, 0, cookie);
}

/// Appends what stands before the data of a READ; exactly `len` bytes of data must follow.
#[inline]
pub fn read_header(out: &mut OutBuf, terms: &Terms, cookie: u64, offset: u64, len: u32) {
    if !terms.structured {
        return simple(out, 0, cookie);
    }
    if len == 0 {
        // A content part must not be empty.
        return part_header(out, part::NONE, cookie, 0);
    }
    part_header(out, part::OFFSET_DATA, cookie, len + 8);
    out.put_array(offset.to_be_bytes());
}

/// Bytes [`read_header`] appends at most.
pub const READ_HEADER_BYTES_MAX: usize = PART_BYTES + 8;

/// Appends an error; `text` goes to clients that can show it.
pub fn error(out: &mut OutBuf, terms: &Terms, cookie: u64, errno: Errno, text: &str) {
    if !terms.structured {
        return simple(out, errno as u32, cookie);
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    let text = text.as_bytes().get(..end).unwrap_or_default();
    part_header(out, part::ERROR, cookie, 6 + text.len() as u32);
    out.put_array((errno as u32).to_be_bytes());
    out.put_array((text.len() as u16).to_be_bytes());
    out.put(text);
}

/// Appends what stands before one of several parts of the data of a READ. Only structured replies
/// have parts.
pub fn read_part(out: &mut OutBuf, cookie: u64, offset: u64, len: u32, is_last: bool) {
    let flags = if is_last { part::FLAG_DONE } else { 0 };
    flagged_part_header(out, flags, part::OFFSET_DATA, cookie, 8 + len);
    out.put_array(offset.to_be_bytes());
}

/// Appends the extents of `base:allocation`, cut to `len` and with equal neighbours joined; at
/// most `max`. Returns false and appends nothing if there are none.
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

/// Every other reply here has one part, so DONE is set.
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
