//! Writer of a send stream, frame by frame.
//!
//! The caller supplies the records and sends the bytes.
//!
//! Invariant: [`StreamReader`](super::StreamReader) can read every stream that is written.

use std::ops::Range;

use weir_base::{ObjectId, RecordSize};

use super::objects::{Cursor, write_object, write_unused};
use super::{
    CODE_HOLE, Chain, FOLDED_STREAM_VERSION, FRAME_BYTES_MAX, FRAME_BYTES_WANTED, HEADER_BYTES,
    KIND_BEGIN, KIND_CHANGES, KIND_END, KIND_OBJECTS, MAGIC, OBJECT_STREAM_VERSION, PREAMBLE_BYTES,
    STREAM_VERSION, StreamBegin, StreamCounts,
};
use crate::bytes::Writer;
use crate::compression::Codec;
use crate::files::Layout;
use crate::layout::PACK_BYTES;
use crate::object_slot::ObjectSlot;

/// Space of a frame's buffer above the wanted payload: header, checksum, and the part of the last
/// change that exceeds the wanted payload.
const FRAME_ROOM_BYTES: usize = 8 << 10;

/// Writes one stream.
///
/// ```text
/// preamble   magic:8 | version:4 | zero:4
/// frame      kind:1 | zero:3 | length:4 | check:8 | payload:length | checksum:16
///            check     XXH3-64 of the checksum before and the first 8 bytes
///            checksum  XXH3-128 of the checksum before, the first 16 bytes and the payload
///            before the first frame, the checksum before is XXH3-128 of the preamble
/// stream     preamble, one begin, any number of changes or object frames, one end
/// ```
pub struct StreamWriter {
    chain: Chain,
    /// Header space and payload of the next changes frame.
    changes: Writer,
    /// Start and end of a hole that later changes may still extend.
    hole: Option<(u64, u64)>,
    /// Lowest record number that may be added next.
    next: u64,
    /// Position in a stream of objects.
    objects: Option<Cursor>,
    /// Range of unused objects that later unused objects may still extend.
    unused: Option<Range<u64>>,
    counts: StreamCounts,
}

impl StreamWriter {
    /// Begins a stream and returns its first bytes.
    pub fn new(begin: &StreamBegin) -> (Self, Vec<u8>) {
        let version = match &begin.objects {
            None => STREAM_VERSION,
            Some(objects) if Layout::folds_names(&objects.layer) => FOLDED_STREAM_VERSION,
            Some(_) => OBJECT_STREAM_VERSION,
        };
        Self::with_version(begin, version)
    }

    /// As [`Self::new`], with this version in the preamble.
    pub(super) fn with_version(begin: &StreamBegin, version: u32) -> (Self, Vec<u8>) {
        let mut w = Writer::default();
        w.bytes(&MAGIC);
        w.u32(version);
        w.pad_to(PREAMBLE_BYTES);
        let mut bytes = w.0;
        let mut stream = Self {
            chain: Chain::new(&bytes),
            changes: begun_frame(),
            hole: None,
            next: begin.first_record,
            objects: begin.objects.map(|objects| Cursor::new(objects.first, begin.first_record)),
            unused: None,
            counts: StreamCounts::default(),
        };
        let mut w = Writer::default();
        w.u64(begin.to);
        w.u64(begin.from.unwrap_or(0));
        w.u8(u8::from(begin.is_clone));
        w.u8(begin.compression.code());
        w.u64(begin.first_record);
        w.u64(begin.objects.map_or(begin.size_bytes, |objects| objects.first.0));
        w.u8(begin.record_size.shift());
        w.u64(begin.created_unix_ms);
        w.str(&begin.volume);
        w.str(&begin.snapshot);
        if let Some(objects) = &begin.objects {
            w.bytes(&objects.layer);
        }
        stream.frame(KIND_BEGIN, &w.0, &mut bytes);
        (stream, bytes)
    }

    /// Adds an object in use, with the number of records of its tree. Its changed records follow.
    /// The object must follow all objects added before.
    pub fn object(
        &mut self,
        object: ObjectId,
        size: RecordSize,
        records: u64,
        body: &[u8; ObjectSlot::BODY_BYTES],
    ) {
        self.close_hole();
        self.close_unused();
        let cursor = self.objects.as_mut().expect("the stream is of objects");
        assert!(object.0 >= cursor.next_object, "objects are sent in rising order");
        cursor.begin(object, size, records);
        self.next = cursor.current.map_or(0, |current| current.next);
        write_object(&mut self.changes, (object, size, records), body);
        self.counts.objects += 1;
    }

    /// Adds objects that have no slot. They must follow all objects added before.
    pub fn unused(&mut self, objects: Range<u64>) {
        self.close_hole();
        let cursor = self.objects.as_mut().expect("the stream is of objects");
        assert!(objects.start >= cursor.next_object && !objects.is_empty(), "in rising order");
        (cursor.next_object, cursor.current) = (objects.end, None);
        match &mut self.unused {
            Some(unused) if unused.end == objects.start => unused.end = objects.end,
            _ => {
                self.close_unused();
                self.unused = Some(objects);
            }
        }
    }

    fn close_unused(&mut self) {
        if let Some(objects) = self.unused.take() {
            write_unused(&mut self.changes, &objects);
        }
    }

    /// Adds a record in its verified stored form, padded to units of 64 bytes. The record must
    /// follow all changes added before. `checksum` is the checksum against which the caller
    /// verified the record. If the bytes changed in memory after that, the receiver detects the
    /// change.
    pub fn record(&mut self, index: u64, codec: Codec, stored: &[u8], checksum: u128) {
        assert!(index >= self.next, "records are sent in rising order");
        assert!(stored.len().is_multiple_of(PACK_BYTES), "stored bytes are whole units");
        self.close_hole();
        let w = &mut self.changes;
        w.u8(codec.code() + 1);
        w.u64(index);
        w.u16((stored.len() / PACK_BYTES) as u16);
        w.u128(checksum);
        w.bytes(stored);
        self.next = index + 1;
        self.counts.records += 1;
        self.counts.stored_bytes += stored.len() as u64;
    }

    /// Adds a hole, which must follow all changes added before.
    pub fn hole(&mut self, start: u64, count: u64) {
        assert!(start >= self.next && count > 0, "holes are sent in rising order");
        self.next = start + count;
        self.counts.hole_records = self.counts.hole_records.saturating_add(count);
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

    /// Returns the next frame if it is large enough. The caller calls this function after each
    /// change.
    pub fn full_frame(&mut self) -> Option<Vec<u8>> {
        let full = self.changes.0.len() >= HEADER_BYTES + FRAME_BYTES_WANTED;
        full.then(|| self.changes_frame())
    }

    /// Returns a frame of the changes added so far, or no bytes if there are none.
    fn changes_frame(&mut self) -> Vec<u8> {
        self.close_hole();
        self.close_unused();
        let kind = if self.objects.is_some() { KIND_OBJECTS } else { KIND_CHANGES };
        let frame = std::mem::replace(&mut self.changes, begun_frame()).0;
        if frame.len() > HEADER_BYTES { self.seal(kind, frame) } else { Vec::new() }
    }

    /// Returns the remaining frames, including the end frame, and the totals of the stream.
    pub fn finish(mut self) -> (Vec<u8>, StreamCounts) {
        let mut bytes = self.changes_frame();
        let mut w = Writer::default();
        w.u64(self.counts.records);
        w.u64(self.counts.stored_bytes);
        w.u64(self.counts.hole_records);
        if self.objects.is_some() {
            w.u64(self.counts.objects);
        }
        self.frame(KIND_END, &w.0, &mut bytes);
        (bytes, self.counts)
    }

    pub(super) fn frame(&mut self, kind: u8, payload: &[u8], out: &mut Vec<u8>) {
        let mut frame = begun_frame();
        frame.bytes(payload);
        out.extend(self.seal(kind, frame.0));
    }

    /// Completes a frame whose payload is already in the buffer after the header space.
    fn seal(&mut self, kind: u8, mut frame: Vec<u8>) -> Vec<u8> {
        let (header, payload) = frame.split_at_mut(HEADER_BYTES);
        assert!(payload.len() <= FRAME_BYTES_MAX, "a frame outgrew its limit: {}", payload.len());
        let mut w = Writer::default();
        w.u8(kind);
        w.pad_to(4);
        w.u32(payload.len() as u32);
        w.u64(self.chain.check(&w.0));
        header.copy_from_slice(&w.0);
        let checksum = self.chain.checksum(header, payload);
        frame.extend_from_slice(&checksum.to_le_bytes());
        self.chain = Chain(checksum);
        frame
    }
}

/// An empty frame, with capacity for the wanted payload and one more change.
fn begun_frame() -> Writer {
    let mut frame = Writer(Vec::with_capacity(FRAME_BYTES_WANTED + FRAME_ROOM_BYTES));
    frame.pad_to(HEADER_BYTES);
    frame
}
