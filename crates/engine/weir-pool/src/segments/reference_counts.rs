//! Reference counts of blocks with several pointers.
//!
//! weir-dataset creates references, `commit` stores the counts, and weir-format defines the table
//! of counts.
//!
//! Invariants:
//! - counts change only in the write-out of a txg and so belong to that txg: after a crash an
//!   import finds the counts of the last commit, which match its trees;
//! - before a txg frees any block, it takes references to blocks of the last commit; after that, it
//!   takes references only to blocks not yet freed: so no dead block becomes live again;
//! - a block is freed when its last reference is dropped, whichever reference is the last;
//! - only data blocks are shared, never nodes.

use std::sync::Arc;

use weir_base::VsegId;
use weir_format::{BlockPtr, REFERENCES_MAX, ReferenceTable, SegmentClass, SegmentState};

use crate::planted_bugs::PlantedBug;
use crate::segments::entries::Inner;
use crate::segments::segment_table::Segments;
use crate::segments::tables::Unread;

impl Inner {
    /// Number of references to a block, if the segment's reference table has a count for the block.
    pub(crate) fn references_to(&mut self, ptr: &BlockPtr) -> Result<Option<u32>, Unread> {
        let table = self.references.get(ptr.vseg)?;
        Ok(table.and_then(|table| table.count(ptr.offset_units)))
    }

    /// True if the reference counts of a segment were lost.
    pub(crate) fn is_uncounted(&mut self, vseg: VsegId) -> Result<bool, Unread> {
        Ok(self.references.get(vseg)?.is_some_and(|table| table.is_unknown()))
    }

    /// Drops one reference of a block with a reference count. The caller has read the count.
    pub(crate) fn give_up(&mut self, ptr: &BlockPtr, bug: PlantedBug) {
        let is_empty = self.references.change(ptr.vseg, |table| {
            table.give_up(ptr.offset_units);
            if bug == PlantedBug::ReferenceDroppedTwice {
                table.give_up(ptr.offset_units);
            }
            table.is_empty()
        });
        if is_empty {
            self.references.remove(ptr.vseg);
        }
    }

    /// Lowers the reference count of a block to `count`. The caller has read the segment's
    /// reference table.
    pub(crate) fn lower(&mut self, vseg: VsegId, offset_units: u32, count: u32) {
        let is_empty = self.references.change(vseg, |table| {
            table.lower(offset_units, count);
            table.is_empty()
        });
        if is_empty {
            self.references.remove(vseg);
        }
    }
}

/// Result of checking whether blocks of a segment can gain references.
pub(crate) enum Verdict {
    Fits,
    /// One of the blocks has the maximum number of references, or the reference counts are lost.
    Full,
    /// No tree can reference this segment.
    NoSegment,
}

impl Segments {
    /// Reference table of a segment; `None` if none of its blocks was ever shared.
    pub(crate) fn references_of(
        &self,
        vseg: VsegId,
    ) -> Result<Option<Arc<ReferenceTable>>, Unread> {
        self.table(vseg)
    }

    /// Segments with a reference table.
    pub(crate) fn with_references(&self) -> Vec<VsegId> {
        self.inner.lock().references.vsegs().collect()
    }

    pub(crate) fn judge(&self, vseg: VsegId, offsets: &[u32]) -> Result<Verdict, Unread> {
        let mut inner = self.inner.lock();
        let Some(slot) = inner.slots.get(&vseg) else { return Ok(Verdict::NoSegment) };
        let dead = slot.entry.state == SegmentState::Dead;
        if slot.entry.class != SegmentClass::Data || dead {
            return Ok(Verdict::NoSegment);
        }
        let Some(table) = inner.references.get(vseg)? else { return Ok(Verdict::Fits) };
        if table.is_unknown() {
            return Ok(Verdict::Full);
        }
        let fits =
            |count: u32, more: usize| u64::from(count) + more as u64 <= u64::from(REFERENCES_MAX);
        // Fast path: the highest count plus the largest addition nearly always fits.
        let most = table.entries().map(|(_, count)| count).max().unwrap_or(1);
        let repeats = || offsets.chunk_by(|a, b| a == b);
        let fits = fits(most, repeats().map(<[u32]>::len).max().unwrap_or(0))
            || repeats().all(|same| fits(table.count(same[0]).unwrap_or(1), same.len()));
        Ok(if fits { Verdict::Fits } else { Verdict::Full })
    }

    pub(crate) fn share(&self, vseg: VsegId, offsets: &[u32], bytes: u64) -> Result<(), Unread> {
        let mut inner = self.inner.lock();
        if inner.references.get(vseg)?.is_none() {
            inner.references.put(vseg, ReferenceTable::default());
        }
        inner.references.change(vseg, |table| table.share(offsets));
        inner.saved_bytes = inner.saved_bytes.saturating_add(bytes);
        Ok(())
    }
}
