//! Requests as they stand in the receive buffer: decoded, checked, not yet run.
//!
//! Not here: sockets (`session`) and replies (`reply`).
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Request types", "Error values".
//!
//! Invariants:
//! - a [`Request`] that comes out of [`parse`] can be run as it is: known flags, aligned, inside
//!   the export, not too long, allowed on it;
//! - a request that cannot be run is refused with the number the specification names for it, and
//!   its payload is skipped, so that the next request is found;
//! - nothing is copied: a payload is a slice of the input.

use crate::error::NbdError;
use crate::limits::{
    BLOCK_BYTES, BLOCK_BYTES_MIN, DRAIN_BYTES_MAX, EXTENT_BYTES, EXTENTS_MAX, REQUEST_BYTES_MAX,
};
use crate::wire::{Errno, REQUEST_HEADER_BYTES, REQUEST_MAGIC, Reader, command, command_flag};

/// What the two sides agreed on, as far as requests and replies depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Size of the export.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether replies are structured.
    pub structured: bool,
    /// Whether BLOCK_STATUS was agreed on.
    pub block_status: bool,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read.
    Read {
        /// The data is to come in one part (DF).
        whole: bool,
    },
    /// Write the payload.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Finish what is under way and close.
    Disconnect,
    /// Make completed writes durable.
    Flush,
    /// Zeros from now on.
    Zero {
        /// Space may be given back.
        punch: bool,
        /// Durable before the reply.
        fua: bool,
        /// Fail rather than be slow.
        fast: bool,
    },
    /// Prefetch.
    Cache,
    /// What is allocated.
    BlockStatus {
        /// One extent only.
        one: bool,
    },
}

/// A request that may be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's mark, repeated in the reply.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range; 0 is "nothing to do" for all but flush and disconnect.
    pub len: u32,
}

impl Request {
    /// Bytes it holds while it runs: those it writes or reads, or what it is answered with.
    pub(crate) const fn held_bytes(&self) -> usize {
        match self.command {
            Command::Read { .. } | Command::Write { .. } => self.len as usize,
            Command::BlockStatus { one: true } => EXTENT_BYTES,
            Command::BlockStatus { one: false } => EXTENT_BYTES * EXTENTS_MAX,
            _ => 0,
        }
    }
}

/// Whether a range begins and ends with blocks.
pub(crate) const fn is_whole_blocks(offset: u64, len: u32) -> bool {
    offset.is_multiple_of(BLOCK_BYTES as u64) && len.is_multiple_of(BLOCK_BYTES)
}

/// A request that may not be run, and the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The client's mark.
    pub cookie: u64,
    /// The number to answer with.
    pub errno: Errno,
    /// The reason, for people.
    pub why: &'static str,
}

/// What stands at the front of the input.
#[derive(Debug)]
pub enum Parsed<'a> {
    /// Not a whole message yet; it is this long, as far as known.
    Need(usize),
    /// A request, its payload (empty but for WRITE), and the bytes both take.
    Request(Request, &'a [u8], usize),
    /// A large write. Its payload, which follows the header ([`REQUEST_HEADER_BYTES`]) and may not
    /// be there yet, is to be taken as it comes.
    LongWrite(Request),
    /// A request to be refused once `skip` bytes, more than there may be yet, were thrown away.
    Refuse {
        /// The answer.
        refusal: Refusal,
        /// Bytes of the message.
        skip: usize,
    },
    /// No request at all, or one not worth answering: close.
    Close(NbdError),
}

/// Looks at the message at the front of `input`. A write whose payload has more than
/// `payload_bytes_max` is a [long one](Parsed::LongWrite).
#[inline]
pub fn parse<'a>(input: &'a [u8], terms: &Terms, payload_bytes_max: usize) -> Parsed<'a> {
    let Some(header) = Header::decode(input) else {
        return Parsed::Need(REQUEST_HEADER_BYTES);
    };
    if header.magic != REQUEST_MAGIC {
        return Parsed::Close(NbdError::RequestMagic { magic: header.magic });
    }
    let payload_len = if header.kind == command::WRITE { header.len } else { 0 };
    let used = REQUEST_HEADER_BYTES + payload_len as usize;
    let command = match header.check(terms) {
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
    fn check(&self, terms: &Terms) -> Verdict<Command> {
        let fua = self.has(command_flag::FUA);
        match self.kind {
            command::READ => {
                let df = if terms.structured { command_flag::DF } else { 0 };
                self.check_flags(df)?;
                self.check_len(self.has(command_flag::DF))?;
                self.check_range(terms, Errno::Inval)?;
                Ok(Command::Read { whole: self.has(command_flag::DF) })
            }
            command::WRITE => {
                self.check_flags(0)?;
                check_writable(terms)?;
                self.check_len(false)?;
                self.check_range(terms, Errno::NoSpc)?;
                Ok(Command::Write { fua })
            }
            command::TRIM => {
                self.check_flags(0)?;
                check_writable(terms)?;
                self.check_range(terms, Errno::Inval)?;
                Ok(Command::Zero { punch: true, fua, fast: false })
            }
            command::WRITE_ZEROES => {
                self.check_flags(command_flag::NO_HOLE | command_flag::FAST_ZERO)?;
                check_writable(terms)?;
                self.check_range(terms, Errno::NoSpc)?;
                let punch = !self.has(command_flag::NO_HOLE);
                Ok(Command::Zero { punch, fua, fast: self.has(command_flag::FAST_ZERO) })
            }
            _ => self.check_rest(terms),
        }
    }

    fn check_rest(&self, terms: &Terms) -> Verdict<Command> {
        match self.kind {
            // Nothing can be answered to it, so nothing about it is checked.
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
                self.check_range(terms, Errno::Inval)?;
                Ok(Command::Cache)
            }
            command::BLOCK_STATUS => {
                self.check_flags(command_flag::REQ_ONE)?;
                if !terms.block_status {
                    return Err((Errno::Inval, "no metadata context was selected"));
                }
                if self.len == 0 {
                    return Err((Errno::Inval, "block status of nothing"));
                }
                self.check_range(terms, Errno::Inval)?;
                Ok(Command::BlockStatus { one: self.has(command_flag::REQ_ONE) })
            }
            _ => Err((Errno::Inval, "unknown command")),
        }
    }

    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// FUA is allowed everywhere: the specification asks servers to accept it on all commands.
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

    fn check_range(&self, terms: &Terms, outside: Errno) -> Verdict<()> {
        let unit = u64::from(BLOCK_BYTES_MIN);
        if !self.offset.is_multiple_of(unit) || !u64::from(self.len).is_multiple_of(unit) {
            return Err((Errno::Inval, "not aligned to 512 bytes"));
        }
        let end = self.offset.checked_add(u64::from(self.len));
        if end.is_none_or(|end| end > terms.size_bytes) {
            return Err((outside, "beyond the end of the export"));
        }
        Ok(())
    }
}

fn check_writable(terms: &Terms) -> Verdict<()> {
    if terms.read_only {
        return Err((Errno::Perm, "the export is read-only"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
