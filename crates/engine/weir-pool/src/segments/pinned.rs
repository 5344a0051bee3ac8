//! Pinned segments: a reader or scan uses them, and the pool does not reuse their space.
//!
//! `segment_table` finds the segment of a block, `root_copies` places second and third copies.
//!
//! Invariant: the space of a segment becomes free only while its pin count is zero.

use weir_base::{Txg, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockPtr, SegmentEntry, SegmentState};

use crate::segments::entries::Inner;
use crate::segments::segment_table::Segments;
use crate::segments::tables::Unread;

/// Location of a segment. The space of the segment is not reused while this value exists.
pub(crate) struct Pinned<'a> {
    segments: &'a Segments,
    vseg: VsegId,
    pub(crate) vdev: u16,
    /// Offset of the segment, or of a byte in it, in the vdev's segment area.
    pub(crate) at: u64,
    /// Vdev and offset of the second and of the third copy.
    others: [Option<(u16, u64)>; 2],
    /// Last txg that wrote to this physical segment, or the txg in which its segment died.
    pub(crate) last_txg: Txg,
}

impl Pinned<'_> {
    /// Vdev and offset of each copy.
    pub(crate) fn copies(&self) -> [Option<(u16, u64)>; 3] {
        let [second, third] = self.others;
        [Some((self.vdev, self.at)), second, third]
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut inner = self.segments.inner.lock();
        let slot = inner.slots.get_mut(&self.vseg).expect("a pinned segment stays in the table");
        slot.pins -= 1;
    }
}

impl Segments {
    /// Pins a segment that has a physical segment. The result is the location of byte `offset` of
    /// the segment.
    pub(crate) fn pin_offset(&self, inner: &mut Inner, vseg: VsegId, offset: u64) -> Pinned<'_> {
        let slot = inner.slots.get_mut(&vseg).expect("the caller found it");
        slot.pins += 1;
        let at = self.start(&slot.entry) + offset;
        let SegmentEntry { vdev, last_txg, second_at, .. } = slot.entry;
        let second = (second_at > 0).then_some((vdev, at + u64::from(second_at)));
        let third = self.third_place(inner, vseg).map(|(vdev, start)| (vdev, start + offset));
        Pinned { segments: self, vseg, vdev, at, others: [second, third], last_txg }
    }
}

impl Segments {
    /// Locates and pins a segment; `None` if it has no physical segment.
    pub(crate) fn pin(&self, vseg: VsegId) -> Option<Pinned<'_>> {
        let mut inner = self.inner.lock();
        let slot = inner.slots.get_mut(&vseg)?;
        if slot.entry.state == SegmentState::Remapped {
            return None;
        }
        Some(self.pin_offset(&mut inner, vseg, 0))
    }

    /// Locates a block and pins its segment; `None` if the segment no longer exists.
    pub(crate) fn locate(&self, ptr: &BlockPtr) -> Result<Option<Pinned<'_>>, Unread> {
        let mut inner = self.inner.lock();
        let place = inner.translate(ptr)?;
        Ok(place.and_then(|place| self.pin_at(&mut inner, place, ptr)))
    }

    /// Locates a block of a segment that is never cleaned, and pins the segment.
    pub(crate) fn pin_root(&self, ptr: &BlockPtr) -> Option<Pinned<'_>> {
        let mut inner = self.inner.lock();
        inner.slots.get(&ptr.vseg).filter(|slot| !slot.is_moved())?;
        self.pin_at(&mut inner, (ptr.vseg, ptr.offset_units), ptr)
    }

    /// Pins the segment that holds a block; `None` if the block extends beyond the end of the
    /// segment.
    fn pin_at(
        &self,
        inner: &mut Inner,
        (vseg, units): (VsegId, u32),
        ptr: &BlockPtr,
    ) -> Option<Pinned<'_>> {
        let slot = inner.slots.get_mut(&vseg)?;
        let end = u64::from(units) * PACK_BYTES as u64 + ptr.stored_bytes() as u64;
        let is_placed = slot.entry.state != SegmentState::Remapped;
        if !is_placed || end > self.bytes_on(slot.entry.vdev) {
            return None;
        }
        Some(self.pin_offset(inner, vseg, u64::from(units) * PACK_BYTES as u64))
    }
}
