//! NBD on the wire: numbers, flags, and a reader that cannot run past its end.
//!
//! Not here: what a message means (`negotiate`, `request`) and how an answer is put together
//! (`negotiate`, `reply`).
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Values" and "Message flow".
//!
//! ```text
//! server hello   0        8        16      18
//!                | NBDMAGIC | IHAVEOPT | flags |
//! client flags   | u32 |
//! option         0          8       12    16
//!                | IHAVEOPT | option | len | data
//! option reply   0           8        12     16    20
//!                | reply magic | option | kind | len | data
//! request        0       4       6      8        16       24    28
//!                | magic | flags | type | cookie | offset | len | payload (WRITE)
//! simple reply   0       4       8        16
//!                | magic | errno | cookie | data (READ)
//! chunk          0       4       6      8        16    20
//!                | magic | flags | type | cookie | len | payload
//! ```
//!
//! Invariants:
//! - every number is big-endian;
//! - nothing here indexes a slice: bytes come from strangers.

/// First eight bytes a server sends: `NBDMAGIC`.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Marks newstyle negotiation and opens every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Opens every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Opens a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Opens one part of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of an option before its data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request before its payload.
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Zero bytes after the answer to `EXPORT_NAME`, unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Longest string of the protocol, export names included.
pub const STRING_BYTES_MAX: usize = 4096;

/// Handshake flags (server) and client flags share their bits.
pub mod handshake {
    /// Fixed newstyle: the server answers every option.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The answer to `EXPORT_NAME` has no padding.
    pub const NO_ZEROES: u16 = 2;
}

/// What a client can ask for before transmission.
pub mod option {
    /// Enter transmission, old way: no error can be answered.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// Names of all exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// Which metadata contexts there are.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of option reply.
pub mod reply_kind {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known or not offered.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// Forbidden here.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// Malformed, or not allowed at this point.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// Only after STARTTLS.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The server or the export is going away.
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
}

/// Pieces of information in `INFO` replies.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The name it is known by.
    pub const NAME: u16 = 1;
    /// A line for people.
    pub const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Say goodbye; no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The range is no longer needed.
    pub const TRIM: u16 = 4;
    /// Prefetch.
    pub const CACHE: u16 = 5;
    /// Write zeros without sending them.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES: keep the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: one piece of content only.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: one extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail at once rather than be slow.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured replies.
pub mod part {
    /// Flag: the last part of a reply.
    pub const FLAG_DONE: u16 = 1;
    /// No content.
    pub const NONE: u16 = 0;
    /// Offset and data.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Errno and a message.
    pub const ERROR: u16 = 0x8001;
}

/// State flags of `base:allocation`.
pub mod state {
    /// Nothing is allocated.
    pub const HOLE: u32 = 1;
    /// Reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The metadata context this server has.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number in `BLOCK_STATUS` replies; any number would do.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The error numbers NBD knows; the values are the protocol's, whatever the system's are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// Not allowed: the export is read-only.
    Perm = 1,
    /// The storage failed.
    Io = 5,
    /// The request is wrong.
    Inval = 22,
    /// No room, or a write past the end.
    NoSpc = 28,
    /// Too long.
    Overflow = 75,
    /// Cannot be done fast.
    NotSup = 95,
}

/// Reads numbers and strings off the front of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `len` bytes, if they are there.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(len)?;
        self.rest = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.rest.split_first_chunk()?;
        self.rest = tail;
        Some(*head)
    }

    /// The next 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64-bit number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 32-bit length and a string of that length; `None` also where it is no UTF-8 or longer
    /// than the protocol allows.
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        if len > STRING_BYTES_MAX {
            return None;
        }
        std::str::from_utf8(self.bytes(len)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magics_spell_their_names() {
        assert_eq!(&NBD_MAGIC.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
    }

    #[test]
    fn reader_stops_at_the_end() {
        let mut reader = Reader::new(&[0, 0, 0, 2, b'h', b'i', 7]);
        assert_eq!(reader.string(), Some("hi"));
        assert_eq!(reader.u16(), None);
        assert_eq!(reader.rest(), &[7]);
        assert_eq!(Reader::new(&[0, 0, 0, 3, b'h', b'i']).string(), None);
        assert_eq!(Reader::new(&[0, 0, 0, 1, 0xff]).string(), None);
        let long = [&5000_u32.to_be_bytes()[..], &[b'x'; 5000]].concat();
        assert_eq!(Reader::new(&long).string(), None);
    }
}
