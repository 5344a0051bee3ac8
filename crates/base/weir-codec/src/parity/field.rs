//! Arithmetic on single elements of GF(2^8) modulo 0x11d.
//!
//! The kernels in `portable` and `avx2` process whole strips.
//!
//! Invariant: zero has no logarithm and no inverse; every other element is a power of 2.

/// 2^n for n from 0 to 254. The table is stored twice, so that a sum of two logarithms needs no
/// modulo.
const POWERS: [u8; 510] = {
    let mut powers = [0; 510];
    let (mut value, mut n) = (1_u8, 0);
    while n < 255 {
        powers[n] = value;
        powers[n + 255] = value;
        value = double(value);
        n += 1;
    }
    powers
};

/// Table of logarithms: the n of each 2^n.
const LOGARITHMS: [u8; 256] = {
    let mut logarithms = [0; 256];
    let mut n = 0;
    while n < 255 {
        logarithms[POWERS[n] as usize] = n as u8;
        n += 1;
    }
    logarithms
};

/// Value that is added to a byte if doubling the byte carries out of the eighth bit.
pub(super) const REDUCTION: u8 = 0x1d;

const fn double(value: u8) -> u8 {
    (value << 1) ^ (REDUCTION * (value >> 7))
}

fn logarithm(value: u8) -> usize {
    assert!(value != 0, "zero has no logarithm");
    usize::from(LOGARITHMS[usize::from(value)])
}

/// Product a * b in the field.
pub(super) fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { POWERS[logarithm(a) + logarithm(b)] }
}

/// Inverse 1 / value in the field.
pub(super) fn inverse(value: u8) -> u8 {
    POWERS[255 - logarithm(value)]
}

/// Power base^exponent in the field; `base` must not be zero.
pub(super) fn power(base: u8, exponent: usize) -> u8 {
    POWERS[logarithm(base) * exponent % 255]
}

/// Products of a factor with every low half and every high half of a byte. The sum of two of these
/// products is the product of the factor with the whole byte.
pub(super) fn half_products(factor: u8) -> ([u8; 16], [u8; 16]) {
    let low = std::array::from_fn(|half| multiply(factor, half as u8));
    let high = std::array::from_fn(|half| multiply(factor, (half as u8) << 4));
    (low, high)
}
