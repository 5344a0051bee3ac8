//! Zstandard compression of single blocks. The contexts of the zstd library are reused.
//!
//! weir-pool decides whether to compress a block at all, by the volume's property and history.
//!
//! Invariants:
//! - a compressed block is kept only if it saves at least an eighth; other blocks are stored raw;
//! - the stored form is a `u16` little-endian length, followed by the zstd frame (RFC 8878) of this
//!   length. The length is a `u32` if the stored form can exceed 64 KiB. The length is necessary
//!   because stored sizes are rounded up to 64 bytes, and zstd decoders reject zeros after the
//!   frame;
//! - only compression uses the level: one decompressor reads the output of all levels;
//! - decompression never writes beyond the block to be filled, whatever size the frame contains.

use std::fmt;

use ::zstd::bulk::{Compressor, Decompressor};
use weir_base::ZstdLevel;

use super::{MalformedError, keep_max, len_bytes, packed_of, put_len};

/// Compressor for blocks. It keeps the tables of the level with which it last compressed a block.
pub struct ZstdPacker {
    context: Compressor<'static>,
    level: ZstdLevel,
}

impl ZstdPacker {
    /// Creates a compressor for this level.
    pub fn new(level: ZstdLevel) -> Self {
        let context = Compressor::new(i32::from(level.get())).expect(NO_MEMORY);
        Self { context, level }
    }

    /// Compresses `raw`, at most 1 MiB, into `stored`. Returns the stored length, or `None` if the
    /// compression would save less than an eighth; it stops as soon as this is certain.
    ///
    /// `stored` is scratch space of at least `raw.len()` bytes.
    pub fn pack(&mut self, level: ZstdLevel, raw: &[u8], stored: &mut [u8]) -> Option<usize> {
        self.set_level(level);
        let stored = stored.get_mut(..keep_max(raw.len()))?;
        let (len, frame) = stored.split_at_mut_checked(len_bytes(raw.len()))?;
        let packed = self.context.compress_to_buffer(raw, frame).ok()?;
        put_len(len, packed);
        Some(len.len() + packed)
    }

    fn set_level(&mut self, level: ZstdLevel) {
        if self.level != level {
            // A context that abandoned a block does not accept another level.
            *self = Self::new(level);
        }
    }
}

impl fmt::Debug for ZstdPacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdPacker").field("level", &self.level).finish_non_exhaustive()
    }
}

/// Decompressor for blocks that were compressed at any level.
pub struct ZstdUnpacker(Decompressor<'static>);

impl Default for ZstdUnpacker {
    fn default() -> Self {
        Self(Decompressor::new().expect(NO_MEMORY))
    }
}

impl ZstdUnpacker {
    /// Decompresses a stored block. The decompressed content must fill `raw` exactly.
    ///
    /// # Errors
    /// The bytes are not the output of [`ZstdPacker::pack`] for a block of `raw.len()` bytes. After
    /// the error, the content of `raw` is undefined.
    pub fn unpack(&mut self, stored: &[u8], raw: &mut [u8]) -> Result<(), MalformedError> {
        let frame = packed_of(stored, raw.len())?;
        match self.0.decompress_to_buffer(frame, raw) {
            Ok(len) if len == raw.len() => Ok(()),
            _ => Err(MalformedError),
        }
    }
}

impl fmt::Debug for ZstdUnpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdUnpacker").finish_non_exhaustive()
    }
}

/// A context needs a few hundred KiB. If no memory is left for a context, the process ends, as
/// after any failed allocation.
const NO_MEMORY: &str = "memory for a zstd context";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns partly repetitive text, which is different for each `seed`.
    fn text(seed: u64) -> Vec<u8> {
        (0..4096_u64).map(|at| ((at * at + seed) % 251 / 16 + 97) as u8).collect()
    }

    fn noise() -> Vec<u8> {
        let mut state = 1_u64;
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(4096)
        .collect()
    }

    #[test]
    fn decompressor_reads_every_level_and_noise_stays_raw() {
        let mut packer = ZstdPacker::new(ZstdLevel::DEFAULT);
        let mut unpacker = ZstdUnpacker::default();
        let (mut stored, mut back) = (vec![0; 4096], vec![0; 4096]);
        for level in ZstdLevel::all().chain([ZstdLevel::MIN]) {
            let raw = text(u64::from(level.get()));
            let len = packer.pack(level, &raw, &mut stored).expect("text compresses");
            assert!(len < 3000, "{level:?} {len}");
            let padded = len.next_multiple_of(64);
            stored[len..padded].fill(0);
            unpacker.unpack(&stored[..padded], &mut back).unwrap();
            assert_eq!(back, raw, "{level:?}");
            assert_eq!(packer.pack(level, &noise(), &mut stored), None, "{level:?}");
        }
    }

    #[test]
    fn levels_are_1_to_19() {
        assert_eq!(ZstdLevel::new(0), None);
        assert_eq!(ZstdLevel::new(20), None);
        assert_eq!(ZstdLevel::all().count(), 19);
        assert_eq!(ZstdLevel::new(19), Some(ZstdLevel::MAX));
    }

    #[test]
    fn short_input_or_scratch_is_not_compressed() {
        let mut packer = ZstdPacker::new(ZstdLevel::MIN);
        assert_eq!(packer.pack(ZstdLevel::MIN, &[], &mut []), None);
        assert_eq!(packer.pack(ZstdLevel::MIN, &[0; 10], &mut [0; 10]), None);
        assert_eq!(packer.pack(ZstdLevel::MIN, &[0; 4096], &mut [0; 10]), None);
    }

    #[test]
    fn frame_with_another_size_than_the_block_is_refused() {
        let mut packer = ZstdPacker::new(ZstdLevel::MIN);
        let (mut stored, mut unpacker) = (vec![0; 8192], ZstdUnpacker::default());
        for raw_bytes in [4095, 4097, 8192] {
            let len = packer.pack(ZstdLevel::MIN, &vec![7; raw_bytes], &mut stored);
            let stored = &stored[..len.expect("one byte repeated compresses")];
            let mut guarded = vec![0xaa; 4096 + 64];
            assert_eq!(unpacker.unpack(stored, &mut guarded[..4096]), Err(MalformedError));
            assert_eq!(guarded[4096..], [0xaa; 64], "nothing is written behind the block");
        }
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(
            stored in proptest::collection::vec(any::<u8>(), 0..300),
            flips in proptest::collection::vec((2_usize..200, any::<u8>()), 1..4),
        ) {
            let (mut unpacker, mut raw) = (ZstdUnpacker::default(), vec![0; 4096]);
            prop_assert!(unpacker.unpack(&stored, &mut raw).is_err() || stored.len() > 2);
            // Random bytes are rarely a zstd frame, so the test also uses frames with a few wrong
            // bytes.
            let mut stored = vec![0; 4096];
            let len = ZstdPacker::new(ZstdLevel::MIN).pack(ZstdLevel::MIN, &text(1), &mut stored);
            let len = len.expect("text compresses");
            for (at, bits) in flips {
                stored[at % len] ^= bits;
            }
            // The block checksum detects such damage. The decompressor must remain usable after the
            // error.
            let answer = unpacker.unpack(&stored[..len], &mut raw);
            prop_assert_eq!(answer, unpacker.unpack(&stored[..len], &mut raw));
            let len = ZstdPacker::new(ZstdLevel::MIN).pack(ZstdLevel::MIN, &text(2), &mut stored);
            prop_assert_eq!(unpacker.unpack(&stored[..len.unwrap()], &mut raw), Ok(()));
            prop_assert_eq!(raw, text(2));
        }
    }
}
