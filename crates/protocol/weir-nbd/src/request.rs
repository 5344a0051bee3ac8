//! Decodes and checks the requests in the receive buffer.
//!
//! Sockets are in `session`, replies in `reply`.
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Request types", "Error values".
//!
//! Invariants:
//! - a [`Request`] from [`parse`] can run without further checks: its flags are known, its range is
//!   aligned, inside the export and within the length limit, and the export permits the command;
//! - a request that cannot run is refused with the error value that the specification prescribes.
//!   Its payload is skipped, so that the reader finds the next request;
//! - `parse` copies no data: a payload is a slice of the input.

use crate::error::NbdError;
use crate::limits::{
    BLOCK_BYTES, BLOCK_BYTES_MIN, DRAIN_BYTES_MAX, EXTENT_BYTES, EXTENTS_MAX, REQUEST_BYTES_MAX,
};
use crate::wire::{Errno, REQUEST_HEADER_BYTES, REQUEST_MAGIC, Reader, command, command_flag};

/// Negotiated parameters that requests and replies depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Size of the export.
    pub size_bytes: u64,
    /// True if the export is read-only.
    pub read_only: bool,
    /// True if the client negotiated structured replies.
    pub structured: bool,
    /// True if the client selected `base:allocation`, which BLOCK_STATUS needs.
    pub block_status: bool,
}

/// Command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// READ.
    Read {
        /// DF: return the data in one content chunk.
        whole: bool,
    },
    /// WRITE.
    Write {
        /// FUA: make the data durable before the reply.
        fua: bool,
    },
    /// DISC: complete the requests in progress and close the connection.
    Disconnect,
    /// FLUSH: make completed writes durable.
    Flush,
    /// TRIM or WRITE_ZEROES: zero the range.
    Zero {
        /// True if the export may free the space of the range.
        punch: bool,
        /// FUA: make the zeros durable before the reply.
        fua: bool,
        /// FAST_ZERO: fail if zeroing the range would take long.
        fast: bool,
    },
    /// CACHE: prefetch the range.
    Cache,
    /// BLOCK_STATUS: report allocated ranges.
    BlockStatus {
        /// REQ_ONE: report only one extent.
        one: bool,
    },
}

/// Valid request, ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Cookie, which identifies the request in its reply.
    pub cookie: u64,
    /// Command.
    pub command: Command,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes. A request of length 0 does nothing, except FLUSH and DISC.
    pub len: u32,
}

impl Request {
    /// Bytes of memory that the request holds while it runs, for its data or for its reply.
    pub(crate) const fn held_bytes(&self) -> usize {
        match self.command {
            Command::Read { .. } | Command::Write { .. } => self.len as usize,
            Command::BlockStatus { one: true } => EXTENT_BYTES,
            Command::BlockStatus { one: false } => EXTENT_BYTES * EXTENTS_MAX,
            _ => 0,
        }
    }
}

/// Returns true if a range starts and ends at block boundaries.
pub(crate) const fn is_whole_blocks(offset: u64, len: u32) -> bool {
    offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES)
}

/// Refusal of an invalid request: its error reply. The request must not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Cookie, which identifies the request in its reply.
    pub cookie: u64,
    /// NBD error value of the reply.
    pub errno: Errno,
    /// Reason for the refusal, which the client may show to its user.
    pub why: &'static str,
}

/// Result of parsing the start of the input.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// The message is incomplete. The number is its minimum length, which can grow when more of the
    /// header is known.
    Need(usize),
    /// A request, its payload (empty except for WRITE), and the length of both in the input.
    Request(Request, &'a [u8], usize),
    /// A long write. Its payload follows the header ([`REQUEST_HEADER_BYTES`]) and may be
    /// incomplete; the caller processes it while it arrives.
    LongWrite(Request),
    /// An invalid request. The caller first discards `skip` bytes, some of which may not have
    /// arrived yet, and then sends the error reply.
    Refuse {
        /// Error reply to send.
        refusal: Refusal,
        /// Number of bytes to discard: the length of the message.
        skip: usize,
    },
    /// The bytes are not a request, or are a write that is too long to discard. The server must
    /// close the connection.
    Close(NbdError),
}

/// Parses the message at the start of `input`. Returns [`Parsed::LongWrite`] for a write whose
/// payload is longer than `payload_bytes_max`.
///
/// ```text
/// 0       4       6      8        16       24    28
/// | magic | flags | type | cookie | offset | len | payload (WRITE)
/// ```
#[inline]
pub fn parse<'a>(input: &'a [u8], negotiated: &Negotiated, payload_bytes_max: usize) -> Parsed<'a> {
    let Some(header) = Header::decode(input) else {
        return Parsed::Need(REQUEST_HEADER_BYTES);
    };
    if header.magic != REQUEST_MAGIC {
        return Parsed::Close(NbdError::RequestMagic { magic: header.magic });
    }
    let payload_len = if header.kind == command::WRITE { header.len } else { 0 };
    let used = REQUEST_HEADER_BYTES + payload_len as usize;
    let command = match header.check(negotiated) {
        Ok(command) => command,
        Err(_) if payload_len > DRAIN_BYTES_MAX => {
            return Parsed::Close(NbdError::WriteTooLong { len: payload_len });
        }
        Err((errno, why)) => {
            let refusal = Refusal { cookie: header.cookie, errno, why };
            return Parsed::Refuse { refusal, skip: used };
        }
    };
    let Header { cookie, offset, len, .. } = header;
    if payload_len as usize > payload_bytes_max {
        return Parsed::LongWrite(Request { cookie, command, offset, len });
    }
    let Some(payload) = input.get(REQUEST_HEADER_BYTES..used) else {
        return Parsed::Need(used);
    };
    Parsed::Request(Request { cookie, command, offset, len }, payload, used)
}

struct Header {
    magic: u32,
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u32,
}

type Verdict<T> = Result<T, (Errno, &'static str)>;

impl Header {
    #[inline]
    fn decode(input: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(input.get(..REQUEST_HEADER_BYTES)?);
        Some(Self {
            magic: reader.u32()?,
            flags: reader.u16()?,
            kind: reader.u16()?,
            cookie: reader.u64()?,
            offset: reader.u64()?,
            len: reader.u32()?,
        })
    }

    #[inline]
    fn check(&self, negotiated: &Negotiated) -> Verdict<Command> {
        let fua = self.has(command_flag::FUA);
        match self.kind {
            command::READ => {
                let df = if negotiated.structured { command_flag::DF } else { 0 };
                self.check_flags(df)?;
                self.check_len(self.has(command_flag::DF))?;
                self.check_range(negotiated, Errno::Inval)?;
                Ok(Command::Read { whole: self.has(command_flag::DF) })
            }
            command::WRITE => {
                self.check_flags(0)?;
                check_writable(negotiated)?;
                self.check_len(false)?;
                self.check_range(negotiated, Errno::NoSpc)?;
                Ok(Command::Write { fua })
            }
            command::TRIM => {
                self.check_flags(0)?;
                check_writable(negotiated)?;
                self.check_range(negotiated, Errno::Inval)?;
                Ok(Command::Zero { punch: true, fua, fast: false })
            }
            command::WRITE_ZEROES => {
                self.check_flags(command_flag::NO_HOLE | command_flag::FAST_ZERO)?;
                check_writable(negotiated)?;
                self.check_range(negotiated, Errno::NoSpc)?;
                let punch = !self.has(command_flag::NO_HOLE);
                Ok(Command::Zero { punch, fua, fast: self.has(command_flag::FAST_ZERO) })
            }
            _ => self.check_rest(negotiated),
        }
    }

    fn check_rest(&self, negotiated: &Negotiated) -> Verdict<Command> {
        match self.kind {
            // DISC has no reply, so no check of DISC could report an error.
            command::DISC => Ok(Command::Disconnect),
            command::FLUSH => {
                self.check_flags(0)?;
                if self.offset != 0 || self.len != 0 {
                    return Err((Errno::Inval, "flush takes no range"));
                }
                Ok(Command::Flush)
            }
            command::CACHE => {
                self.check_flags(0)?;
                self.check_range(negotiated, Errno::Inval)?;
                Ok(Command::Cache)
            }
            command::BLOCK_STATUS => {
                self.check_flags(command_flag::REQ_ONE)?;
                if !negotiated.block_status {
                    return Err((Errno::Inval, "no metadata context was selected"));
                }
                if self.len == 0 {
                    return Err((Errno::Inval, "block status of an empty range"));
                }
                self.check_range(negotiated, Errno::Inval)?;
                Ok(Command::BlockStatus { one: self.has(command_flag::REQ_ONE) })
            }
            _ => Err((Errno::Inval, "unknown command")),
        }
    }

    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Checks the flags of a command. FUA is always allowed, because the specification asks servers
    /// to accept FUA on all commands.
    fn check_flags(&self, allowed: u16) -> Verdict<()> {
        if self.flags & !(allowed | command_flag::FUA) != 0 {
            return Err((Errno::Inval, "flag not known or not allowed for this command"));
        }
        Ok(())
    }

    fn check_len(&self, whole: bool) -> Verdict<()> {
        if self.len > REQUEST_BYTES_MAX {
            let errno = if whole { Errno::Overflow } else { Errno::Inval };
            return Err((errno, "longer than 32 MiB"));
        }
        Ok(())
    }

    fn check_range(&self, negotiated: &Negotiated, outside: Errno) -> Verdict<()> {
        let unit = u64::from(BLOCK_BYTES_MIN);
        if !self.offset.is_multiple_of(unit) || !u64::from(self.len).is_multiple_of(unit) {
            return Err((Errno::Inval, "not aligned to 512 bytes"));
        }
        let end = self.offset.checked_add(u64::from(self.len));
        if end.is_none_or(|end| end > negotiated.size_bytes) {
            return Err((outside, "beyond the end of the export"));
        }
        Ok(())
    }
}

fn check_writable(negotiated: &Negotiated) -> Verdict<()> {
    if negotiated.read_only {
        return Err((Errno::Perm, "the export is read-only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
