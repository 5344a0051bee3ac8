//! List of permanent errors: damaged ranges of the pool, merged and bounded.
//!
//! `damage_list` adds and removes entries on behalf of the pool.
//!
//! Invariant: ranges of one list do not overlap in the same version.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use weir_base::hash::HashSet;
use weir_base::limits::DAMAGED_RANGES_MAX;
use weir_format::{DamagedPart, DamagedRange, PoolPart};

/// Entries of the list of permanent errors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamageList {
    /// Damaged ranges of objects, by volume, object and first record.
    pub ranges: Vec<DamagedRange>,
    /// Damaged parts of the pool's metadata.
    pub parts: Vec<DamagedPart>,
    /// Number of further damaged items that did not fit into `ranges` and `parts`.
    pub more: u64,
}

impl DamageList {
    /// True if no damage is known.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.parts.is_empty() && self.more == 0
    }
}

#[derive(Debug, Default)]
pub(crate) struct Inner {
    pub(crate) list: DamageList,
    /// True if the versions and volumes that share the damaged blocks of new entries are not known
    /// yet.
    pub(crate) unsettled: bool,
    /// Results of the running scrub: damaged metadata parts, and the number of damaged items that
    /// did not fit into the list.
    pub(crate) scrub: Option<(HashSet<(PoolPart, u64)>, u64)>,
    /// Addresses of shared blocks that a scrub found without a good copy. The search for the
    /// pointers to these blocks has not run yet.
    pub(crate) shared: HashSet<u64>,
    /// Number of changes of `list` so far. `stored` is the value of this number when the list was
    /// last stored.
    pub(crate) changes: u64,
    pub(crate) stored: u64,
    /// True if `list` has had an entry since the import.
    pub(crate) ever: bool,
}

/// The list of permanent errors of a pool.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    pub(crate) inner: Mutex<Inner>,
    /// True if the list of permanent errors has an entry. Pools without damage pay one atomic load.
    pub(crate) any: AtomicBool,
}

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    a.start.max(b.start)..a.end.min(b.end)
}

pub(crate) fn records(range: &DamagedRange) -> Range<u64> {
    range.first..range.end()
}

fn with_records(range: &DamagedRange, records: &Range<u64>) -> DamagedRange {
    DamagedRange { first: records.start, count: records.end - records.start, ..*range }
}

/// Parts of a range outside `cut`.
fn outside(range: &DamagedRange, cut: &Range<u64>) -> impl Iterator<Item = DamagedRange> {
    let own = records(range);
    let parts = [
        own.start..cut.start.clamp(own.start, own.end),
        cut.end.clamp(own.start, own.end)..own.end,
    ];
    let range = *range;
    parts.into_iter().filter(|part| !part.is_empty()).map(move |part| with_records(&range, &part))
}

/// True if two ranges contain the same record of an object in the same version of a volume.
fn meet(a: &DamagedRange, b: &DamagedRange) -> bool {
    a.tree() == b.tree()
        && !overlap(&records(a), &records(b)).is_empty()
        && a.born <= b.until
        && b.born <= a.until
}

impl Inner {
    /// Adds a range. If an old range has some of the same records in a common version, these
    /// records get one range that covers the versions of both.
    pub(crate) fn insert(&mut self, new: DamagedRange) {
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
        // Extend a neighbouring range that has the same versions: an extension is possible even if
        // the list is full.
        let joins = |old: &&mut DamagedRange| {
            (old.tree(), old.born, old.until) == (range.tree(), range.born, range.until)
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

    /// Counts damage that did not fit into the list of permanent errors. A scrub visits each block
    /// once, so each call counts. Other callers may repeat the same error without end, so their
    /// errors count once.
    pub(crate) fn count_more(&mut self) {
        match &mut self.scrub {
            Some((_, more)) => *more += 1,
            None if self.list.more == 0 => {
                self.list.more = 1;
                self.changes += 1;
            }
            None => {}
        }
    }

    /// Sorts the list of permanent errors, and merges neighbouring ranges of the same versions.
    fn tidy(&mut self) {
        let ranges = &mut self.list.ranges;
        ranges.sort_unstable_by_key(|r| (r.tree(), r.born, r.until, r.first));
        ranges.dedup_by(|next, before| {
            let same =
                (next.tree(), next.born, next.until) == (before.tree(), before.born, before.until);
            let joins = same && before.end() == next.first;
            if joins {
                before.count += next.count;
                before.found_unix_ms = before.found_unix_ms.min(next.found_unix_ms);
            }
            joins
        });
        ranges.sort_unstable_by_key(|r| (r.tree(), r.first, r.born));
    }

    /// Removes the records `cut` from the ranges that `of` selects. Calls `left` with each removed
    /// piece, and keeps the range that `left` returns for the piece, if any.
    pub(crate) fn cut(
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
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        let done = change(&mut inner);
        let any = !inner.list.is_empty() || !inner.shared.is_empty();
        inner.ever |= any;
        self.any.store(any, Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests;
