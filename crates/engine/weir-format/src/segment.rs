//! The segment table entry: the location of a virtual segment and the number of its live bytes.
//!
//! Allocation and space accounting are in weir-pool.
//!
//! Invariants: an all-zero entry is an unused segment number; the live bytes of a segment never
//! exceed its fill, the bytes written to it.

use weir_base::{BLOCK_BYTES, PsegIndex, Txg, VsegId};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, STRIP_BYTES_MIN};
use crate::summary::SummaryPlace;

/// Number of segment table entries in one block.
pub const SEGMENT_ENTRIES_PER_BLOCK: usize = BLOCK_BYTES / SegmentEntry::BYTES;

/// State of a virtual segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// A write head appends to the segment.
    Open,
    /// The segment is full or was closed early; no block is appended to it any more.
    Sealed,
    /// No block in the segment is referenced. Its physical segment is reused a few txgs later.
    Dead,
    /// The cleaner moved the live blocks to other segments. The physical segment is reused a few
    /// txgs later.
    Evacuating,
    /// The cleaner moved the live blocks to other segments, and the physical segment now belongs to
    /// another segment.
    Remapped,
}

/// Class of a segment: the kind of blocks that a write head appends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentClass {
    /// Blocks of volumes.
    Data,
    /// Tree nodes of volumes.
    Meta,
    /// Segment table, dataset directory, remap tables, bootstrap table.
    Root,
    /// Blocks that the cleaner moved; their pointers name the segments from which they came.
    Clean,
}

impl SegmentClass {
    /// All segment classes.
    pub const ALL: [Self; 4] = [Self::Data, Self::Meta, Self::Root, Self::Clean];
}

/// A decoded segment table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// State of the segment.
    pub state: SegmentState,
    /// Class of the segment: the kind of blocks in it.
    pub class: SegmentClass,
    /// Number of the vdev on which the segment is stored.
    pub vdev: u16,
    /// Physical segment on that vdev.
    pub pseg: PsegIndex,
    /// Bytes of the live blocks whose pointers name this segment. In a segment of class `Clean`:
    /// bytes of the live blocks stored in it.
    pub live_bytes: u32,
    /// Number of bytes written to the segment so far; whole rows.
    pub fill_bytes: u32,
    /// First txg that wrote to the segment.
    pub first_txg: Txg,
    /// Last txg that wrote to the segment. If the segment is dead or was cleaned: the txg of its
    /// death or cleaning.
    pub last_txg: Txg,
    /// Location of the newest summary of the segment.
    pub summary: SummaryPlace,
    /// Root segments only: byte offset, in the segment, of the second copy of its contents; 0 if
    /// there is no second copy.
    pub second_at: u32,
    /// If this segment is a third copy: the root segment that it repeats. The copy has the bytes of
    /// the root segment up to the second copy inside the root segment.
    pub copy_of: Option<VsegId>,
}

/// Unit of the encoded offset of a second copy.
const SECOND_UNIT: u32 = STRIP_BYTES_MIN;

impl SegmentEntry {
    /// Encoded size of an entry in bytes.
    pub const BYTES: usize = 64;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(
            1,
            "state",
            "0 unused, 1 open, 2 sealed, 3 dead, 4 remapped, its address reserved, 5 remapped",
        ),
        field(1, "class", "0 data, 1 meta, 2 root, 3 clean"),
        field(1, "replicas", "1 in this version, at most 3"),
        field(1, "reserved", "zero"),
        field(6, "place", "u16 vdev, u32 physical segment"),
        field(4, "reserved", "zero"),
        field(
            8,
            "copy_of",
            "root segments: 1 + number of the root segment that this one repeats; 0: none",
        ),
        field(
            2,
            "second",
            "root segments: offset of a second copy of its contents, in 4 KiB; 0: none",
        ),
        field(4, "live_bytes", "bytes that committed pointers refer to"),
        field(4, "fill_bytes", "bytes written, whole rows"),
        field(8, "first_txg", "first txg that wrote to it"),
        field(8, "last_txg", "last txg that wrote to it, or in which it died or was cleaned"),
        field(4, "summary_at", "byte offset of its last summary"),
        field(4, "summary_bytes", "length of the last summary; 0 = none"),
        field(8, "summary_checksum", "low half of its checksum"),
    ];

    pub(crate) fn write(&self, w: &mut Writer) {
        w.u8(match self.state {
            SegmentState::Open => 1,
            SegmentState::Sealed => 2,
            SegmentState::Dead => 3,
            SegmentState::Evacuating => 4,
            SegmentState::Remapped => 5,
        });
        w.u8(match self.class {
            SegmentClass::Data => 0,
            SegmentClass::Meta => 1,
            SegmentClass::Root => 2,
            SegmentClass::Clean => 3,
        });
        w.u16(1);
        w.u16(self.vdev);
        w.u32(self.pseg.0);
        w.u32(0);
        w.u64(self.copy_of.map_or(0, |vseg| vseg.0 + 1));
        w.u16((self.second_at / SECOND_UNIT) as u16);
        w.u32(self.live_bytes);
        w.u32(self.fill_bytes);
        w.u64(self.first_txg.0);
        w.u64(self.last_txg.0);
        w.u32(self.summary.at);
        w.u32(self.summary.bytes);
        w.u64(self.summary.checksum);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Option<Self>, FormatError> {
        let state = match r.u8()? {
            0 => {
                r.take(Self::BYTES - 1)?;
                return Ok(None);
            }
            1 => SegmentState::Open,
            2 => SegmentState::Sealed,
            3 => SegmentState::Dead,
            4 => SegmentState::Evacuating,
            5 => SegmentState::Remapped,
            other => return Err(r.bad("state", other)),
        };
        let class = match r.u8()? {
            0 => SegmentClass::Data,
            1 => SegmentClass::Meta,
            2 => SegmentClass::Root,
            3 => SegmentClass::Clean,
            other => return Err(r.bad("class", other)),
        };
        let replicas = r.u16()?;
        if replicas != 1 {
            return Err(r.bad("replicas", replicas));
        }
        let (vdev, pseg) = (r.u16()?, PsegIndex(r.u32()?));
        r.u32()?;
        let copy_of = r.u64()?.checked_sub(1).map(VsegId);
        let second_at = u32::from(r.u16()?) * SECOND_UNIT;
        let (live_bytes, fill_bytes) = (r.u32()?, r.u32()?);
        let (first_txg, last_txg) = (Txg(r.u64()?), Txg(r.u64()?));
        let summary = SummaryPlace { at: r.u32()?, bytes: r.u32()?, checksum: r.u64()? };
        // No lookup uses the live counter or the summary's location, so a wrong value does not
        // reject the entry. A wrong counter only keeps the pool from freeing the segment; an
        // impossible summary location is treated like an unreadable summary.
        let live_bytes = live_bytes.min(fill_bytes);
        let summary = match summary.at.checked_add(summary.bytes) {
            Some(end) if end <= fill_bytes => summary,
            _ => SummaryPlace { at: 0, bytes: fill_bytes.min(PACK_BYTES as u32), ..summary },
        };
        if second_at > 0 && (class != SegmentClass::Root || fill_bytes > second_at) {
            return Err(r.bad("second", second_at));
        }
        if let Some(main) = copy_of.filter(|_| class != SegmentClass::Root || second_at > 0) {
            return Err(r.bad("copy_of", main.0));
        }
        Ok(Some(Self {
            state,
            class,
            vdev,
            pseg,
            live_bytes,
            fill_bytes,
            first_txg,
            last_txg,
            summary,
            second_at,
            copy_of,
        }))
    }

    /// Encodes one block of the segment table. `None` encodes an unused segment number.
    pub fn encode_block(entries: &[Option<Self>]) -> [u8; BLOCK_BYTES] {
        assert_eq!(entries.len(), SEGMENT_ENTRIES_PER_BLOCK, "a whole block at a time");
        let mut w = Writer::default();
        for entry in entries {
            match entry {
                Some(entry) => entry.write(&mut w),
                None => w.bytes(&[0; Self::BYTES]),
            }
        }
        w.0.try_into().expect("64 entries of 64 bytes")
    }

    /// Decodes one block of the segment table.
    ///
    /// # Errors
    /// An entry has an invalid field.
    pub fn decode_block(block: &[u8; BLOCK_BYTES]) -> Result<Vec<Option<Self>>, FormatError> {
        let mut r = Reader::new("segment table", block);
        (0..SEGMENT_ENTRIES_PER_BLOCK).map(|_| Self::read(&mut r)).collect()
    }
}
