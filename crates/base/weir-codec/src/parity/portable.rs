//! Parity kernels for any machine: eight bytes at a time in a 64-bit word.
//!
//! The parent module chooses the kernel and checks the lengths of the strips.
//!
//! Invariant: the results equal the results of every other kernel.

use super::field::{REDUCTION, half_products};

const WORD_BYTES: usize = 8;
const ONES: u64 = 0x0101_0101_0101_0101;

/// Doubles each of the eight bytes of a word in the field.
fn double(word: u64) -> u64 {
    let carries = (word >> 7) & ONES;
    ((word & !(ONES << 7)) << 1) ^ (carries * u64::from(REDUCTION))
}

/// Computes the parity strips by Horner's rule, from the last data strip to the first.
pub(super) fn encode<const P: usize>(data: &[&[u8]], parity: &mut [&mut [u8]; P]) {
    for at in (0..data[0].len()).step_by(WORD_BYTES) {
        let mut sums = [0_u64; P];
        for strip in data.iter().rev() {
            let word = strip[at..].first_chunk().expect("strips are whole words");
            let word = u64::from_le_bytes(*word);
            for (row, sum) in sums.iter_mut().enumerate() {
                *sum = (0..row).fold(*sum, |sum, _| double(sum)) ^ word;
            }
        }
        for (strip, sum) in parity.iter_mut().zip(sums) {
            strip[at..at + WORD_BYTES].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Computes `sum += factor * source` for all bytes of a strip.
pub(super) fn multiply_add(sum: &mut [u8], source: &[u8], factor: u8) {
    if factor == 1 {
        sum.iter_mut().zip(source).for_each(|(sum, byte)| *sum ^= byte);
        return;
    }
    let (low, high) = half_products(factor);
    for (sum, byte) in sum.iter_mut().zip(source) {
        *sum ^= low[usize::from(byte & 15)] ^ high[usize::from(byte >> 4)];
    }
}
