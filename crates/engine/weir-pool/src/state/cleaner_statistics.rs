//! Cleaner statistics, since import and for the last 10 s.
//!
//! The cleaner is in `cleaner`, its watermarks in `segments::reserve`.
//!
//! Invariant: recent statistics are bounded in time and memory, however often txgs commit.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;

/// Time span of recent statistics: two commit intervals of 5 s.
pub(crate) const LATELY: Duration = Duration::from_secs(10);
/// Maximum number of cleaning results kept separately within [`LATELY`]. Each further result is
/// added to the newest one.
const TOLD_APART_MAX: usize = 256;

/// Work of the cleaner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Segments that the cleaner emptied, so that their space is reclaimed.
    pub segments: u64,
    /// Bytes of the blocks that the cleaner moved out of these segments, each block once.
    pub moved_bytes: u64,
}

impl Cleaned {
    fn add(&mut self, other: Self) {
        self.segments += other.segments;
        self.moved_bytes += other.moved_bytes;
    }
}

/// Statistics of one pool.
#[derive(Default)]
pub(crate) struct Cleanings(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    total: Cleaned,
    /// Results of the recent cleanings, each with its time, oldest first.
    lately: VecDeque<(Duration, Cleaned)>,
}

impl Cleanings {
    /// Adds the cleanings of one commit.
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

    /// Totals since import and of the last 10 s.
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
    fn old_cleanings_count_only_in_the_total() {
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
    fn many_cleanings_use_bounded_memory() {
        let cleanings = Cleanings::default();
        for ms in 0..5000 {
            let one = Cleaned { segments: 1, moved_bytes: 1 };
            cleanings.add(Duration::from_millis(ms), one);
        }
        assert!(cleanings.0.lock().lately.len() <= TOLD_APART_MAX);
        assert_eq!(cleanings.at(Duration::from_secs(5)).1.segments, 5000);
    }
}
