//! Compares all kernels with a simple reference implementation, and tests every loss of strips that
//! the parity covers.

use proptest::prelude::*;

use super::*;

fn kernels() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::Portable];
    if Kernel::best() != Kernel::Portable {
        kernels.push(Kernel::best());
    }
    kernels
}

/// Schoolbook product of two polynomials, reduced modulo 0x11d; independent of the tables of
/// `field`.
fn product(a: u8, b: u8) -> u8 {
    let mut wide =
        (0..8).filter(|bit| b >> bit & 1 == 1).fold(0, |sum, bit| sum ^ u16::from(a) << bit);
    for bit in (8..15).rev() {
        if wide >> bit & 1 == 1 {
            wide ^= 0x11d << (bit - 8);
        }
    }
    wide as u8
}

/// Parity strips, computed from the definition of the parity.
fn oracle(data: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
    (0..parity)
        .map(|row| {
            let generator = 1_u8 << row;
            let mut factor = 1;
            let mut sum = vec![0; data[0].len()];
            for strip in data {
                for (sum, byte) in sum.iter_mut().zip(strip) {
                    *sum ^= product(factor, *byte);
                }
                factor = product(factor, generator);
            }
            sum
        })
        .collect()
}

fn encoded(kernel: Kernel, data: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
    let mut out = vec![vec![0xee; data[0].len()]; parity];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut strips: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    encode_with(kernel, &data, &mut strips);
    out
}

fn noise(seed: u64, strips: usize, len: usize) -> Vec<Vec<u8>> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..strips).map(|_| (0..len).map(|_| next()).collect()).collect()
}

/// All sets of at most `max` elements of `0..count`, each set sorted.
fn losses(count: usize, max: usize) -> Vec<Vec<usize>> {
    let mut sets: Vec<Vec<usize>> = vec![Vec::new()];
    let mut last = sets.clone();
    for _ in 0..max {
        last = last
            .iter()
            .flat_map(|set| {
                let from = set.last().map_or(0, |strip| strip + 1);
                (from..count).map(move |strip| set.iter().copied().chain([strip]).collect())
            })
            .collect();
        sets.extend(last.iter().cloned());
    }
    sets
}

fn assert_recovered(kernel: Kernel, data: usize, all: &[Vec<u8>], lost: &[usize]) {
    let recovery = Recovery::new(data, all.len() - data, lost);
    let strips: Vec<Option<&[u8]>> =
        all.iter().enumerate().map(|(n, s)| (!lost.contains(&n)).then_some(&s[..])).collect();
    for strip in lost {
        let mut out = vec![0xee; all[0].len()];
        recovery.strip_with(kernel, *strip, &strips, &mut out);
        assert_eq!(out, all[*strip], "{kernel:?}: strip {strip} of {data} data, lost {lost:?}");
    }
}

#[test]
fn field_matches_the_published_one() {
    for a in 0..=255_u8 {
        for b in 0..=255_u8 {
            assert_eq!(field::multiply(a, b), product(a, b));
        }
        assert!(a == 0 || field::multiply(a, field::inverse(a)) == 1);
    }
    // Example of Anvin's paper: {02}^8 = {1d}.
    assert_eq!((field::power(2, 8), field::power(4, 4)), (0x1d, 0x1d));
}

#[test]
fn every_combination_of_losses_is_reconstructed() {
    for parity in 1..=PARITY_STRIPS_MAX {
        for data in [1, 2, 3, 4, 5, 8, 9] {
            let mut all = noise((data * 7 + parity) as u64, data, UNIT_BYTES);
            all.extend(oracle(&all, parity));
            for lost in losses(data + parity, parity) {
                for kernel in kernels() {
                    assert_recovered(kernel, data, &all, &lost);
                }
            }
        }
    }
}

#[test]
fn widest_rows_are_reconstructed() {
    let mut all = noise(5, DATA_STRIPS_MAX, UNIT_BYTES);
    all.extend(oracle(&all, 3));
    for lost in [[0, 127, 254], [0, 1, 2], [252, 253, 254], [0, 254, 255], [3, 256, 257]] {
        assert_recovered(Kernel::best(), DATA_STRIPS_MAX, &all, &lost);
    }
}

proptest! {
    #[test]
    fn kernels_agree_with_the_oracle(
        seed in any::<u64>(), data in 1_usize..20, parity in 1_usize..=3, units in 1_usize..6,
    ) {
        let data = noise(seed, data, units * UNIT_BYTES);
        let expected = oracle(&data, parity);
        for kernel in kernels() {
            prop_assert_eq!(&encoded(kernel, &data, parity), &expected);
        }
    }

    #[test]
    fn products_agree_with_the_oracle(seed in any::<u64>(), factor in any::<u8>()) {
        let strips = noise(seed, 2, 4 * UNIT_BYTES);
        let expected: Vec<u8> =
            strips[0].iter().zip(&strips[1]).map(|(a, b)| a ^ product(*b, factor)).collect();
        for kernel in kernels() {
            let mut sum = strips[0].clone();
            kernel.multiply_add(&mut sum, &strips[1], factor);
            prop_assert_eq!(&sum, &expected);
        }
    }

    #[test]
    fn random_losses_are_reconstructed(
        seed in any::<u64>(), data in 1_usize..24, parity in 1_usize..=3, pick in any::<[u16; 3]>(),
    ) {
        let mut all = noise(seed, data, 2 * UNIT_BYTES);
        all.extend(oracle(&all, parity));
        let mut lost: Vec<usize> =
            pick[..parity].iter().map(|n| usize::from(*n) % (data + parity)).collect();
        lost.sort_unstable();
        lost.dedup();
        for kernel in kernels() {
            assert_recovered(kernel, data, &all, &lost);
        }
    }
}
