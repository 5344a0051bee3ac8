//! References: several pointers that lead to one block, and counting them.
//!
//! Not here: who makes them (weir-dataset), storing the counts (commit), what a table of counts
//! says (weir-format).
//!
//! Invariants:
//! - counts change in the write-out alone, so they are part of its txg: a crash leaves those of the
//!   last commit, which agree with the trees of the last commit;
//! - of what the last commit led to, references are taken before anything of the txg is freed, or
//!   for a block that was not freed yet: nothing that is dead comes back;
//! - a block is freed with its last reference, whichever that is;
//! - only blocks of data are shared, never nodes.

use std::ops::Range;
use std::sync::Arc;

use weir_base::VsegId;
use weir_format::layout::PACK_BYTES;
use weir_format::{
    BlockPtr, FormatError, PtrKind, REFERENCES_MAX, ReferenceTable, SegmentClass, SegmentState,
};

use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::segments::segment_table::{Inner, Segments};
use crate::segments::tables::Unread;
use crate::state::pool::Pool;
use crate::txg::write_out::WriteOut;

/// What freeing a pointer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// Nothing leads to the block any more.
    Block,
    /// Other pointers still do.
    Reference,
}

impl Inner {
    /// References to a block, if it is among those that are counted.
    pub(crate) fn references_to(&mut self, ptr: &BlockPtr) -> Result<Option<u32>, Unread> {
        let table = self.references.get(ptr.vseg)?;
        Ok(table.and_then(|table| table.count(ptr.offset_units)))
    }

    /// Whether the counts of a segment were lost.
    pub(crate) fn is_uncounted(&mut self, vseg: VsegId) -> Result<bool, Unread> {
        Ok(self.references.get(vseg)?.is_some_and(|table| table.is_unknown()))
    }

    /// Takes one reference of a counted block away; the caller asked for the count.
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

    /// Lowers the references of a block to `count`; the caller asked for the segment's table.
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

/// What can be said of sharing some blocks of a segment.
enum Verdict {
    Fits,
    /// One of them has as many references as can be counted.
    Full,
    /// No tree can lead there.
    NoSegment,
}

impl Segments {
    /// A segment's counts, if blocks of it were shared.
    pub(crate) fn references_of(
        &self,
        vseg: VsegId,
    ) -> Result<Option<Arc<ReferenceTable>>, Unread> {
        self.table(vseg)
    }

    /// Segments of which blocks were shared.
    pub(crate) fn with_references(&self) -> Vec<VsegId> {
        self.inner.lock().references.vsegs().collect()
    }

    fn judge(&self, vseg: VsegId, offsets: &[u32]) -> Result<Verdict, Unread> {
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
        // Nearly always the most there are leave room for the most that are added.
        let most = table.entries().map(|(_, count)| count).max().unwrap_or(1);
        let repeats = || offsets.chunk_by(|a, b| a == b);
        let fits = fits(most, repeats().map(<[u32]>::len).max().unwrap_or(0))
            || repeats().all(|same| fits(table.count(same[0]).unwrap_or(1), same.len()));
        Ok(if fits { Verdict::Fits } else { Verdict::Full })
    }

    fn share(&self, vseg: VsegId, offsets: &[u32], bytes: u64) -> Result<(), Unread> {
        let mut inner = self.inner.lock();
        if inner.references.get(vseg)?.is_none() {
            inner.references.put(vseg, ReferenceTable::default());
        }
        inner.references.change(vseg, |table| table.share(offsets));
        inner.saved_bytes = inner.saved_bytes.saturating_add(bytes);
        Ok(())
    }
}

/// Blocks to which one more reference each is to be made, in the order of where they are.
pub struct Sharing {
    /// Where they are in their segments, once for each new reference.
    offsets: Vec<u32>,
    segments: Vec<OfSegment>,
}

/// What is shared of a segment.
struct OfSegment {
    vseg: VsegId,
    /// Which of the offsets.
    offsets: Range<usize>,
    /// What they take together.
    bytes: u64,
}

/// A block to which one more reference is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shared {
    vseg: VsegId,
    offset_units: u32,
    stored_units: u16,
}

impl From<&BlockPtr> for Shared {
    fn from(ptr: &BlockPtr) -> Self {
        assert!(ptr.kind == PtrKind::Data, "only data is shared: {ptr:?}");
        let BlockPtr { vseg, offset_units, stored_units, .. } = *ptr;
        Self { vseg, offset_units, stored_units }
    }
}

impl Sharing {
    /// What these pointers lead to, in any order.
    pub fn of<'p>(ptrs: impl IntoIterator<Item = &'p BlockPtr>) -> Self {
        Self::new(ptrs.into_iter().map(Shared::from).collect())
    }

    /// These, in any order.
    pub fn new(mut all: Vec<Shared>) -> Self {
        all.sort_unstable();
        let mut end = 0;
        let segments = all.chunk_by(|a, b| a.vseg == b.vseg).map(|same| {
            let units: u64 = same.iter().map(|shared| u64::from(shared.stored_units)).sum();
            let start = end;
            end += same.len();
            OfSegment { vseg: same[0].vseg, offsets: start..end, bytes: units * PACK_BYTES as u64 }
        });
        let segments = segments.collect();
        Self { offsets: all.iter().map(|shared| shared.offset_units).collect(), segments }
    }

    /// By segment: the offsets, and what they take together.
    fn by_segment(&self) -> impl Iterator<Item = (VsegId, &[u32], u64)> {
        let of = |same: &OfSegment| (same.vseg, &self.offsets[same.offsets.clone()], same.bytes);
        self.segments.iter().map(of)
    }
}

impl Pool {
    /// Whether one more reference can be made for each of these, which something leads to.
    ///
    /// # Errors
    /// `TooManyReferences`; the counts cannot be read; a pointer is damaged. Nothing was changed.
    pub async fn check_share(&self, sharing: &Sharing) -> Result<(), PoolError> {
        for (vseg, offsets, _) in sharing.by_segment() {
            match self.translated(|segments| segments.judge(vseg, offsets)).await? {
                Verdict::Fits => {}
                Verdict::Full => {
                    return Err(PoolError::TooManyReferences { pool: self.label.name.clone() });
                }
                Verdict::NoSegment => {
                    let (what, field) = ("block pointer", "vseg");
                    let source = FormatError::Field { what, field, value: vseg.0 };
                    let pool = self.label.name.clone();
                    return Err(PoolError::Structure { pool, what, place: None, source });
                }
            }
        }
        Ok(())
    }
}

impl WriteOut<'_> {
    /// Counts one more reference for each of these; [`Pool::check_share`] said that it can be done,
    /// and nothing was freed since.
    ///
    /// # Errors
    /// The counts cannot be read: the write-out has failed.
    pub async fn share(&mut self, sharing: &Sharing) -> Result<(), PoolError> {
        for (vseg, offsets, bytes) in sharing.by_segment() {
            self.pool.translated(|segments| segments.share(vseg, offsets, bytes)).await?;
        }
        Ok(())
    }
}
