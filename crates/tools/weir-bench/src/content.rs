//! Contents of blocks: a function of seed, run, address and generation, so that a read can be
//! verified without a stored copy of the data.
//!
//! `generations` has the generation that each block must have; [`Content`] describes the layout.
//!
//! Invariants:
//! - a compressor whose window covers a block finds no redundancy except the copies of the block's
//!   random bytes; a block contains no runs of zeros;
//! - two runs never write the same block, even with the same seed, so that a block that an earlier
//!   run left is never accepted as a block of this run;
//! - a duplicate unit (`ContentSpec::unit_bytes`) contains one of a small number of patterns, and a
//!   pattern does not depend on the address of the unit.

use std::ops::RangeInclusive;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use weir_block::copy_with_key;

use crate::spec::ContentSpec;
use crate::target::Holds;

const MAGIC: u64 = u64::from_le_bytes(*b"WEIRbnch");
/// Size of a stamp: the bytes at the start of a block that identify its run, address and
/// generation.
const STAMP_BYTES: usize = 32;
/// Number of words in the buffer of random data (1 MiB), which is large compared with the window of
/// a compressor.
const POOL_WORDS: usize = 1 << 17;
/// Number of bytes that lz4 needs in addition to the random bytes, for a match that ends at the end
/// of a block: token, offset, last literals.
const MATCH_BYTES: usize = 12;
/// lz4 needs one more length byte for each 255 bytes of a match.
const MATCH_STEP: usize = 255;
/// Average number of duplicate units that contain the same pattern.
const UNITS_PER_PATTERN: f64 = 64.0;

/// Size of the largest block with its own stamp, in bytes.
pub const GUARD_BLOCK_BYTES: u64 = 4096;

const KIND_OWN: u32 = 1;
const KIND_PATTERN: u32 = 2;
/// Number of low bits that contain the kind in the third word of a stamp; the run id is above them.
const KIND_BITS: u32 = 2;

/// Id of a run, which identifies the blocks that the run writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "u32")]
pub struct RunId(u32);

impl From<u32> for RunId {
    /// Keeps the lower 30 bits, because a stamp has space for only 30 bits of the run id.
    fn from(number: u32) -> Self {
        Self(number & (u32::MAX >> KIND_BITS))
    }
}

impl RunId {
    const BITS: u32 = u32::BITS - KIND_BITS;

    /// Returns a random run id; two runs have the same id with a probability of 2^-30.
    pub fn random() -> Self {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).expect("the kernel has random numbers");
        u32::from_le_bytes(bytes).into()
    }
}

/// Generator and verifier of block contents. A block consists of `random_bytes` of random data,
/// which include the stamp, and of copies of this data.
///
/// ```text
/// stamp of each block:  0 magic    8 address   16 generation (u32)  20 kind and run (u32)   24 key
/// the first three words are XORed with a mask derived from the key, so that stamps look random
///                      32 random bytes, then copies of bytes 0 to `random_bytes`
/// ```
///
/// The key is a hash of run, kind, address and generation, so that damage to the stamp of any run
/// can be detected. Random data comes from some offset in a buffer of random words and is XORed
/// with the block's key, so that no compression window, however long, finds two equal blocks.
pub struct Content {
    seed: u64,
    run: RunId,
    block_bytes: usize,
    random_bytes: usize,
    unit_bytes: u64,
    /// Share of the units that duplicate another unit, as a fraction of 2^32.
    duplicates: u64,
    patterns: u64,
    pool: Vec<u64>,
}

/// Fault that the verification finds in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The block is all zeros: no write to the block took effect.
    Zeros,
    /// The block has no valid stamp, or its other contents are damaged.
    Damaged,
    /// Another run wrote this block.
    OtherRun,
    /// The contents belong to a block at this other address.
    Misplaced(u64),
    /// The block has this generation, which is older or newer than the expected generation.
    OtherGeneration(u32),
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Zeros => write!(f, "only zeros"),
            Self::Damaged => write!(f, "damaged"),
            Self::OtherRun => write!(f, "a block of another run"),
            Self::Misplaced(address) => write!(f, "the block of address {address}"),
            Self::OtherGeneration(generation) => write!(f, "generation {generation} of this block"),
        }
    }
}

impl Content {
    /// Creates the contents for blocks of `block_bytes` (512 or 4096 bytes) in a dataset of
    /// `total_bytes`.
    pub fn new(spec: &ContentSpec, block_bytes: u32, total_bytes: u64) -> Self {
        assert!([512, 4096].contains(&block_bytes), "a sector or a page");
        let block = block_bytes as usize;
        let unit_bytes = u64::from(spec.unit_bytes.max(block_bytes));
        let units = (total_bytes / unit_bytes).max(1) as f64;
        let share = (spec.dedupe_pct / 100.0).clamp(0.0, 1.0);
        let patterns = (units * share / UNITS_PER_PATTERN).ceil().max(1.0);
        // The first unit that contains a pattern duplicates no other unit. So choose one unit for
        // each pattern in addition to the specified share of duplicates.
        let duplicates = (share + patterns / units * f64::from(u8::from(share > 0.0))).min(1.0);
        let mut rng = SmallRng::seed_from_u64(spec.seed);
        Self {
            seed: spec.seed,
            run: RunId::default(),
            block_bytes: block,
            random_bytes: random_bytes(block, spec.compress),
            unit_bytes,
            duplicates: whole(duplicates * f64::from(u32::MAX)),
            patterns: whole(patterns),
            pool: (0..POOL_WORDS).map(|_| rng.next_u64()).collect(),
        }
    }

    /// Sets the id of the run. The default id is 0.
    #[must_use]
    pub fn of_run(self, run: RunId) -> Self {
        Self { run, ..self }
    }

    /// Id of the run that writes the blocks.
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Fills `buffer` with whole blocks, starting at `address`.
    pub fn fill(&self, buffer: &mut [u8], address: u64, generation: u32) {
        for (block, number) in buffer.chunks_exact_mut(self.block_bytes).zip(0_u64..) {
            self.fill_block(block, address + number * self.block_bytes as u64, generation);
        }
    }

    /// Fills one block with its contents.
    pub fn fill_block(&self, block: &mut [u8], address: u64, generation: u32) {
        self.fill_from(block, &self.stamp(address, generation));
    }

    fn fill_from(&self, block: &mut [u8], stamp: &[u8; STAMP_BYTES]) {
        block[..STAMP_BYTES].copy_from_slice(stamp);
        let key = word(stamp, 24);
        let start = key as usize % (POOL_WORDS - self.block_bytes / 8);
        let (random, copies) = block.split_at_mut(self.random_bytes);
        copy_with_key(&mut random[STAMP_BYTES..], &self.pool[start..], key);
        for out in copies.chunks_mut(self.random_bytes) {
            out.copy_from_slice(&random[..out.len()]);
        }
    }

    /// Returns the stamp of a block. In a unit that is not a duplicate, the stamp contains the
    /// block's own address; in a duplicate unit, the address in the unit's pattern.
    fn stamp(&self, address: u64, generation: u32) -> [u8; STAMP_BYTES] {
        let (unit, within) = (address / self.unit_bytes, address % self.unit_bytes);
        let drawn = mix(self.seed ^ mix(unit).wrapping_add(u64::from(generation)));
        let is_duplicate = (drawn & u64::from(u32::MAX)) < self.duplicates;
        if is_duplicate {
            let pattern = (drawn >> 32) % self.patterns;
            self.stamp_of(pattern * self.unit_bytes + within, 0, KIND_PATTERN)
        } else {
            self.stamp_of(address, generation, KIND_OWN)
        }
    }

    fn stamp_of(&self, address: u64, generation: u32, kind: u32) -> [u8; STAMP_BYTES] {
        stamp_of(self.run, address, generation, kind)
    }

    /// Verifies only the stamp of a block that was read from `address`, which is cheap, and returns
    /// the generation of the block. `wanted` contains the generations that the block may have;
    /// `None` allows any generation.
    ///
    /// # Errors
    /// Fault that was found in the block.
    pub fn check_stamp(
        &self,
        block: &[u8],
        address: u64,
        wanted: Option<RangeInclusive<u32>>,
    ) -> Result<u32, Mismatch> {
        let Some(stamp) = block.first_chunk::<STAMP_BYTES>() else { return Err(Mismatch::Damaged) };
        let found = Stamp::of(stamp);
        let Stamp { generation, kind, .. } = found;
        let wanted = match wanted {
            Some(wanted) => wanted,
            // The address of a duplicate cannot be computed from its pattern, so accept the stamp
            // of any valid pattern.
            None if kind == KIND_PATTERN && self.is_pattern(stamp) => return Ok(generation),
            None => generation..=generation,
        };
        let is_it = |generation: &u32| self.stamp(address, *generation) == *stamp;
        if let Some(generation) = wanted.rev().find(is_it) {
            return Ok(generation);
        }
        if block.iter().all(|byte| *byte == 0) {
            return Err(Mismatch::Zeros);
        }
        if found.run != self.run && found.is_whole(stamp) {
            return Err(Mismatch::OtherRun);
        }
        if !found.is_ours || self.stamp(found.address, generation) != *stamp {
            return Err(Mismatch::Damaged);
        }
        Err(if found.address == address {
            Mismatch::OtherGeneration(generation)
        } else {
            Mismatch::Misplaced(found.address)
        })
    }

    /// True if the stamp belongs to a valid pattern.
    fn is_pattern(&self, stamp: &[u8; STAMP_BYTES]) -> bool {
        let address = Stamp::of(stamp).address;
        address / self.unit_bytes < self.patterns
            && self.stamp_of(address, 0, KIND_PATTERN) == *stamp
    }

    /// Verifies every byte of a block. `scratch` is a buffer for one block.
    ///
    /// # Errors
    /// Fault that was found in the block.
    pub fn check(
        &self,
        block: &[u8],
        address: u64,
        wanted: Option<RangeInclusive<u32>>,
        scratch: &mut [u8],
    ) -> Result<(), Mismatch> {
        self.check_stamp(block, address, wanted)?;
        let stamp = block.first_chunk::<STAMP_BYTES>().expect("it was looked at");
        self.fill_from(scratch, stamp);
        if block == scratch { Ok(()) } else { Err(Mismatch::Damaged) }
    }
}

/// Fields of a stamp that was decoded but not verified.
struct Stamp {
    /// True if the stamp begins with the magic number.
    is_ours: bool,
    run: RunId,
    address: u64,
    generation: u32,
    kind: u32,
}

impl Stamp {
    fn of(stamp: &[u8; STAMP_BYTES]) -> Self {
        let [magic, address, rest] = unmasked(stamp);
        let (generation, upper) = (rest as u32, (rest >> 32) as u32);
        let (kind, run) = (upper & ((1 << KIND_BITS) - 1), RunId(upper >> KIND_BITS));
        Self { is_ours: magic == MAGIC, run, address, generation, kind }
    }

    /// True if the stamp is undamaged: identical to a stamp that is computed from its fields.
    fn is_whole(&self, stamp: &[u8; STAMP_BYTES]) -> bool {
        self.is_ours && stamp_of(self.run, self.address, self.generation, self.kind) == *stamp
    }
}

fn stamp_of(run: RunId, address: u64, generation: u32, kind: u32) -> [u8; STAMP_BYTES] {
    assert!(run.0 >> RunId::BITS == 0 && kind >> KIND_BITS == 0, "they share a word");
    let upper = run.0 << KIND_BITS | kind;
    let key = mix(mix(u64::from(upper)) ^ mix(address) ^ u64::from(generation));
    let plain = [MAGIC, address, u64::from(generation) | u64::from(upper) << 32];
    let mut stamp = [0; STAMP_BYTES];
    for (out, word) in stamp.chunks_mut(8).zip(masked(plain, key).into_iter().chain([key])) {
        out.copy_from_slice(&word.to_le_bytes());
    }
    stamp
}

/// Determines what kind of data is in a range of a target. The range starts at a block boundary.
pub fn what_is_in(bytes: &[u8]) -> Holds {
    let mut found = Holds::Nothing;
    let mut ours_until = 0;
    for (sector, at) in bytes.chunks(512).zip((0..).step_by(512)) {
        let stamp = sector.first_chunk::<STAMP_BYTES>();
        if stamp.is_some_and(|stamp| Stamp::of(stamp).is_ours) {
            found = Holds::Ours;
            // Only the first sector of a stamped block has a stamp.
            ours_until = at + GUARD_BLOCK_BYTES;
        } else if at >= ours_until && sector.iter().any(|byte| *byte != 0) {
            return Holds::Data;
        }
    }
    found
}

/// Number of random bytes in a block. The other bytes are copies, so that the block compresses by
/// `ratio`.
fn random_bytes(block: usize, ratio: f64) -> usize {
    if ratio <= 1.0 {
        return block;
    }
    let stored = block as f64 / ratio;
    // Subtract half of the overhead that lz4 has for the match and for the length of the random
    // bytes. zstd has almost no such overhead, so with half of it both compressors come close to
    // `ratio`.
    let overhead = f64::midpoint(MATCH_BYTES as f64, block as f64 / MATCH_STEP as f64);
    (whole((stored - overhead).round()) as usize).clamp(STAMP_BYTES, block)
}

/// Rounds a number down to an integer; negative numbers become 0.
#[expect(clippy::cast_sign_loss, reason = "what is negative becomes 0, which is meant")]
pub(crate) fn whole(number: f64) -> u64 {
    number as u64
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
}

/// XORs three words of a stamp with a mask that is derived from the key.
fn masked(words: [u64; 3], key: u64) -> [u64; 3] {
    let [a, b, c] = words;
    [a ^ mix(key ^ 1), b ^ mix(key ^ 2), c ^ mix(key ^ 3)]
}

/// Decodes the first three words of a stamp.
fn unmasked(stamp: &[u8; STAMP_BYTES]) -> [u64; 3] {
    masked([word(stamp, 0), word(stamp, 8), word(stamp, 16)], word(stamp, 24))
}

/// Mixes the bits of a number (the finaliser of SplitMix64, Steele and others 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
