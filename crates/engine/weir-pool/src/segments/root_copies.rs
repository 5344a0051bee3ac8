//! Placement of the second and third copies of root segments, which hold the metadata trees.
//!
//! `read` reads the copies, `write_out` writes them, `scan` scrubs them.
//!
//! The second copy is in the same segment, half a segment after the first. The third copy has a
//! segment of its own, on another vdev if possible, else at the far end of the same vdev. So the
//! third copy survives damage to a whole region of a disk. Small and nearly full pools have no
//! third copies, and the pool drops them if space is short or a vdev is evacuated.
//!
//! Invariants:
//! - a third copy has the rows of its root segment at the same offsets from its own start;
//! - a third copy counts no live blocks, and dies when its root segment dies.

use weir_base::{Txg, VsegId};
use weir_format::{SegmentClass, SegmentEntry, SegmentState, SummaryPlace};

use crate::segments::areas::SegmentArea;
use crate::segments::entries::Inner;
use crate::segments::segment_table::Segments;
use crate::segments::third_copies::fits;

/// A vdev takes a third copy only if at least `TAKE_MIN` of its segments are free, and also at
/// least the number of its segments divided by `TAKE_SHARE`.
const TAKE_SHARE: u64 = 8;
const TAKE_MIN: u64 = 64;
/// The pool drops the third copies on a vdev if fewer than `KEEP_MIN` of its segments are free, or
/// fewer than the number of its segments divided by `KEEP_SHARE`.
const KEEP_SHARE: u64 = 16;
const KEEP_MIN: u64 = 32;

fn has_room(area: &SegmentArea, free: usize, (share, min): (u64, u64)) -> bool {
    free as u64 >= (u64::from(area.segments()) / share).max(min)
}

impl Inner {
    /// Drops the third copy of a root segment, if it has one. The space of the copy becomes free a
    /// few txgs later.
    pub(crate) fn drop_third_copy(&mut self, root: VsegId) {
        let Some(copy) = self.third_copies.remove(&root) else { return };
        let slot = self.slots.get_mut(&copy).expect("a third copy has an entry");
        slot.entry.state = SegmentState::Dead;
        self.dead.push(copy);
    }

    /// Drops the third copies on a vdev.
    pub(crate) fn drop_third_copies_on(&mut self, vdev: u16) {
        let is_there = |copy: &VsegId| self.slots[copy].entry.vdev == vdev;
        let there = self.third_copies.iter().filter(|(_, copy)| is_there(copy));
        let roots: Vec<VsegId> = there.map(|(root, _)| *root).collect();
        roots.into_iter().for_each(|root| self.drop_third_copy(root));
    }

    /// Records the fill of a root segment's third copy.
    pub(crate) fn fill_third_copy(&mut self, root: VsegId, fill: u32, txg: Txg) {
        let Some(copy) = self.third_copies.get(&root) else { return };
        let slot = self.slots.get_mut(copy).expect("a third copy has an entry");
        (slot.entry.fill_bytes, slot.entry.last_txg) = (fill, txg);
    }
}

impl Segments {
    /// Bytes that a segment can hold, counted from its start.
    pub(crate) fn room(&self, entry: &SegmentEntry) -> u64 {
        match entry.second_at {
            0 => self.bytes_on(entry.vdev),
            second_at => u64::from(second_at),
        }
    }

    /// Byte offset of the second copies in a new segment; 0 for all classes except root.
    pub(crate) fn second_at(&self, class: SegmentClass, vdev: u16) -> u32 {
        let area = self.area(vdev);
        let rows = area.segment_bytes / area.row_bytes;
        match class {
            SegmentClass::Root => (rows / 2 * area.row_bytes) as u32,
            SegmentClass::Data | SegmentClass::Meta | SegmentClass::Clean => 0,
        }
    }

    /// Runs after each allocation of a segment. Allocates the third copy of a root segment, and
    /// drops third copies where space is short.
    pub(crate) fn place_third_copies(&self, inner: &mut Inner, new: VsegId) {
        for vdev in 0..inner.free.len() as u16 {
            let free = inner.free[usize::from(vdev)].len();
            if !has_room(self.area(vdev), free, (KEEP_SHARE, KEEP_MIN)) {
                inner.drop_third_copies_on(vdev);
            }
        }
        let root = inner.slots[&new].entry;
        if root.class != SegmentClass::Root || root.second_at == 0 {
            return;
        }
        let own = self.area(root.vdev);
        let takes = |vdev: u16, free: usize| {
            let area = self.area(vdev);
            area.is_open()
                && fits(&root, (own, area))
                && has_room(area, free, (TAKE_SHARE, TAKE_MIN))
        };
        let vdevs = inner.free.iter_mut().zip(0..);
        let vdevs = vdevs.filter(|(free, vdev)| takes(*vdev, free.len()));
        let Some((free, vdev)) = vdevs.max_by_key(|(free, vdev)| (*vdev != root.vdev, free.len()))
        else {
            return;
        };
        // Take the last free physical segment: the root segment took the first one.
        let pseg = free.pop_last().expect("it has room");
        let copy = inner.add(SegmentEntry {
            state: SegmentState::Sealed,
            vdev,
            pseg,
            summary: SummaryPlace::default(),
            second_at: 0,
            copy_of: Some(new),
            ..root
        });
        inner.third_copies.insert(new, copy);
    }

    /// Vdev and start of a root segment's third copy.
    pub(crate) fn third_place(&self, inner: &Inner, root: VsegId) -> Option<(u16, u64)> {
        let entry = inner.slots[inner.third_copies.get(&root)?].entry;
        Some((entry.vdev, self.start(&entry)))
    }

    /// The segment that holds the third copy of a root segment.
    pub(crate) fn third_copy(&self, root: VsegId) -> Option<VsegId> {
        self.inner.lock().third_copies.get(&root).copied()
    }

    /// Takes the lock and returns the same location as [`Self::third_place`]; for writers.
    pub(crate) fn third_copy_place(&self, root: VsegId) -> Option<(u16, u64)> {
        self.third_place(&self.inner.lock(), root)
    }
}
