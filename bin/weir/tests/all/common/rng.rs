//! Random numbers from a seed.
//!
//! Not here: secrets, which must be unpredictable.
//!
//! Invariant: the same seed gives the same numbers on every machine.

/// Random number generator splitmix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a generator whose seed comes from the environment variable, or from the clock.
    /// Prints the seed, so that the run can be repeated.
    pub(crate) fn from_env(variable: &str) -> Self {
        let seed = match std::env::var(variable) {
            Ok(text) => text.parse().expect("the seed is a number"),
            Err(_) => std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64,
        };
        eprintln!("{variable}={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Fills a buffer with random bytes.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }

    /// Returns true with a probability of 1 in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
