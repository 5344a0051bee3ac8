//! NBD wire format: constants, flags, and a bounds-checked reader.
//!
//! `negotiate` and `request` interpret messages; `negotiate` and `reply` build replies. The
//! comments in these files show the layouts of the messages.
//!
//! Spec: NetworkBlockDevice `doc/proto.md`, "Values" and "Message flow".
//!
//! Invariants:
//! - every number is big-endian;
//! - no code in this file indexes a slice, because the bytes come from untrusted clients.

/// First eight bytes of the greeting: `NBDMAGIC`.
pub const NBD_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Magic number of newstyle negotiation, at the start of every option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Magic number at the start of every option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Magic number at the start of every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Magic number at the start of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Magic number at the start of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Length of the header of an option, before its data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Length of the header of a request, before its payload.
pub const REQUEST_HEADER_BYTES: usize = 28;
/// Number of zero bytes after the reply to `EXPORT_NAME`, unless NO_ZEROES was negotiated.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;
/// Longest string of the protocol, including export names.
pub const STRING_BYTES_MAX: usize = 4096;

/// Handshake flags of the server. The client's flags use the same bits.
pub mod handshake {
    /// Fixed newstyle: the server replies to every option.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// The reply to `EXPORT_NAME` has no padding.
    pub const NO_ZEROES: u16 = 2;
}

/// Options of the handshake phase.
pub mod option {
    /// Select an export and enter the transmission phase; the server cannot reply with an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List all exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter the transmission phase.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies.
pub mod reply_kind {
    /// Success.
    pub const ACK: u32 = 1;
    /// One export of a LIST.
    pub const SERVER: u32 = 2;
    /// One information item about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is unknown or not supported.
    pub const ERR_UNSUP: u32 = 0x8000_0001;
    /// The policy of the server forbids the option.
    pub const ERR_POLICY: u32 = 0x8000_0002;
    /// The option has malformed data, or is not allowed at this point.
    pub const ERR_INVALID: u32 = 0x8000_0003;
    /// The server requires STARTTLS first.
    pub const ERR_TLS_REQD: u32 = 0x8000_0005;
    /// The export is unknown.
    pub const ERR_UNKNOWN: u32 = 0x8000_0006;
    /// The server is shutting down, or the export is unavailable.
    pub const ERR_SHUTDOWN: u32 = 0x8000_0007;
}

/// Types of information items in `INFO` replies.
pub mod info {
    /// Size and transmission flags of the export.
    pub const EXPORT: u16 = 0;
    /// Canonical export name.
    pub const NAME: u16 = 1;
    /// Description of the export for users.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: features of an export.
pub mod transmission {
    /// Always set; it marks the transmission flags as valid.
    pub const HAS_FLAGS: u16 = 1;
    /// The export is read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// FUA is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES is supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes of all connections.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Request types.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Disconnect; the server sends no reply.
    pub const DISC: u16 = 2;
    /// Make completed writes durable.
    pub const FLUSH: u16 = 3;
    /// The client no longer needs the contents of the range.
    pub const TRIM: u16 = 4;
    /// Prefetch the range.
    pub const CACHE: u16 = 5;
    /// Write zeros without sending them.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report allocated ranges.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub mod command_flag {
    /// Make the data durable before the reply.
    pub const FUA: u16 = 1;
    /// WRITE_ZEROES: keep the space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ: return the data in one content chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS: report only one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES: fail at once if zeroing would take long.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Chunks of structured replies.
pub mod part {
    /// Flag: last chunk of a reply.
    pub const FLAG_DONE: u16 = 1;
    /// Chunk without content.
    pub const NONE: u16 = 0;
    /// Offset and data of a READ.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of one metadata context, for BLOCK_STATUS.
    pub const BLOCK_STATUS: u16 = 5;
    /// Error value and message.
    pub const ERROR: u16 = 0x8001;
}

/// State flags of `base:allocation`.
pub mod state {
    /// The range is not allocated.
    pub const HOLE: u32 = 1;
    /// The range reads as zeros.
    pub const ZERO: u32 = 2;
}

/// The only metadata context of this server.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Id of the metadata context in `BLOCK_STATUS` replies; the value is arbitrary.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// Error values of the NBD protocol; they do not depend on the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// EPERM: the export is read-only.
    Perm = 1,
    /// EIO: the storage failed.
    Io = 5,
    /// EINVAL: the request is invalid.
    Inval = 22,
    /// ENOSPC: no space is left, or a write extends beyond the end of the export.
    NoSpc = 28,
    /// EOVERFLOW: the request is too long.
    Overflow = 75,
    /// ENOTSUP: zeroing with FAST_ZERO would not be fast.
    NotSup = 95,
}

/// Reads numbers and strings from the start of a byte slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first byte of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that the reader has not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads the next `len` bytes; `None` if the slice has fewer bytes.
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

    /// Reads the next 16-bit number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads the next 32-bit number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads the next 64-bit number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads the next string, after its 32-bit length. Returns `None` if the string is incomplete,
    /// not UTF-8, or longer than the protocol allows.
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
