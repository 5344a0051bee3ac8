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
use weir_base::BLOCK_BYTES;
use weir_block::{Block, Blocks};
use weir_codec::checksum::{xxh3_128, xxh3_128_of};
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

/// Stored form of a record, in whole units.
#[derive(Clone, Copy)]
pub(crate) enum StoredForm<'a> {
    Bytes(&'a [u8]),
    /// The content of the blocks, concatenated.
    Blocks(&'a [Block]),
}

impl<'a> From<&'a Blocks> for StoredForm<'a> {
    fn from(record: &'a Blocks) -> Self {
        match record {
            Blocks::One(block) => Self::Bytes(&block[..]),
            Blocks::Many(blocks) => Self::Blocks(blocks),
        }
    }
}

impl<'a> StoredForm<'a> {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Blocks(blocks) => blocks.len() * BLOCK_BYTES,
        }
    }

    /// The bytes in one or more parts, in order.
    pub(crate) fn parts(self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, blocks) = match self {
            Self::Bytes(bytes) => (Some(bytes), &[][..]),
            Self::Blocks(blocks) => (None, blocks),
        };
        bytes.into_iter().chain(blocks.iter().map(|block| &block[..]))
    }

    pub(crate) fn checksum(self) -> u128 {
        match self {
            Self::Bytes(bytes) => xxh3_128(bytes),
            Self::Blocks(_) => xxh3_128_of(&self.parts().collect::<Vec<_>>()),
        }
    }

    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.parts().for_each(|part| bytes.extend_from_slice(part));
        bytes
    }

    /// True if the form has exactly these bytes.
    pub(crate) fn equals(self, mut bytes: &[u8]) -> bool {
        bytes.len() == self.len()
            && self.parts().all(|part| {
                let (first, rest) = bytes.split_at(part.len());
                bytes = rest;
                first == part
            })
    }
}

/// Compresses the records of one write-out, one at a time.
pub(crate) struct Packer {
    /// Buffer for compressed bytes, as large as the largest record so far required.
    scratch: Vec<u8>,
    /// Buffer for the content of a record of several blocks, which the compressors need in one
    /// piece.
    joined: Vec<u8>,
    zstd: Option<ZstdPacker>,
}

impl Default for Packer {
    fn default() -> Self {
        Self { scratch: vec![0; scratch_bytes(BLOCK_BYTES)], joined: Vec::new(), zstd: None }
    }
}

fn scratch_bytes(raw_bytes: usize) -> usize {
    stored_bytes_max(raw_bytes).next_multiple_of(PACK_BYTES)
}

impl Packer {
    /// Returns the stored form of a record, in whole units, and its codec.
    pub(crate) fn pack<'s>(
        &'s mut self,
        record: &'s Blocks,
        compression: Compression,
        history: &mut CompressHistory,
    ) -> (StoredForm<'s>, Codec) {
        let codec = match compression {
            // With compression off, the history records nothing about the data.
            Compression::Off => return (record.into(), Codec::Raw),
            Compression::Lz4 | Compression::Auto => Codec::Lz4,
            Compression::Zstd(_) => Codec::Zstd,
        };
        let is_tried = history.worth_trying();
        let packed = if is_tried { self.try_record(record, compression) } else { None };
        history.note(packed.is_some());
        let Some(len) = packed else { return (record.into(), Codec::Raw) };
        let padded = len.next_multiple_of(PACK_BYTES);
        self.scratch[len..padded].fill(0);
        (StoredForm::Bytes(&self.scratch[..padded]), codec)
    }

    fn try_record(&mut self, record: &Blocks, compression: Compression) -> Option<usize> {
        let many = match record {
            Blocks::One(block) => return self.try_pack(&block[..], compression),
            Blocks::Many(many) => many,
        };
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        many.iter().for_each(|block| joined.extend_from_slice(&block[..]));
        let packed = self.try_pack(&joined, compression);
        self.joined = joined;
        packed
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

    /// A record of `count` blocks with the same content.
    fn record(content: &[u8; BLOCK_BYTES], count: usize) -> Blocks {
        Blocks::from(Block::copies_of(&vec![*content; count]))
    }

    fn noise() -> Blocks {
        let mut state = 1_u64;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        Blocks::One(Block::copy_of(&std::array::from_fn(next)))
    }

    #[test]
    fn every_setting_round_trips_through_one_reader() {
        let (mut packer, readers) = (Packer::default(), Unpackers::default());
        let mut history = CompressHistory::default();
        let text: [u8; BLOCK_BYTES] = std::array::from_fn(|at| (at * at % 251 / 16) as u8);
        let off = Compression::Off;
        let records = [
            (record(&text, 1), true),
            (noise(), false),
            (record(&text, 8), true),
            (noise(), false),
        ];
        for (record, shrinks) in records {
            let (content, bytes) = (StoredForm::from(&record).to_vec(), record.size().bytes());
            for compression in Compression::all() {
                let (stored, codec) = packer.pack(&record, compression, &mut history);
                assert_eq!(codec != Codec::Raw, shrinks && compression != off, "{compression:?}");
                assert!(stored.len().is_multiple_of(PACK_BYTES));
                assert!(codec == Codec::Raw || stored.len() <= bytes - bytes / 8);
                let stored = stored.to_vec();
                let mut back = vec![0xee; bytes];
                readers.unpack(codec, &stored, &mut back).expect("the packed bytes");
                assert_eq!(back, content, "{compression:?}");
            }
        }
        assert_eq!(readers.idle.lock().len(), 1, "one reader at a time needs one context");
    }

    #[test]
    fn stored_form_of_blocks_equals_their_concatenation() {
        let blocks: Vec<_> = (0..4).map(|n| [n; BLOCK_BYTES]).collect();
        let record = Blocks::from(Block::copies_of(&blocks));
        let (form, mut bytes) = (StoredForm::from(&record), blocks.as_flattened().to_vec());
        assert!(form.equals(&bytes) && form.to_vec() == bytes);
        assert_eq!((form.len(), form.checksum()), (bytes.len(), xxh3_128(&bytes)));
        assert!(!form.equals(&bytes[1..]));
        bytes[3 * BLOCK_BYTES] ^= 1;
        assert!(!form.equals(&bytes));
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
