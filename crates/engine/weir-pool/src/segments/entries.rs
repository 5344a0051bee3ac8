//! Segments in RAM: entries, places that are free, tables of segments.
//!
//! Not here: the lock and the rules (`segment_table`).
//!
//! Invariant: a number of a segment is used once.

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

/// Space of a pool in bytes of its segment area (one copy counted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// All segments.
    pub total_bytes: u64,
    /// Segments that can be written now or after a few commits.
    pub free_bytes: u64,
    /// Blocks that committed or written pointers refer to.
    pub live_bytes: u64,
    /// What those would take beside if none were shared.
    pub saved_bytes: u64,
}

pub(crate) struct Slot {
    pub(crate) entry: SegmentEntry,
    pub(crate) pins: u32,
}

impl Slot {
    /// Whether so many bytes can go of what it counts: a counter may be wrong on disk.
    pub(crate) const fn counts(&self, bytes: usize) -> bool {
        self.entry.live_bytes as usize >= bytes && !matches!(self.entry.state, SegmentState::Dead)
    }

    /// Whether its blocks are found through its remap table.
    pub(crate) const fn is_moved(&self) -> bool {
        matches!(self.entry.state, SegmentState::Leaving | SegmentState::Remapped)
    }
}

/// What a stored pool says of its segments.
#[derive(Default)]
pub(crate) struct Entries {
    pub(crate) segments: Vec<(VsegId, SegmentEntry)>,
    /// Where the remap tables are stored, and those that were read along.
    pub(crate) tables: Vec<(VsegId, BlockPtr, Option<RemapTable>)>,
    /// Where the reference tables are stored.
    pub(crate) references: Vec<(VsegId, BlockPtr)>,
    /// What sharing saves.
    pub(crate) saved_bytes: u64,
    /// Parts of the tables that cannot be read.
    pub(crate) lost: LostEntries,
}

/// What cannot be read of the segment table and of the tables of segments.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostEntries {
    /// Segments that may exist, and whose entries are lost.
    pub(crate) segments: Vec<Range<VsegId>>,
    /// Places that no segment had at the last commit: others may belong to those segments.
    pub(crate) free: Vec<FreeRun>,
    /// Cleaned segments whose remap tables cannot be found, and what of their tree is lost.
    pub(crate) remaps: Vec<VsegId>,
    pub(crate) remap_parts: Vec<LostPart>,
    /// Those that were found and cannot be read.
    pub(crate) unread_remaps: Vec<VsegId>,
    /// Segments of which blocks may be shared, and how often is not known; what of their tree is
    /// lost.
    pub(crate) references: Vec<VsegId>,
    pub(crate) reference_parts: Vec<LostPart>,
}

pub(crate) struct Inner {
    pub(crate) slots: HashMap<VsegId, Slot>,
    /// Remap tables of cleaned segments.
    pub(crate) remaps: Tables<RemapTable>,
    /// Counts of the references to shared blocks, by the segment that their pointers name.
    pub(crate) references: Tables<ReferenceTable>,
    /// Stored bytes of all references but the first of each block.
    pub(crate) saved_bytes: u64,
    /// Segments that could not be cleaned; not tried again before the next import.
    pub(crate) unclean: HashSet<VsegId>,
    /// Free physical segments per vdev; the lowest is taken first, so that a sparse file stays
    /// short and a disk is reused rather than spread over.
    pub(crate) free: Vec<BTreeSet<PsegIndex>>,
    /// Segments whose places come back a few txgs later.
    pub(crate) dead: Vec<VsegId>,
    /// Cleaned segments of which nothing lives any more. Readers of the tree before this txg still
    /// ask where their blocks went, so they stay in the table until its commit.
    pub(crate) emptied: Vec<VsegId>,
    /// Segment table blocks that changed since the last commit.
    pub(crate) dirty_blocks: HashSet<u64>,
    /// The segments that repeat root segments, by those.
    pub(crate) third_copies: HashMap<VsegId, VsegId>,
    pub(crate) next_vseg: VsegId,
    pub(crate) live_bytes: u64,
    /// Segments whose entries are lost, ascending: what is in them cannot be found.
    pub(crate) lost: Vec<Range<VsegId>>,
    /// Places per vdev that may be those of lost segments: they are never written.
    pub(crate) withheld: Vec<BTreeSet<PsegIndex>>,
    /// The txg since which nothing refers to those, as far as was looked.
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
    /// Notes that the stored table must change. Root segments are in the bootstrap table, which
    /// every commit writes anyway.
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

    /// Whether a segment's entry was lost.
    pub(crate) fn is_lost(&self, vseg: VsegId) -> bool {
        self.lost.iter().any(|range| range.contains(&vseg))
    }

    /// The segment a block stands in and its offset there, in 64-byte units.
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

    /// Takes live bytes from a segment; its place comes back later if they were the last.
    pub(crate) fn take_live(&mut self, vseg: VsegId, bytes: usize, txg: Txg) {
        let slot = self.slots.get_mut(&vseg).expect("the caller found it");
        let entry = &mut slot.entry;
        entry.live_bytes -= bytes as u32;
        let class = entry.class;
        if entry.live_bytes == 0 && self.references.has(vseg) {
            // Its counter was wrong on disk: what is referred to lives.
            tracing::error!(vseg = vseg.0, "a segment with shared blocks counts none");
        } else if entry.live_bytes == 0 {
            match entry.state {
                SegmentState::Sealed => {
                    entry.state = SegmentState::Dead;
                    entry.last_txg = txg;
                    self.dead.push(vseg);
                    self.drop_third_copy(vseg);
                }
                SegmentState::Leaving => {
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

/// What freeing a pointer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Nothing leads to the block any more.
    Block,
    /// Other pointers still do.
    Reference,
}
