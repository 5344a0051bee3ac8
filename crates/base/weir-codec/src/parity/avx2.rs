//! Parity kernels for AVX2: an instruction processes 32 bytes, a step of the loop 64 bytes.
//!
//! The parent module chooses the kernel and checks the lengths of the strips.
//!
//! Invariants: a kernel asserts that the machine has AVX2; its results equal the results of the
//! portable kernel.

#![expect(unsafe_code, reason = "vector instructions and their unaligned loads")]
#![expect(clippy::cast_ptr_alignment, reason = "only for loads and stores of any alignment")]

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi8, _mm256_and_si256,
    _mm256_broadcastsi128_si256, _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256,
    _mm256_xor_si256,
};

use super::field::{REDUCTION, half_products};

const LANE_BYTES: usize = 32;
const LANES: usize = 2;
const STEP_BYTES: usize = LANE_BYTES * LANES;

fn assert_avx2() {
    assert!(std::arch::is_x86_feature_detected!("avx2"), "chosen only where AVX2 is");
}

/// Computes the parity strips by Horner's rule, from the last data strip to the first.
pub(super) fn encode<const P: usize>(data: &[&[u8]], parity: &mut [&mut [u8]; P]) {
    assert_avx2();
    // SAFETY: the machine has AVX2.
    unsafe { encode_avx2(data, parity) }
}

/// Computes `sum += factor * source` for all bytes of a strip.
pub(super) fn multiply_add(sum: &mut [u8], source: &[u8], factor: u8) {
    assert_avx2();
    // SAFETY: the machine has AVX2.
    unsafe { multiply_add_avx2(sum, source, factor) }
}

#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; LANE_BYTES]) -> __m256i {
    // SAFETY: 32 readable bytes; the load accepts any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast::<__m256i>()) }
}

#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; LANE_BYTES], value: __m256i) {
    // SAFETY: 32 writable bytes; the store accepts any alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast::<__m256i>(), value) }
}

/// Doubles each byte in the field: shifts it left by one bit, and adds [`REDUCTION`] if its high
/// bit was set (a negative byte).
#[target_feature(enable = "avx2")]
fn double(value: __m256i) -> __m256i {
    let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), value);
    let fold = _mm256_and_si256(carries, _mm256_set1_epi8(REDUCTION.cast_signed()));
    _mm256_xor_si256(_mm256_add_epi8(value, value), fold)
}

#[target_feature(enable = "avx2")]
fn encode_avx2<const P: usize>(data: &[&[u8]], parity: &mut [&mut [u8]; P]) {
    for at in (0..data[0].len()).step_by(STEP_BYTES) {
        let mut sums = [[_mm256_setzero_si256(); LANES]; P];
        for strip in data.iter().rev() {
            let (lanes, _) = strip[at..at + STEP_BYTES].as_chunks::<LANE_BYTES>();
            for (lane, bytes) in lanes.iter().enumerate() {
                let value = load(bytes);
                for (row, sum) in sums.iter_mut().enumerate() {
                    // Use a loop here, because a closure would not inherit the target feature.
                    for _ in 0..row {
                        sum[lane] = double(sum[lane]);
                    }
                    sum[lane] = _mm256_xor_si256(sum[lane], value);
                }
            }
        }
        for (strip, sum) in parity.iter_mut().zip(sums) {
            let (lanes, _) = strip[at..at + STEP_BYTES].as_chunks_mut::<LANE_BYTES>();
            for (bytes, value) in lanes.iter_mut().zip(sum) {
                store(bytes, value);
            }
        }
    }
}

#[target_feature(enable = "avx2")]
fn multiply_add_avx2(sum: &mut [u8], source: &[u8], factor: u8) {
    let (sums, _) = sum.as_chunks_mut::<LANE_BYTES>();
    let (sources, _) = source.as_chunks::<LANE_BYTES>();
    if factor == 1 {
        for (sum, source) in sums.iter_mut().zip(sources) {
            let added = _mm256_xor_si256(load(sum), load(source));
            store(sum, added);
        }
        return;
    }
    let (low, high) = half_products(factor);
    let (low, high) = (both_halves(&low), both_halves(&high));
    let mask = _mm256_set1_epi8(15);
    for (sum, source) in sums.iter_mut().zip(sources) {
        let value = load(source);
        let of_low = _mm256_shuffle_epi8(low, _mm256_and_si256(value, mask));
        let shifted = _mm256_and_si256(_mm256_srli_epi64::<4>(value), mask);
        let product = _mm256_xor_si256(of_low, _mm256_shuffle_epi8(high, shifted));
        let added = _mm256_xor_si256(load(sum), product);
        store(sum, added);
    }
}

/// Loads a table of 16 bytes into both halves of a register, for the shuffle instruction.
#[target_feature(enable = "avx2")]
fn both_halves(table: &[u8; 16]) -> __m256i {
    // SAFETY: 16 readable bytes; the load accepts any alignment.
    let table = unsafe { _mm_loadu_si128(table.as_ptr().cast::<__m128i>()) };
    _mm256_broadcastsi128_si256(table)
}
