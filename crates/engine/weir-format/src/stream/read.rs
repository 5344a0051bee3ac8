//! Reader of a send stream; accepts its bytes in pieces of any size.
//!
//! The caller applies the frames.
//!
//! Invariants:
//! - the reader uses no field of a frame before a checksum has verified it;
//! - after an error the reader reads no further bytes.

use weir_base::limits::{NAME_BYTES_MAX, VOLUME_BYTES_MAX};
use weir_base::{ObjectId, RecordSize};

use super::change::{WHAT, read_change};
use super::objects::{Cursor, StreamObjects};
use super::{
    CHECKSUM_BYTES, Chain, FOLDED_STREAM_VERSION, FRAME_BYTES_MAX, HEADER_BYTES, KIND_BEGIN,
    KIND_CHANGES, KIND_END, KIND_OBJECTS, MAGIC, PREAMBLE_BYTES, STREAM_VERSION, StreamBegin,
    StreamChange, StreamChanges, StreamCounts, StreamError, StreamFault, StreamFrame,
};
use crate::bytes::Reader;
use crate::compression::compression_of_code;
use crate::dataset::ObjectTable;
use crate::error::FormatError;
use crate::files::Layout;
use crate::node::TreeRoot;
use crate::object_slot::OBJECTS_MAX;

/// Next expected part of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expect {
    Preamble,
    Begin,
    Changes,
    Nothing,
}

/// Reads one stream.
pub struct StreamReader {
    bytes: Vec<u8>,
    /// Number of bytes of `bytes` that were already consumed.
    used: usize,
    expect: Expect,
    chain: Chain,
    /// Number of the next frame, and its byte offset in the stream.
    frame: u64,
    offset: u64,
    /// Number and offset of the frame that was returned last.
    last: (u64, u64),
    /// Lowest record number that may come next, and the number of records in the volume.
    next: u64,
    records: u64,
    record_size: RecordSize,
    version: u32,
    /// Position in a stream of objects.
    objects: Option<Cursor>,
    counts: StreamCounts,
    failed: Option<StreamError>,
}

impl Default for StreamReader {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            expect: Expect::Preamble,
            chain: Chain(0),
            frame: 0,
            offset: 0,
            last: (0, 0),
            next: 0,
            records: 0,
            record_size: RecordSize::BLOCK,
            version: STREAM_VERSION,
            objects: None,
            counts: StreamCounts::default(),
            failed: None,
        }
    }
}

impl StreamReader {
    /// Appends bytes of the stream. Call [`Self::next_frame`] until it returns `None` before you
    /// push more than 1 MiB.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// The stream is refused at the frame that the error names. Every later call returns the same
    /// error.
    pub fn next_frame(&mut self) -> Result<Option<StreamFrame>, StreamError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let next = self.try_next();
        next.map_err(|why| self.fail(why))
    }

    /// Ends the stream. The caller calls this function after the last bytes.
    ///
    /// # Errors
    /// The stream was cut off, or was refused earlier.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.expect == Expect::Nothing && self.rest().is_empty() => Ok(()),
            None => Err(self.fail(StreamFault::Truncated)),
        }
    }

    /// Refuses the frame that was returned last, because of a fault that only the caller can
    /// detect.
    pub fn refuse_last(&mut self, source: FormatError) -> StreamError {
        (self.frame, self.offset) = self.last;
        self.fail(source.into())
    }

    fn fail(&mut self, why: StreamFault) -> StreamError {
        let error = StreamError { frame: self.frame, offset: self.offset, why };
        self.failed = Some(error.clone());
        (self.bytes, self.used) = (Vec::new(), 0);
        error
    }

    /// Received bytes that were not consumed yet.
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.used..).unwrap_or_default()
    }

    fn pass(&mut self, len: usize) {
        self.used += len;
        self.offset += len as u64;
    }

    fn try_next(&mut self) -> Result<Option<StreamFrame>, StreamFault> {
        if self.expect == Expect::Preamble {
            // Refuse a stream of another format at the first byte that differs.
            if !self.rest().iter().zip(&MAGIC).all(|(a, b)| a == b) {
                return Err(StreamFault::Magic);
            }
            let Some(&preamble) = self.rest().first_chunk::<PREAMBLE_BYTES>() else {
                return Ok(None);
            };
            let mut r = Reader::new(WHAT, &preamble);
            r.take(MAGIC.len())?;
            let found = r.u32()?;
            if !(STREAM_VERSION..=FOLDED_STREAM_VERSION).contains(&found) {
                return Err(StreamFault::Version { found });
            }
            self.version = found;
            if r.u32()? != 0 {
                return Err(StreamFault::Checksum);
            }
            self.chain = Chain::new(&preamble);
            self.pass(PREAMBLE_BYTES);
            self.expect = Expect::Begin;
        }
        if self.expect == Expect::Nothing && !self.rest().is_empty() {
            return Err(StreamFault::Trailing);
        }
        let Some(&header) = self.rest().first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (start, check) = header.split_first_chunk::<8>().expect("16 > 8");
        let check = u64::from_le_bytes(*check.first_chunk().expect("16 - 8 = 8"));
        if check != self.chain.check(start) {
            return Err(StreamFault::Checksum);
        }
        let mut r = Reader::new(WHAT, start);
        let kind = r.u8()?;
        if r.take(3)? != [0; 3] {
            return Err(FormatError::Field { what: WHAT, field: "zero", value: 1 }.into());
        }
        let len = r.u32()? as usize;
        if len > FRAME_BYTES_MAX {
            return Err(r.bad("length", len as u64).into());
        }
        let whole = self.rest().get(HEADER_BYTES..HEADER_BYTES + len + CHECKSUM_BYTES);
        let Some((payload, checksum)) = whole.and_then(|whole| whole.split_last_chunk()) else {
            return Ok(None);
        };
        let (payload, checksum) = (payload.to_vec(), u128::from_le_bytes(*checksum));
        if checksum != self.chain.checksum(&header, &payload) {
            return Err(StreamFault::Checksum);
        }
        let frame = self.decode(kind, payload)?;
        self.chain = Chain(checksum);
        self.last = (self.frame, self.offset);
        self.pass(HEADER_BYTES + len + CHECKSUM_BYTES);
        self.frame += 1;
        Ok(Some(frame))
    }

    fn decode(&mut self, kind: u8, payload: Vec<u8>) -> Result<StreamFrame, StreamFault> {
        match (kind, self.expect) {
            (KIND_BEGIN, Expect::Begin) => {
                let begin = begin(&payload, self.version)?;
                self.next = begin.first_record;
                self.records = begin.record_size.records_in(begin.size_bytes);
                self.record_size = begin.record_size;
                self.objects =
                    begin.objects.map(|objects| Cursor::new(objects.first, begin.first_record));
                self.expect = Expect::Changes;
                Ok(StreamFrame::Begin(begin))
            }
            (KIND_CHANGES, Expect::Changes) if self.objects.is_none() => {
                let changes = self.changes(&payload)?;
                Ok(StreamFrame::Changes(StreamChanges { payload, changes }))
            }
            (KIND_OBJECTS, Expect::Changes) => {
                let Some(cursor) = &mut self.objects else {
                    return Err(StreamFault::Kind { kind });
                };
                Ok(StreamFrame::Objects(cursor.read(payload, &mut self.counts)?))
            }
            (KIND_END, Expect::Changes) => {
                let mut r = Reader::new(WHAT, &payload);
                let (records, stored_bytes, hole_records) = (r.u64()?, r.u64()?, r.u64()?);
                let objects = if self.objects.is_some() { r.u64()? } else { 0 };
                nothing_left(&mut r)?;
                let counts = StreamCounts { records, stored_bytes, hole_records, objects };
                if counts != self.counts {
                    return Err(r.bad("records", records).into());
                }
                self.expect = Expect::Nothing;
                Ok(StreamFrame::End(counts))
            }
            _ => Err(StreamFault::Kind { kind }),
        }
    }

    fn changes(&mut self, payload: &[u8]) -> Result<Vec<StreamChange>, StreamFault> {
        let mut changes = Vec::new();
        let mut r = Reader::new(WHAT, payload);
        while r.left() > 0 {
            let code = r.u8()?;
            let (size, limits) = (self.record_size, (self.next, self.records));
            let change = read_change((&mut r, payload), code, size, limits, &mut self.counts)?;
            self.next = change.start + change.count;
            changes.push(change);
        }
        Ok(changes)
    }
}

fn nothing_left(r: &mut Reader<'_>) -> Result<(), FormatError> {
    if r.left() == 0 { Ok(()) } else { Err(r.bad("length", r.left() as u64)) }
}

/// Decodes a begin frame of a stream of this version.
fn begin(payload: &[u8], version: u32) -> Result<StreamBegin, StreamFault> {
    let has_objects = version != STREAM_VERSION;
    let mut r = Reader::new(WHAT, payload);
    let (to, from) = (r.u64()?, r.u64()?);
    let is_clone = match r.u8()? {
        0 => false,
        1 if from != 0 => true,
        flags => return Err(r.bad("flags", flags).into()),
    };
    let compression = compression_of_code(r.u8()?)?;
    let (first_record, size_or_object, shift) = (r.u64()?, r.u64()?, r.u8()?);
    let created_unix_ms = r.u64()?;
    let record_size = RecordSize::from_shift(shift).ok_or_else(|| r.bad("record_size", shift))?;
    let (size_bytes, first_object) =
        if has_objects { (0, size_or_object) } else { (size_or_object, 0) };
    if has_objects {
        if !record_size.is_block() {
            return Err(r.bad("record_size", shift).into());
        }
        if first_object > OBJECTS_MAX {
            return Err(r.bad("first_object", first_object).into());
        }
    } else {
        let fits = size_bytes.is_multiple_of(record_size.bytes() as u64)
            && (1..=VOLUME_BYTES_MAX).contains(&size_bytes);
        if !fits {
            return Err(r.bad("size_bytes", size_bytes).into());
        }
    }
    let records = match first_object {
        0 => record_size.records_in(size_bytes),
        _ => TreeRoot::BLOCKS_MAX,
    };
    if first_record > records {
        return Err(r.bad("first_record", first_record).into());
    }
    let (volume, snapshot) = (r.str("volume")?, r.str("snapshot")?);
    for (field, name) in [("volume", &volume), ("snapshot", &snapshot)] {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(r.bad(field, name.len() as u64).into());
        }
    }
    let objects = if has_objects {
        let layer = r.take(ObjectTable::LAYER_BYTES)?;
        let layer = *layer.first_chunk().expect("took exactly these bytes");
        if Layout::folds_names(&layer) != (version == FOLDED_STREAM_VERSION) {
            return Err(r.bad("layer", version).into());
        }
        Some(StreamObjects { first: ObjectId(first_object), layer })
    } else {
        None
    };
    nothing_left(&mut r)?;
    let from = (from != 0).then_some(from);
    Ok(StreamBegin {
        to,
        from,
        is_clone,
        compression,
        first_record,
        size_bytes,
        record_size,
        created_unix_ms,
        volume,
        snapshot,
        objects,
    })
}
