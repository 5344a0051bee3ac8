//! Which generation each block of the dataset has.
//!
//! Invariants:
//! - a block has at most one write under way, so a read sees the generation before it or its own;
//! - a write that failed leaves its block as if it were under way: either generation may be there.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU32, Ordering};

/// Blocks that are known at most: 4 bytes each.
const BLOCKS_MAX: u64 = 64 << 20;

/// The generation of each block; twice it, and one more while a write is under way.
pub struct Generations {
    block_bytes: u64,
    states: Vec<AtomicU32>,
}

impl Generations {
    /// Of a dataset that is all zeros; `None` if it is too large.
    pub fn new(total_bytes: u64, block_bytes: usize) -> Option<Self> {
        let blocks = total_bytes / block_bytes as u64;
        let states = (blocks <= BLOCKS_MAX).then(|| (0..blocks).map(|_| AtomicU32::new(0)));
        Some(Self { block_bytes: block_bytes as u64, states: states?.collect() })
    }

    fn blocks(&self, offset: u64, len_bytes: u32) -> &[AtomicU32] {
        let first = (offset / self.block_bytes) as usize;
        &self.states[first..first + (u64::from(len_bytes) / self.block_bytes) as usize]
    }

    /// Begins a write: true unless another is under way there. The new generations are those of
    /// [`Self::next`].
    pub(super) fn begin(&self, offset: u64, len_bytes: u32) -> bool {
        let blocks = self.blocks(offset, len_bytes);
        for (index, state) in blocks.iter().enumerate() {
            let is_free = |state: u32| (state & 1 == 0).then_some(state + 1);
            let (ok, fail) = (Ordering::AcqRel, Ordering::Acquire);
            if state.fetch_update(ok, fail, is_free).is_err() {
                for begun in &blocks[..index] {
                    begun.fetch_sub(1, Ordering::AcqRel);
                }
                return false;
            }
        }
        true
    }

    /// The generation that a write under way gives each block.
    pub(super) fn next(&self, offset: u64, len_bytes: u32) -> impl Iterator<Item = u32> {
        let blocks = self.blocks(offset, len_bytes).iter();
        blocks.map(|state| state.load(Ordering::Acquire) / 2 + 1)
    }

    /// A write is done.
    pub(super) fn end(&self, offset: u64, len_bytes: u32) {
        for state in self.blocks(offset, len_bytes) {
            state.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Those that a block may have while nothing is written.
    pub fn now(&self, offset: u64) -> RangeInclusive<u32> {
        self.since(offset, self.oldest(offset))
    }

    /// Oldest generation that a read sent now may find at a block.
    pub(super) fn oldest(&self, offset: u64) -> u32 {
        self.blocks(offset, self.block_bytes as u32)[0].load(Ordering::Acquire) / 2
    }

    /// Those that a read may have found that was sent when `oldest` was the oldest.
    pub(super) fn since(&self, offset: u64, oldest: u32) -> RangeInclusive<u32> {
        let now = self.blocks(offset, self.block_bytes as u32)[0].load(Ordering::Acquire);
        // Round up: one under way may be there. A block that changes quickly is judged by few.
        let newest = now.div_ceil(2);
        oldest.max(newest.saturating_sub(64))..=newest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_write_at_a_time_and_reads_may_find_either_side_of_it() {
        let blocks = Generations::new(16 << 10, 4096).expect("it is small");
        assert_eq!(blocks.since(4096, blocks.oldest(4096)), 0..=0);
        assert!(blocks.begin(4096, 8192) && !blocks.begin(0, 8192), "they overlap");
        assert!(blocks.begin(0, 4096), "what was begun in vain was taken back");
        assert_eq!(blocks.next(4096, 8192).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(blocks.since(4096, 0), 0..=1);
        blocks.end(4096, 8192);
        assert_eq!(blocks.since(4096, blocks.oldest(4096)), 1..=1);
        assert!(blocks.begin(8192, 4096));
        assert_eq!(blocks.next(4096, 8192).collect::<Vec<_>>(), [2, 2]);
        assert!(Generations::new(1 << 50, 4096).is_none());
    }
}
