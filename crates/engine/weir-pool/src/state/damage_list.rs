//! The list of permanent errors in RAM: data without a good copy on any disk.
//!
//! weir-dataset's `damage` finds the snapshots and clones that share an entry, stores the list and
//! clears it after a scrub. weir-format defines the records of the list on disk.
//!
//! Invariants:
//! - at most [`DAMAGED_RANGES_MAX`] ranges and [`DAMAGED_PARTS_MAX`] parts; further damage is only
//!   counted;
//! - no two ranges of an object have a record of a version in common;
//! - adding an entry that is on the list changes nothing, so an error that repeats causes no
//!   writes.

use std::ops::Range;
use std::sync::atomic::Ordering;

use weir_base::hash::HashSet;
use weir_base::limits::{DAMAGED_PARTS_MAX, DAMAGED_SHARED_MAX};
use weir_base::{DatasetId, ObjectId, Txg};
use weir_format::{DamagedPart, DamagedRange, PoolPart, TreeRoot};

use crate::state::damage::{DamageList, overlap, records};
use crate::state::pool::Pool;

/// Permanent errors of volumes and metadata.
impl Pool {
    /// Notes that records of an object have no good copy, in the versions of its volume from txg
    /// `born`, the birth of the pointer that cannot be followed, up to txg `until`.
    ///
    /// A block keeps its index in the versions of a volume from txg `born` until the volume
    /// overwrites the block (see `snapshot_chain`). So two txgs identify all snapshots that share
    /// the block, future ones included.
    ///
    /// Does nothing if the list has the entry. Client paths may call this function without a rate
    /// limit.
    pub fn note_damage(
        &self,
        (volume, object): (DatasetId, ObjectId),
        records: Range<u64>,
        born: Txg,
        until: Txg,
    ) {
        let records = overlap(&records, &(0..TreeRoot::BLOCKS_MAX));
        if records.is_empty() || born > until {
            return;
        }
        let found_unix_ms = self.clock.unix_ms();
        let (first, count) = (records.start, records.end - records.start);
        let new = DamagedRange { volume, object, first, count, born, until, found_unix_ms };
        let is_new = self.damage.change(|inner| {
            let before = inner.changes;
            inner.insert(new);
            let is_new = inner.changes != before;
            inner.unsettled |= is_new;
            is_new
        });
        if is_new {
            tracing::error!(
                pool = self.name(),
                volume = volume.0,
                object = object.0,
                first,
                count,
                born = born.0,
                "records of a volume have no good copy"
            );
        }
    }

    /// Notes that a part of the pool's metadata has no good copy.
    pub fn note_damaged_part(&self, part: PoolPart, number: u64) {
        let found_unix_ms = self.clock.unix_ms();
        let is_new = self.damage.change(|inner| {
            if let Some((seen, _)) = &mut inner.scrub {
                seen.insert((part, number));
            }
            let parts = &mut inner.list.parts;
            if parts.iter().any(|known| (known.part, known.number) == (part, number)) {
                return false;
            }
            if parts.len() >= DAMAGED_PARTS_MAX {
                inner.count_more();
                return false;
            }
            parts.push(DamagedPart { part, number, found_unix_ms });
            inner.changes += 1;
            true
        });
        if is_new {
            tracing::error!(
                pool = self.name(),
                ?part,
                number,
                "a metadata structure has no good copy"
            );
        }
    }

    /// Notes that a block with several references has no good copy.
    pub(crate) fn note_shared_damage(&self, address: u64) {
        self.damage.change(|inner| {
            if inner.shared.len() < DAMAGED_SHARED_MAX {
                inner.shared.insert(address);
            } else {
                inner.count_more();
            }
        });
    }

    /// True while the list of permanent errors has an entry. Reads one atomic: hot paths may call
    /// it.
    pub fn has_damage(&self) -> bool {
        self.damage.any.load(Ordering::Acquire)
    }

    /// True if the list of permanent errors has had an entry since the import.
    pub fn had_damage(&self) -> bool {
        self.damage.inner.lock().ever
    }

    /// Returns the current list.
    pub fn damage(&self) -> DamageList {
        let inner = self.damage.inner.lock();
        let mut list = inner.list.clone();
        list.more = list.more.max(inner.scrub.as_ref().map_or(0, |(_, more)| *more));
        list
    }

    /// If the list contains this record of an object, in the version of this txg: returns the first
    /// record after the damaged range.
    pub fn damaged_to(
        &self,
        tree: (DatasetId, ObjectId),
        record: u64,
        version: Txg,
    ) -> Option<u64> {
        if !self.has_damage() {
            return None;
        }
        let inner = self.damage.inner.lock();
        let of = inner.list.ranges.iter().filter(|range| {
            range.tree() == tree
                && records(range).contains(&record)
                && range.born <= version
                && version <= range.until
        });
        of.map(DamagedRange::end).max()
    }

    /// Updates the list after a volume overwrote or freed these records of an object. An entry
    /// stays in the list for the snapshots up to `newest` that also reference the damaged records.
    pub fn damage_overwritten(
        &self,
        tree: (DatasetId, ObjectId),
        records: &[Range<u64>],
        newest: Option<Txg>,
    ) {
        if !self.has_damage() {
            return;
        }
        self.damage.change(|inner| {
            for cut in records {
                let of = |range: &DamagedRange| {
                    range.tree() == tree && range.until == DamagedRange::HEAD
                };
                inner.cut(cut, of, |range| {
                    let until = newest.filter(|newest| *newest >= range.born)?;
                    Some(DamagedRange { until, ..*range })
                });
            }
        });
    }

    /// Removes records of which a scrub found a good copy.
    pub fn damage_healed(&self, of: &DamagedRange, records: &Range<u64>) {
        self.damage.change(|inner| {
            let is_of = |range: &DamagedRange| {
                (range.tree(), range.born, range.until) == (of.tree(), of.born, of.until)
            };
            inner.cut(records, is_of, |_| None);
        });
    }

    /// Adjusts the list after a rollback of a volume to the end of txg `to`. The replaced head is
    /// now a version with last txg `left`.
    pub fn damage_rolled_back(&self, volume: DatasetId, to: Txg, left: Txg) {
        if !self.has_damage() {
            return;
        }
        self.damage.change(|inner| {
            let ranges = std::mem::take(&mut inner.list.ranges);
            for range in ranges {
                let until = if range.volume != volume {
                    range.until
                } else if range.born <= to && to <= range.until {
                    DamagedRange::HEAD
                } else if range.until == DamagedRange::HEAD {
                    left
                } else {
                    range.until
                };
                if range.born <= until {
                    inner.insert(DamagedRange { until, ..range });
                }
            }
            inner.changes += 1;
            inner.unsettled = true;
        });
    }

    /// If the list of permanent errors still has the range `old` unchanged, replaces it with the
    /// ranges `new`.
    pub fn replace_damage(&self, old: &DamagedRange, new: &[DamagedRange]) {
        self.damage.change(|inner| {
            let Some(at) = inner.list.ranges.iter().position(|range| range == old) else { return };
            if *new == [*old] {
                return;
            }
            inner.list.ranges.remove(at);
            inner.changes += 1;
            new.iter().for_each(|range| inner.insert(*range));
        });
    }

    /// Requests that the versions and volumes that share damaged blocks are searched again, because
    /// snapshots moved between volumes.
    pub fn unsettle_damage(&self) {
        if self.has_damage() {
            self.damage.change(|inner| inner.unsettled = true);
        }
    }

    /// Returns the ranges for which the versions and volumes that share the damage must be
    /// searched, if any.
    pub fn take_unsettled_damage(&self) -> Option<Vec<DamagedRange>> {
        if !self.has_damage() {
            return None;
        }
        let mut inner = self.damage.inner.lock();
        std::mem::take(&mut inner.unsettled).then(|| inner.list.ranges.clone())
    }

    /// Takes the addresses of damaged blocks with several references. The caller searches for the
    /// pointers to these blocks.
    pub fn take_shared_damage(&self) -> HashSet<u64> {
        if !self.has_damage() {
            return HashSet::default();
        }
        self.damage.change(|inner| std::mem::take(&mut inner.shared))
    }

    /// Clears the damaged parts that the last scrub found, and the set of bad blocks already
    /// counted as checksum errors: the new scrub finds both again.
    pub(crate) fn begin_damage_scrub(&self) {
        self.vdevs.legs().for_each(|leg| leg.checksum_errors.restart_count());
        self.damage.change(|inner| inner.scrub = Some((HashSet::default(), 0)));
    }

    /// Ends a scrub. If the scrub visited everything, the list drops the metadata parts that the
    /// scrub did not report as damaged.
    pub fn end_damage_scrub(&self, saw_all: bool) {
        self.damage.change(|inner| {
            let Some((seen, more)) = inner.scrub.take() else { return };
            let parts = inner.list.parts.len();
            if saw_all {
                inner.list.parts.retain(|known| seen.contains(&(known.part, known.number)));
            }
            let more = if saw_all { more } else { inner.list.more + more };
            if parts != inner.list.parts.len() || more != inner.list.more {
                inner.changes += 1;
                inner.list.more = more;
            }
        });
    }

    /// True if the stored list is out of date.
    pub fn damage_is_unstored(&self) -> bool {
        let inner = self.damage.inner.lock();
        inner.changes != inner.stored
    }

    /// Returns the list if the current commit must store it: after a change of the list, or because
    /// the commit stores all directory entries (`whole`).
    pub fn damage_to_store(&self, whole: bool) -> Option<DamageList> {
        let mut inner = self.damage.inner.lock();
        let is_wanted = inner.changes != inner.stored || (whole && !inner.list.is_empty());
        // A failed commit closes the pool, so the change count is not restored.
        inner.stored = inner.changes;
        is_wanted.then(|| inner.list.clone())
    }

    /// Adds the stored list during an import.
    pub(crate) fn load_damage(&self, list: DamageList) {
        self.damage.change(|inner| {
            let before = inner.changes;
            for range in list.ranges {
                inner.insert(range);
            }
            for part in list.parts {
                let same =
                    |known: &DamagedPart| (known.part, known.number) == (part.part, part.number);
                if inner.list.parts.len() < DAMAGED_PARTS_MAX && !inner.list.parts.iter().any(same)
                {
                    inner.list.parts.push(part);
                }
            }
            inner.list.more = inner.list.more.saturating_add(list.more);
            // Entries that were added since the import began are not stored yet.
            inner.stored += inner.changes - before;
            inner.unsettled = !inner.list.ranges.is_empty();
        });
    }
}
