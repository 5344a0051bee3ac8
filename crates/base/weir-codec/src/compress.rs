//! LZ4 and zstd compression of single blocks, and LZ4 compression of log batches. The compressors
//! abandon incompressible data early, so that it costs little time.
//!
//! weir-pool decides whether to compress a block at all, by the volume's property and history.
//!
//! Invariants:
//! - a compressed block is kept only if it saves at least an eighth (`SAVING_SHARE`); otherwise
//!   the block is stored raw;
//! - the stored form is a `u16` little-endian length, followed by the LZ4 block (LZ4 Block Format
//!   Description) of this length. The length is a `u32` if the stored form can exceed 64 KiB. A
//!   length is necessary because LZ4 blocks have no end mark, and stored sizes are rounded up to 64
//!   bytes.

mod zstd;

use lz4_flex::block;

pub use zstd::{ZstdPacker, ZstdUnpacker};

/// Compression must save the block's size divided by this number: 12.5 %. A smaller saving does not
/// justify the decompression on each read.
const SAVING_SHARE: usize = 8;

/// Maximum stored length of a block with `raw_bytes` bytes, if it is stored compressed.
const fn keep_max(raw_bytes: usize) -> usize {
    raw_bytes - raw_bytes / SAVING_SHARE
}

/// Size of the length field before the compressed bytes: 2 bytes, or 4 bytes if the stored form may
/// be too long for a 2-byte length.
const fn len_bytes(raw_bytes: usize) -> usize {
    if keep_max(raw_bytes) <= u16::MAX as usize { 2 } else { 4 }
}

/// Writes the length of the compressed bytes into the length field.
fn put_len(place: &mut [u8], packed: usize) {
    let packed = (packed as u32).to_le_bytes();
    place.iter_mut().zip(packed).for_each(|(to, from)| *to = from);
}

/// Returns the compressed bytes in the stored form of a block with `raw_bytes` bytes.
fn packed_of(stored: &[u8], raw_bytes: usize) -> Result<&[u8], MalformedError> {
    let (place, body) = stored.split_at_checked(len_bytes(raw_bytes)).ok_or(MalformedError)?;
    let len = place.iter().rev().fold(0, |len, byte| len << 8 | usize::from(*byte));
    body.get(..len).ok_or(MalformedError)
}
/// Maximum compression ratio of LZ4: one byte of an LZ4 block extends a match by at most 255 bytes.
const LZ4_RATIO_MAX: usize = 255;

/// The stored bytes are not a valid compressed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("compressed block is malformed")]
pub struct MalformedError;

/// Compresses `raw`, at most 1 MiB, into `stored`. Returns the stored length, or `None` if the
/// compression would save less than an eighth.
///
/// `stored` is scratch space of at least [`stored_bytes_max`] bytes.
pub fn lz4(raw: &[u8], stored: &mut [u8]) -> Option<usize> {
    let (len, body) = stored.split_at_mut(len_bytes(raw.len()));
    let packed = block::compress_into(raw, body).ok()?;
    let stored = len.len() + packed;
    if stored > keep_max(raw.len()) {
        return None;
    }
    put_len(len, packed);
    Some(stored)
}

/// Size of the scratch space that [`lz4`] needs for `raw_bytes` bytes of input.
pub const fn stored_bytes_max(raw_bytes: usize) -> usize {
    len_bytes(raw_bytes) + block::get_maximum_output_size(raw_bytes)
}

/// Decompresses a stored block. The decompressed content must fill `raw` exactly.
///
/// # Errors
/// The bytes are not the output of [`lz4`] for a block of `raw.len()` bytes. After the error, the
/// content of `raw` is undefined.
pub fn unlz4(stored: &[u8], raw: &mut [u8]) -> Result<(), MalformedError> {
    let packed = packed_of(stored, raw.len())?;
    match block::decompress_into(packed, raw) {
        Ok(len) if len == raw.len() => Ok(()),
        _ => Err(MalformedError),
    }
}

/// Length of the part of a long input that is compressed as a test.
const PROBE_BYTES: usize = 16 << 10;

/// Compresses `raw`, of any length, into one LZ4 block of at most `packed_max` bytes. Returns
/// `None` if the LZ4 block is longer, or if the ratio of the first 16 KiB predicts that it will be
/// longer.
pub fn lz4_pack(raw: &[u8], packed_max: usize) -> Option<Vec<u8>> {
    if raw.len() > PROBE_BYTES {
        let probe = block::compress(&raw[..PROBE_BYTES]);
        // Give up if the compression ratio of the first 16 KiB is below the ratio that the whole
        // input needs.
        if probe.len() as u64 * raw.len() as u64 > packed_max as u64 * PROBE_BYTES as u64 {
            return None;
        }
    }
    let packed = block::compress(raw);
    (packed.len() <= packed_max).then_some(packed)
}

/// Decompresses the output of [`lz4_pack`] for `raw_bytes` bytes.
///
/// # Errors
/// The bytes are not the output of [`lz4_pack`], or an LZ4 block of this size cannot have this
/// decompressed length. The second check limits the allocation by the size of the input.
pub fn lz4_unpack(packed: &[u8], raw_bytes: usize) -> Result<Vec<u8>, MalformedError> {
    if raw_bytes > packed.len().saturating_mul(LZ4_RATIO_MAX) {
        return Err(MalformedError);
    }
    let raw = block::decompress(packed, raw_bytes).map_err(|_| MalformedError)?;
    if raw.len() == raw_bytes { Ok(raw) } else { Err(MalformedError) }
}

/// True if every byte is zero. Compares 64 bytes at a time and stops at the first byte that is not
/// zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use weir_base::ZstdLevel;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_compressed_and_noise_stays_raw() {
        let mut stored = vec![0; stored_bytes_max(4096)];
        let text: Vec<u8> = b"weir pools the river ".iter().copied().cycle().take(4096).collect();
        let len = lz4(&text, &mut stored).expect("repetitive text compresses");
        assert!(len < 200, "{len}");
        let mut back = vec![0; 4096];
        unlz4(&stored[..len], &mut back).unwrap();
        assert_eq!(back, text);

        let mut state = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(4096)
        .collect();
        assert_eq!(lz4(&noise, &mut stored), None);
    }

    #[test]
    fn records_of_every_size_round_trip() {
        for shift in 0..=8 {
            let raw_bytes = 4096 << shift;
            let raw: Vec<u8> = (0..raw_bytes as u64).map(|at| (at * at % 251 / 3) as u8).collect();
            let mut stored = vec![0; stored_bytes_max(raw_bytes)];
            let mut back = vec![0; raw_bytes];
            let len = lz4(&raw, &mut stored).expect("it repeats");
            assert!(len <= raw_bytes / 8 * 7);
            unlz4(&stored[..len.next_multiple_of(64)], &mut back).expect("what was packed");
            assert_eq!(back, raw);
            let mut zstd = ZstdPacker::new(ZstdLevel::DEFAULT);
            let len = zstd.pack(ZstdLevel::DEFAULT, &raw, &mut stored).expect("it repeats");
            ZstdUnpacker::default().unpack(&stored[..len], &mut back).expect("what was packed");
            assert_eq!(back, raw);
        }
    }

    #[test]
    fn zero_test_checks_every_byte() {
        let mut block = [0; 200];
        assert!(is_zero(&block));
        for at in [0, 63, 64, 199] {
            block[at] = 1;
            assert!(!is_zero(&block), "{at}");
            block[at] = 0;
        }
    }

    #[test]
    fn packing_fails_above_the_wanted_size() {
        let text: Vec<u8> = b"weir pools the river ".iter().copied().cycle().take(99_999).collect();
        let packed = lz4_pack(&text, 50_000).expect("repetitive text compresses");
        assert!(packed.len() < 2000, "{}", packed.len());
        assert_eq!(lz4_unpack(&packed, text.len()), Ok(text.clone()));
        assert_eq!(lz4_unpack(&packed, text.len() - 1), Err(MalformedError));
        assert_eq!(lz4_unpack(&packed, text.len() + 1), Err(MalformedError));
        assert_eq!(lz4_unpack(&packed, usize::MAX), Err(MalformedError), "and nothing allocated");
        assert_eq!(lz4_pack(&text, packed.len() - 1), None);
    }

    proptest! {
        #[test]
        fn hostile_packs_never_panic(
            packed in proptest::collection::vec(any::<u8>(), 0..300),
            raw_bytes in 0_usize..100_000,
        ) {
            if let Ok(raw) = lz4_unpack(&packed, raw_bytes) {
                prop_assert_eq!(raw.len(), raw_bytes);
            }
        }

        #[test]
        fn hostile_bytes_never_panic(stored in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut raw = vec![0; 4096];
            if unlz4(&stored, &mut raw).is_ok() {
                prop_assert!(stored.len() > len_bytes(raw.len()));
            }
        }
    }
}
