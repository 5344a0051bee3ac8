//! Random numbers of forgeries.
//!
//! Invariant: a seed, or the bytes of a fuzzer, determines all numbers.

use weir_codec::checksum::xxh3_64;

/// Stream of random numbers, from a seed or from the bytes of a fuzzer.
pub struct Rng {
    state: u64,
    bytes: Vec<u8>,
}

impl Rng {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, bytes: Vec::new() }
    }

    /// Creates a stream of these bytes, followed by random numbers seeded with their checksum.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self { state: xxh3_64(&[bytes]), bytes: bytes.iter().rev().copied().collect() }
    }

    /// Returns the next number of the stream.
    pub fn number(&mut self) -> u64 {
        if self.bytes.is_empty() {
            // SplitMix64.
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let a = (self.state ^ self.state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let b = (a ^ a >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            return b ^ b >> 31;
        }
        (0..3).fold(0, |word, _| word << 8 | u64::from(self.bytes.pop().unwrap_or_default()))
    }

    /// Returns the next number, reduced to a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.number() % bound.max(1) as u64) as usize
    }
}
