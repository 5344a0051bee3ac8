//! A set of block numbers kept as disjoint ranges.
//!
//! Invariant: stored ranges are non-empty and disjoint, and adjacent ranges are merged.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// For each range: its start, and its end (exclusive).
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// True if no number is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of stored ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// True if `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, end)| *end > number)
    }

    /// Adds a range and merges it with the ranges that it touches.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        while let Some((s, e)) = self.ranges.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((s, e)) = self.ranges.range(..range.end).next_back().map(|(s, e)| (*s, *e)) {
            if e <= range.start {
                break;
            }
            self.ranges.remove(&s);
            if e > range.end {
                self.ranges.insert(range.end, e);
            }
            if s < range.start {
                self.ranges.insert(s, range.start);
                break;
            }
        }
    }

    /// The ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// The parts of the set inside `window`, in order.
    pub fn within(&self, window: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.ranges.range(..=window.start).next_back().map_or(0, |(start, _)| *start);
        self.ranges
            .range(first..window.end)
            .map(move |(start, end)| (*start).max(window.start)..(*end).min(window.end))
            .filter(|range| !range.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..60, 0_u64..20), 1..40),
            window in (0_u64..60, 0_u64..20),
        ) {
            let (mut ranges, mut model) = (RangeSet::default(), BTreeSet::new());
            for (add, start, len) in steps {
                if add {
                    ranges.insert(start..start + len);
                    model.extend(start..start + len);
                } else {
                    ranges.remove(start..start + len);
                    model.retain(|n| !(start..start + len).contains(n));
                }
            }
            prop_assert_eq!(ranges.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
            for n in 0..90 {
                prop_assert_eq!(ranges.contains(n), model.contains(&n));
            }
            let window = window.0..window.0 + window.1;
            let inside: Vec<u64> = ranges.within(window.clone()).flatten().collect();
            prop_assert_eq!(inside, model.range(window).copied().collect::<Vec<_>>());
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }
}
