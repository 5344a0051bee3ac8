//! Finds the segments that hold the third copies of root segments.
//!
//! Allocation and release of their space is in `root_copies`.
//!
//! Invariant: a physical segment belongs to one segment.

use weir_base::VsegId;
use weir_base::hash::HashMap;
use weir_format::{SegmentClass, SegmentEntry, SegmentState};

use crate::segments::areas::{Areas, SegmentArea};
use crate::segments::entries::Slot;

/// True if a segment of another vdev can hold the rows of a root segment.
pub(crate) fn fits(root: &SegmentEntry, (own, other): (&SegmentArea, &SegmentArea)) -> bool {
    own.row_bytes == other.row_bytes && u64::from(root.second_at) <= other.segment_bytes
}

/// Finds the third copies among the segments during an import. A copy without its root segment
/// becomes dead.
pub(crate) fn find_third_copies(
    areas: &Areas,
    slots: &mut HashMap<VsegId, Slot>,
    dead: &mut Vec<VsegId>,
) -> HashMap<VsegId, VsegId> {
    let copies = slots.iter().filter(|(_, slot)| slot.entry.state == SegmentState::Sealed);
    let copies = copies.filter_map(|(vseg, slot)| Some((slot.entry.copy_of?, *vseg)));
    let mut copies: Vec<(VsegId, VsegId)> = copies.collect();
    copies.sort_unstable();
    let mut found = HashMap::default();
    for (root, copy) in copies {
        let is_used = slots.get(&root).is_some_and(|slot| {
            let (entry, vdev) = (slot.entry, slots[&copy].entry.vdev);
            let is_root = entry.class == SegmentClass::Root && entry.copy_of.is_none();
            let lives = matches!(entry.state, SegmentState::Open | SegmentState::Sealed);
            let both = areas.get(entry.vdev).zip(areas.get(vdev));
            is_root && lives && both.is_some_and(|both| fits(&entry, both))
        });
        if is_used && !found.contains_key(&root) {
            found.insert(root, copy);
        } else {
            let slot = slots.get_mut(&copy).expect("it was found above");
            slot.entry.state = SegmentState::Dead;
            slot.entry.live_bytes = 0;
            dead.push(copy);
        }
    }
    found
}
