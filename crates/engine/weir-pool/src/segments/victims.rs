//! Cleaner operations on the segment table: selects victims and records the new locations of their
//! blocks.
//!
//! The `cleaner` reads and writes the blocks.
//!
//! Invariants:
//! - a cleaned segment keeps its number and its counter; its space is reclaimed no earlier than the
//!   space of a dead segment;
//! - a block of the clean class is found only through the remap table of the segment that its
//!   pointer names.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{Txg, VsegId};
use weir_format::layout::PACK_BYTES;
use weir_format::{BlockPtr, RemapRun, RemapTable, SegmentClass, SegmentEntry, SegmentState};

use crate::planted_bugs::PlantedBug;
use crate::segments::entries::{Inner, Slot};
use crate::segments::segment_table::Segments;
use crate::segments::tables::{TableMemory, Unread};

/// Minimum number of rows that cleaning a segment must free: more than the padding that a commit
/// adds.
const GAIN_ROWS_MIN: u64 = 4;
/// Cleaning a segment must free at least the segment size divided by this number.
const GAIN_SHARE_MIN: u64 = 64;

/// A block that was moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) ptr: BlockPtr,
    pub(crate) host: VsegId,
    /// Offset of the block in the segment to which it was moved, in 64-byte units.
    pub(crate) new: u32,
}

impl Moved {
    fn run(&self) -> RemapRun {
        let (old, units) = (self.ptr.offset_units, u32::from(self.ptr.stored_units));
        RemapRun { old, units, host: self.host, new: self.new }
    }
}

/// Order in which the cleaner takes victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Cost-benefit: (1 - u) x age / (1 + u), where u is the live fraction of a segment. This order
    /// prefers segments that are old and mostly dead.
    CostBenefit,
    /// Segments with the fewest live bytes first.
    Greedy,
}

impl Segments {
    /// Segments worth cleaning that have at most `live_max` live bytes, best first.
    pub(crate) fn victims(
        &self,
        txg: Txg,
        order: Order,
        live_max: u64,
    ) -> Vec<(VsegId, SegmentEntry)> {
        let worth_it = |entry: &SegmentEntry| {
            let area = self.area(entry.vdev);
            let gain = (GAIN_ROWS_MIN * area.row_bytes).max(area.segment_bytes / GAIN_SHARE_MIN);
            let live_max = live_max.min(area.segment_bytes.saturating_sub(gain));
            area.is_open() && u64::from(entry.live_bytes) <= live_max
        };
        let mut victims = self.movable(worth_it);
        let score = |entry: &SegmentEntry| {
            let used = f64::from(entry.live_bytes) / self.bytes_on(entry.vdev) as f64;
            let age = match order {
                Order::CostBenefit => (txg.0 - entry.last_txg.0 + 1) as f64,
                Order::Greedy => 1.0,
            };
            (1.0 - used) * age / (1.0 + used)
        };
        victims.sort_by(|(va, a), (vb, b)| score(b).total_cmp(&score(a)).then(va.cmp(vb)));
        victims
    }

    /// Segments on vdevs that are being evacuated, in the order of their offsets.
    pub(crate) fn evacuees(&self) -> Vec<(VsegId, SegmentEntry)> {
        let mut evacuees = self.movable(|entry| !self.area(entry.vdev).is_open());
        evacuees.sort_unstable_by_key(|(_, entry)| (entry.pseg, entry.vdev));
        evacuees
    }

    /// Segments that the cleaner can empty and for which `wanted` returns true.
    fn movable(&self, wanted: impl Fn(&SegmentEntry) -> bool) -> Vec<(VsegId, SegmentEntry)> {
        let inner = self.inner.lock();
        let all = inner.slots.iter().map(|(vseg, slot)| (*vseg, slot.entry));
        let movable = |(vseg, entry): &(VsegId, SegmentEntry)| {
            entry.state == SegmentState::Sealed
                && entry.class != SegmentClass::Root
                && !entry.summary.is_none()
                && wanted(entry)
                && !inner.unclean.contains(vseg)
        };
        all.filter(movable).collect()
    }

    /// Allows the cleaner to retry the segments of a vdev that it could not empty.
    pub(crate) fn clear_stuck(&self, vdev: u16) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let elsewhere = |vseg: &VsegId| inner.slots.get(vseg).is_some_and(|s| s.entry.vdev != vdev);
        inner.unclean.retain(elsewhere);
    }

    /// Number of segments of a vdev that the cleaner could not empty.
    pub(crate) fn stuck_on(&self, vdev: u16) -> usize {
        let inner = self.inner.lock();
        let slots = inner.unclean.iter().filter_map(|vseg| inner.slots.get(vseg));
        let stuck = |entry: SegmentEntry| entry.vdev == vdev && entry.state == SegmentState::Sealed;
        slots.filter(|slot| stuck(slot.entry)).count()
    }

    /// True if segment `vseg` holds the block of this pointer at offset `units`, in 64-byte units.
    pub(crate) fn stands_at(
        &self,
        ptr: &BlockPtr,
        vseg: VsegId,
        units: u32,
    ) -> Result<bool, Unread> {
        Ok(self.inner.lock().translate(ptr)? == Some((vseg, units)))
    }

    /// Excludes a segment from cleaning until the next import.
    pub(crate) fn set_unclean(&self, vseg: VsegId) {
        self.inner.lock().unclean.insert(vseg);
    }

    /// Redirects lookups of every live block of `victim` to its new location. `tables` holds the
    /// existing remap tables of the segments that the blocks' pointers name.
    pub(crate) fn install(
        &self,
        victim: VsegId,
        moved: &[Moved],
        tables: &BTreeMap<VsegId, Arc<RemapTable>>,
        txg: Txg,
    ) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let entry = inner.slots[&victim].entry;
        let sum: usize = moved.iter().map(|m| m.ptr.stored_bytes()).sum();
        assert_eq!(sum, entry.live_bytes as usize, "I5: all of {victim} moves");
        let mut by_vseg = BTreeMap::<VsegId, Vec<RemapRun>>::new();
        for one in moved {
            let mut run = one.run();
            if self.bug == PlantedBug::RemapOffByOne {
                run.new = run.new.saturating_sub(1);
            }
            by_vseg.entry(one.ptr.vseg).or_default().push(run);
            let host = inner.slots.get_mut(&one.host).expect("the host is open or was sealed now");
            host.entry.live_bytes += one.ptr.stored_bytes() as u32;
            inner.mark(one.host, SegmentClass::Clean);
        }
        for (vseg, mut runs) in by_vseg {
            runs.extend(inner.runs_elsewhere(tables.get(&vseg), victim, self.bug));
            inner.remaps.put(vseg, RemapTable::new(runs));
        }
        let slot = inner.slots.get_mut(&victim).expect("read above");
        slot.entry.last_txg = txg;
        if entry.class == SegmentClass::Clean {
            slot.entry.state = SegmentState::Dead;
            slot.entry.live_bytes = 0;
        } else {
            slot.entry.state = SegmentState::Evacuating;
        }
        inner.dead.push(victim);
        if self.bug == PlantedBug::FreeTooEarly {
            inner.free[usize::from(entry.vdev)].insert(entry.pseg);
        }
        inner.mark(victim, entry.class);
    }

    /// Records that a commit stored these remap tables and reference tables.
    pub(crate) fn stored_tables(
        &self,
        remaps: Vec<(VsegId, BlockPtr)>,
        references: Vec<(VsegId, BlockPtr)>,
    ) {
        let mut inner = self.inner.lock();
        let beside = inner.table_bytes();
        inner.remaps.stored(remaps, beside);
        inner.references.stored(references, 0);
    }

    /// Returns the segment that holds a block, if the block's pointer names another segment; for
    /// checks.
    pub(crate) fn host_of(&self, ptr: &BlockPtr) -> Result<Option<VsegId>, Unread> {
        let place = self.inner.lock().translate(ptr)?;
        Ok(place.map(|(host, _)| host).filter(|host| *host != ptr.vseg))
    }

    /// Bytes of the remap tables in RAM.
    pub(crate) fn remap_bytes(&self) -> u64 {
        self.inner.lock().remaps.bytes()
    }

    /// RAM of the segment table, the remap tables and the reference tables.
    pub(crate) fn table_memory(&self) -> TableMemory {
        let inner = self.inner.lock();
        let (remaps, references) = (inner.remaps.figures(), inner.references.figures());
        TableMemory {
            segments: inner.slots.len() as u64,
            segment_bytes: inner.table_bytes(),
            remap_tables: remaps.tables,
            remap_list_bytes: remaps.list_bytes,
            remap_bytes: remaps.bytes,
            remap_stored_bytes: remaps.stored_bytes,
            reference_tables: references.tables,
            reference_list_bytes: references.list_bytes,
            reference_bytes: references.bytes,
            reference_stored_bytes: references.stored_bytes,
        }
    }
}

impl Inner {
    /// RAM of the segment table.
    fn table_bytes(&self) -> u64 {
        // Each slot takes its size plus one control byte of the map. The map doubles its capacity
        // when it grows.
        (self.slots.capacity() * (size_of::<(VsegId, Slot)>() + 1) * 8 / 7) as u64
    }

    /// Runs of a remap table whose blocks are now in a segment that is not `left` and may exist. A
    /// segment whose entry is unreadable may exist: a later import may read the entry, and then
    /// needs these runs to find the blocks.
    fn runs_elsewhere(
        &self,
        table: Option<&Arc<RemapTable>>,
        left: VsegId,
        bug: PlantedBug,
    ) -> Vec<RemapRun> {
        let may_exist = |vseg: VsegId| {
            let is_unread = self.is_lost(vseg) && bug != PlantedBug::RunsIntoUnreadDropped;
            is_unread || self.slots.contains_key(&vseg)
        };
        let runs = table.into_iter().flat_map(|table| table.runs());
        runs.filter(|run| run.host != left && may_exist(run.host)).collect()
    }
}

const _: () = assert!(PACK_BYTES == 64, "offsets of runs are in 64-byte units");
