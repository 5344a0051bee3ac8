//! The send stream: the content of a snapshot, or its difference to an older snapshot, in a file or
//! on a network connection.
//!
//! weir-dataset selects the records to send and applies received ones.
//!
//! Invariants:
//! - the checksums of a frame cover the checksum of the frame before it. A frame that is damaged,
//!   missing or out of order is refused, and the reader processes no frame after it;
//! - records come in ascending order, each at most once, so that one number describes the
//!   receiver's progress;
//! - a reader buffers one frame at a time; a payload has at most [`FRAME_BYTES_MAX`] bytes.

mod change;
mod objects;
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

pub use objects::{ENTRY_FIELDS, StreamEntries, StreamEntry, StreamObjects};
pub use read::StreamReader;
pub use token::{ResumeToken, TokenError};
pub use write::StreamWriter;

/// Version of a volume's stream. The stream version is independent of the on-disk version, because
/// a stream can outlive its pool. 1: first version. 2: records of several blocks.
pub const STREAM_VERSION: u32 = 2;

/// Version of the stream of a dataset with many objects, which has object frames in place of
/// changes.
pub const OBJECT_STREAM_VERSION: u32 = 3;

/// Version of the stream of a case-insensitive filesystem, with the frames of version 3. A receiver
/// without the tables of Unicode refuses it.
pub const FOLDED_STREAM_VERSION: u32 = 4;

/// Maximum payload of a frame: a receiver must buffer the whole frame before it can verify any byte
/// of the frame. A writer ends a frame at 256 KiB, and the maximum leaves space for one record
/// beyond that size.
pub const FRAME_BYTES_MAX: usize = 3 << 19;

/// Size at which a writer ends a frame. Checksums and headers are then about 0.01 % of the stream,
/// and an interrupted transfer loses little.
const FRAME_BYTES_WANTED: usize = 256 << 10;

const MAGIC: [u8; 8] = *b"WEIRSEND";
const PREAMBLE_BYTES: usize = 16;
const HEADER_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 16;

const KIND_BEGIN: u8 = 1;
const KIND_CHANGES: u8 = 2;
const KIND_END: u8 = 3;
const KIND_OBJECTS: u8 = 4;

/// Code of a hole among changes. The code of a record is its codec's code plus 1.
const CODE_HOLE: u8 = 0;

/// Fields of a begin frame, for the format documentation.
pub const BEGIN_FIELDS: &[Field] = &[
    field(8, "to", "guid of the snapshot"),
    field(8, "from", "guid of the base snapshot, 0 for a full stream"),
    field(1, "flags", "1: `from` belongs to the volume from which this one was cloned"),
    field(1, "compression", "compression of the volume, encoded as in a dataset record"),
    field(8, "first_record", "first record of this stream; earlier ones precede it"),
    field(8, "size_bytes", "size of the volume at the snapshot; versions 3, 4: the first object"),
    field(1, "record_size", "log2 of a record's blocks, 0 to 8; versions 3, 4: 0"),
    field(8, "created_unix_ms", "wall clock when the snapshot was taken"),
    field(0, "volume", "u16 length, UTF-8: name of the volume"),
    field(0, "snapshot", "u16 length, UTF-8: name of the snapshot without its volume"),
    field(0, "layer", "versions 3 and 4: 40 bytes of the layer above the engine"),
];

/// Fields of a changes frame, for the format documentation.
pub const CHANGE_FIELDS: &[Field] = &[
    field(1, "code", "0 hole, 1 raw, 2 lz4, 3 zstd"),
    field(8, "start", "first record"),
    field(0, "hole", "u64 number of records"),
    field(0, "record", "u16 stored size in 64 B, u128 XXH3-128 of the stored bytes, the bytes"),
];

/// Fields of an end frame, for the format documentation.
pub const END_FIELDS: &[Field] = &[
    field(8, "records", "records with data in this stream"),
    field(8, "stored_bytes", "space of these records"),
    field(8, "hole_records", "records in the holes of this stream"),
    field(0, "objects", "versions 3, 4: u64 objects in use in this stream"),
];

/// Content of a begin frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamBegin {
    /// Guid of the snapshot in the stream.
    pub to: u64,
    /// Guid of the base snapshot, if the stream is incremental.
    pub from: Option<u64>,
    /// True if the base snapshot belongs to the volume from which the sent volume was cloned.
    pub is_clone: bool,
    /// Compression of the volume's new blocks.
    pub compression: Compression,
    /// First record of the stream; a resumed stream begins after 0.
    pub first_record: u64,
    /// Size of the volume at the snapshot, in bytes; 0 for a dataset with many objects.
    pub size_bytes: u64,
    /// Record size of the volume; record numbers and counts use it as their unit. One block for a
    /// dataset with many objects, whose objects have their own record sizes.
    pub record_size: RecordSize,
    /// Time at which the snapshot was taken, by the wall clock.
    pub created_unix_ms: u64,
    /// Name of the volume.
    pub volume: String,
    /// Name of the snapshot, without the volume's name.
    pub snapshot: String,
    /// Set for a dataset with many objects.
    pub objects: Option<StreamObjects>,
}

/// Totals of a stream, sent in its end frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Number of records with data.
    pub records: u64,
    /// Stored size of the records with data, in bytes.
    pub stored_bytes: u64,
    /// Number of records in holes.
    pub hole_records: u64,
    /// Number of objects in use; 0 for a volume.
    pub objects: u64,
}

/// One change of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChange {
    /// First record of the change.
    pub start: u64,
    /// Number of records; always 1, except for a hole.
    pub count: u64,
    /// Codec of the record and its byte range in the payload; `None` for a hole.
    stored: Option<(Codec, Range<usize>)>,
}

impl StreamChange {
    fn stored_in<'a>(&self, payload: &'a [u8]) -> Option<(Codec, &'a [u8])> {
        let (codec, range) = self.stored.clone()?;
        Some((codec, payload.get(range)?))
    }
}

/// The changes of one frame, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamChanges {
    payload: Vec<u8>,
    changes: Vec<StreamChange>,
}

impl StreamChanges {
    /// Returns each change and, for a record, the codec and the verified stored bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&StreamChange, Option<(Codec, &[u8])>)> {
        self.changes.iter().map(|change| (change, change.stored_in(&self.payload)))
    }
}

/// A verified frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamFrame {
    /// The first frame.
    Begin(StreamBegin),
    /// Any frame of a volume's stream between the first and the last.
    Changes(StreamChanges),
    /// Any frame between the first and the last in the stream of a dataset with many objects.
    Objects(StreamEntries),
    /// The last frame; its totals match the frames that were read.
    End(StreamCounts),
}

/// Refusal of a stream, with the frame that caused it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frame {frame} of the stream, at byte {offset}: {why}")]
pub struct StreamError {
    /// Number of the frame; the first frame is 0.
    pub frame: u64,
    /// Byte offset of the frame in the stream.
    pub offset: u64,
    /// Fault of the frame.
    pub why: StreamFault,
}

/// Fault of a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamFault {
    /// The bytes are not a send stream.
    #[error("this is not a stream of 'weir send'")]
    Magic,
    /// The stream has another version.
    #[error(
        "stream version {found}; this weir reads versions {STREAM_VERSION} to \
             {FOLDED_STREAM_VERSION}"
    )]
    Version {
        /// Version in the preamble.
        found: u32,
    },
    /// A checksum does not match.
    #[error("damaged or out of order: its checksum does not match")]
    Checksum,
    /// The stream ends before its end frame.
    #[error("the stream is truncated here")]
    Truncated,
    /// Bytes follow the end frame.
    #[error("data follows the end of the stream")]
    Trailing,
    /// A frame of this kind is not allowed here.
    #[error("a frame of kind {kind} is not allowed here")]
    Kind {
        /// Kind in the header.
        kind: u8,
    },
    /// A field has an invalid value.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl StreamError {
    /// True if all received frames were valid but the stream ended too early.
    pub fn is_cut(&self) -> bool {
        self.why == StreamFault::Truncated
    }

    /// Maps the error to its [`ErrorKind`], for callers outside the engine.
    pub fn kind(&self) -> ErrorKind {
        match self.why {
            StreamFault::Magic | StreamFault::Version { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Data,
        }
    }
}

/// Checksum of the previous frame, from which both checksums of a frame are computed.
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
