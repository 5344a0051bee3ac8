//! Mutates inputs: bits, bytes, integers, and pieces of other inputs.
//!
//! `search` chooses the input to mutate.
//!
//! Invariants: the random generator alone determines the result; no result exceeds the length
//! limit.

use std::ops::Range;

use fastrand::Rng;

/// Boundary values of a byte, at which the behaviour of parsers changes.
const BYTES: [u8; 5] = [0, 1, 0x7f, 0x80, 0xff];

/// Maximum number of mutations of one input.
const STEPS_MAX: usize = 6;

/// Maximum number of bytes that one mutation inserts, deletes or duplicates. A splice may replace
/// more bytes: the whole tail.
const PIECE_BYTES_MAX: usize = 64;

/// Mutates `input` a few times; spliced pieces come from `other`.
pub(crate) fn mutate(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8], len_max: usize) {
    // Draw all step counts equally often, because some bugs need small changes and some need large
    // ones.
    for _ in 0..rng.usize(1..=STEPS_MAX) {
        step(rng, input, other);
        input.truncate(len_max);
    }
}

fn step(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    if input.is_empty() {
        return insert(rng, input);
    }
    let at = rng.usize(..input.len());
    match rng.u8(..10) {
        0 => input[at] ^= 1 << rng.u8(..8),
        1 => input[at] = BYTES[rng.usize(..BYTES.len())],
        2 => input[at] = rng.u8(..),
        3 | 4 => set_integer(rng, input, at),
        5 => insert(rng, input),
        6 => drop(input.drain(piece(rng, input.len()))),
        7 => {
            let copied = input[piece(rng, input.len())].to_vec();
            input.splice(at..at, copied);
        }
        8 => splice(rng, input, other),
        _ => input.truncate(at),
    }
}

/// Sets an integer of 2, 4 or 8 bytes in either byte order to a boundary value.
fn set_integer(rng: &mut Rng, input: &mut [u8], at: usize) {
    let width = [2, 4, 8][rng.usize(..3)];
    let len = input.len() as u64;
    let Some(place) = input.get_mut(at..at + width) else { return };
    let is_big_endian = rng.bool();
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(place);
    if is_big_endian {
        bytes[..width].reverse();
    }
    let old = u64::from_le_bytes(bytes);
    let bits = width as u32 * 8;
    let near = rng.u64(..17).wrapping_sub(8);
    let value = match rng.u8(..7) {
        0 => 0,
        1 => u64::MAX,
        // The largest signed value, then the bits of the smallest signed value.
        2 => (1 << (bits - 1)) - 1,
        3 => 1 << (bits - 1),
        // A power of two, such as most limits and block sizes, or a neighbour of it.
        4 => (1_u64 << rng.u32(..bits)).wrapping_add(rng.u64(..3)).wrapping_sub(1),
        5 => old.wrapping_add(near),
        _ => len.wrapping_add(near),
    };
    bytes = value.to_le_bytes();
    if is_big_endian {
        bytes[..width].reverse();
    }
    place.copy_from_slice(&bytes[..width]);
}

/// Inserts random bytes, or the same byte several times.
fn insert(rng: &mut Rng, input: &mut Vec<u8>) {
    let at = rng.usize(..=input.len());
    let len = rng.usize(1..=PIECE_BYTES_MAX);
    let mut bytes = vec![BYTES[rng.usize(..BYTES.len())]; len];
    if rng.bool() {
        rng.fill(&mut bytes);
    }
    input.splice(at..at, bytes);
}

/// Replaces a piece of the input, or its tail, with a piece of another input.
fn splice(rng: &mut Rng, input: &mut Vec<u8>, other: &[u8]) {
    if other.is_empty() {
        return;
    }
    if rng.bool() {
        // The two inputs often have the same format, so cut both at the same offset.
        let at = rng.usize(..input.len().min(other.len()));
        input.truncate(at);
        input.extend_from_slice(&other[at..]);
    } else {
        let source = piece(rng, other.len());
        let target = piece(rng, input.len());
        input.splice(target, other[source].iter().copied());
    }
}

/// Random range of at least one byte within `len` bytes; `len` is at least 1.
fn piece(rng: &mut Rng, len: usize) -> Range<usize> {
    let start = rng.usize(..len);
    start..start + rng.usize(1..=PIECE_BYTES_MAX.min(len - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mutation_obeys_the_limit_and_repeats_with_its_seed() {
        let other: Vec<u8> = (0..100).collect();
        let all = |seed| {
            let mut rng = Rng::with_seed(seed);
            let mut input = Vec::new();
            let inputs = (0..2000).map(|_| {
                mutate(&mut rng, &mut input, &other, 300);
                assert!(input.len() <= 300);
                input.clone()
            });
            inputs.collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }
}
