//! Record marking: finds the records in the byte stream of a TCP connection.
//!
//! `message` decodes the messages that the records contain.
//!
//! Spec: RFC 5531 section 11.
//!
//! Invariants:
//! - the caller owns the buffer, and [`frame`] moves bytes only to join fragments;
//! - for an incomplete record, [`frame`] returns a length that exceeds the length of its input;
//! - a peer can extend a record neither by bytes nor by empty fragments without bound.

use weir_block::OutBuf;

use crate::limits::FRAGMENTS_MAX;

/// Length of the record mark in front of each fragment.
pub const MARK_BYTES: usize = 4;

/// Bit of a record mark: the fragment is the last of its record. The other 31 bits are the length
/// of the fragment in bytes.
const LAST: u32 = 1 << 31;

/// Error of a byte stream. The receiver closes the connection, because it does not know the end of
/// the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// All fragments of the record together exceed the maximum.
    #[error("record of {bytes} bytes or more, the maximum is {max}")]
    TooLong {
        /// Length of the fragments that the marks show so far.
        bytes: usize,
        /// Maximum that the caller set.
        max: usize,
    },
    /// The record has more than [`FRAGMENTS_MAX`] fragments.
    #[error("record of more than {FRAGMENTS_MAX} fragments")]
    TooManyFragments,
}

/// Result of framing the bytes at the start of the input.
#[derive(Debug, PartialEq, Eq)]
pub enum Framed<'a> {
    /// The record is incomplete.
    Need {
        /// Total length of the record with its marks, as far as the received marks show it. The
        /// difference to the length of the input is missing.
        bytes: usize,
        /// Received part of a record of one fragment, without the mark. A server can decode the
        /// header of a call from it, and receive the payload directly to its destination: all
        /// missing bytes belong to this record. Empty if the record has several fragments.
        head: &'a [u8],
    },
    /// A complete record.
    Record {
        /// Content of the record, without marks.
        record: &'a [u8],
        /// Length of the record and its marks in the input. The next record starts behind them.
        used: usize,
    },
}

/// Finds the record at the start of `input`, which the caller received from a stream. Joins the
/// fragments of a complete record inside `input`.
///
/// `record_bytes_max` is the limit of the record over all fragments, in bytes without marks.
///
/// # Errors
/// The record exceeds a limit. `input` is unchanged.
pub fn frame(input: &mut [u8], record_bytes_max: usize) -> Result<Framed<'_>, RecordError> {
    let mut fragments = 0;
    let mut record_bytes = 0;
    let mut end = 0;
    loop {
        let Some((len, is_last)) = mark_at(input, end) else {
            return Ok(Framed::Need { bytes: end + MARK_BYTES, head: &[] });
        };
        fragments += 1;
        record_bytes += len;
        if record_bytes > record_bytes_max {
            return Err(RecordError::TooLong { bytes: record_bytes, max: record_bytes_max });
        }
        end += MARK_BYTES + len;
        if is_last {
            break;
        }
        if fragments == FRAGMENTS_MAX {
            return Err(RecordError::TooManyFragments);
        }
    }
    if input.len() < end {
        let head = if fragments == 1 { input.get(MARK_BYTES..) } else { None };
        return Ok(Framed::Need { bytes: end, head: head.unwrap_or_default() });
    }
    if fragments > 1 {
        join(input);
    }
    let record = input.get(MARK_BYTES..MARK_BYTES + record_bytes).unwrap_or_default();
    Ok(Framed::Record { record, used: end })
}

/// Length of the fragment whose mark is at offset `at`, and true if it is the last fragment. `None`
/// if the mark is incomplete.
fn mark_at(input: &[u8], at: usize) -> Option<(usize, bool)> {
    let mark = u32::from_be_bytes(*input.get(at..)?.first_chunk()?);
    Some(((mark & !LAST) as usize, mark & LAST != 0))
}

/// Moves the content of all fragments of a complete record behind the first mark.
fn join(input: &mut [u8]) {
    let mut from = 0;
    let mut to = MARK_BYTES;
    while let Some((len, is_last)) = mark_at(input, from) {
        let start = from + MARK_BYTES;
        input.copy_within(start..start + len, to);
        to += len;
        from = start + len;
        if is_last {
            return;
        }
    }
}

/// Start of a record that is being encoded. [`RecordStart::finish`] completes its mark.
#[derive(Debug)]
#[must_use = "without `finish` the mark has no length"]
pub struct RecordStart {
    at: usize,
}

impl RecordStart {
    /// Appends the mark of a record of one fragment.
    pub fn begin(out: &mut OutBuf) -> Self {
        let at = out.len();
        out.put_array([0; MARK_BYTES]);
        Self { at }
    }

    /// Sets the length in the mark: the bytes of `out` behind the mark, and `following_bytes` that
    /// the caller sends from other buffers directly after the content of `out`.
    ///
    /// The record is shorter than 2 GiB.
    pub fn finish(self, out: &mut OutBuf, following_bytes: usize) {
        let len = out.len() - self.at - MARK_BYTES + following_bytes;
        assert!(len < LAST as usize, "a record of {len} bytes needs several fragments");
        out.rewrite(self.at, |out| out.put_array((LAST | len as u32).to_be_bytes()));
    }
}

#[cfg(test)]
mod tests;
