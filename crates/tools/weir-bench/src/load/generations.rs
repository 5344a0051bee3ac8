//! Table of the generations of all blocks of the dataset.
//!
//! Invariants:
//! - a block has at most one write in flight, so a read returns either the generation before this
//!   write or the generation that this write gives the block;
//! - after a failed write, a block is not judged until the next write to it, because the failed
//!   write may have reached the target in part or not at all;
//! - if a write gets no answer, its block remains in the state "write in flight": the generations
//!   before and after the write are both correct;
//! - after writes with an unknown outcome, any generation is correct until the block's next write;
//! - between the start of a trim, or of a write by the target itself (zeros, a copy), and the next
//!   write, a block is not judged: it may contain any data, or the stamp of another address.

use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of blocks in a table; each block takes 4 bytes.
const BLOCKS_MAX: u64 = 64 << 20;
/// A generation that is a multiple of this number means "any generation" or "not judged". No block
/// is written so often that its count of writes reaches this number.
const ANY_EVERY: u32 = 1 << 24;
/// Last multiple of `ANY_EVERY` that means "any generation".
const ANY_LAST: u32 = ANY_EVERY * 63;
/// First multiple of `ANY_EVERY` that means "not judged".
const UNJUDGED_FIRST: u32 = ANY_EVERY * 64;
/// Last multiple of `ANY_EVERY` that means "not judged". A block with this generation is never
/// judged again.
const UNJUDGED_LAST: u32 = ANY_EVERY * 127;

/// Generations that a verified read of a block may return.
pub(super) enum Expected {
    /// The block is not verified.
    Unjudged,
    /// Any generation is correct.
    Any,
    /// A generation in this range is correct.
    Within(RangeInclusive<u32>),
}

/// State of each block: twice the block's generation, plus one while a write is in flight.
pub struct Generations {
    block_bytes: u64,
    states: Vec<AtomicU32>,
}

impl Generations {
    /// Creates a table in which all blocks have generation 0, which means zeros; `None` if the
    /// dataset is too large.
    pub fn new(total_bytes: u64, block_bytes: usize) -> Option<Self> {
        let blocks = total_bytes / block_bytes as u64;
        let states = (blocks <= BLOCKS_MAX).then(|| (0..blocks).map(|_| AtomicU32::new(0)));
        Some(Self { block_bytes: block_bytes as u64, states: states?.collect() })
    }

    fn blocks(&self, offset: u64, len_bytes: u32) -> &[AtomicU32] {
        let first = (offset / self.block_bytes) as usize;
        &self.states[first..first + (u64::from(len_bytes) / self.block_bytes) as usize]
    }

    /// Begins a write to a range of blocks. Returns false if another write to one of the blocks is
    /// in flight. [`Self::next`] returns the generations that this write gives the blocks.
    pub(crate) fn begin(&self, offset: u64, len_bytes: u32) -> bool {
        let blocks = self.blocks(offset, len_bytes);
        for (index, state) in blocks.iter().enumerate() {
            let is_free = |state: u32| (state & 1 == 0).then_some(state + 1);
            let (ok, fail) = (Ordering::AcqRel, Ordering::Acquire);
            if state.fetch_update(ok, fail, is_free).is_err() {
                self.give_up(offset, (index as u64 * self.block_bytes) as u32);
                return false;
            }
        }
        true
    }

    /// Begins a write like [`Self::begin`], but only if the present contents of all blocks are
    /// known. The present generation of a block is one less than the generation from
    /// [`Self::next`].
    pub(super) fn begin_known(&self, offset: u64, len_bytes: u32) -> bool {
        if !self.begin(offset, len_bytes) {
            return false;
        }
        let is_known = |state: &AtomicU32| {
            let generation = state.load(Ordering::Acquire) / 2;
            !generation.is_multiple_of(ANY_EVERY) && generation < UNJUDGED_LAST
        };
        let all = self.blocks(offset, len_bytes).iter().all(is_known);
        if !all {
            self.give_up(offset, len_bytes);
        }
        all
    }

    /// Begins an operation after which the blocks are not judged until they are written again.
    /// Returns false if a write to one of the blocks is in flight. [`Self::give_up`] ends the
    /// operation, whether it succeeded or failed.
    pub(super) fn begin_unjudged(&self, offset: u64, len_bytes: u32) -> bool {
        if !self.begin(offset, len_bytes) {
            return false;
        }
        for state in self.blocks(offset, len_bytes) {
            state.store(unjudged(state) * 2 + 1, Ordering::Release);
        }
        true
    }

    /// Ends a failed write. The blocks are not judged until they are written again.
    pub(super) fn fail(&self, offset: u64, len_bytes: u32) {
        for state in self.blocks(offset, len_bytes) {
            state.store(unjudged(state) * 2, Ordering::Release);
        }
    }

    /// Generations that a read of a block may return. `oldest` is the oldest generation that was
    /// possible when the worker sent the read.
    ///
    /// Loads the state of the block only once: if another worker began a trim between two loads,
    /// the expected generations would already include the trim.
    pub(super) fn expected(&self, offset: u64, oldest: u32) -> Expected {
        let now = self.state(offset);
        match since_at(now, oldest) {
            _ if !is_judged_at(now, oldest) => Expected::Unjudged,
            None => Expected::Any,
            Some(range) => Expected::Within(range),
        }
    }

    /// True if a read of the block that is sent now can be compared with a known generation.
    pub(crate) fn is_judged_now(&self, offset: u64) -> bool {
        let now = self.state(offset);
        is_judged_at(now, now / 2)
    }

    fn state(&self, offset: u64) -> u32 {
        self.blocks(offset, self.block_bytes as u32)[0].load(Ordering::Acquire)
    }

    /// Generations that the write in flight gives its blocks, one for each block.
    pub(crate) fn next(&self, offset: u64, len_bytes: u32) -> impl Iterator<Item = u32> {
        let blocks = self.blocks(offset, len_bytes).iter();
        blocks.map(|state| state.load(Ordering::Acquire) / 2 + 1)
    }

    /// Cancels a write that was begun but never sent.
    pub(super) fn give_up(&self, offset: u64, len_bytes: u32) {
        for state in self.blocks(offset, len_bytes) {
            state.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Ends a write that succeeded.
    pub(crate) fn end(&self, offset: u64, len_bytes: u32) {
        for state in self.blocks(offset, len_bytes) {
            state.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Generations that a block may have if no write to it is in flight; `None` means any
    /// generation.
    pub fn now(&self, offset: u64) -> Option<RangeInclusive<u32>> {
        let now = self.state(offset);
        since_at(now, now / 2)
    }

    /// Oldest generation of the block that a read may return if it is sent now.
    pub(super) fn oldest(&self, offset: u64) -> u32 {
        self.state(offset) / 2
    }

    /// Numbers of the whole blocks in a byte range.
    pub(crate) fn numbers(&self, bytes: &Range<u64>) -> Range<u64> {
        let end = (bytes.end / self.block_bytes).min(self.states.len() as u64);
        (bytes.start / self.block_bytes).min(end)..end
    }

    /// States of blocks, in the form that is sent to another process: twice the generation, plus
    /// one if the next generation is also possible.
    pub(crate) fn states(&self, blocks: Range<u64>) -> impl Iterator<Item = u32> {
        let blocks = &self.states[blocks.start as usize..blocks.end as usize];
        blocks.iter().map(|state| state.load(Ordering::Acquire))
    }

    /// Sets the state of several blocks to a state that another process sent. No write to these
    /// blocks may be in flight.
    pub(crate) fn set_states(&self, blocks: Range<u64>, state: u32) {
        let blocks = &self.states[blocks.start as usize..blocks.end as usize];
        blocks.iter().for_each(|block| block.store(state, Ordering::Release));
    }

    /// Sets the generations of blocks to "any", after writes with an unknown outcome. No write to
    /// these blocks may be in flight.
    pub(crate) fn forget(&self, blocks: Range<u64>) {
        for block in &self.states[blocks.start as usize..blocks.end as usize] {
            let generation = block.load(Ordering::Acquire) / 2;
            let any = (generation / ANY_EVERY + 1).saturating_mul(ANY_EVERY);
            let last = if generation < UNJUDGED_FIRST { ANY_LAST } else { UNJUDGED_LAST };
            block.store(any.min(last) * 2, Ordering::Release);
        }
    }
}

/// True if a block in the state `now` can be judged by a read, if `oldest` was the oldest possible
/// generation when the read was sent.
fn is_judged_at(now: u32, oldest: u32) -> bool {
    let mark = now.div_ceil(2) / ANY_EVERY * ANY_EVERY;
    mark < UNJUDGED_FIRST || (mark < UNJUDGED_LAST && oldest > mark)
}

/// Generations that a read of a block in the state `now` may return, if `oldest` was the oldest
/// possible generation when the read was sent; `None` means any generation.
fn since_at(now: u32, oldest: u32) -> Option<RangeInclusive<u32>> {
    if oldest > 0 && oldest.is_multiple_of(ANY_EVERY) {
        return None;
    }
    // Round up to include a write in flight. Limit the range, so that only a few generations of a
    // quickly changing block are accepted.
    let newest = now.div_ceil(2);
    Some(oldest.max(newest.saturating_sub(64))..=newest)
}

/// Returns the next generation that means "not judged". The returned generation is larger than all
/// earlier generations of the block.
fn unjudged(state: &AtomicU32) -> u32 {
    let generation = state.load(Ordering::Acquire) / 2;
    let next = (generation / ANY_EVERY + 1).saturating_mul(ANY_EVERY);
    next.clamp(UNJUDGED_FIRST, UNJUDGED_LAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Generations {
        fn since(&self, offset: u64, oldest: u32) -> Option<RangeInclusive<u32>> {
            since_at(self.state(offset), oldest)
        }

        fn is_judged(&self, offset: u64, oldest: u32) -> bool {
            is_judged_at(self.state(offset), oldest)
        }
    }

    // Regression: a read counted as corrupt if another worker began a trim between two loads of the
    // block's state.
    #[test]
    fn trim_during_a_check_does_not_change_the_expectation() {
        const BLOCKS: u32 = 2_000;
        const BLOCK: u64 = 4096;
        let known = Generations::new(u64::from(BLOCKS) * BLOCK, 4096).expect("it is small");
        let current = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for block in 0..BLOCKS {
                    current.store(block, Ordering::Release);
                    let offset = u64::from(block) * BLOCK;
                    for _ in 0..50 {
                        assert!(known.begin(offset, 4096));
                        known.end(offset, 4096);
                        assert!(known.begin_unjudged(offset, 4096));
                        known.give_up(offset, 4096);
                    }
                }
                current.store(BLOCKS, Ordering::Release);
            });
            loop {
                let block = current.load(Ordering::Acquire);
                if block == BLOCKS {
                    break;
                }
                let offset = u64::from(block) * BLOCK;
                let oldest = known.oldest(offset);
                if let Expected::Within(range) = known.expected(offset, oldest) {
                    assert!(*range.start() < oldest + ANY_EVERY, "{oldest} and {range:?}");
                }
            }
        });
    }

    #[test]
    fn read_during_a_write_accepts_either_generation() {
        let blocks = Generations::new(16 << 10, 4096).expect("it is small");
        assert_eq!(blocks.since(4096, blocks.oldest(4096)), Some(0..=0));
        assert!(blocks.begin(4096, 8192) && !blocks.begin(0, 8192), "they overlap");
        assert!(blocks.begin(0, 4096), "what was begun in vain was taken back");
        assert_eq!(blocks.next(4096, 8192).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(blocks.since(4096, 0), Some(0..=1));
        blocks.end(4096, 8192);
        assert_eq!(blocks.since(4096, blocks.oldest(4096)), Some(1..=1));
        assert!(blocks.begin(8192, 4096));
        assert_eq!(blocks.next(4096, 8192).collect::<Vec<_>>(), [2, 2]);
        assert!(Generations::new(1 << 50, 4096).is_none());
    }

    #[test]
    fn trimmed_or_copied_block_is_not_judged_until_written() {
        let blocks = Generations::new(16 << 10, 4096).expect("it is small");
        for _ in 0..100 {
            let before = blocks.oldest(0);
            assert!(blocks.begin_unjudged(0, 8192) && !blocks.begin(4096, 4096));
            assert!(!blocks.is_judged(0, before), "it may be there before the answer");
            blocks.give_up(0, 8192);
            assert!(!blocks.is_judged(0, before) && !blocks.is_judged_now(4096));
            assert!(!blocks.begin_known(0, 4096), "nobody knows what to compare with");
            let between = blocks.oldest(0);
            assert!(blocks.begin(0, 4096));
            assert!(!blocks.is_judged(0, between));
            blocks.end(0, 4096);
            assert!(!blocks.is_judged(0, before) && !blocks.is_judged(0, between));
            let is_worn = blocks.oldest(0) >= UNJUDGED_LAST;
            assert_eq!(blocks.is_judged_now(0), !is_worn);
            assert_eq!(blocks.begin_known(0, 4096), !is_worn);
            if !is_worn {
                assert_eq!(blocks.next(0, 4096).next(), Some(blocks.oldest(0) + 1));
                blocks.give_up(0, 4096);
            }
            assert!(blocks.is_judged_now(8192), "others are as they were");
        }
        assert!(!blocks.begin_known(8192, 4096), "it was never written");
    }

    #[test]
    fn block_of_a_failed_write_is_not_judged_until_it_is_written() {
        let blocks = Generations::new(16 << 10, 4096).expect("it is small");
        for _ in 0..60 {
            let before = blocks.oldest(0);
            assert!(blocks.begin(0, 4096));
            blocks.fail(0, 4096);
            assert!(!blocks.is_judged(0, before) && !blocks.is_judged_now(0));
            assert!(!blocks.begin_known(0, 4096), "nobody knows what it holds");
            assert!(blocks.begin(0, 4096), "it can be written again");
            blocks.end(0, 4096);
            assert!(blocks.is_judged_now(0) && blocks.is_judged_now(4096));
        }
    }

    #[test]
    fn forgotten_block_accepts_any_generation_until_written() {
        let blocks = Generations::new(16 << 10, 4096).expect("it is small");
        assert_eq!(blocks.numbers(&(4096..1 << 20)), 1..4);
        for _ in 0..200 {
            blocks.forget(1..3);
            assert_eq!((blocks.now(4096), blocks.now(0)), (None, Some(0..=0)));
            assert!(blocks.begin(4096, 4096), "it can be written");
            assert_eq!(blocks.since(4096, blocks.oldest(4096)), None, "not done yet");
            blocks.end(4096, 4096);
            let known = blocks.now(4096).expect("it was written");
            assert_eq!(known.start(), known.end());
            assert_eq!(blocks.now(8192), None);
        }
        blocks.set_states(0..2, 7);
        assert_eq!(blocks.states(0..2).collect::<Vec<_>>(), [7, 7]);
        assert_eq!(blocks.now(0), Some(3..=4));
    }
}
