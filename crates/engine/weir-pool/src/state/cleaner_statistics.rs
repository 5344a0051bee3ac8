//! What the cleaner did: since the pool was opened, and lately.
//!
//! Not here: cleaning (clean), and when it is due (reserve).
//!
//! Invariant: "lately" is bounded in time and in memory, however often txgs are committed.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// What counts as lately: two txgs of a pool that is not in a hurry.
pub(crate) const LATELY: Duration = Duration::from_secs(10);
/// Cleanings that are told apart within it; of more, neighbours count as one.
const TOLD_APART_MAX: usize = 256;

/// What was cleaned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Segments whose place comes back.
    pub segments: u64,
    /// Bytes of the blocks that were moved out of them, one copy.
    pub moved_bytes: u64,
}

impl Cleaned {
    fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.moved_bytes += other.moved_bytes;
    }
}

/// Counts of one pool.
#[derive(Default)]
pub(crate) struct Cleanings(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    total: Cleaned,
    /// Oldest first.
    lately: VecDeque<(Duration, Cleaned)>,
}

impl Cleanings {
    /// Counts what one commit cleaned.
    pub(crate) fn add(&self, now: Duration, cleaned: Cleaned) {
        let mut counts = self.0.lock();
        counts.total.add(cleaned);
        counts.forget(now);
        let many = counts.lately.len() >= TOLD_APART_MAX;
        match counts.lately.back_mut() {
            Some((_, last)) if many => last.add(cleaned),
            _ => counts.lately.push_back((now, cleaned)),
        }
    }

    /// Since the pool was opened, and lately.
    pub(crate) fn at(&self, now: Duration) -> (Cleaned, Cleaned) {
        let mut counts = self.0.lock();
        counts.forget(now);
        let mut lately = Cleaned::default();
        counts.lately.iter().for_each(|(_, cleaned)| lately.add(*cleaned));
        (counts.total, lately)
    }
}

impl Counts {
    fn forget(&mut self, now: Duration) {
        while self.lately.front().is_some_and(|(at, _)| *at + LATELY < now) {
            self.lately.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_ago_counts_in_the_total_alone() {
        let cleanings = Cleanings::default();
        let one = Cleaned { segments: 2, moved_bytes: 100 };
        for second in 0..30 {
            cleanings.add(Duration::from_secs(second), one);
        }
        let (total, lately) = cleanings.at(Duration::from_secs(30));
        assert_eq!(total, Cleaned { segments: 60, moved_bytes: 3000 });
        assert_eq!(lately, Cleaned { segments: 20, moved_bytes: 1000 });
        assert_eq!(cleanings.at(Duration::from_mins(1)).1, Cleaned::default());
    }

    #[test]
    fn many_cleanings_take_no_more_memory() {
        let cleanings = Cleanings::default();
        for ms in 0..5000 {
            let one = Cleaned { segments: 1, moved_bytes: 1 };
            cleanings.add(Duration::from_millis(ms), one);
        }
        assert!(cleanings.0.lock().lately.len() <= TOLD_APART_MAX);
        assert_eq!(cleanings.at(Duration::from_secs(5)).1.segments, 5000);
    }
}
