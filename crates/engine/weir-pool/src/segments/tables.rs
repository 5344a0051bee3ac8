//! Remap and reference tables in RAM: all tables that no commit has stored yet, and as many of the
//! other tables as fit the budget.
//!
//! `victims` creates remap tables, `reference_counts` reference tables; `commit` stores both.
//!
//! Invariants:
//! - a table leaves RAM only while its stored form is current; the stored form is read and verified
//!   again before the next use;
//! - only the write-out changes tables; readers only load them;
//! - stored tables take at most the larger of two limits: the budget less the RAM of their list and
//!   of the segment table, and a quarter of the budget. The table that was read last is exempt, so
//!   that its reader can use it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use weir_base::VsegId;
use weir_format::{BlockPtr, FormatError, PoolPart, ReferenceTable, RemapTable};

use crate::planted_bugs::PlantedBug;
use crate::segments::lost_part::LostPart;

/// A kind of table that a segment may have.
pub(crate) trait Table: Clone + Sized {
    /// Name of this kind of table in errors.
    const WHAT: &'static str;
    const KIND: TableKind;
    /// Name of this kind of table in the list of permanent errors.
    const PART: PoolPart;

    /// Placeholder for a lost table, whose content is unknown.
    fn unknown() -> Self;
    fn is_unknown(&self) -> bool;
    fn memory_bytes(&self) -> u64;
    fn encode(&self, vseg: VsegId) -> Vec<u8>;
    fn decode(bytes: &[u8], vseg: VsegId) -> Result<Self, FormatError>;
}

/// Structure that has all tables of one kind.
pub(crate) trait HoldsTables<T: Table> {
    fn tables(&mut self) -> &mut Tables<T>;
}

impl Table for RemapTable {
    const WHAT: &'static str = "remap table";
    const KIND: TableKind = TableKind::Remap;
    const PART: PoolPart = PoolPart::RemapTable;

    fn unknown() -> Self {
        Self::unknown()
    }

    fn is_unknown(&self) -> bool {
        self.is_unknown()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn encode(&self, vseg: VsegId) -> Vec<u8> {
        self.encode(vseg)
    }

    fn decode(bytes: &[u8], vseg: VsegId) -> Result<Self, FormatError> {
        Self::decode(bytes, vseg)
    }
}

impl Table for ReferenceTable {
    const WHAT: &'static str = "reference table";
    const KIND: TableKind = TableKind::References;
    const PART: PoolPart = PoolPart::ReferenceTable;

    fn unknown() -> Self {
        Self::unknown()
    }

    fn is_unknown(&self) -> bool {
        self.is_unknown()
    }

    fn memory_bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn encode(&self, vseg: VsegId) -> Vec<u8> {
        self.encode(vseg)
    }

    fn decode(bytes: &[u8], vseg: VsegId) -> Result<Self, FormatError> {
        Self::decode(bytes, vseg)
    }
}

/// Kinds of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableKind {
    Remap,
    References,
}

/// RAM of per-segment data that a pool always keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableMemory {
    /// Number of virtual segments: segments with a physical segment, and cleaned segments with live
    /// blocks.
    pub segments: u64,
    /// Bytes of the segment table.
    pub segment_bytes: u64,
    /// Cleaned segments with a remap table, in RAM or not.
    pub remap_tables: u64,
    /// Bytes of the list that has the location of each remap table.
    pub remap_list_bytes: u64,
    /// Bytes of the remap tables in RAM.
    pub remap_bytes: u64,
    /// Bytes of the remap tables on disk.
    pub remap_stored_bytes: u64,
    /// Segments with a reference table, in RAM or not.
    pub reference_tables: u64,
    /// Bytes of the list that has the location of each reference table.
    pub reference_list_bytes: u64,
    /// Bytes of the reference tables in RAM.
    pub reference_bytes: u64,
    /// Bytes of the reference tables on disk.
    pub reference_stored_bytes: u64,
}

/// Figures of the tables of one kind.
pub(crate) struct TableFigures {
    pub(crate) tables: u64,
    pub(crate) list_bytes: u64,
    pub(crate) bytes: u64,
    pub(crate) stored_bytes: u64,
}

/// Table that must be read into RAM before the caller can repeat its call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unread {
    pub(crate) kind: TableKind,
    pub(crate) vseg: VsegId,
    /// Pointer to the stored table; `None` if the table was lost.
    pub(crate) ptr: Option<BlockPtr>,
}

/// The table of one segment: its stored form, and its content while the content is in RAM.
struct Entry<T> {
    /// Pointer to the stored table; `None` if the table changed since it was stored.
    stored: Option<BlockPtr>,
    content: Option<Arc<T>>,
    /// True if the table was used since the clock hand last passed it.
    used: bool,
    /// True if the table is in the clock's queue.
    queued: bool,
}

impl Unread {
    /// A table that is known to be lost.
    pub(crate) fn lost<T: Table>(vseg: VsegId) -> Self {
        Self { kind: T::KIND, vseg, ptr: None }
    }
}

impl<T> Default for Entry<T> {
    fn default() -> Self {
        Self { stored: None, content: None, used: false, queued: false }
    }
}

/// The tables of one kind in one pool.
pub(crate) struct Tables<T> {
    entries: BTreeMap<VsegId, Entry<T>>,
    /// Tables that changed or were deleted since the last commit took them.
    changed: BTreeSet<VsegId>,
    /// Unreadable ranges of the stored tree that the next commit removes from the tree.
    lost_parts: Vec<Range<u64>>,
    /// Unreadable ranges of the stored tree that commits leave in place, because a later import may
    /// be able to read them.
    kept_parts: Vec<Range<u64>>,
    /// Segments with tables in `kept_parts`.
    missing: BTreeSet<VsegId>,
    /// Segments whose tables were found to be lost so far.
    unknown: BTreeSet<VsegId>,
    /// Queue of the clock algorithm that evicts tables: segments whose stored tables are in RAM,
    /// and outdated entries. The clock hand is at the front.
    clock: VecDeque<VsegId>,
    bytes: u64,
    /// Bytes that the current tables take on disk.
    stored_bytes: u64,
    bytes_max: u64,
    /// RAM of the segment table, in bytes, which counts against `bytes_max` as well.
    beside: u64,
    bug: PlantedBug,
}

fn bytes_of(stored: Option<BlockPtr>) -> u64 {
    stored.map_or(0, |ptr| ptr.stored_bytes() as u64)
}

/// Tables can always use the budget divided by this number, however large the segment table is.
const OWN_SHARE: u64 = 4;
/// Maximum number of outdated entries in the clock's queue, in addition to one entry per table.
const CLOCK_STALE_MAX: usize = 64;

impl<T: Table> Tables<T> {
    /// Creates the set from the stored tables of a pool. Tables that were already read stay in RAM.
    pub(crate) fn new(
        stored: impl IntoIterator<Item = (VsegId, BlockPtr, Option<T>)>,
        bug: PlantedBug,
    ) -> Self {
        let (changed, clock) = (BTreeSet::new(), VecDeque::new());
        let (bytes, stored_bytes, bytes_max, beside) = (0, 0, u64::MAX, 0);
        let (entries, lost_parts, unknown) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
        let mut all = Self {
            entries,
            changed,
            lost_parts,
            kept_parts: Vec::new(),
            missing: BTreeSet::new(),
            unknown,
            clock,
            bytes,
            stored_bytes,
            bytes_max,
            beside,
            bug,
        };
        for (vseg, ptr, table) in stored {
            all.stored_bytes += ptr.stored_bytes() as u64;
            all.entries.insert(vseg, Entry { stored: Some(ptr), ..Entry::default() });
            if let Some(table) = table {
                all.loaded(Unread { kind: T::KIND, vseg, ptr: Some(ptr) }, Arc::new(table));
            }
        }
        all
    }

    /// Handles unreadable parts of the tree of tables: the next commit removes them from the tree,
    /// and the tables of these segments count as lost.
    pub(crate) fn lose(&mut self, parts: &[LostPart], vsegs: &[VsegId]) {
        self.lost_parts.extend(parts.iter().map(LostPart::blocks));
        self.lost_parts.sort_unstable_by_key(|range| range.start);
        vsegs.iter().for_each(|vseg| self.put(*vseg, T::unknown()));
    }

    /// Handles unreadable parts of the tree of tables: commits leave these parts in the tree, and
    /// store no replacement for the tables of these segments.
    pub(crate) fn miss(&mut self, parts: &[LostPart], vsegs: &[VsegId]) {
        self.kept_parts.extend(parts.iter().map(LostPart::blocks));
        self.kept_parts.sort_unstable_by_key(|range| range.start);
        self.missing.extend(vsegs);
        self.unknown.extend(vsegs);
    }

    /// Unreadable ranges of the stored tree that commits leave in place.
    pub(crate) fn kept_parts(&self) -> &[Range<u64>] {
        &self.kept_parts
    }

    /// First segment of each unreadable range, and segments outside these ranges whose tables are
    /// unreadable.
    pub(crate) fn lost_numbers(&self) -> Vec<u64> {
        let parts = || self.kept_parts.iter().chain(&self.lost_parts);
        let is_elsewhere = |vseg: &&VsegId| !parts().any(|part| part.contains(&vseg.0));
        let tables = self.unknown.iter().filter(is_elsewhere).map(|vseg| vseg.0);
        parts().map(|part| part.start).chain(tables).collect()
    }

    /// Records that a stored table cannot be read. Returns true if the loss was not known before.
    pub(crate) fn note_unreadable(&mut self, vseg: VsegId) -> bool {
        self.entries.contains_key(&vseg) && self.unknown.insert(vseg)
    }

    /// Number of tables that were found to be lost so far.
    pub(crate) fn unknown(&self) -> usize {
        self.unknown.len()
    }

    /// Takes the ranges that the commit must remove from the tree before it stores a table in them.
    pub(crate) fn take_lost_parts(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.lost_parts)
    }

    pub(crate) fn set_max(&mut self, bytes: u64) {
        self.bytes_max = bytes;
        self.shrink(None);
    }

    pub(crate) fn max(&self) -> u64 {
        self.bytes_max
    }

    /// Upper bound on the RAM of tables, their list and the segment table. It is the larger of two
    /// values: the budget; or the parts that cannot leave RAM plus the minimum for tables (budget
    /// divided by [`OWN_SHARE`]).
    pub(crate) fn bytes_reserved(&self) -> u64 {
        self.bytes_max.max(self.beside + self.list_bytes() + self.bytes_max / OWN_SHARE)
    }

    /// Returns [`Self::bytes_reserved`], or 0 if no segment has a table of this kind.
    pub(crate) fn bytes_reserved_if_any(&self) -> u64 {
        if self.entries.is_empty() { 0 } else { self.bytes_reserved() }
    }

    /// Returns a segment's table; `None` if the segment has none.
    pub(crate) fn get(&mut self, vseg: VsegId) -> Result<Option<&Arc<T>>, Unread> {
        if self.missing.contains(&vseg) {
            return Err(Unread::lost::<T>(vseg));
        }
        let Some(entry) = self.entries.get_mut(&vseg) else { return Ok(None) };
        entry.used = true;
        match (&entry.content, entry.stored) {
            (Some(content), _) => Ok(Some(content)),
            (None, Some(ptr)) => Err(Unread { kind: T::KIND, vseg, ptr: Some(ptr) }),
            (None, None) => unreachable!("a table that is not stored is in RAM"),
        }
    }

    /// Pointer to the stored table of a segment; `None` if the table changed since it was stored.
    pub(crate) fn stored_at(&self, vseg: VsegId) -> Option<BlockPtr> {
        self.entries.get(&vseg)?.stored
    }

    /// True if a segment has a table.
    pub(crate) fn has(&self, vseg: VsegId) -> bool {
        self.entries.contains_key(&vseg)
    }

    /// Segments that have a table.
    pub(crate) fn vsegs(&self) -> impl Iterator<Item = VsegId> + '_ {
        self.entries.keys().copied()
    }

    /// Changes a segment's table in place. The caller has checked with [`Self::get`] that the table
    /// is in RAM.
    pub(crate) fn change<R>(&mut self, vseg: VsegId, change: impl FnOnce(&mut T) -> R) -> R {
        let entry = self.entries.get_mut(&vseg).expect("the caller found it");
        let content = entry.content.as_mut().expect("the caller found it in RAM");
        self.bytes -= content.memory_bytes();
        let content = Arc::make_mut(content);
        let done = change(content);
        self.bytes += content.memory_bytes();
        self.stored_bytes -= bytes_of(entry.stored.take());
        self.changed.insert(vseg);
        done
    }

    /// Sets a segment's table.
    pub(crate) fn put(&mut self, vseg: VsegId, table: T) {
        if table.is_unknown() {
            self.unknown.insert(vseg);
        } else {
            self.unknown.remove(&vseg);
        }
        self.missing.remove(&vseg);
        let entry = self.entries.entry(vseg).or_default();
        if self.bug != PlantedBug::RemapTableLeavesEarly {
            self.stored_bytes -= bytes_of(entry.stored.take());
        }
        self.bytes += table.memory_bytes();
        let before = entry.content.replace(Arc::new(table));
        self.bytes -= before.map_or(0, |before| before.memory_bytes());
        self.changed.insert(vseg);
    }

    /// Removes a segment's table.
    pub(crate) fn remove(&mut self, vseg: VsegId) {
        self.unknown.remove(&vseg);
        self.missing.remove(&vseg);
        let entry = self.entries.remove(&vseg).unwrap_or_default();
        self.stored_bytes -= bytes_of(entry.stored);
        let content = entry.content;
        self.bytes -= content.map_or(0, |content| content.memory_bytes());
        self.changed.insert(vseg);
    }

    /// Adds a table that was read from disk, unless the table has changed since.
    pub(crate) fn loaded(&mut self, Unread { vseg, ptr, .. }: Unread, table: Arc<T>) {
        let Some(entry) = self.entries.get_mut(&vseg) else { return };
        if entry.stored == ptr && entry.content.is_none() {
            if table.is_unknown() {
                self.unknown.insert(vseg);
            }
            self.bytes += table.memory_bytes();
            entry.content = Some(table);
            self.queue(vseg);
            self.shrink(Some(vseg));
        }
    }

    pub(crate) fn is_stored_at(&self, Unread { vseg, ptr, .. }: Unread) -> bool {
        self.entries.get(&vseg).is_some_and(|entry| entry.stored == ptr)
    }

    /// Takes the changed and deleted tables, which a commit then stores. With `all`, takes every
    /// table.
    pub(crate) fn take_changed(&mut self, all: bool) -> BTreeSet<VsegId> {
        let mut vsegs = std::mem::take(&mut self.changed);
        if all {
            vsegs.extend(self.entries.keys());
        }
        vsegs
    }

    /// Marks these tables as stored by a commit. `segment_table_bytes`: RAM of the segment table.
    pub(crate) fn stored(&mut self, tables: Vec<(VsegId, BlockPtr)>, segment_table_bytes: u64) {
        self.beside = segment_table_bytes;
        for (vseg, ptr) in tables {
            let entry = self.entries.get_mut(&vseg).expect("tables go before they are stored");
            self.stored_bytes += ptr.stored_bytes() as u64;
            self.stored_bytes -= bytes_of(entry.stored.replace(ptr));
            if entry.content.is_some() {
                self.queue(vseg);
            }
        }
        self.shrink(None);
    }

    fn queue(&mut self, vseg: VsegId) {
        if let Some(entry) = self.entries.get_mut(&vseg).filter(|entry| !entry.queued) {
            entry.queued = true;
            self.clock.push_back(vseg);
        }
        if self.clock.len() > self.entries.len() + CLOCK_STALE_MAX {
            let Self { clock, entries, .. } = self;
            clock.retain(|vseg| entries.contains_key(vseg));
        }
    }

    /// Evicts stored tables from RAM, recently used ones last, until the remaining ones fit the
    /// budget. Never evicts `keep`.
    fn shrink(&mut self, keep: Option<VsegId>) {
        let rest = self.bytes_max.saturating_sub(self.beside + self.list_bytes());
        let bytes_max = rest.max(self.bytes_max / OWN_SHARE);
        let mut steps = 2 * self.clock.len();
        while self.bytes > bytes_max && steps > 0 {
            steps -= 1;
            let Some(vseg) = self.clock.pop_front() else { return };
            let Some(entry) = self.entries.get_mut(&vseg) else { continue };
            entry.queued = false;
            if entry.stored.is_none() {
                // A changed table enters the queue again once a commit stores it.
                continue;
            }
            if Some(vseg) == keep || std::mem::take(&mut entry.used) {
                entry.queued = true;
                self.clock.push_back(vseg);
            } else if let Some(content) = entry.content.take() {
                self.bytes -= content.memory_bytes();
            }
        }
    }

    pub(crate) fn figures(&self) -> TableFigures {
        TableFigures {
            tables: self.entries.len() as u64,
            list_bytes: self.list_bytes(),
            bytes: self.bytes,
            stored_bytes: self.stored_bytes,
        }
    }

    fn list_bytes(&self) -> u64 {
        let entry = size_of::<(VsegId, Entry<T>)>() + size_of::<VsegId>();
        (self.entries.len() * entry) as u64
    }

    /// Bytes of the tables in RAM.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use weir_format::RemapRun;

    use super::*;

    fn table(n: u64) -> RemapTable {
        let host = VsegId(1000 + n);
        RemapTable::new(vec![RemapRun { old: n as u32, units: 1, host, new: 0 }])
    }

    fn at(n: u64) -> BlockPtr {
        BlockPtr { vseg: VsegId(1 << 20), offset_units: n as u32, ..BlockPtr::default() }
    }

    /// Budget for the list of ten tables, and for four tables in RAM.
    fn four() -> u64 {
        let list = 10 * (size_of::<(VsegId, Entry<RemapTable>)>() + size_of::<VsegId>());
        4 * table(0).memory_bytes() + list as u64
    }

    /// Ten stored tables, 0 to 9, with a budget for four in RAM.
    fn four_of_ten() -> Tables<RemapTable> {
        let mut remaps = Tables::new([], PlantedBug::None);
        remaps.set_max(four());
        (0..10).for_each(|n| remaps.put(VsegId(n), table(n)));
        assert_eq!(remaps.bytes(), 10 * table(0).memory_bytes(), "nothing is stored yet");
        assert_eq!(remaps.take_changed(false).len(), 10);
        remaps.stored((0..10).map(|n| (VsegId(n), at(n))).collect(), 0);
        remaps
    }

    #[test]
    fn stored_tables_fit_the_budget_and_unstored_ones_stay() {
        let mut remaps = four_of_ten();
        assert_eq!(remaps.bytes(), 4 * table(0).memory_bytes());
        remaps.beside = 2 * table(0).memory_bytes();
        remaps.shrink(None);
        assert_eq!(remaps.bytes(), 2 * table(0).memory_bytes());
        remaps.stored(Vec::new(), 1 << 20);
        assert!(remaps.bytes_reserved() > 1 << 20, "the segment table cannot leave RAM");
        remaps.stored(Vec::new(), 0);
        remaps.put(VsegId(0), table(0));
        for n in 1..10 {
            if let Err(unread) = remaps.get(VsegId(n)) {
                remaps.loaded(unread, Arc::new(table(n)));
                remaps.get(VsegId(n)).expect("just read");
            }
            assert!(remaps.bytes() <= 4 * table(0).memory_bytes());
            assert!(remaps.get(VsegId(0)).expect("not stored yet").is_some());
        }
        remaps.set_max(0);
        assert_eq!(remaps.bytes(), table(0).memory_bytes());
        remaps.remove(VsegId(0));
        assert!(remaps.get(VsegId(0)).expect("it has none").is_none());
        assert_eq!(remaps.bytes(), 0);
        assert_eq!(remaps.take_changed(false), BTreeSet::from([VsegId(0)]));
    }

    #[test]
    fn table_changed_during_its_read_is_not_overwritten() {
        let mut remaps = four_of_ten();
        remaps.set_max(0);
        let unread = remaps.get(VsegId(3)).expect_err("no room for any");
        remaps.put(VsegId(3), table(4));
        remaps.loaded(unread, Arc::new(table(3)));
        let now = remaps.get(VsegId(3)).expect("in RAM").expect("it has one");
        assert_eq!(**now, table(4));
        remaps.stored(vec![(VsegId(3), at(30))], 0);
        remaps.loaded(unread, Arc::new(table(3)));
        remaps.get(VsegId(3)).expect_err("what was read is the one of before");
    }

    #[test]
    fn clock_does_not_grow_with_removed_tables() {
        let mut remaps = Tables::new([], PlantedBug::None);
        remaps.set_max(u64::MAX);
        for n in 0..10_000 {
            remaps.put(VsegId(n), table(n));
            remaps.stored(vec![(VsegId(n), at(n))], 0);
            remaps.put(VsegId(n), table(n));
            remaps.stored(vec![(VsegId(n), at(n))], 0);
            remaps.remove(VsegId(n));
        }
        assert!(remaps.clock.len() <= CLOCK_STALE_MAX + 1);
        assert_eq!(remaps.bytes(), 0);
    }
}
