//! Writing a send stream, frame by frame.
//!
//! Not here: where the blocks come from, where the bytes go.
//!
//! Invariant: what is written, [`StreamReader`](super::StreamReader) reads.

use weir_codec::checksum::xxh3_128;

use super::{
    CHECKSUM_BYTES, CODE_HOLE, Chain, FRAME_BYTES_MAX, FRAME_BYTES_WANTED, HEADER_BYTES,
    KIND_BEGIN, KIND_CHANGES, KIND_END, MAGIC, PREAMBLE_BYTES, STREAM_VERSION, StreamBegin,
    StreamCounts,
};
use crate::bytes::Writer;
use crate::compression::Codec;
use crate::layout::PACK_BYTES;

/// Writes one stream.
pub struct StreamWriter {
    chain: Chain,
    changes: Writer,
    /// A hole that may still grow: start and end.
    hole: Option<(u64, u64)>,
    /// First block that may come next.
    next: u64,
    counts: StreamCounts,
}

impl StreamWriter {
    /// Begins a stream; its first bytes.
    pub fn new(begin: &StreamBegin) -> (Self, Vec<u8>) {
        let mut w = Writer::default();
        w.bytes(&MAGIC);
        w.u32(STREAM_VERSION);
        w.pad_to(PREAMBLE_BYTES);
        let mut bytes = w.0;
        let mut stream = Self {
            chain: Chain::new(&bytes),
            changes: Writer::default(),
            hole: None,
            next: begin.first_block,
            counts: StreamCounts::default(),
        };
        let mut w = Writer::default();
        w.u64(begin.to);
        w.u64(begin.from.unwrap_or(0));
        w.u8(u8::from(begin.is_clone));
        w.u8(begin.compression.code());
        w.u64(begin.first_block);
        w.u64(begin.size_bytes);
        w.u64(begin.created_unix_ms);
        w.str(&begin.volume);
        w.str(&begin.snapshot);
        stream.frame(KIND_BEGIN, &w.0, &mut bytes);
        (stream, bytes)
    }

    /// Adds a block in its verified stored form, padded to units of 64 bytes, behind all that was
    /// added before.
    pub fn block(&mut self, index: u64, codec: Codec, stored: &[u8]) {
        assert!(index >= self.next, "blocks are sent in rising order");
        assert!(stored.len().is_multiple_of(PACK_BYTES), "stored bytes are whole units");
        self.close_hole();
        let w = &mut self.changes;
        w.u8(codec.code() + 1);
        w.u64(index);
        w.u8((stored.len() / PACK_BYTES) as u8);
        w.u128(xxh3_128(stored));
        w.bytes(stored);
        self.next = index + 1;
        self.counts.blocks += 1;
        self.counts.stored_bytes += stored.len() as u64;
    }

    /// Adds a hole behind all that was added before.
    pub fn hole(&mut self, start: u64, count: u64) {
        assert!(start >= self.next && count > 0, "holes are sent in rising order");
        self.next = start + count;
        self.counts.hole_blocks += count;
        match &mut self.hole {
            Some((_, end)) if *end == start => *end += count,
            _ => {
                self.close_hole();
                self.hole = Some((start, start + count));
            }
        }
    }

    fn close_hole(&mut self) {
        if let Some((start, end)) = self.hole.take() {
            self.changes.u8(CODE_HOLE);
            self.changes.u64(start);
            self.changes.u64(end - start);
        }
    }

    /// The next frame, once enough was added to be worth one; to be asked after each change.
    pub fn full_frame(&mut self) -> Option<Vec<u8>> {
        let full = self.changes.0.len() >= FRAME_BYTES_WANTED;
        full.then(|| {
            let mut bytes = Vec::with_capacity(self.changes.0.len() + 64);
            self.changes_frame(&mut bytes);
            bytes
        })
    }

    fn changes_frame(&mut self, bytes: &mut Vec<u8>) {
        self.close_hole();
        let changes = std::mem::take(&mut self.changes.0);
        if !changes.is_empty() {
            self.frame(KIND_CHANGES, &changes, bytes);
        }
    }

    /// What is left of it, the end included, and what was in it.
    pub fn finish(mut self) -> (Vec<u8>, StreamCounts) {
        let mut bytes = Vec::new();
        self.changes_frame(&mut bytes);
        let mut w = Writer::default();
        w.u64(self.counts.blocks);
        w.u64(self.counts.stored_bytes);
        w.u64(self.counts.hole_blocks);
        self.frame(KIND_END, &w.0, &mut bytes);
        (bytes, self.counts)
    }

    pub(super) fn frame(&mut self, kind: u8, payload: &[u8], out: &mut Vec<u8>) {
        assert!(payload.len() <= FRAME_BYTES_MAX, "a frame outgrew its limit: {}", payload.len());
        let mut w = Writer::default();
        w.u8(kind);
        w.pad_to(4);
        w.u32(payload.len() as u32);
        w.u64(self.chain.check(&w.0));
        assert_eq!(w.0.len(), HEADER_BYTES);
        let checksum = self.chain.checksum(&w.0, payload);
        out.reserve(HEADER_BYTES + payload.len() + CHECKSUM_BYTES);
        out.extend_from_slice(&w.0);
        out.extend_from_slice(payload);
        out.extend_from_slice(&checksum.to_le_bytes());
        self.chain = Chain(checksum);
    }
}
