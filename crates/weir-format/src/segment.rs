//! The segment table entry: where a virtual segment is and how much of it is alive.
//!
//! Not here: allocation and accounting (weir-pool).
//!
//! Invariants: an all-zero entry is an unused number; live bytes never exceed the fill.

use weir_base::{BLOCK_BYTES, PsegIndex, Txg};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

/// Segment table entries in one block.
pub const SEGMENT_ENTRIES_PER_BLOCK: usize = BLOCK_BYTES / SegmentEntry::BYTES;

/// What a virtual segment is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// A stream appends to it.
    Open,
    /// Full, or closed early; read only.
    Sealed,
    /// Nothing in it is referenced; its place is reused a few txgs later.
    Dead,
}

/// Which stream wrote a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentClass {
    /// Blocks of volumes.
    Data,
    /// Tree nodes of volumes.
    Meta,
    /// Segment table, dataset directory, bootstrap table.
    Root,
}

impl SegmentClass {
    /// Every class.
    pub const ALL: [Self; 3] = [Self::Data, Self::Meta, Self::Root];
}

/// A decoded segment table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentEntry {
    /// State.
    pub state: SegmentState,
    /// Stream.
    pub class: SegmentClass,
    /// Vdev of its one replica.
    pub vdev: u16,
    /// Place on that vdev.
    pub pseg: PsegIndex,
    /// Referenced bytes.
    pub live_bytes: u32,
    /// Bytes written so far, whole rows.
    pub fill_bytes: u32,
    /// First txg that wrote to it.
    pub first_txg: Txg,
    /// Last txg that wrote to it; for a dead one, the txg in which it died.
    pub last_txg: Txg,
}

impl SegmentEntry {
    /// Encoded size.
    pub const BYTES: usize = 64;

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(1, "state", "0 unused, 1 open, 2 sealed, 3 dead (4 = remapped, reserved)"),
        field(1, "class", "0 data, 1 meta, 2 root"),
        field(1, "replicas", "1 in this version, at most 3"),
        field(1, "reserved", "zero"),
        field(18, "places", "3 x {u16 vdev, u32 physical segment}; unused ones zero"),
        field(2, "reserved", "zero"),
        field(4, "live_bytes", "bytes that committed pointers refer to"),
        field(4, "fill_bytes", "bytes written, whole rows"),
        field(8, "first_txg", "first txg that wrote to it"),
        field(8, "last_txg", "last txg that wrote to it, or in which it died"),
        field(16, "reserved", "zero (heat, shared count, remap pointer)"),
    ];

    pub(crate) fn write(&self, w: &mut Writer) {
        w.u8(match self.state {
            SegmentState::Open => 1,
            SegmentState::Sealed => 2,
            SegmentState::Dead => 3,
        });
        w.u8(match self.class {
            SegmentClass::Data => 0,
            SegmentClass::Meta => 1,
            SegmentClass::Root => 2,
        });
        w.u16(1);
        w.u16(self.vdev);
        w.u32(self.pseg.0);
        w.bytes(&[0; 14]);
        w.u32(self.live_bytes);
        w.u32(self.fill_bytes);
        w.u64(self.first_txg.0);
        w.u64(self.last_txg.0);
        w.bytes(&[0; 16]);
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
            other => return Err(r.bad("state", other)),
        };
        let class = match r.u8()? {
            0 => SegmentClass::Data,
            1 => SegmentClass::Meta,
            2 => SegmentClass::Root,
            other => return Err(r.bad("class", other)),
        };
        let replicas = r.u16()?;
        if replicas != 1 {
            return Err(r.bad("replicas", replicas));
        }
        let (vdev, pseg) = (r.u16()?, PsegIndex(r.u32()?));
        r.take(14)?;
        let (live_bytes, fill_bytes) = (r.u32()?, r.u32()?);
        let (first_txg, last_txg) = (Txg(r.u64()?), Txg(r.u64()?));
        r.take(16)?;
        if live_bytes > fill_bytes {
            return Err(r.bad("live_bytes", live_bytes));
        }
        Ok(Some(Self { state, class, vdev, pseg, live_bytes, fill_bytes, first_txg, last_txg }))
    }

    /// Encodes one block of the segment table; `None` = unused number.
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
    /// Any entry that cannot be.
    pub fn decode_block(block: &[u8; BLOCK_BYTES]) -> Result<Vec<Option<Self>>, FormatError> {
        let mut r = Reader::new("segment table", block);
        (0..SEGMENT_ENTRIES_PER_BLOCK).map(|_| Self::read(&mut r)).collect()
    }
}
