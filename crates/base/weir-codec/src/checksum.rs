//! XXH3 checksums: 128 bits for blocks, labels and uberblocks, 64 bits for intent log batches.
//!
//! The callers store and verify the checksums.
//!
//! Invariant: the hash has no seed and never changes, because the checksums are part of the on-disk
//! format.

use std::hash::Hasher;

use twox_hash::{XxHash3_64, XxHash3_128};

/// XXH3-128 of stored bytes.
pub fn xxh3_128(bytes: &[u8]) -> u128 {
    XxHash3_128::oneshot(bytes)
}

/// XXH3-128 of the concatenation of `parts`.
pub fn xxh3_128_of(parts: &[&[u8]]) -> u128 {
    let mut hasher = XxHash3_128::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish_128()
}

/// XXH3-64 of the concatenation of `parts`.
pub fn xxh3_64(parts: &[&[u8]]) -> u64 {
    let mut hasher = XxHash3_64::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_match_the_published_test_vectors() {
        // Test vectors of xxHash 0.8 for the empty input.
        assert_eq!(xxh3_64(&[]), 0x2d06_8005_38d3_94c2);
        assert_eq!(xxh3_128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
    }

    #[test]
    fn flipped_bit_changes_both_checksums() {
        let mut block = vec![0x5a_u8; 4096];
        let (small, large) = (xxh3_64(&[&block]), xxh3_128(&block));
        block[2049] ^= 4;
        assert_ne!(small, xxh3_64(&[&block]));
        assert_ne!(large, xxh3_128(&block));
    }

    #[test]
    fn checksum_of_parts_equals_checksum_of_the_whole() {
        let block: Vec<u8> = (0..5000_u32).map(|at| (at % 251) as u8).collect();
        let (head, tail) = block.split_at(17);
        assert_eq!(xxh3_128_of(&[head, &[], tail]), xxh3_128(&block));
    }
}
