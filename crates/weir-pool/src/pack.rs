//! Compressing blocks for write-out and decompressing what was read: the contexts, and what is not
//! even tried.
//!
//! Not here: the compressors (weir-codec), the property of a volume (weir-dataset), placing
//! (write_out), verifying (read).
//!
//! Invariants:
//! - what is stored compressed is smaller than the block by at least `SAVING_BYTES_MIN`;
//! - one history is of one dataset and its present setting: a miss of lz4 says enough about zstd.

use parking_lot::Mutex;
use weir_base::BLOCK_BYTES;
use weir_codec::compress::{
    MalformedError, ZstdPacker, ZstdUnpacker, lz4, stored_bytes_max, unlz4,
};
use weir_format::layout::PACK_BYTES;
use weir_format::{Codec, Compression};

/// After this many blocks in a row that did not compress, only one in [`TRY_ONE_IN`] is tried
/// (design 6): incompressible data then costs next to nothing.
const MISSES_BEFORE_SPARING: u32 = 32;
const TRY_ONE_IN: u32 = 16;

/// What compression did lately for one dataset.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompressHistory {
    /// Blocks in a row that were tried in vain or not at all.
    misses: u32,
}

impl CompressHistory {
    fn worth_trying(self) -> bool {
        self.misses < MISSES_BEFORE_SPARING || self.misses.is_multiple_of(TRY_ONE_IN)
    }

    fn note(&mut self, hit: bool) {
        // Around, to a number that is tried: a volume may see more misses than there are numbers.
        let next = self.misses.checked_add(1).unwrap_or(MISSES_BEFORE_SPARING);
        self.misses = if hit { 0 } else { next };
    }
}

/// Compresses the blocks of one write-out, one after the other.
pub(crate) struct Packer {
    scratch: Vec<u8>,
    zstd: Option<ZstdPacker>,
}

impl Default for Packer {
    fn default() -> Self {
        let scratch = vec![0; stored_bytes_max(BLOCK_BYTES).next_multiple_of(PACK_BYTES)];
        Self { scratch, zstd: None }
    }
}

impl Packer {
    /// The stored form of a block, in whole units, and what made it.
    pub(crate) fn pack<'s>(
        &'s mut self,
        block: &'s [u8; BLOCK_BYTES],
        compression: Compression,
        history: &mut CompressHistory,
    ) -> (&'s [u8], Codec) {
        let codec = match compression {
            // How a volume that is set to off compresses is not known.
            Compression::Off => return (block, Codec::Raw),
            Compression::Lz4 | Compression::Auto => Codec::Lz4,
            Compression::Zstd(_) => Codec::Zstd,
        };
        let packed = history.worth_trying().then(|| self.try_pack(block, compression)).flatten();
        history.note(packed.is_some());
        let Some(len) = packed else { return (block, Codec::Raw) };
        let padded = len.next_multiple_of(PACK_BYTES);
        self.scratch[len..padded].fill(0);
        (&self.scratch[..padded], codec)
    }

    fn try_pack(&mut self, block: &[u8], compression: Compression) -> Option<usize> {
        match compression {
            Compression::Off => None,
            Compression::Lz4 | Compression::Auto => lz4(block, &mut self.scratch),
            Compression::Zstd(level) => {
                let zstd = self.zstd.get_or_insert_with(|| ZstdPacker::new(level));
                zstd.pack(level, block, &mut self.scratch)
            }
        }
    }
}

/// Decompresses blocks on as many threads as read at the same time.
#[derive(Default)]
pub(crate) struct Unpackers {
    /// Contexts that nobody uses now; never more than were used at the same time.
    idle: Mutex<Vec<ZstdUnpacker>>,
}

impl Unpackers {
    /// Fills `block` from its verified stored form.
    pub(crate) fn unpack(
        &self,
        codec: Codec,
        stored: &[u8],
        block: &mut [u8; BLOCK_BYTES],
    ) -> Result<(), MalformedError> {
        match codec {
            Codec::Raw => {
                *block = *stored.first_chunk().ok_or(MalformedError)?;
                Ok(())
            }
            Codec::Lz4 => unlz4(stored, block),
            Codec::Zstd => {
                let idle = self.idle.lock().pop();
                let mut context = idle.unwrap_or_default();
                let done = context.unpack(stored, block);
                self.idle.lock().push(context);
                done
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise() -> [u8; BLOCK_BYTES] {
        let mut state = 1_u64;
        std::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
    }

    #[test]
    fn every_setting_comes_back_through_one_reader() {
        let (mut packer, readers) = (Packer::default(), Unpackers::default());
        let mut history = CompressHistory::default();
        let text: [u8; BLOCK_BYTES] = std::array::from_fn(|at| (at * at % 251 / 16) as u8);
        let off = Compression::Off;
        for (block, shrinks) in [(text, true), (noise(), false), (text, true)] {
            for compression in Compression::all() {
                let (stored, codec) = packer.pack(&block, compression, &mut history);
                assert_eq!(codec != Codec::Raw, shrinks && compression != off, "{compression:?}");
                assert!(stored.len().is_multiple_of(PACK_BYTES));
                assert!(codec == Codec::Raw || stored.len() <= BLOCK_BYTES - 512);
                let mut back = [0xee; BLOCK_BYTES];
                readers.unpack(codec, stored, &mut back).expect("what was packed");
                assert_eq!(back, block, "{compression:?}");
            }
        }
        assert_eq!(readers.idle.lock().len(), 1, "one reader at a time needs one context");
    }

    #[test]
    fn what_never_compresses_is_hardly_tried_and_off_teaches_nothing() {
        let mut history = CompressHistory::default();
        let mut packer = Packer::default();
        for _ in 0..1000 {
            packer.pack(&noise(), Compression::Off, &mut history);
        }
        assert_eq!(history.misses, 0);
        let mut tried = 0;
        for _ in 0..320 {
            tried += u32::from(history.worth_trying());
            packer.pack(&noise(), Compression::Lz4, &mut history);
        }
        assert_eq!(tried, MISSES_BEFORE_SPARING + (320 - MISSES_BEFORE_SPARING) / TRY_ONE_IN);
        history.misses = u32::MAX;
        history.note(false);
        assert!(history.worth_trying());
    }
}
