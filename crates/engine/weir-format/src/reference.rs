//! The reference table of a segment: reference counts of its blocks that were ever shared and are
//! still referenced.
//!
//! Sharing and freeing of blocks are in weir-pool.
//!
//! Invariants:
//! - a block enters the table with its second reference and stays there until its last reference is
//!   dropped. The block stays even with one reference left, because the owner of that reference may
//!   differ from the owner in the segment's summary;
//! - a block that is not in the table has at most one reference, the one in the summary;
//! - the table has only offsets and counts. Size, owner and checksum of a block are in the summary,
//!   which a reader needs anyway to move or verify the block.

use weir_base::VsegId;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use crate::summary::SEGMENT_BLOCKS_MAX;

const WHAT: &str = "reference table";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRREFS");
const COUNT_BITS: u32 = 32;
const UNITS_MAX: u64 = SEGMENT_BYTES_MAX / PACK_BYTES as u64;

/// Maximum number of references of one block: half of a count's range, so that no sum of two counts
/// overflows.
pub const REFERENCES_MAX: u32 = 1 << 31;

/// A reference table; 8 bytes per shared block in RAM and on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceTable {
    /// One number for each block, `offset | count:32`, so that numeric order is offset order.
    entries: Vec<u64>,
    /// True if the counts were lost, so that any block of the segment may have any number of
    /// references.
    is_unknown: bool,
}

/// Flag of a table that replaces a lost table: the reference counts are unknown.
const UNKNOWN: u32 = 1;

const fn entry(offset: u32, count: u32) -> u64 {
    (offset as u64) << COUNT_BITS | count as u64
}

const fn offset_of(entry: u64) -> u32 {
    (entry >> COUNT_BITS) as u32
}

const fn count_of(entry: u64) -> u32 {
    entry as u32
}

impl ReferenceTable {
    /// Creates the table of a segment whose counts were lost.
    pub const fn unknown() -> Self {
        Self { entries: Vec::new(), is_unknown: true }
    }

    /// True if the counts were lost. In this case no block of the segment may be freed or shared.
    pub const fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRREFS\""),
        field(8, "vseg", "segment whose blocks are counted"),
        field(4, "blocks", "blocks that were ever shared and still have a reference"),
        field(4, "flags", "1: the counts are unreadable, any block may be shared; otherwise 0"),
        field(
            0,
            "blocks",
            "blocks x u64: bits 0-31 references, 32-50 offset in 64 B units, ascending",
        ),
    ];

    /// Reference count of the block at an offset in units of [`PACK_BYTES`]; `None` if the block is
    /// not in the table.
    pub fn count(&self, offset: u32) -> Option<u32> {
        self.find(offset).ok().and_then(|at| self.entries.get(at)).map(|entry| count_of(*entry))
    }

    fn find(&self, offset: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&offset, |entry| offset_of(*entry))
    }

    /// Adds one reference for each offset. The offsets are in ascending order and may repeat.
    pub fn share(&mut self, offsets: &[u32]) {
        assert!(offsets.is_sorted(), "the caller sorts");
        if let [offset] = offsets {
            return self.share_one(*offset);
        }
        let before = std::mem::take(&mut self.entries);
        let mut before = before.into_iter().peekable();
        for same in offsets.chunk_by(|a, b| a == b) {
            let Some(offset) = same.first() else { continue };
            while let Some(lower) = before.next_if(|entry| offset_of(*entry) < *offset) {
                self.entries.push(lower);
            }
            let known = before.next_if(|entry| offset_of(*entry) == *offset);
            let added = u32::try_from(same.len()).expect("fewer than a count holds");
            self.entries.push(entry(*offset, sum(known.map_or(1, count_of), added)));
        }
        self.entries.extend(before);
    }

    fn share_one(&mut self, offset: u32) {
        match self.find(offset) {
            Ok(at) => {
                let known = self.entries.get_mut(at).expect("just found");
                *known = entry(offset, sum(count_of(*known), 1));
            }
            Err(at) => self.entries.insert(at, entry(offset, 2)),
        }
    }

    /// Drops one reference of a block. Returns the number of remaining references, or `None` if the
    /// block is not in the table.
    pub fn give_up(&mut self, offset: u32) -> Option<u32> {
        let at = self.find(offset).ok()?;
        let known = self.entries.get_mut(at)?;
        let left = count_of(*known) - 1;
        if left == 0 {
            self.entries.remove(at);
        } else {
            *known = entry(offset, left);
        }
        Some(left)
    }

    /// Lowers the reference count of a block to `count`; 0 removes the block from the table. A
    /// block that is not in the table, or has at most `count` references, is unchanged.
    pub fn lower(&mut self, offset: u32, count: u32) {
        let Ok(at) = self.find(offset) else { return };
        if count == 0 {
            self.entries.remove(at);
        } else if let Some(known) = self.entries.get_mut(at) {
            *known = entry(offset, count_of(*known).min(count));
        }
    }

    /// True if the table has no entries and its counts are known.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.is_unknown
    }

    /// Offset and reference count of every block, ascending.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.entries.iter().map(|entry| (offset_of(*entry), count_of(*entry)))
    }

    /// RAM that the table occupies. Each allocation adds 16 bytes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.entries.capacity() * size_of::<u64>() + 16) as u64
    }

    /// Encodes the table of segment `vseg`.
    pub fn encode(&self, vseg: VsegId) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(vseg.0);
        w.u32(self.entries.len() as u32);
        w.u32(if self.is_unknown { UNKNOWN } else { 0 });
        self.entries.iter().for_each(|entry| w.u64(*entry));
        w.0
    }

    /// Decodes the table of `vseg`; bytes after the table are padding.
    ///
    /// # Errors
    /// The table belongs to another segment, its blocks are out of order, or a field has an invalid
    /// value.
    pub fn decode(bytes: &[u8], vseg: VsegId) -> Result<Self, FormatError> {
        let mut r = Reader::new(WHAT, bytes);
        if r.u64()? != MAGIC {
            return Err(FormatError::Magic { what: WHAT });
        }
        let found = r.u64()?;
        if found != vseg.0 {
            return Err(r.bad("vseg", found));
        }
        let (blocks, flags) = (r.u32()?, r.u32()?);
        let is_unknown = flags == UNKNOWN;
        if blocks > SEGMENT_BLOCKS_MAX || (is_unknown && blocks > 0) {
            return Err(r.bad("blocks", blocks));
        }
        if flags != 0 && !is_unknown {
            return Err(r.bad("flags", flags));
        }
        let mut entries = Vec::new();
        for _ in 0..blocks {
            let next = r.u64()?;
            let (offset, count) = (offset_of(next), count_of(next));
            let ascends = entries.last().is_none_or(|last| offset_of(*last) < offset);
            if !ascends || u64::from(offset) >= UNITS_MAX || !(1..=REFERENCES_MAX).contains(&count)
            {
                return Err(r.bad("block", next));
            }
            entries.push(next);
        }
        Ok(Self { entries, is_unknown })
    }
}

/// Adds references to a count. The caller has checked that the sum is at most [`REFERENCES_MAX`].
fn sum(count: u32, added: u32) -> u32 {
    let sum = u64::from(count) + u64::from(added);
    assert!(sum <= u64::from(REFERENCES_MAX), "the caller checks the count");
    sum as u32
}
