//! Compression of records for write-out and decompression for reads: contexts, and skipping of
//! incompressible data.
//!
//! The compressors are in weir-codec, the volume property in weir-dataset, placement in
//! `write_out`, verification in `read`.
//!
//! Invariants:
//! - a record is stored compressed only if compression saves at least an eighth;
//! - a compression history belongs to one dataset, whatever its compression setting: data that lz4
//!   did not compress counts as incompressible for zstd too.

use parking_lot::Mutex;
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_codec::compress::{
    MalformedError, ZstdPacker, ZstdUnpacker, lz4, stored_bytes_max, unlz4,
};
use weir_format::layout::PACK_BYTES;
use weir_format::{Codec, Compression};

/// After this many consecutive blocks that did not compress, the packer tries to compress only one
/// block in [`TRY_ONE_IN`]. Incompressible data then costs almost no CPU time.
const MISSES_BEFORE_SPARING: u32 = 32;
const TRY_ONE_IN: u32 = 16;

/// Recent compression results of one dataset.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompressHistory {
    /// Consecutive blocks that did not compress or were skipped.
    misses: u32,
}

impl CompressHistory {
    fn worth_trying(self) -> bool {
        self.misses < MISSES_BEFORE_SPARING || self.misses.is_multiple_of(TRY_ONE_IN)
    }

    fn note(&mut self, hit: bool) {
        // On overflow, continue at a number of misses at which the packer tries to compress: a
        // volume may have more misses than a `u32` holds.
        let next = self.misses.checked_add(1).unwrap_or(MISSES_BEFORE_SPARING);
        self.misses = if hit { 0 } else { next };
    }
}

/// An uncompressed record to store.
#[derive(Clone, Copy)]
pub struct RawRecord<'a> {
    /// Blocks of the record, for the cache.
    blocks: &'a [Block],
    /// Content of the blocks, concatenated.
    bytes: &'a [u8],
    size: RecordSize,
}

impl<'a> RawRecord<'a> {
    /// A record of several blocks, with their content in `bytes`.
    pub fn new(size: RecordSize, blocks: &'a [Block], bytes: &'a [u8]) -> Self {
        assert_eq!(blocks.len() as u64, size.blocks(), "records are whole");
        assert_eq!(bytes.len(), size.bytes(), "records are whole");
        Self { blocks, bytes, size }
    }

    /// A record of one block.
    pub fn of(block: &'a Block) -> Self {
        Self::new(RecordSize::BLOCK, std::slice::from_ref(block), &block[..])
    }

    pub(crate) fn blocks(&self) -> &'a [Block] {
        self.blocks
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn size(&self) -> RecordSize {
        self.size
    }
}

/// Compresses the records of one write-out, one at a time.
pub(crate) struct Packer {
    /// Buffer for compressed bytes, as large as the largest record so far required.
    scratch: Vec<u8>,
    zstd: Option<ZstdPacker>,
}

impl Default for Packer {
    fn default() -> Self {
        Self { scratch: vec![0; scratch_bytes(BLOCK_BYTES)], zstd: None }
    }
}

fn scratch_bytes(raw_bytes: usize) -> usize {
    stored_bytes_max(raw_bytes).next_multiple_of(PACK_BYTES)
}

impl Packer {
    /// Returns the stored form of a record, in whole units, and its codec.
    pub(crate) fn pack<'s>(
        &'s mut self,
        raw: &'s [u8],
        compression: Compression,
        history: &mut CompressHistory,
    ) -> (&'s [u8], Codec) {
        let codec = match compression {
            // With compression off, the history records nothing about the data.
            Compression::Off => return (raw, Codec::Raw),
            Compression::Lz4 | Compression::Auto => Codec::Lz4,
            Compression::Zstd(_) => Codec::Zstd,
        };
        let packed = history.worth_trying().then(|| self.try_pack(raw, compression)).flatten();
        history.note(packed.is_some());
        let Some(len) = packed else { return (raw, Codec::Raw) };
        let padded = len.next_multiple_of(PACK_BYTES);
        self.scratch[len..padded].fill(0);
        (&self.scratch[..padded], codec)
    }

    fn try_pack(&mut self, raw: &[u8], compression: Compression) -> Option<usize> {
        if self.scratch.len() < scratch_bytes(raw.len()) {
            self.scratch.resize(scratch_bytes(raw.len()), 0);
        }
        match compression {
            Compression::Off => None,
            Compression::Lz4 | Compression::Auto => lz4(raw, &mut self.scratch),
            Compression::Zstd(level) => {
                let zstd = self.zstd.get_or_insert_with(|| ZstdPacker::new(level));
                zstd.pack(level, raw, &mut self.scratch)
            }
        }
    }
}

/// Decompresses records on any number of concurrent reader threads.
#[derive(Default)]
pub(crate) struct Unpackers {
    /// Idle decompression contexts; at most as many as were in use at the same time.
    idle: Mutex<Vec<ZstdUnpacker>>,
}

impl Unpackers {
    /// Decompresses a verified stored form into `raw`.
    pub(crate) fn unpack(
        &self,
        codec: Codec,
        stored: &[u8],
        raw: &mut [u8],
    ) -> Result<(), MalformedError> {
        match codec {
            Codec::Raw => {
                raw.copy_from_slice(stored.get(..raw.len()).ok_or(MalformedError)?);
                Ok(())
            }
            Codec::Lz4 => unlz4(stored, raw),
            Codec::Zstd => {
                let idle = self.idle.lock().pop();
                let mut context = idle.unwrap_or_default();
                let done = context.unpack(stored, raw);
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
    fn every_setting_round_trips_through_one_reader() {
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
    fn incompressible_data_is_rarely_tried_and_off_keeps_no_history() {
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
