//! The send stream: what a snapshot holds, or what changed since an older one, as a file or on a
//! wire.
//!
//! Not here: which records those are, and what a receiver makes of them (weir-dataset).
//!
//! Invariants:
//! - every frame's checksums cover those of the frame before it: a frame that is damaged, missing
//!   or in another's place is refused, and no frame behind it is looked at;
//! - records come in rising order, each at most once, so one number says how far a receiver is;
//! - a reader holds one frame at a time, and no frame is larger than [`FRAME_BYTES_MAX`].
//!
//! ```text
//! preamble   magic:8 | version:4 | zero:4
//! frame      kind:1 | zero:3 | length:4 | check:8 | payload:length | checksum:16
//!            check     XXH3-64 of the checksum before and the first 8 bytes
//!            checksum  XXH3-128 of the checksum before, the first 16 bytes and the payload
//!            before the first frame, the checksum before is XXH3-128 of the preamble
//! stream     preamble, one begin, any number of changes, one end
//! ```

mod read;
mod token;
mod write;

use std::ops::Range;

use weir_base::Compression;
use weir_base::ErrorKind;
use weir_base::RecordSize;

use crate::bytes::{Field, field};
use crate::compression::Codec;
use crate::error::FormatError;

pub use read::StreamReader;
pub use token::{ResumeToken, TokenError};
pub use write::StreamWriter;

/// Version of the stream, apart from that of the disks: a stream outlives the pools it is of. 1:
/// first. 2: records of several blocks.
pub const STREAM_VERSION: u32 = 2;

/// Longest payload of a frame: what a receiver must hold before it can believe any of it. A frame
/// that is nearly full takes one more record.
pub const FRAME_BYTES_MAX: usize = 3 << 19;

/// A writer ends a frame from this size on: checksums and headers are then a ten thousandth, and
/// what a cut costs is little.
const FRAME_BYTES_WANTED: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"WEIRSEND";
const PREAMBLE_BYTES: usize = 16;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 16;

const KIND_BEGIN: u8 = 1;
const KIND_CHANGES: u8 = 2;
const KIND_END: u8 = 3;

/// Code of a hole among changes; other codes are one more than the codec's.
const CODE_HOLE: u8 = 0;

/// Fields of a begin frame, for the format documentation.
pub const BEGIN_FIELDS: &[Field] = &[
    field(8, "to", "guid of the snapshot"),
    field(8, "from", "guid of the snapshot it is a difference to, 0 for none"),
    field(1, "flags", "1: `from` is of another volume, which this one was cloned from"),
    field(1, "compression", "the volume's, coded as in a dataset record"),
    field(8, "first_record", "where it goes on; what was before came in another stream"),
    field(8, "size_bytes", "size of the volume at the snapshot"),
    field(1, "record_size", "log2 of a record's blocks, 0 to 8"),
    field(8, "created_unix_ms", "wall clock when the snapshot was taken"),
    field(0, "volume", "u16 length, UTF-8: what the volume was called"),
    field(0, "snapshot", "u16 length, UTF-8: the snapshot's own name"),
];

/// Fields of what a changes frame holds, for the format documentation.
pub const CHANGE_FIELDS: &[Field] = &[
    field(1, "code", "0 hole, 1 raw, 2 lz4, 3 zstd"),
    field(8, "start", "first record"),
    field(0, "hole", "u64 number of records"),
    field(0, "record", "u16 stored size in 64 B, u128 XXH3-128 of the stored bytes, the bytes"),
];

/// Fields of an end frame, for the format documentation.
pub const END_FIELDS: &[Field] = &[
    field(8, "records", "records with data in this stream"),
    field(8, "stored_bytes", "what they occupy"),
    field(8, "hole_records", "records in the holes of this stream"),
];

/// What a stream is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBegin {
    /// Guid of the snapshot it brings.
    pub to: u64,
    /// Guid of the snapshot it is a difference to.
    pub from: Option<u64>,
    /// Whether that one is of another volume, which this one was cloned from.
    pub is_clone: bool,
    /// Compression of the volume's new blocks.
    pub compression: Compression,
    /// Nothing before this record is in the stream.
    pub first_record: u64,
    /// Size of the volume at the snapshot, in bytes.
    pub size_bytes: u64,
    /// The volume's record size: what the numbers here count.
    pub record_size: RecordSize,
    /// Wall clock when the snapshot was taken.
    pub created_unix_ms: u64,
    /// What the volume was called.
    pub volume: String,
    /// The snapshot's own name.
    pub snapshot: String,
}

/// What was in a stream, told by its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Records with data.
    pub records: u64,
    /// What they occupy, in bytes.
    pub stored_bytes: u64,
    /// Records in holes.
    pub hole_records: u64,
}

/// One change of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChange {
    /// First record.
    pub start: u64,
    /// Records; 1 unless it is a hole.
    pub count: u64,
    /// How the record is stored and where in the frame; `None` for a hole.
    stored: Option<(Codec, Range<usize>)>,
}

/// The changes of one frame, in rising order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChanges {
    payload: Vec<u8>,
    changes: Vec<StreamChange>,
}

impl StreamChanges {
    /// Each change and, of a record, how its verified bytes are stored and what they are.
    pub fn iter(&self) -> impl Iterator<Item = (&StreamChange, Option<(Codec, &[u8])>)> {
        let stored = |change: &StreamChange| {
            let (codec, range) = change.stored.clone()?;
            Some((codec, self.payload.get(range)?))
        };
        self.changes.iter().map(move |change| (change, stored(change)))
    }
}

/// A frame that was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFrame {
    /// The first.
    Begin(StreamBegin),
    /// Any between.
    Changes(StreamChanges),
    /// The last; the counts were compared with what was read.
    End(StreamCounts),
}

/// Why a stream is refused, and at which frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame {frame} of the stream, at byte {offset}: {why}")]
pub struct StreamError {
    /// Number of the frame, the first one 0.
    pub frame: u64,
    /// Where it begins in the stream.
    pub offset: u64,
    /// What is wrong with it.
    pub why: StreamFault,
}

/// What can be wrong with a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFault {
    /// Something else than a stream.
    #[error("this is no stream of 'weir send'")]
    Magic,
    /// Of another program version.
    #[error("stream version {found}, and this weir reads version {STREAM_VERSION} alone")]
    Version {
        /// What it says.
        found: u32,
    },
    /// Checksums do not fit.
    #[error("damaged, or not in its place: its checksum does not fit")]
    Checksum,
    /// The stream was cut off.
    #[error("the stream ends here, before its end: it was cut off")]
    Truncated,
    /// Bytes behind the end.
    #[error("more follows behind the end of the stream")]
    Trailing,
    /// A frame where it cannot be.
    #[error("a frame of kind {kind} cannot be here")]
    Kind {
        /// What it says.
        kind: u8,
    },
    /// A field that cannot be.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl StreamError {
    /// Whether all that came was good and only the rest is missing.
    pub fn is_cut(&self) -> bool {
        self.why == StreamFault::Truncated
    }

    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self.why {
            StreamFault::Magic | StreamFault::Version { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Data,
        }
    }
}

/// Both checksums of a frame follow from the one before.
#[derive(Clone, Copy)]
struct Chain(u128);

impl Chain {
    fn new(preamble: &[u8]) -> Self {
        Self(weir_codec::checksum::xxh3_128(preamble))
    }

    fn check(self, start: &[u8]) -> u64 {
        weir_codec::checksum::xxh3_64(&[&self.0.to_le_bytes(), start])
    }

    fn checksum(self, header: &[u8], payload: &[u8]) -> u128 {
        weir_codec::checksum::xxh3_128_of(&[&self.0.to_le_bytes(), header, payload])
    }
}

#[cfg(test)]
mod tests;
