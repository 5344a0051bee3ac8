//! Seeded random numbers whose sequence never changes.
//!
//! Unsuitable for secrets or identifiers, because the numbers are predictable.
//!
//! Invariants:
//! - a seed gives the same numbers on every machine and in every later version of Weir, so a seed
//!   in a bug report stays valid. No crate guarantees this for ranges and shuffles, hence this
//!   implementation;
//! - a stream depends only on its seed and purpose, not on earlier draws: an enabled fault does not
//!   change the schedule of other operations.
//!
//! Spec: SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).

use std::ops::Range;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    state: u64,
}

impl Rng {
    /// Creates the stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    /// Derives an independent stream for one purpose; `index` distinguishes streams of the same
    /// purpose.
    #[must_use]
    pub fn stream(&self, purpose: &str, index: u64) -> Self {
        // FNV-1a gives each purpose another stream; mixing does so for adjacent indices.
        let name = purpose.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        Self::new(mix(self.seed ^ mix(name ^ mix(index))))
    }

    /// Returns the next 64 bits of the stream.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Draws a number in `0..bound`; `bound > 0`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no number");
        // Multiply-shift has a bias below bound / 2^64, which no run can detect.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number in a non-empty range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "an empty range has no number");
        range.start + self.below(range.end - range.start)
    }

    /// Draws an index into a collection of `len > 0` elements.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns true with probability 1/2.
    pub fn coin(&mut self) -> bool {
        self.next_u64() >> 63 == 1
    }

    /// Returns true with probability `per_million` / 1,000,000.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// Fills a slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }

    /// Shuffles the elements of a slice.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_published_sequence() {
        let mut rng = Rng::new(1_234_567);
        let first = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn stream_does_not_depend_on_earlier_draws() {
        let mut parent = Rng::new(7);
        let mut before = parent.stream("disk", 1);
        parent.next_u64();
        assert_eq!(before.next_u64(), parent.stream("disk", 1).next_u64());
        assert_ne!(before.next_u64(), parent.stream("disk", 2).next_u64());
        assert_ne!(before.next_u64(), parent.stream("disc", 1).next_u64());
    }

    #[test]
    fn draws_cover_their_range_and_stay_in_it() {
        let mut rng = Rng::new(3);
        let mut seen = [0_u32; 6];
        for _ in 0..600 {
            seen[rng.index(6)] += 1;
            assert!((10..12).contains(&rng.within(10..12)));
        }
        assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
        assert!(!rng.chance(0) && rng.chance(1_000_000));
        let mut order: Vec<u32> = (0..100).collect();
        rng.shuffle(&mut order);
        assert_ne!(order, (0..100).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..100).collect::<Vec<_>>());
    }
}
