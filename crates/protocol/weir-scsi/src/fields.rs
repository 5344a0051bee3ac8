//! Big-endian fields of CDBs and parameter data.
//!
//! The callers interpret the values of the fields.
//!
//! Invariant: a field beyond the end of the data reads as 0. Callers for which a missing field
//! differs from 0 check the length first.

/// Reads one byte.
pub(crate) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

/// Returns true if the byte at `at` has at least one of the bits in `mask`.
pub(crate) fn bit(bytes: &[u8], at: usize, mask: u8) -> bool {
    byte(bytes, at) & mask != 0
}

/// Reads a two-byte field.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    field(bytes, at, 2) as u16
}

/// Reads a three-byte field.
pub(crate) fn be24(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at, 3) as u32
}

/// Reads a four-byte field.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at, 4) as u32
}

/// Reads an eight-byte field.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    field(bytes, at, 8)
}

fn field(bytes: &[u8], at: usize, len: usize) -> u64 {
    let here = bytes.get(at..at + len).unwrap_or_default();
    here.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// Overwrites bytes at an offset. Changes nothing if the value would extend beyond the end of
/// `bytes`.
pub(crate) fn set(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(here) = bytes.get_mut(at..at + value.len()) {
        here.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_big_endian_and_absent_ones_are_zero() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(be16(&bytes, 1), 0x0203);
        assert_eq!(be24(&bytes, 0), 0x01_0203);
        assert_eq!(be32(&bytes, 5), 0x0607_0809);
        assert_eq!(be64(&bytes, 1), 0x0203_0405_0607_0809);
        assert_eq!((be64(&bytes, 2), be16(&bytes, 8), byte(&bytes, 9)), (0, 0, 0));
    }
}
