//! The segment summary: owners and addresses of the blocks in one part of a segment.
//!
//! Not here: the lookup of live blocks in the trees of their owners (weir-pool).
//!
//! Invariants:
//! - a txg that appends blocks to a segment also appends one summary, of exactly those blocks;
//! - the summaries of a segment form a chain from the last one, which the segment table names, to
//!   the first;
//! - a summary names its segment, and each reference to a summary includes its checksum. A stale
//!   summary from an earlier use of the physical segment is refused, even if it has the same
//!   segment number.

use weir_base::{DatasetId, ObjectId, Txg, VsegId};
use weir_codec::checksum::xxh3_128;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use crate::node::TreeRoot;

const WHAT: &str = "segment summary";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRSUMM");
const HEADER_BYTES: usize = 64;
/// Offset of the checksum in the header.
const CHECKSUM_AT: usize = 48;

/// Flag of a summary whose entries have object numbers.
const WITH_OBJECTS: u32 = 1;

/// Maximum number of blocks in one segment. This maximum limits a summary to 3 MiB and a remap
/// table to 640 KiB. A segment has so many blocks before it is full only if its blocks compress to
/// less than an eighth.
pub const SEGMENT_BLOCKS_MAX: u32 = 65_536;

/// Location of a summary in its segment; all fields are zero if there is no summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummaryPlace {
    /// Byte offset of the summary in the segment.
    pub at: u32,
    /// Length of the summary in bytes; a multiple of 64.
    pub bytes: u32,
    /// Low half of the summary's checksum.
    pub checksum: u64,
}

impl SummaryPlace {
    /// Creates the location of an encoded summary that is stored at byte offset `at` of its
    /// segment.
    pub fn of(at: u32, encoded: &[u8]) -> Self {
        let checksum = encoded.get(CHECKSUM_AT..).and_then(<[u8]>::first_chunk);
        let checksum = u64::from_le_bytes(*checksum.expect("a summary has a header"));
        Self { at, bytes: encoded.len() as u32, checksum }
    }

    /// True if there is no summary.
    pub fn is_none(&self) -> bool {
        self.bytes == 0
    }
}

/// Owner of a block: the position in a tree for which the block was written. Only a shared block is
/// referenced from other positions, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockOwner {
    /// Number of the dataset.
    pub dataset: DatasetId,
    /// Object of the dataset.
    pub object: ObjectId,
    /// Level of the block in the object's tree; 0: a block of data.
    pub level: u8,
    /// Index of the block or node in its level of the tree.
    pub index: u64,
}

/// One block of a summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryEntry {
    /// Virtual segment of the block's address. If the block was moved, this is not the segment that
    /// contains the summary.
    pub vseg: VsegId,
    /// Offset of the block's address in units of [`PACK_BYTES`].
    pub offset_units: u32,
    /// Offset of the block in this segment, in units of [`PACK_BYTES`].
    pub at_units: u32,
    /// Stored size in units of [`PACK_BYTES`].
    pub stored_units: u16,
    /// Owner of the block.
    pub owner: BlockOwner,
    /// Txg that wrote the block. The txg determines whether the owner or one of its snapshots can
    /// reference the block.
    pub birth: Txg,
    /// Low half of the block's checksum.
    pub checksum: u64,
}

const VSEG_BITS: u32 = 40;
const OFFSET_BITS: u32 = 19;
const INDEX_BITS: u32 = 44;
const DATASET_BITS: u32 = 48;
const BIRTH_BITS: u32 = 44;
const OBJECT_BITS: u32 = 44;

const fn low(bits: u32) -> u64 {
    (1 << bits) - 1
}

impl SummaryEntry {
    /// Encoded size in a summary whose blocks are all of object 0.
    pub const BYTES: usize = 40;
    /// Encoded size in any other summary.
    pub const BYTES_WITH_OBJECT: usize = Self::BYTES + 8;

    const fn bytes(with_objects: bool) -> usize {
        if with_objects { Self::BYTES_WITH_OBJECT } else { Self::BYTES }
    }

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "address", "bits 0-39 vseg, 40-58 offset in 64 B units, 59-63 tree level"),
        field(8, "place", "bits 0-43 index in the level, 44-62 offset in this segment, 64 B units"),
        field(8, "owner", "bits 0-47 dataset, 48-62 stored size in 64 B units"),
        field(8, "birth", "bits 0-43 txg that wrote the block, the rest zero"),
        field(8, "checksum", "low half of the block's XXH3-128"),
        field(0, "object", "in a summary with object numbers: u64 object, below 2^44"),
    ];

    fn write(&self, w: &mut Writer, with_object: bool) {
        let BlockOwner { dataset, object, level, index } = self.owner;
        assert!(self.vseg.0 <= low(VSEG_BITS) && index <= low(INDEX_BITS), "{self:?}");
        assert!(dataset.0 <= low(DATASET_BITS) && level < 32, "{self:?}");
        let (offset, at) = (u64::from(self.offset_units), u64::from(self.at_units));
        assert!(offset <= low(OFFSET_BITS) && at <= low(OFFSET_BITS), "{self:?}");
        w.u64(self.vseg.0 | offset << VSEG_BITS | u64::from(level) << (VSEG_BITS + OFFSET_BITS));
        w.u64(index | at << INDEX_BITS);
        w.u64(dataset.0 | u64::from(self.stored_units) << DATASET_BITS);
        assert!(self.birth.0 <= low(BIRTH_BITS), "{self:?}");
        w.u64(self.birth.0);
        w.u64(self.checksum);
        assert!(object.0 <= if with_object { low(OBJECT_BITS) } else { 0 }, "{self:?}");
        if with_object {
            w.u64(object.0);
        }
    }

    fn read(r: &mut Reader<'_>, with_object: bool) -> Result<Self, FormatError> {
        let (address, place, owner) = (r.u64()?, r.u64()?, r.u64()?);
        let (birth, checksum) = (r.u64()?, r.u64()?);
        let object = if with_object { r.u64()? } else { 0 };
        if object > low(OBJECT_BITS) {
            return Err(r.bad("object", object));
        }
        let entry = Self {
            vseg: VsegId(address & low(VSEG_BITS)),
            offset_units: (address >> VSEG_BITS & low(OFFSET_BITS)) as u32,
            at_units: (place >> INDEX_BITS & low(OFFSET_BITS)) as u32,
            stored_units: (owner >> DATASET_BITS) as u16,
            owner: BlockOwner {
                dataset: DatasetId(owner & low(DATASET_BITS)),
                object: ObjectId(object),
                level: (address >> (VSEG_BITS + OFFSET_BITS)) as u8,
                index: place & low(INDEX_BITS),
            },
            birth: Txg(birth & low(BIRTH_BITS)),
            checksum,
        };
        let BlockOwner { level, index, .. } = entry.owner;
        if level > TreeRoot::HEIGHT_MAX || index >= TreeRoot::capacity(TreeRoot::HEIGHT_MAX - level)
        {
            return Err(r.bad("level", level));
        }
        let end = (u64::from(entry.at_units) + u64::from(entry.stored_units)) * PACK_BYTES as u64;
        if entry.stored_units == 0 || end > SEGMENT_BYTES_MAX {
            return Err(r.bad("stored", entry.stored_units));
        }
        Ok(entry)
    }
}

/// A decoded summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Segment that contains the summary.
    pub vseg: VsegId,
    /// Location of the previous summary of the segment.
    pub previous: SummaryPlace,
    /// Blocks, in storage order. The encoding has object numbers unless all of them are 0.
    pub entries: Vec<SummaryEntry>,
}

impl Summary {
    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRSUMM\""),
        field(8, "vseg", "segment that contains it"),
        field(4, "count", "blocks"),
        field(4, "previous_at", "byte offset of the summary before it in the segment"),
        field(4, "previous_bytes", "its length; 0 = none"),
        field(4, "flags", "bit 0: each entry has an object number; otherwise all objects are 0"),
        field(8, "previous_checksum", "low half of its checksum"),
        field(8, "reserved", "zero"),
        field(16, "checksum", "XXH3-128 of the summary, padding included, this field zero"),
        field(0, "blocks", "count x summary entry; zeros up to whole 64 B units"),
    ];

    /// Encoded length of a summary of `blocks` blocks; `with_objects` if one of the blocks belongs
    /// to an object other than 0.
    pub const fn bytes_for(blocks: usize, with_objects: bool) -> usize {
        (HEADER_BYTES + blocks * SummaryEntry::bytes(with_objects)).next_multiple_of(PACK_BYTES)
    }

    /// Encodes the summary.
    pub fn encode(&self) -> Vec<u8> {
        let with_objects = self.entries.iter().any(|entry| entry.owner.object.0 > 0);
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(self.vseg.0);
        w.u32(self.entries.len() as u32);
        w.u32(self.previous.at);
        w.u32(self.previous.bytes);
        w.u32(if with_objects { WITH_OBJECTS } else { 0 });
        w.u64(self.previous.checksum);
        w.u64(0);
        w.u128(0);
        for entry in &self.entries {
            entry.write(&mut w, with_objects);
        }
        w.pad_to(Self::bytes_for(self.entries.len(), with_objects));
        let checksum = xxh3_128(&w.0);
        let field = w.0.get_mut(CHECKSUM_AT..HEADER_BYTES).expect("the header was written");
        field.copy_from_slice(&checksum.to_le_bytes());
        w.0
    }

    /// Decodes the summary of `vseg` in `bytes`; `named` is the low half of its checksum.
    ///
    /// # Errors
    /// The summary belongs to another segment or is another summary of this segment, its checksum
    /// is wrong, or a field has an invalid value.
    pub fn decode(bytes: &[u8], vseg: VsegId, named: u64) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let found = VsegId(r.u64()?);
        let (count, at, previous_bytes) = (r.u32()?, r.u32()?, r.u32()?);
        let flags = r.u32()?;
        let previous_checksum = r.u64()?;
        r.u64()?;
        let checksum = r.u128()?;
        let mut blank = bytes.to_vec();
        blank.get_mut(CHECKSUM_AT..HEADER_BYTES).expect("it was just read").fill(0);
        if checksum as u64 != named || xxh3_128(&blank) != checksum {
            return Err(FormatError::Checksum { what: WHAT });
        }
        if found != vseg {
            return Err(r.bad("vseg", found.0));
        }
        if flags & !WITH_OBJECTS != 0 {
            return Err(r.bad("flags", flags));
        }
        let with_objects = flags & WITH_OBJECTS != 0;
        if count > SEGMENT_BLOCKS_MAX
            || Self::bytes_for(count as usize, with_objects) != bytes.len()
        {
            return Err(r.bad("count", count));
        }
        let entry = |_| SummaryEntry::read(&mut r, with_objects);
        let entries = (0..count).map(entry).collect::<Result<Vec<_>, _>>()?;
        let previous = SummaryPlace { at, bytes: previous_bytes, checksum: previous_checksum };
        Ok(Self { vseg, previous, entries })
    }
}
