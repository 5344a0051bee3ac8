//! Segments in RAM: entries, free physical segments, and the tables of segments.
//!
//! The lock and the rules are in `segment_table`.
//!
//! Invariant: a segment number is used once.

use std::collections::BTreeSet;
use std::ops::Range;

use weir_base::hash::{HashMap, HashSet};
use weir_base::{PsegIndex, Txg, VsegId};
use weir_format::{
    BlockPtr, FreeRun, ReferenceTable, RemapTable, SEGMENT_ENTRIES_PER_BLOCK, SegmentClass,
    SegmentEntry, SegmentState,
};

use crate::segments::lost_part::LostPart;
use crate::segments::tables::{HoldsTables, Table, Tables, Unread};

/// Space of a pool, in bytes of its segment area. Each block counts once, without copies and
/// parity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Bytes of all segments.
    pub total_bytes: u64,
    /// Bytes of the segments that can be written now or after a few commits.
    pub free_bytes: u64,
    /// Bytes of the blocks that committed or written pointers refer to.
    pub live_bytes: u64,
    /// Additional bytes that the live blocks would take if none were shared.
    pub saved_bytes: u64,
}

pub(crate) struct Slot {
    pub(crate) entry: SegmentEntry,
    pub(crate) pins: u32,
}

impl Slot {
    /// True if the segment's counter of live bytes is at least `bytes`. The callers check the
    /// counter before they subtract, because a stored counter may be wrong.
    pub(crate) const fn counts(&self, bytes: usize) -> bool {
        self.entry.live_bytes as usize >= bytes && !matches!(self.entry.state, SegmentState::Dead)
    }

    /// True if the segment was cleaned, so that its blocks are found through its remap table.
    pub(crate) const fn is_moved(&self) -> bool {
        matches!(self.entry.state, SegmentState::Evacuating | SegmentState::Remapped)
    }
}

/// Stored state of a pool's segments.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) segments: Vec<(VsegId, SegmentEntry)>,
    /// Pointers to the remap tables, with the tables that the import already read.
    pub(crate) tables: Vec<(VsegId, BlockPtr, Option<RemapTable>)>,
    /// Pointers to the reference tables.
    pub(crate) references: Vec<(VsegId, BlockPtr)>,
    /// Bytes of the pool that sharing saves.
    pub(crate) saved_bytes: u64,
    /// Parts of the tables that cannot be read.
    pub(crate) lost: LostEntries,
}

/// Unreadable parts of the segment table and of the remap and reference tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostEntries {
    /// Segments that may exist but whose entries are lost.
    pub(crate) segments: Vec<Range<VsegId>>,
    /// Physical segments that were free at the last commit. Any other physical segment may belong
    /// to a segment whose entry is lost.
    pub(crate) free: Vec<FreeRun>,
    /// Cleaned segments whose remap tables cannot be found, and the unreadable parts of the tree of
    /// remap tables.
    pub(crate) remaps: Vec<VsegId>,
    pub(crate) remap_parts: Vec<LostPart>,
    /// Remap tables that were found but cannot be read.
    pub(crate) unread_remaps: Vec<VsegId>,
    /// Segments whose reference counts are unknown, so that any of their blocks may be shared, and
    /// the unreadable parts of the tree of reference tables.
    pub(crate) references: Vec<VsegId>,
    pub(crate) reference_parts: Vec<LostPart>,
}

pub(crate) struct Inner {
    pub(crate) slots: HashMap<VsegId, Slot>,
    /// Remap tables of cleaned segments.
    pub(crate) remaps: Tables<RemapTable>,
    /// Reference counts of shared blocks, by the segment that their pointers name.
    pub(crate) references: Tables<ReferenceTable>,
    /// Stored bytes of all references except the first of each block.
    pub(crate) saved_bytes: u64,
    /// Segments that could not be cleaned. The cleaner does not try them again before the next
    /// import.
    pub(crate) unclean: HashSet<VsegId>,
    /// Free physical segments per vdev. The pool allocates the lowest segment first, so that a
    /// sparse file stays short and writes reuse a disk's space before they spread out.
    pub(crate) free: Vec<BTreeSet<PsegIndex>>,
    /// Segments whose space is reclaimed a few txgs later.
    pub(crate) dead: Vec<VsegId>,
    /// Cleaned segments without live blocks. Readers of older trees may still use their remap
    /// tables, so the segments stay in the segment table until the commit.
    pub(crate) emptied: Vec<VsegId>,
    /// Segment table blocks that changed since the last commit.
    pub(crate) dirty_blocks: HashSet<u64>,
    /// Segments that hold third copies, by root segment.
    pub(crate) third_copies: HashMap<VsegId, VsegId>,
    pub(crate) next_vseg: VsegId,
    pub(crate) live_bytes: u64,
    /// Segments whose entries are lost, ascending. Their blocks cannot be found.
    pub(crate) lost: Vec<Range<VsegId>>,
    /// Physical segments on each vdev that may belong to segments with lost entries. The pool does
    /// not allocate these physical segments.
    pub(crate) withheld: Vec<BTreeSet<PsegIndex>>,
    /// Txg since which no tree references the segments with lost entries, as far as a recount could
    /// check.
    pub(crate) unreached_since: Option<Txg>,
}

impl Inner {
    /// All tables of a kind.
    pub(crate) fn tables_of<T: Table>(&mut self) -> &mut Tables<T>
    where
        Self: HoldsTables<T>,
    {
        self.tables()
    }
}

impl HoldsTables<RemapTable> for Inner {
    fn tables(&mut self) -> &mut Tables<RemapTable> {
        &mut self.remaps
    }
}

impl HoldsTables<ReferenceTable> for Inner {
    fn tables(&mut self) -> &mut Tables<ReferenceTable> {
        &mut self.references
    }
}

impl Inner {
    /// Marks the block of the stored segment table that contains a segment's entry as changed. Root
    /// segments are in the bootstrap table instead, which every commit writes.
    pub(crate) fn mark(&mut self, vseg: VsegId, class: SegmentClass) {
        if class != SegmentClass::Root {
            self.dirty_blocks.insert(table_block(vseg));
        }
    }

    /// Adds a segment under the next number.
    pub(crate) fn add(&mut self, entry: SegmentEntry) -> VsegId {
        let vseg = self.next_vseg;
        self.next_vseg = VsegId(vseg.0 + 1);
        let before = self.slots.insert(vseg, Slot { entry, pins: 0 });
        assert!(before.is_none(), "I2: vseg {vseg} exists already");
        self.mark(vseg, entry.class);
        vseg
    }

    /// True if a segment's entry was lost.
    pub(crate) fn is_lost(&self, vseg: VsegId) -> bool {
        self.lost.iter().any(|range| range.contains(&vseg))
    }

    /// As `Segments::has_unread_parts`.
    pub(crate) fn has_unread_parts(&self) -> bool {
        !self.lost.is_empty() || !self.remaps.kept_parts().is_empty()
    }

    /// Returns the segment that now holds a block, and the offset of the block in that segment in
    /// 64-byte units.
    pub(crate) fn translate(&mut self, ptr: &BlockPtr) -> Result<Option<(VsegId, u32)>, Unread> {
        let Some(slot) = self.slots.get(&ptr.vseg) else { return Ok(None) };
        if !slot.is_moved() {
            return Ok(Some((ptr.vseg, ptr.offset_units)));
        }
        let units = u32::from(ptr.stored_units);
        let table = self.remaps.get(ptr.vseg)?;
        if table.is_some_and(|table| table.is_unknown()) {
            return Err(Unread::lost::<RemapTable>(ptr.vseg));
        }
        Ok(table.and_then(|table| table.translate(ptr.offset_units, units)))
    }

    /// Subtracts live bytes from the counter of a segment. If no live bytes remain, the segment's
    /// space is reclaimed later.
    pub(crate) fn take_live(&mut self, vseg: VsegId, bytes: usize, txg: Txg) {
        let slot = self.slots.get_mut(&vseg).expect("the caller found it");
        let entry = &mut slot.entry;
        entry.live_bytes -= bytes as u32;
        let class = entry.class;
        if entry.live_bytes == 0 && self.references.has(vseg) {
            // The stored counter was wrong: blocks with references are live.
            tracing::error!(vseg = vseg.0, "a segment with shared blocks counts none");
        } else if entry.live_bytes == 0 {
            match entry.state {
                SegmentState::Sealed => {
                    entry.state = SegmentState::Dead;
                    entry.last_txg = txg;
                    self.dead.push(vseg);
                    self.drop_third_copy(vseg);
                }
                SegmentState::Evacuating => {
                    entry.state = SegmentState::Dead;
                    self.remaps.remove(vseg);
                }
                SegmentState::Remapped => self.emptied.push(vseg),
                SegmentState::Open | SegmentState::Dead => {}
            }
        }
        self.mark(vseg, class);
    }
}

/// Block of the stored table that holds a segment's entry.
pub(crate) fn table_block(vseg: VsegId) -> u64 {
    vseg.0 / SEGMENT_ENTRIES_PER_BLOCK as u64
}

/// Result of freeing a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block has no other references and is freed.
    Block,
    /// Other pointers still reference the block.
    Reference,
}
