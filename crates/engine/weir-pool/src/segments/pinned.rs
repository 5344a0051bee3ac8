//! Segments that a reader or a scan uses: the pool does not reuse their places.
//!
//! Not here: finding the segment of a block (segments), places of second and third copies
//! (root_copies).
//!
//! Invariant: the place of a segment becomes free only while its number of pins is zero.

use weir_base::{Txg, VsegId};
use weir_format::SegmentEntry;

use crate::segments::segment_table::{Inner, Segments};

/// Where a segment is; its place is not reused while this is held.
pub(crate) struct Pinned<'a> {
    segments: &'a Segments,
    vseg: VsegId,
    pub(crate) vdev: u16,
    /// Where it is in the vdev's segment area.
    pub(crate) at: u64,
    /// Vdev and place of the second and of the third copy.
    others: [Option<(u16, u64)>; 2],
    /// The last txg that wrote to this place, or in which it died.
    pub(crate) last_txg: Txg,
}

impl Pinned<'_> {
    /// Vdev and place of each copy.
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
    /// Pins a segment that has a place; the result names the byte `offset` in it.
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
