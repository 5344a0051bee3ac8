//! The reference table of a segment: how many pointers lead to each of its blocks that was ever
//! shared and that anything leads to still.
//!
//! Not here: who shares blocks, and what it means to free one (weir-pool).
//!
//! Invariants:
//! - a block comes into the table with its second reference and stays until its last one goes, also
//!   while it has one: that one need not be the one that the segment's summary names;
//! - a block that is not in the table has one reference at most, and that is the summary's;
//! - what a block is (size, owner, checksum) stands in the summary, which whoever moves or verifies
//!   it reads anyway: here are places and counts alone.

use weir_base::VsegId;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::layout::{PACK_BYTES, SEGMENT_BYTES_MAX};
use crate::summary::SEGMENT_BLOCKS_MAX;

const WHAT: &str = "reference table";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRREFS");
const COUNT_BITS: u32 = 32;
const UNITS_MAX: u64 = SEGMENT_BYTES_MAX / PACK_BYTES as u64;

/// Most references of one block; half of what a count holds, so that no sum of two overflows.
pub const REFERENCES_MAX: u32 = 1 << 31;

/// A reference table; 8 bytes per shared block in RAM and on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceTable {
    /// offset | count:32, so that order by number is order by offset.
    entries: Vec<u64>,
    /// The counts were lost: any block of the segment may have any number of references.
    is_unknown: bool,
}

/// Marks a table that replaces a lost one: its reference counts are unknown.
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
    /// The table of a segment whose counts were lost.
    pub const fn unknown() -> Self {
        Self { entries: Vec::new(), is_unknown: true }
    }

    /// Whether the counts were lost: no block of the segment may be freed or shared.
    pub const fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(8, "magic", "\"WEIRREFS\""),
        field(8, "vseg", "segment whose blocks are counted"),
        field(4, "blocks", "blocks that were shared and are referred to"),
        field(4, "flags", "1: the counts were lost, any block may be shared; otherwise 0"),
        field(
            0,
            "blocks",
            "blocks x u64: bits 0-31 references, 32-50 offset in 64 B units, ascending",
        ),
    ];

    /// References of the block at an offset, in units of [`PACK_BYTES`]; `None` if it is not in the
    /// table.
    pub fn count(&self, offset: u32) -> Option<u32> {
        self.find(offset).ok().and_then(|at| self.entries.get(at)).map(|entry| count_of(*entry))
    }

    fn find(&self, offset: u32) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&offset, |entry| offset_of(*entry))
    }

    /// Adds one reference for each of these offsets (ascending, some of them several times).
    pub fn share(&mut self, offsets: &[u32]) {
        assert!(offsets.is_sorted(), "whoever shares sorts");
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

    /// Takes a reference away; how many are left, `None` if the block is not in the table.
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

    /// Lowers the references of a block to `count`; with 0 the block leaves the table. A block that
    /// is not in the table, or has no more, stays as it is.
    pub fn lower(&mut self, offset: u32, count: u32) {
        let Ok(at) = self.find(offset) else { return };
        if count == 0 {
            self.entries.remove(at);
        } else if let Some(known) = self.entries.get_mut(at) {
            *known = entry(offset, count_of(*known).min(count));
        }
    }

    /// Whether nothing is left in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && !self.is_unknown
    }

    /// Offset and references of every block, ascending.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (u32, u32)> + '_ {
        self.entries.iter().map(|entry| (offset_of(*entry), count_of(*entry)))
    }

    /// RAM it takes, an allocation counted as 16 bytes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.entries.capacity() * size_of::<u64>() + 16) as u64
    }

    /// Encodes, for the segment whose blocks it counts.
    pub fn encode(&self, vseg: VsegId) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(MAGIC);
        w.u64(vseg.0);
        w.u32(self.entries.len() as u32);
        w.u32(if self.is_unknown { UNKNOWN } else { 0 });
        self.entries.iter().for_each(|entry| w.u64(*entry));
        w.0
    }

    /// Decodes the table of `vseg`; what follows it is padding.
    ///
    /// # Errors
    /// Another segment's, blocks out of order, or any field that cannot be.
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

/// Sums of two counts that were allowed.
fn sum(count: u32, added: u32) -> u32 {
    let sum = u64::from(count) + u64::from(added);
    assert!(sum <= u64::from(REFERENCES_MAX), "whoever shares looks at the count");
    sum as u32
}
