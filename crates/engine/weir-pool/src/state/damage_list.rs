//! The list of what has no good copy on any disk, in RAM.
//!
//! Not here: finding which snapshots and clones share it, storing it, clearing it after a scrub
//! (weir-dataset's `damage`); its records on disk (weir-format's).
//!
//! Code that meets damage calls [`Pool::note_damage`] with what it knows: the volume, the records
//! and the txg that made the pointer which cannot be followed. A block keeps its place in the
//! versions of a volume from that txg on until it is overwritten (see `line`), so two txgs name all
//! snapshots that share it, those to come included.
//!
//! Invariants:
//! - at most [`DAMAGED_RANGES_MAX`] ranges and [`DAMAGED_PARTS_MAX`] parts; beyond that damage is
//!   counted;
//! - of one volume no two ranges have a record in a version in common;
//! - noting what is on the list already changes nothing, so that an error that repeats writes
//!   nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use weir_base::hash::HashSet;
use weir_base::limits::{DAMAGED_PARTS_MAX, DAMAGED_RANGES_MAX, DAMAGED_SHARED_MAX};
use weir_base::{DatasetId, Txg};
use weir_format::{DamagedPart, DamagedRange, PoolPart, TreeRoot};

use crate::state::pool::Pool;

#[cfg(test)]
mod tests;

/// What is on the list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageList {
    /// Ranges of volumes, by volume and place.
    pub ranges: Vec<DamagedRange>,
    /// Parts of the pool's own structures.
    pub parts: Vec<DamagedPart>,
    /// Damage that was found and had no room.
    pub more: u64,
}

impl DamageList {
    /// Whether everything has a good copy, as far as that is known.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.parts.is_empty() && self.more == 0
    }
}

#[derive(Debug, Default)]
struct Inner {
    list: DamageList,
    /// Ranges whose sharing with other versions and volumes is to be looked up.
    unsettled: bool,
    /// What the scrub under way noted: parts, and damage that had no room.
    scrub: Option<(HashSet<(PoolPart, u64)>, u64)>,
    /// Blocks with several references, by address, that a scrub found without a good copy: the
    /// pointers to them are still to be found.
    shared: HashSet<u64>,
    /// Changes of the list, and how many of them are stored.
    changes: u64,
    stored: u64,
    /// True once the list had an entry since the pool was opened.
    ever: bool,
}

/// The list of a pool.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    inner: Mutex<Inner>,
    /// Whether there is anything, so that a pool without damage pays one load.
    any: AtomicBool,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn records(range: &DamagedRange) -> Range<u64> {
    range.first..range.end()
}

fn with_records(range: &DamagedRange, records: &Range<u64>) -> DamagedRange {
    DamagedRange { first: records.start, count: records.end - records.start, ..*range }
}

/// What of a range is outside of some records.
fn outside(range: &DamagedRange, cut: &Range<u64>) -> impl Iterator<Item = DamagedRange> {
    let own = records(range);
    let parts = [
        own.start..cut.start.clamp(own.start, own.end),
        cut.end.clamp(own.start, own.end)..own.end,
    ];
    let range = *range;
    parts.into_iter().filter(|part| !part.is_empty()).map(move |part| with_records(&range, &part))
}

/// Whether two ranges have a record in a version in common.
fn meet(a: &DamagedRange, b: &DamagedRange) -> bool {
    a.volume == b.volume
        && !overlap(&records(a), &records(b)).is_empty()
        && a.born <= b.until
        && b.born <= a.until
}

impl Inner {
    /// Adds a range; where it meets others, those versions are joined.
    fn insert(&mut self, new: DamagedRange) {
        let mut pending = vec![new];
        while let Some(piece) = pending.pop() {
            let met = self.list.ranges.iter().position(|old| meet(old, &piece));
            let Some(met) = met else {
                self.push(piece);
                continue;
            };
            let old = self.list.ranges[met];
            if old.born <= piece.born && old.until >= piece.until {
                pending.extend(outside(&piece, &records(&old)));
                continue;
            }
            self.list.ranges.remove(met);
            self.changes += 1;
            let both = overlap(&records(&old), &records(&piece));
            pending.extend(outside(&old, &both));
            pending.extend(outside(&piece, &both));
            pending.push(DamagedRange {
                born: old.born.min(piece.born),
                until: old.until.max(piece.until),
                found_unix_ms: old.found_unix_ms.min(piece.found_unix_ms),
                ..with_records(&old, &both)
            });
        }
        self.tidy();
    }

    fn push(&mut self, range: DamagedRange) {
        // A neighbour that is in the same versions takes it in, also where the list is full.
        let joins = |old: &&mut DamagedRange| {
            (old.volume, old.born, old.until) == (range.volume, range.born, range.until)
                && (old.end() == range.first || range.end() == old.first)
        };
        if let Some(old) = self.list.ranges.iter_mut().find(joins) {
            old.first = old.first.min(range.first);
            old.count += range.count;
            self.changes += 1;
        } else if self.list.ranges.len() < DAMAGED_RANGES_MAX {
            self.list.ranges.push(range);
            self.changes += 1;
        } else {
            self.count_more();
        }
    }

    /// Counts damage for which there is no room. A scrub meets each block once; elsewhere the same
    /// error may repeat for ever, and is counted once.
    fn count_more(&mut self) {
        match &mut self.scrub {
            Some((_, more)) => *more += 1,
            None if self.list.more == 0 => {
                self.list.more = 1;
                self.changes += 1;
            }
            None => {}
        }
    }

    /// Sorts the list and joins neighbours that are in the same versions.
    fn tidy(&mut self) {
        let ranges = &mut self.list.ranges;
        ranges.sort_unstable_by_key(|r| (r.volume, r.born, r.until, r.first));
        ranges.dedup_by(|next, before| {
            let same =
                (next.volume, next.born, next.until) == (before.volume, before.born, before.until);
            let joins = same && before.end() == next.first;
            if joins {
                before.count += next.count;
                before.found_unix_ms = before.found_unix_ms.min(next.found_unix_ms);
            }
            joins
        });
        ranges.sort_unstable_by_key(|r| (r.volume, r.first, r.born));
    }

    /// Cuts records out of the ranges that `of` names; `left` says what stays of what is cut.
    fn cut(
        &mut self,
        cut: &Range<u64>,
        of: impl Fn(&DamagedRange) -> bool,
        left: impl Fn(&DamagedRange) -> Option<DamagedRange>,
    ) {
        let touched = |range: &DamagedRange| of(range) && !overlap(&records(range), cut).is_empty();
        if !self.list.ranges.iter().any(touched) {
            return;
        }
        self.changes += 1;
        let (met, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.list.ranges).into_iter().partition(touched);
        self.list.ranges = others;
        for range in met {
            let inside = with_records(&range, &overlap(&records(&range), cut));
            for piece in outside(&range, cut).chain(left(&inside)) {
                self.insert(piece);
            }
        }
    }
}

impl Damage {
    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        let done = change(&mut inner);
        let any = !inner.list.is_empty() || !inner.shared.is_empty();
        inner.ever |= any;
        self.any.store(any, Ordering::Release);
        done
    }
}

/// What volumes and the pool itself lost.
impl Pool {
    /// Notes that records of a volume have no good copy: in the versions of the volume from the one
    /// of txg `born`, which made the pointer that cannot be followed, up to the one of `until`.
    ///
    /// Does nothing where the list has that already. Callers from the paths of clients need not
    /// limit how often they call.
    pub fn note_damage(&self, volume: DatasetId, records: Range<u64>, born: Txg, until: Txg) {
        let records = overlap(&records, &(0..TreeRoot::capacity(TreeRoot::HEIGHT_MAX)));
        if records.is_empty() || born > until {
            return;
        }
        let found_unix_ms = self.clock.unix_ms();
        let (first, count) = (records.start, records.end - records.start);
        let new = DamagedRange { volume, first, count, born, until, found_unix_ms };
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
                first,
                count,
                born = born.0,
                "records of a volume have no good copy"
            );
        }
    }

    /// Notes that a part of the pool's own structures has no good copy.
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
            tracing::error!(pool = self.name(), ?part, number, "a structure has no good copy");
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

    /// True while the list has an entry. Reads one atomic, so hot paths may call it.
    pub fn has_damage(&self) -> bool {
        self.damage.any.load(Ordering::Acquire)
    }

    /// True once the list had an entry since the pool was opened.
    pub fn had_damage(&self) -> bool {
        self.damage.inner.lock().ever
    }

    /// What is on the list now.
    pub fn damage(&self) -> DamageList {
        let inner = self.damage.inner.lock();
        let mut list = inner.list.clone();
        list.more = list.more.max(inner.scrub.as_ref().map_or(0, |(_, more)| *more));
        list
    }

    /// If a record of a volume is on the list, as the version of this txg has it: the first record
    /// behind the range that it is in.
    pub fn damaged_to(&self, volume: DatasetId, record: u64, version: Txg) -> Option<u64> {
        if !self.has_damage() {
            return None;
        }
        let inner = self.damage.inner.lock();
        let of = inner.list.ranges.iter().filter(|range| {
            range.volume == volume
                && records(range).contains(&record)
                && range.born <= version
                && version <= range.until
        });
        of.map(DamagedRange::end).max()
    }

    /// Takes off the list what a volume holds no more: records that were overwritten or freed. What
    /// snapshots up to the `newest` share stays damaged in those.
    pub fn damage_overwritten(
        &self,
        volume: DatasetId,
        records: &[Range<u64>],
        newest: Option<Txg>,
    ) {
        if !self.has_damage() {
            return;
        }
        self.damage.change(|inner| {
            for cut in records {
                let of = |range: &DamagedRange| {
                    range.volume == volume && range.until == DamagedRange::NOW
                };
                inner.cut(cut, of, |range| {
                    let until = newest.filter(|newest| *newest >= range.born)?;
                    Some(DamagedRange { until, ..*range })
                });
            }
        });
    }

    /// Takes records off the list of which a scrub found a good copy.
    pub fn damage_healed(&self, of: &DamagedRange, records: &Range<u64>) {
        self.damage.change(|inner| {
            let is_of = |range: &DamagedRange| {
                (range.volume, range.born, range.until) == (of.volume, of.born, of.until)
            };
            inner.cut(records, is_of, |_| None);
        });
    }

    /// Notes that a volume is again what it was at the end of txg `to`; what it was before is a
    /// version of txg `left`.
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
                    DamagedRange::NOW
                } else if range.until == DamagedRange::NOW {
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

    /// Puts other ranges in the place of one, which is as it was when it was asked for.
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

    /// Asks for the sharing of all damage to be looked up anew: snapshots changed hands.
    pub fn unsettle_damage(&self) {
        if self.has_damage() {
            self.damage.change(|inner| inner.unsettled = true);
        }
    }

    /// The ranges whose sharing is to be looked up, if any is.
    pub fn take_unsettled_damage(&self) -> Option<Vec<DamagedRange>> {
        if !self.has_damage() {
            return None;
        }
        let mut inner = self.damage.inner.lock();
        std::mem::take(&mut inner.unsettled).then(|| inner.list.ranges.clone())
    }

    /// Addresses of damaged blocks with several references; what led to them is looked for now.
    pub fn take_shared_damage(&self) -> HashSet<u64> {
        if !self.has_damage() {
            return HashSet::default();
        }
        self.damage.change(|inner| std::mem::take(&mut inner.shared))
    }

    /// Forgets the damaged parts and the counted blocks of the last scrub: the scrub that begins
    /// finds both again.
    pub(crate) fn begin_damage_scrub(&self) {
        self.vdevs.legs().for_each(|leg| leg.checksum_errors.forget_all());
        self.damage.change(|inner| inner.scrub = Some((HashSet::default(), 0)));
    }

    /// The scrub ended; if it saw everything, what it did not note is whole.
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

    /// Whether the stored list is another one.
    pub fn damage_is_unstored(&self) -> bool {
        let inner = self.damage.inner.lock();
        inner.changes != inner.stored
    }

    /// The list to be stored by the commit under way; with all other records if that is `whole`.
    pub fn damage_to_store(&self, whole: bool) -> Option<DamageList> {
        let mut inner = self.damage.inner.lock();
        let is_wanted = inner.changes != inner.stored || (whole && !inner.list.is_empty());
        // A commit that fails closes the pool: nothing is noted back.
        inner.stored = inner.changes;
        is_wanted.then(|| inner.list.clone())
    }

    /// Puts the stored list of a pool that is being opened in place.
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
            // What was noted since the pool was read stays to be stored.
            inner.stored += inner.changes - before;
            inner.unsettled = !inner.list.ranges.is_empty();
        });
    }
}
