//! The segment table in RAM: which segment is where, how much of it lives, what is free.
//!
//! Not here: appending to a segment (write_out) and storing the table (commit).
//!
//! Invariants:
//! - I2: `next_vseg` only grows;
//! - I3: a physical segment leaves `free` when it is allocated and comes back at the start of a
//!   txg at least `REUSE_AFTER_TXGS` after the one in which its last block died, and only when no
//!   reader has it pinned;
//! - I5: live bytes are added when a block is appended and taken when its pointer is replaced.

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;
use weir_base::limits::REUSE_AFTER_TXGS;
use weir_base::{PsegIndex, Txg, VsegId};
use weir_format::{BlockPtr, SEGMENT_ENTRIES_PER_BLOCK, SegmentClass, SegmentEntry, SegmentState};

use crate::planted::PlantedBug;

/// Space of a pool in bytes of its segment area (one copy counted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// All segments.
    pub total_bytes: u64,
    /// Segments that can be written now or after a few commits.
    pub free_bytes: u64,
    /// Blocks that committed or written pointers refer to.
    pub live_bytes: u64,
}

struct Slot {
    entry: SegmentEntry,
    pins: u32,
}

struct Inner {
    slots: HashMap<VsegId, Slot>,
    /// Free physical segments per vdev; the lowest is taken first, so that a sparse file stays
    /// short and a disk is reused rather than spread over.
    free: Vec<std::collections::BTreeSet<PsegIndex>>,
    dead: Vec<VsegId>,
    /// Segment table blocks that changed since the last commit.
    dirty_blocks: HashSet<u64>,
    next_vseg: VsegId,
    live_bytes: u64,
}

impl Inner {
    /// Notes that the stored table must change. Root segments are in the bootstrap table, which
    /// every commit writes anyway.
    fn mark(&mut self, vseg: VsegId, class: SegmentClass) {
        if class != SegmentClass::Root {
            self.dirty_blocks.insert(table_block(vseg));
        }
    }
}

/// The segment table of one pool.
pub(crate) struct Segments {
    inner: Mutex<Inner>,
    pub(crate) segment_bytes: u64,
    total: u64,
    bug: PlantedBug,
}

/// Where a segment is; its place is not reused while this is held.
pub(crate) struct Pinned<'a> {
    segments: &'a Segments,
    vseg: VsegId,
    pub(crate) vdev: u16,
    /// Start of the segment in the vdev's segment area.
    pub(crate) start: u64,
    /// The last txg that wrote to this place, or in which it died.
    pub(crate) last_txg: Txg,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let mut inner = self.segments.inner.lock();
        let slot = inner.slots.get_mut(&self.vseg).expect("a pinned segment stays in the table");
        slot.pins -= 1;
    }
}

impl Segments {
    /// A table with these entries; everything no entry names is free.
    pub(crate) fn new(
        segment_bytes: u64,
        psegs_per_vdev: &[u32],
        entries: Vec<(VsegId, SegmentEntry)>,
        next_vseg: VsegId,
        bug: PlantedBug,
    ) -> Result<Self, String> {
        let mut free: Vec<std::collections::BTreeSet<PsegIndex>> =
            psegs_per_vdev.iter().map(|count| (0..*count).map(PsegIndex).collect()).collect();
        let (mut slots, mut dead, mut live_bytes) = (HashMap::new(), Vec::new(), 0);
        for (vseg, entry) in entries {
            let owned =
                free.get_mut(usize::from(entry.vdev)).is_some_and(|f| f.remove(&entry.pseg));
            if !owned || vseg >= next_vseg || u64::from(entry.fill_bytes) > segment_bytes {
                return Err(format!("segment {vseg} claims a place it cannot have"));
            }
            if entry.state == SegmentState::Dead {
                dead.push(vseg);
            }
            live_bytes += u64::from(entry.live_bytes);
            slots.insert(vseg, Slot { entry, pins: 0 });
        }
        let inner =
            Inner { slots, free, dead, dirty_blocks: HashSet::new(), next_vseg, live_bytes };
        let total = psegs_per_vdev.iter().map(|count| u64::from(*count)).sum();
        Ok(Self { inner: Mutex::new(inner), segment_bytes, total, bug })
    }

    /// Where a segment is, pinned; `None` when it is no more.
    pub(crate) fn pin(&self, vseg: VsegId) -> Option<Pinned<'_>> {
        let mut inner = self.inner.lock();
        let slot = inner.slots.get_mut(&vseg)?;
        slot.pins += 1;
        let start = u64::from(slot.entry.pseg.0) * self.segment_bytes;
        let SegmentEntry { vdev, last_txg, .. } = slot.entry;
        Some(Pinned { segments: self, vseg, vdev, start, last_txg })
    }

    /// Gives back what died long enough ago; called once at the start of each txg's write-out.
    pub(crate) fn release_dead(&self, txg: Txg) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let before = inner.dead.len();
        inner.dead.retain(|vseg| {
            let slot = &inner.slots[vseg];
            if slot.pins > 0 || txg.0 <= slot.entry.last_txg.0 + REUSE_AFTER_TXGS {
                return true;
            }
            assert_eq!(slot.entry.live_bytes, 0, "a dead segment holds no live block");
            inner.free[usize::from(slot.entry.vdev)].insert(slot.entry.pseg);
            if slot.entry.class != SegmentClass::Root {
                inner.dirty_blocks.insert(table_block(*vseg));
            }
            inner.slots.remove(vseg);
            false
        });
        if inner.dead.len() < before {
            tracing::debug!(count = before - inner.dead.len(), "dead segments released");
        }
    }

    /// Opens a new segment on the wanted vdev, or else on the one with the most free ones.
    pub(crate) fn allocate(
        &self,
        class: SegmentClass,
        txg: Txg,
        wanted: usize,
    ) -> Option<(VsegId, u16, u64)> {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (vdev, set) = inner
            .free
            .iter_mut()
            .enumerate()
            .max_by_key(|(vdev, free)| (!free.is_empty() && *vdev == wanted, free.len()))?;
        let pseg = set.pop_first()?;
        let vseg = inner.next_vseg;
        inner.next_vseg = VsegId(vseg.0 + 1);
        let entry = SegmentEntry {
            state: SegmentState::Open,
            class,
            vdev: vdev as u16,
            pseg,
            live_bytes: 0,
            fill_bytes: 0,
            first_txg: txg,
            last_txg: txg,
        };
        let before = inner.slots.insert(vseg, Slot { entry, pins: 0 });
        assert!(before.is_none(), "I2: vseg {vseg} exists already");
        inner.mark(vseg, class);
        Some((vseg, vdev as u16, u64::from(pseg.0) * self.segment_bytes))
    }

    /// The open segments of a class, where each starts and how full it is; read at import.
    pub(crate) fn open_of(&self, class: SegmentClass) -> Vec<(VsegId, u16, u64, u32)> {
        let inner = self.inner.lock();
        let mut open: Vec<_> = inner
            .slots
            .iter()
            .filter(|(_, s)| s.entry.class == class && s.entry.state == SegmentState::Open)
            .map(|(vseg, s)| {
                let start = u64::from(s.entry.pseg.0) * self.segment_bytes;
                (*vseg, s.entry.vdev, start, s.entry.fill_bytes)
            })
            .collect();
        open.sort_unstable_by_key(|(vseg, ..)| *vseg);
        open
    }

    /// Counts a block that was appended.
    pub(crate) fn add_live(&self, vseg: VsegId, bytes: usize) {
        let mut inner = self.inner.lock();
        inner.live_bytes += bytes as u64;
        let slot = inner.slots.get_mut(&vseg).expect("an open segment is in the table");
        slot.entry.live_bytes += bytes as u32;
        let class = slot.entry.class;
        inner.mark(vseg, class);
    }

    /// Records how far a segment is filled; `sealed` ends appending to it.
    pub(crate) fn set_fill(&self, vseg: VsegId, fill: u32, txg: Txg, sealed: bool) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let slot = inner.slots.get_mut(&vseg).expect("an open segment is in the table");
        assert!(fill >= slot.entry.fill_bytes && u64::from(fill) <= self.segment_bytes);
        slot.entry.fill_bytes = fill;
        slot.entry.last_txg = txg;
        if sealed {
            slot.entry.state = SegmentState::Sealed;
            if slot.entry.live_bytes == 0 {
                slot.entry.state = SegmentState::Dead;
                inner.dead.push(vseg);
            }
        }
        let class = slot.entry.class;
        inner.mark(vseg, class);
    }

    /// Counts a block whose pointer was replaced in `txg`.
    pub(crate) fn free(&self, ptr: &BlockPtr, txg: Txg) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let bytes = ptr.stored_bytes();
        let Some(slot) = inner.slots.get_mut(&ptr.vseg) else {
            // A damaged tree can name anything; counters of other segments must not suffer.
            tracing::error!(vseg = ptr.vseg.0, "freed block is in a segment that does not exist");
            return;
        };
        assert!(
            slot.entry.live_bytes as usize >= bytes,
            "I5: {ptr:?} freed twice: {:?}",
            slot.entry
        );
        slot.entry.live_bytes -= bytes as u32;
        inner.live_bytes -= bytes as u64;
        if slot.entry.live_bytes == 0 && slot.entry.state == SegmentState::Sealed {
            slot.entry.state = SegmentState::Dead;
            slot.entry.last_txg = txg;
            inner.dead.push(ptr.vseg);
            if self.bug == PlantedBug::ReuseAtOnce {
                // What it is about: the last uberblock still refers to this place.
                let (vdev, pseg) = (usize::from(slot.entry.vdev), slot.entry.pseg);
                inner.free[vdev].insert(pseg);
            }
        }
        let class = slot.entry.class;
        inner.mark(ptr.vseg, class);
    }

    /// Blocks of the stored table that changed, encoded; `None` = all entries gone. Root segments
    /// are not part of it.
    pub(crate) fn take_dirty_blocks(
        &self,
        all: bool,
    ) -> Vec<(u64, Option<[u8; weir_base::BLOCK_BYTES]>)> {
        let mut inner = self.inner.lock();
        let mut blocks = std::mem::take(&mut inner.dirty_blocks);
        if all {
            blocks.extend(inner.slots.keys().map(|vseg| table_block(*vseg)));
        }
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

    /// The root segments, for the bootstrap table, and the next number.
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

    /// Live bytes of every segment, for checks.
    pub(crate) fn live_by_segment(&self) -> Vec<(VsegId, u32)> {
        let inner = self.inner.lock();
        inner.slots.iter().map(|(vseg, slot)| (*vseg, slot.entry.live_bytes)).collect()
    }

    /// Live bytes of the segments that `wanted` picks by vdev and last txg.
    pub(crate) fn live_bytes_where(&self, wanted: impl Fn(u16, Txg) -> bool) -> u64 {
        let inner = self.inner.lock();
        let entries = inner.slots.values().map(|slot| slot.entry);
        let picked = entries.filter(|entry| wanted(entry.vdev, entry.last_txg));
        picked.map(|entry| u64::from(entry.live_bytes)).sum()
    }

    /// Space figures; dead segments count as free, they come back by themselves.
    pub(crate) fn space(&self) -> SpaceUse {
        let inner = self.inner.lock();
        let free: usize = inner.free.iter().map(std::collections::BTreeSet::len).sum();
        SpaceUse {
            total_bytes: self.total * self.segment_bytes,
            free_bytes: (free + inner.dead.len()) as u64 * self.segment_bytes,
            live_bytes: inner.live_bytes,
        }
    }

    /// Segments that can be allocated this moment, and those that wait for later txgs.
    pub(crate) fn free_now_and_later(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.free.iter().map(std::collections::BTreeSet::len).sum(), inner.dead.len())
    }
}

/// Block of the stored table that holds a segment's entry.
pub(crate) fn table_block(vseg: VsegId) -> u64 {
    vseg.0 / SEGMENT_ENTRIES_PER_BLOCK as u64
}
