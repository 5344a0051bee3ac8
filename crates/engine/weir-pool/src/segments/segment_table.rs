//! The segment table in RAM: location, live bytes and state of each segment, and free space.
//!
//! `write_out` appends to segments, `commit` stores the table, `victims` serves the cleaner.
//!
//! Invariants:
//! - I2: `next_vseg` only grows; an import continues with the number of the committed txg;
//! - I3: a physical segment leaves `free` when it is allocated. The segment returns to `free` at
//!   the start of a txg, at least `REUSE_AFTER_TXGS` after the txg in which its last block died,
//!   and only if no reader has it pinned;
//! - I5: live bytes are added when a block is appended and subtracted when its pointer is replaced.
//!   A moved block counts in the segment that its pointer names and in the segment that holds it. A
//!   shared block counts once, however many pointers reference it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use weir_base::hash::{HashMap, HashSet};
use weir_base::limits::REUSE_AFTER_TXGS;
use weir_base::{PsegIndex, Txg, VsegId};
use weir_format::{
    BlockPtr, FREE_RUNS_MAX, FreeRun, SEGMENT_ENTRIES_PER_BLOCK, SegmentClass, SegmentEntry,
    SegmentState, SummaryPlace,
};

use crate::planted_bugs::PlantedBug;
use crate::segments::areas::{Areas, SegmentArea};
use crate::segments::entries::{Entries, Freed, Inner, Slot, SpaceUse, table_block};
use crate::segments::tables::{HoldsTables, Table, Tables, Unread};
use crate::segments::third_copies::find_third_copies;

/// The segment table of one pool.
pub(crate) struct Segments {
    pub(crate) inner: Mutex<Inner>,
    pub(crate) areas: Areas,
    pub(crate) bug: PlantedBug,
}

impl Segments {
    /// Creates the table from its entries. All space that no entry names is free.
    pub(crate) fn new(
        areas: Areas,
        entries: Entries,
        next_vseg: VsegId,
        bug: PlantedBug,
    ) -> Result<Self, String> {
        let mut free: Vec<BTreeSet<PsegIndex>> =
            areas.iter().map(|area| (0..area.segments()).map(PsegIndex).collect()).collect();
        let (mut slots, mut dead, mut live_bytes) = (HashMap::default(), Vec::new(), 0);
        for (vseg, entry) in entries.segments {
            let end = u64::from(entry.second_at) + u64::from(entry.fill_bytes);
            let fits = |area: &SegmentArea| end <= area.segment_bytes;
            let mut takes = || {
                let place = free.get_mut(usize::from(entry.vdev));
                place.is_some_and(|free| free.remove(&entry.pseg))
            };
            // The entry of a cleaned segment needs no place: the segment has no physical segment,
            // and its former vdev may be gone.
            let placed = entry.state == SegmentState::Remapped
                || (areas.get(entry.vdev).is_some_and(fits) && takes());
            if !placed || vseg >= next_vseg {
                return Err(format!("segment {vseg} has an invalid physical segment"));
            }
            if matches!(entry.state, SegmentState::Dead | SegmentState::Evacuating) {
                dead.push(vseg);
            }
            if entry.class != SegmentClass::Clean {
                live_bytes += u64::from(entry.live_bytes);
            }
            if slots.insert(vseg, Slot { entry, pins: 0 }).is_some() {
                return Err(format!("segment {vseg} is in the table twice"));
            }
        }
        let third_copies = find_third_copies(&areas, &mut slots, &mut dead);
        let references = entries.references.into_iter().map(|(vseg, ptr)| (vseg, ptr, None));
        let mut remaps = Tables::new(entries.tables, bug);
        let mut references = Tables::new(references, bug);
        let lost = entries.lost;
        if bug == PlantedBug::UnreadGivenUp {
            remaps.lose(&lost.remap_parts, &lost.remaps);
        } else {
            remaps.miss(&lost.remap_parts, &lost.remaps);
        }
        lost.unread_remaps.into_iter().for_each(|vseg| _ = remaps.note_unreadable(vseg));
        references.lose(&lost.reference_parts, &lost.references);
        let withheld = withhold(&mut free, &lost.segments, &lost.free);
        let inner = Inner {
            slots,
            remaps,
            references,
            saved_bytes: entries.saved_bytes,
            unclean: HashSet::default(),
            free,
            dead,
            emptied: Vec::new(),
            dirty_blocks: HashSet::default(),
            third_copies,
            next_vseg: next_after(next_vseg, &lost.segments),
            live_bytes,
            lost: lost.segments,
            withheld,
            unreached_since: None,
        };
        Ok(Self { inner: Mutex::new(inner), areas, bug })
    }

    /// The area of a vdev.
    pub(crate) fn area(&self, vdev: u16) -> &SegmentArea {
        self.areas.get(vdev).expect("every vdev has an area")
    }

    /// Size of the segments on a vdev.
    pub(crate) fn bytes_on(&self, vdev: u16) -> u64 {
        self.area(vdev).segment_bytes
    }

    /// Size of the smallest segments of the pool.
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.areas.segment_bytes()
    }

    /// Adds the area of a new vdev, entirely free.
    pub(crate) fn add_area(&self, area: SegmentArea) {
        let mut inner = self.inner.lock();
        inner.withheld.push(BTreeSet::new());
        inner.free.push((0..area.segments()).map(PsegIndex).collect());
        self.areas.push(area);
    }

    /// Adds segments to the area of a vdev.
    pub(crate) fn grow_area(&self, vdev: u16, segments: u32) {
        let mut inner = self.inner.lock();
        let new = self.area(vdev).grow(segments);
        inner.free[usize::from(vdev)].extend(new.map(PsegIndex));
    }

    /// Allows or forbids new segments on a vdev.
    pub(crate) fn set_open(&self, vdev: u16, open: bool) {
        let mut inner = self.inner.lock();
        self.area(vdev).set_open(open);
        if !open {
            inner.drop_third_copies_on(vdev);
        }
    }

    /// Number of segments that occupy space on a vdev, and the live bytes of the segments not yet
    /// cleaned.
    pub(crate) fn on_vdev(&self, vdev: u16) -> (usize, u64) {
        let inner = self.inner.lock();
        let placed = inner
            .slots
            .values()
            .map(|slot| slot.entry)
            .filter(|entry| entry.vdev == vdev && entry.state != SegmentState::Remapped);
        let live = |entry: SegmentEntry| match entry.state {
            SegmentState::Evacuating => 0,
            _ => u64::from(entry.live_bytes),
        };
        placed.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + live(entry)))
    }

    /// Byte offset of a segment in its vdev's segment area.
    pub(crate) fn start(&self, entry: &SegmentEntry) -> u64 {
        u64::from(entry.pseg.0) * self.bytes_on(entry.vdev)
    }

    /// Frees the space of segments that died or were cleaned long enough ago. Called once at the
    /// start of each txg's write-out.
    pub(crate) fn release_dead(&self, txg: Txg) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let before = inner.dead.len();
        for vseg in std::mem::take(&mut inner.dead) {
            let slot = inner.slots.get_mut(&vseg).expect("the dead stay in the table");
            if slot.pins > 0 || txg.0 <= slot.entry.last_txg.0 + REUSE_AFTER_TXGS {
                inner.dead.push(vseg);
                continue;
            }
            let SegmentEntry { vdev, pseg, class, state, live_bytes, .. } = slot.entry;
            inner.free[usize::from(vdev)].insert(pseg);
            if state == SegmentState::Evacuating {
                slot.entry.state = SegmentState::Remapped;
            } else {
                assert_eq!(live_bytes, 0, "a dead segment holds no live block");
                inner.slots.remove(&vseg);
            }
            inner.mark(vseg, class);
        }
        if inner.dead.len() < before {
            tracing::debug!(count = before - inner.dead.len(), "dead segments released");
        }
    }

    /// Removes cleaned segments without live blocks from the table. Called once in each commit,
    /// when readers already use the trees of its txg.
    pub(crate) fn remove_emptied(&self) {
        let mut inner = self.inner.lock();
        for vseg in std::mem::take(&mut inner.emptied) {
            let slot = inner.slots.remove(&vseg).expect("the emptied stay in the table");
            assert_eq!(slot.entry.live_bytes, 0, "an emptied segment holds no live block");
            inner.remaps.remove(vseg);
            inner.mark(vseg, slot.entry.class);
        }
    }

    /// Opens a new segment on the wanted vdev, or else on the vdev with the most free segments.
    pub(crate) fn allocate(
        &self,
        class: SegmentClass,
        txg: Txg,
        wanted: u16,
    ) -> Option<(VsegId, SegmentEntry, u64)> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let open = inner.free.iter_mut().zip(0..).filter(|(_, vdev)| self.area(*vdev).is_open());
        let (set, vdev) =
            open.max_by_key(|(free, vdev)| (!free.is_empty() && *vdev == wanted, free.len()))?;
        let pseg = set.pop_first()?;
        let entry = SegmentEntry {
            state: SegmentState::Open,
            class,
            vdev,
            pseg,
            live_bytes: 0,
            fill_bytes: 0,
            first_txg: txg,
            last_txg: txg,
            summary: SummaryPlace::default(),
            second_at: self.second_at(class, vdev),
            copy_of: None,
        };
        let vseg = inner.add(entry);
        self.place_third_copies(inner, vseg);
        Some((vseg, entry, self.start(&entry)))
    }

    /// Open segments of a class, each with its start; read at import.
    pub(crate) fn open_of(&self, class: SegmentClass) -> Vec<(VsegId, SegmentEntry, u64)> {
        let inner = self.inner.lock();
        let mut open: Vec<_> = inner
            .slots
            .iter()
            .filter(|(_, s)| s.entry.class == class && s.entry.state == SegmentState::Open)
            .map(|(vseg, s)| (*vseg, s.entry, self.start(&s.entry)))
            .collect();
        open.sort_unstable_by_key(|(vseg, ..)| *vseg);
        open
    }

    /// Adds an appended block to the counters.
    pub(crate) fn add_live(&self, vseg: VsegId, bytes: usize) {
        let mut inner = self.inner.lock();
        let slot = inner.slots.get_mut(&vseg).expect("an open segment is in the table");
        slot.entry.live_bytes += bytes as u32;
        let class = slot.entry.class;
        inner.live_bytes += bytes as u64;
        inner.mark(vseg, class);
    }

    /// Records the fill of a segment. If `sealed`, no more bytes are appended to the segment.
    pub(crate) fn set_fill(&self, vseg: VsegId, fill: u32, txg: Txg, sealed: bool) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let slot = inner.slots.get_mut(&vseg).expect("an open segment is in the table");
        let room = self.room(&slot.entry);
        assert!(fill >= slot.entry.fill_bytes && u64::from(fill) <= room);
        slot.entry.fill_bytes = fill;
        slot.entry.last_txg = txg;
        let mut died = false;
        if sealed {
            slot.entry.state = SegmentState::Sealed;
            // A segment of class `Clean` has no live bytes yet: the cleaner counts the moved blocks
            // later, when it installs them. If no moved block is live then, the segment becomes a
            // victim like any other.
            if slot.entry.live_bytes == 0 && slot.entry.class != SegmentClass::Clean {
                slot.entry.state = SegmentState::Dead;
                inner.dead.push(vseg);
                died = true;
            }
        }
        let class = slot.entry.class;
        inner.mark(vseg, class);
        inner.fill_third_copy(vseg, fill, txg);
        if died {
            inner.drop_third_copy(vseg);
        }
    }

    /// True if a segment cannot be found because its entry was lost.
    pub(crate) fn is_lost(&self, vseg: VsegId) -> bool {
        let inner = self.inner.lock();
        inner.is_lost(vseg) && !inner.slots.contains_key(&vseg)
    }

    /// Current entry of a segment.
    pub(crate) fn entry(&self, vseg: VsegId) -> Option<SegmentEntry> {
        self.inner.lock().slots.get(&vseg).map(|slot| slot.entry)
    }

    /// Segments with a physical segment, in the order of their offsets, so that a disk reads
    /// sequentially.
    pub(crate) fn in_place_order(&self) -> Vec<(VsegId, SegmentEntry)> {
        let inner = self.inner.lock();
        let all = inner.slots.iter().map(|(vseg, slot)| (*vseg, slot.entry));
        let placed = all.filter(|(_, entry)| entry.state != SegmentState::Remapped);
        let mut segments: Vec<_> = placed.collect();
        segments.sort_unstable_by_key(|(_, entry)| (entry.pseg, entry.vdev));
        segments
    }

    /// The last summary of a segment.
    pub(crate) fn summary(&self, vseg: VsegId) -> SummaryPlace {
        self.inner.lock().slots[&vseg].entry.summary
    }

    /// Records a segment's last summary.
    pub(crate) fn set_summary(&self, vseg: VsegId, summary: SummaryPlace) {
        let mut inner = self.inner.lock();
        let slot = inner.slots.get_mut(&vseg).expect("an open segment is in the table");
        slot.entry.summary = summary;
        let class = slot.entry.class;
        inner.mark(vseg, class);
    }

    /// Frees a pointer that was replaced in `txg`. Frees the block too if no other pointer
    /// references it.
    pub(crate) fn free(&self, ptr: &BlockPtr, txg: Txg) -> Result<Freed, Unread> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let bytes = ptr.stored_bytes();
        if inner.is_uncounted(ptr.vseg)? {
            // The block may have other references, so keep it until a recount of its segment.
            return Ok(Freed::Reference);
        }
        let references = inner.references_to(ptr)?;
        if references.is_some_and(|references| references > 1) {
            inner.give_up(ptr, self.bug);
            inner.saved_bytes = inner.saved_bytes.saturating_sub(bytes as u64);
            return Ok(Freed::Reference);
        }
        let holder = inner.translate(ptr)?.filter(|(holder, _)| inner.slots.contains_key(holder));
        let Some((holder, _)) = holder else {
            // A damaged tree can name any segment, so do not change the counters of segments that
            // do not exist.
            tracing::error!(vseg = ptr.vseg.0, "freed block is in a segment that does not exist");
            return Ok(Freed::Block);
        };
        let counts = |vseg: VsegId| inner.slots.get(&vseg).is_some_and(|slot| slot.counts(bytes));
        if !counts(holder) || !counts(ptr.vseg) {
            // Either a counter is wrong, or a tree references a block twice. Keep the rest of the
            // segment until a check decides: unfreed space does no harm.
            tracing::error!(vseg = ptr.vseg.0, "freed block is not counted in its segment");
            return Ok(Freed::Block);
        }
        if references.is_some() {
            inner.give_up(ptr, self.bug);
        }
        if holder != ptr.vseg {
            inner.take_live(holder, bytes, txg);
        }
        inner.take_live(ptr.vseg, bytes, txg);
        inner.live_bytes = inner.live_bytes.saturating_sub(bytes as u64);
        let dead = inner.slots.get(&holder).filter(|s| s.entry.state == SegmentState::Dead);
        if let Some(slot) = dead
            && self.bug == PlantedBug::ReuseAtOnce
        {
            // Planted bug: the last uberblock still refers to this physical segment.
            let (vdev, pseg) = (usize::from(slot.entry.vdev), slot.entry.pseg);
            inner.free[vdev].insert(pseg);
        }
        Ok(Freed::Block)
    }

    /// Frees a pointer, replaced in `txg`, to a block whose location is unknown because its remap
    /// table was lost. The counter of the segment that holds the block is too high until a recount.
    /// If the block's reference count cannot be read, the block stays.
    pub(crate) fn free_unplaced(&self, ptr: &BlockPtr, txg: Txg) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let Ok(references) = inner.references_to(ptr) else { return };
        let bytes = ptr.stored_bytes();
        if !inner.slots.get(&ptr.vseg).is_some_and(|slot| slot.counts(bytes)) {
            return;
        }
        if references.is_some() {
            inner.give_up(ptr, self.bug);
        }
        inner.take_live(ptr.vseg, bytes, txg);
        inner.live_bytes = inner.live_bytes.saturating_sub(bytes as u64);
    }

    /// Subtracts leaked bytes, which belong to no block, from a segment's counter. Returns false,
    /// and changes nothing, if the counter cannot drop by that much.
    pub(crate) fn take_excess(&self, vseg: VsegId, bytes: u64, txg: Txg) -> bool {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let Some(SegmentEntry { class, live_bytes, .. }) = inner.slots.get(&vseg).map(|s| s.entry)
        else {
            return false;
        };
        let left = u64::from(live_bytes).checked_sub(bytes);
        if left.is_none() || (left == Some(0) && inner.references.has(vseg)) {
            return false;
        }
        inner.take_live(vseg, bytes as usize, txg);
        // The pool's total counts a moved block once, with the segment that the block's pointers
        // name.
        if class != SegmentClass::Clean {
            inner.live_bytes = inner.live_bytes.saturating_sub(bytes);
        }
        inner.unclean.remove(&vseg);
        true
    }

    /// Cleaned segments, whose blocks are found through remap tables.
    pub(crate) fn moved(&self) -> Vec<VsegId> {
        let inner = self.inner.lock();
        let moved = inner.slots.iter().filter(|(_, slot)| slot.is_moved());
        let mut moved: Vec<VsegId> = moved.map(|(vseg, _)| *vseg).collect();
        moved.sort_unstable();
        moved
    }

    /// A segment's table of this kind, if it has one.
    pub(crate) fn table<T: Table>(&self, vseg: VsegId) -> Result<Option<Arc<T>>, Unread>
    where
        Inner: HoldsTables<T>,
    {
        Ok(self.inner.lock().tables_of::<T>().get(vseg)?.cloned())
    }

    /// Changed blocks of the stored segment table, encoded; `None` for a block without entries.
    /// Root segments are not in this table.
    pub(crate) fn take_dirty_blocks(
        &self,
        all: bool,
    ) -> Vec<(u64, Option<[u8; weir_base::BLOCK_BYTES]>)> {
        let mut inner = self.inner.lock();
        let mut blocks = std::mem::take(&mut inner.dirty_blocks);
        if all {
            blocks.extend(inner.slots.keys().map(|vseg| table_block(*vseg)));
        }
        // Do not write an unreadable block of the stored table: its entries are unknown. No known
        // entry is omitted: only root segments can have known entries in such a block, and the
        // bootstrap table stores these entries.
        blocks.retain(|block| !inner.is_lost(VsegId(block * SEGMENT_ENTRIES_PER_BLOCK as u64)));
        let mut blocks: Vec<u64> = blocks.into_iter().collect();
        blocks.sort_unstable();
        blocks
            .into_iter()
            .map(|block| {
                let first = block * SEGMENT_ENTRIES_PER_BLOCK as u64;
                let entries: Vec<Option<SegmentEntry>> = (0..SEGMENT_ENTRIES_PER_BLOCK as u64)
                    .map(|i| inner.slots.get(&VsegId(first + i)).map(|slot| slot.entry))
                    .map(|entry| entry.filter(|e| e.class != SegmentClass::Root))
                    .collect();
                let any = entries.iter().any(Option::is_some);
                (block, any.then(|| SegmentEntry::encode_block(&entries)))
            })
            .collect()
    }

    /// The root segments, for the bootstrap table, and the next segment number.
    pub(crate) fn root_segments(&self) -> (Vec<(VsegId, SegmentEntry)>, VsegId) {
        let inner = self.inner.lock();
        let mut roots: Vec<_> = inner
            .slots
            .iter()
            .filter(|(_, slot)| slot.entry.class == SegmentClass::Root)
            .map(|(vseg, slot)| (*vseg, slot.entry))
            .collect();
        roots.sort_unstable_by_key(|(vseg, _)| *vseg);
        (roots, inner.next_vseg)
    }

    /// Free physical segments as runs, the longest first; at most [`FREE_RUNS_MAX`].
    pub(crate) fn free_runs(&self) -> Vec<FreeRun> {
        let inner = self.inner.lock();
        let mut runs = Vec::<FreeRun>::new();
        for (vdev, free) in (0..).zip(&inner.free) {
            let first = runs.len();
            for pseg in free {
                match runs[first..].last_mut() {
                    Some(run) if run.first.0 + run.count == pseg.0 => run.count += 1,
                    _ => runs.push(FreeRun { vdev, first: *pseg, count: 1 }),
                }
            }
        }
        runs.sort_by_key(|run| std::cmp::Reverse(run.count));
        runs.truncate(FREE_RUNS_MAX);
        runs
    }

    /// Number of the next new segment.
    pub(crate) fn next_vseg(&self) -> VsegId {
        self.inner.lock().next_vseg
    }

    /// Live bytes of every segment; for checks.
    pub(crate) fn live_by_segment(&self) -> Vec<(VsegId, u32)> {
        let inner = self.inner.lock();
        inner.slots.iter().map(|(vseg, slot)| (*vseg, slot.entry.live_bytes)).collect()
    }

    /// Sum of the live bytes of the segments that `wanted` selects by vdev and last txg.
    pub(crate) fn live_bytes_where(&self, wanted: impl Fn(u16, Txg) -> bool) -> u64 {
        let inner = self.inner.lock();
        let entries = inner.slots.values().map(|slot| slot.entry);
        let picked = entries.filter(|entry| wanted(entry.vdev, entry.last_txg));
        picked.map(|entry| u64::from(entry.live_bytes)).sum()
    }

    /// Space figures. Dead segments count as free, because later commits reclaim them. A vdev that
    /// is being evacuated has no free or total space, but its live bytes count.
    pub(crate) fn space(&self) -> SpaceUse {
        let inner = self.inner.lock();
        let open = self.areas.open();
        let free = open
            .iter()
            .map(|vdev| inner.free[usize::from(*vdev)].len() as u64 * self.bytes_on(*vdev));
        let dead = inner.dead.iter().map(|vseg| inner.slots[vseg].entry.vdev);
        let dead = dead.filter(|vdev| open.contains(vdev)).map(|vdev| self.bytes_on(vdev));
        SpaceUse {
            total_bytes: self.areas.total_bytes(),
            free_bytes: free.sum::<u64>() + dead.sum::<u64>(),
            live_bytes: inner.live_bytes,
            saved_bytes: inner.saved_bytes,
        }
    }

    /// Number of segments that can be allocated now, and number of segments that later txgs free.
    /// The second number omits root segments: on wide raidz rows, every commit may empty one root
    /// segment and open another, so some root segments are always pending, and a wait for them
    /// gains no space.
    pub(crate) fn free_now_and_later(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        let dead = inner.dead.iter().map(|vseg| inner.slots[vseg].entry);
        let comes = |entry: &SegmentEntry| {
            entry.class != SegmentClass::Root && self.area(entry.vdev).is_open()
        };
        let open = self.areas.open().into_iter();
        let free = open.map(|vdev| inner.free[usize::from(vdev)].len()).sum();
        (free, dead.filter(comes).count())
    }
}

/// If entries are lost: excludes from allocation the physical segments that no entry names and that
/// were not certainly free, because a segment with a lost entry may be there.
fn withhold(
    free: &mut [BTreeSet<PsegIndex>],
    lost: &[Range<VsegId>],
    known_free: &[FreeRun],
) -> Vec<BTreeSet<PsegIndex>> {
    if lost.is_empty() {
        return vec![BTreeSet::new(); free.len()];
    }
    let mut all = Vec::with_capacity(free.len());
    for (vdev, unclaimed) in (0..).zip(free) {
        let runs = || known_free.iter().filter(|run: &&FreeRun| run.vdev == vdev);
        let is_free = |pseg: &PsegIndex| {
            runs().any(|run| (run.first.0..run.first.0.saturating_add(run.count)).contains(&pseg.0))
        };
        let (known, withheld) = std::mem::take(unclaimed).into_iter().partition(is_free);
        *unclaimed = known;
        all.push(withheld);
    }
    all
}

/// Returns the next segment number. The number is after all ranges of lost entries, because new
/// entries must not overwrite unreadable blocks of the table.
fn next_after(next: VsegId, lost: &[Range<VsegId>]) -> VsegId {
    lost.iter().map(|range| range.end).fold(next, VsegId::max)
}
