//! Intent log batches: what makes a flush durable before its txg is.
//!
//! Not here: the ring, group commit and replay (weir-pool).
//!
//! Invariants:
//! - a batch is one contiguous write of whole [`ALIGN_BYTES`] units. Each 512-byte sector ends
//!   with a stamp: batch number, and a checksum over the sector's bytes, its place and its batch,
//!   and whether the batch begins there.
//!   A sector therefore tells by itself whether it was written with batch `k`, was not ([`Part`]),
//!   or was damaged later. A torn batch misses sectors; a damaged one holds sectors that a write of
//!   batch `k` did not leave (docs/decisions/0014);
//! - the number is the last part of a stamp, so a sector that was written up to some byte still has
//!   the old one;
//! - records are stored as one LZ4 block where that saves a unit; a length that is read is checked
//!   before anything of that length is allocated;
//! - batch `k + 1` is written after batch `k` is durable: a whole sector of a later batch proves
//!   that batch `k` was acknowledged.
//!
//! ```text
//! content: | header 48 B | record 48 B | payload | record 48 B | payload | ... | zeros |
//!                        |<----------------- raw, or one LZ4 block --------------->|
//! sectors: | 488 B of content | stamp 24 B | 488 B of content | stamp 24 B | ... to 4 KiB |
//! ```

use weir_base::{DatasetId, Guid, Lsn, Txg};
use weir_codec::checksum::xxh3_64;
use weir_codec::compress::{lz4_pack, lz4_unpack};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

const WHAT: &str = "log batch";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRLOGB");

/// Alignment and granularity of batches in the ring.
pub const ALIGN_BYTES: usize = 4096;
/// Unit that carries a stamp: the smallest that a disk writes whole or not at all.
pub const SECTOR_BYTES: usize = 512;
/// Length of a stamp.
pub const STAMP_BYTES: usize = 24;
/// Bytes of a sector before its stamp.
pub const SECTOR_CONTENT_BYTES: usize = SECTOR_BYTES - STAMP_BYTES;
/// Length of the header.
pub const HEADER_BYTES: usize = 48;
/// Length of one record without its payload.
pub const RECORD_BYTES: usize = 48;

/// Fields of the header, for the format documentation.
pub const HEADER_FIELDS: &[Field] = &[
    field(8, "magic", "\"WEIRLOGB\""),
    field(8, "pool", "pool guid"),
    field(8, "epoch", "log epoch; changes at every import"),
    field(8, "batch", "batch number, one more than the one before"),
    field(4, "batch_bytes", "length of the whole batch, a multiple of 4 KiB"),
    field(4, "count", "records"),
    field(4, "raw_bytes", "length of the records with their payloads"),
    field(4, "packed_bytes", "length of the LZ4 block that they are stored as; 0: stored raw"),
];

/// Fields of a sector's stamp, for the format documentation.
pub const STAMP_FIELDS: &[Field] = &[
    field(
        8,
        "checksum",
        "XXH3-64 of the 488 bytes before it, pool guid, epoch, batch, number of the sector, \
         counted from the start of the log region, and 1 for the first of its batch, 0 for others",
    ),
    field(8, "epoch", "log epoch of the batch"),
    field(8, "batch", "batch number"),
];

/// Fields of a record, for the format documentation.
pub const RECORD_FIELDS: &[Field] = &[
    field(8, "lsn", "order of acknowledgement; parts of one change have the same"),
    field(8, "txg", "txg that will hold it"),
    field(8, "dataset", "dataset number"),
    field(8, "offset", "byte offset in the dataset, whole blocks"),
    field(8, "bytes", "length in bytes, whole blocks"),
    field(4, "payload_bytes", "length of the payload that follows"),
    field(1, "type", "1 write, 2 zero"),
    field(3, "reserved", "zero"),
];

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOp<'a> {
    /// Writes these bytes.
    Write(&'a [u8]),
    /// Makes this many bytes a hole.
    Zero(u64),
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Order of acknowledgement.
    pub lsn: Lsn,
    /// Txg that will hold it.
    pub txg: Txg,
    /// Dataset.
    pub dataset: DatasetId,
    /// Byte offset in the dataset.
    pub offset: u64,
    /// What to do there.
    pub op: LogOp<'a>,
}

/// Identity and chain position of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Pool.
    pub pool: Guid,
    /// Log epoch.
    pub epoch: u64,
    /// Number.
    pub batch: u64,
    /// Whole length.
    pub batch_bytes: u32,
    /// Records.
    pub count: u32,
    /// Length of the records with their payloads.
    pub raw_bytes: u32,
    /// Length of the LZ4 block that they are stored as; 0: stored raw.
    pub packed_bytes: u32,
}

impl BatchHeader {
    /// The batch's name.
    pub fn id(&self) -> BatchId {
        BatchId { pool: self.pool, epoch: self.epoch, batch: self.batch }
    }

    fn stored_bytes(&self) -> u32 {
        if self.packed_bytes == 0 { self.raw_bytes } else { self.packed_bytes }
    }
}

/// Builds one batch record by record.
#[derive(Default)]
pub struct BatchBuilder {
    records: Writer,
    count: u32,
}

/// A batch whose length is known.
pub struct PackedBatch {
    stored: Vec<u8>,
    raw_bytes: u32,
    is_packed: bool,
    count: u32,
}

/// Length of a batch whose records take this many bytes.
fn batch_bytes(stored_bytes: usize) -> usize {
    let sectors = (HEADER_BYTES + stored_bytes).div_ceil(SECTOR_CONTENT_BYTES);
    (sectors * SECTOR_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// Bytes of content that a batch of this length holds.
fn content_bytes(batch_bytes: usize) -> usize {
    batch_bytes / SECTOR_BYTES * SECTOR_CONTENT_BYTES
}

/// Name of one batch of one pool: its sectors are keyed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Pool.
    pub pool: Guid,
    /// Log epoch.
    pub epoch: u64,
    /// Number.
    pub batch: u64,
}

/// Place of a sector of a batch. What a client wrote may look like a header: the stamp of a sector
/// tells whether its batch begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorPlace {
    /// Number, counted from the start of the log region.
    pub number: u64,
    /// The batch begins here.
    pub is_first: bool,
}

/// State of one sector at the place of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is as the batch's write left it.
    Whole,
    /// The batch's write did not reach it: it holds zeros or a sector of an earlier batch.
    Absent,
    /// It was written and is damaged, or it holds bytes that no log write leaves.
    Damaged,
}

impl BatchId {
    fn checksum(&self, content: &[u8], SectorPlace { number, is_first }: SectorPlace) -> u64 {
        let key = [self.pool.0, self.epoch, self.batch, number, u64::from(is_first)];
        xxh3_64(&[content, key.map(u64::to_le_bytes).as_flattened()])
    }

    /// Gives each sector of this batch its stamp; `offset`: where in the log region it is to be.
    pub fn stamp(&self, offset: u64, batch: &mut [u8]) {
        for (place, bytes) in sectors_of(offset).zip(batch.as_chunks_mut::<SECTOR_BYTES>().0) {
            let (content, stamp) = bytes.split_at_mut(SECTOR_CONTENT_BYTES);
            let words = [self.checksum(content, place), self.epoch, self.batch];
            stamp.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        }
    }

    /// Judges the bytes of a sector of the log region, where this batch may be.
    pub fn part(&self, bytes: &[u8], place: SectorPlace) -> Part {
        let Some((content, checksum, epoch, batch)) = split_stamp(bytes) else {
            return Part::Damaged;
        };
        if self.checksum(content, place) == checksum {
            // The checksum is keyed with batch and place: it proves both.
            return Part::Whole;
        }
        let blank = (epoch, batch) == (0, 0);
        let earlier = epoch > 0 && batch > 0 && (epoch, batch) < (self.epoch, self.batch);
        if blank || earlier { Part::Absent } else { Part::Damaged }
    }
}

/// The batch that wrote sector number `number` of the log region, if the sector is whole, and
/// whether the batch begins with it.
pub fn stamped_batch(pool: Guid, bytes: &[u8], number: u64) -> Option<(BatchId, bool)> {
    let (content, checksum, epoch, batch) = split_stamp(bytes)?;
    let id = BatchId { pool, epoch, batch };
    let is_first = [true, false].into_iter().find(|is_first| {
        id.checksum(content, SectorPlace { number, is_first: *is_first }) == checksum
    });
    Some((id, is_first?))
}

/// The batch that a sector's stamp names; nothing is verified.
pub fn named_batch(bytes: &[u8]) -> Option<(u64, u64)> {
    split_stamp(bytes).map(|(_, _, epoch, batch)| (epoch, batch))
}

/// Content, checksum, epoch and batch of a sector.
fn split_stamp(sector: &[u8]) -> Option<(&[u8], u64, u64, u64)> {
    let (content, stamp) = sector.split_last_chunk::<STAMP_BYTES>()?;
    let mut r = Reader::new(WHAT, stamp);
    Some((content, r.u64().ok()?, r.u64().ok()?, r.u64().ok()?))
}

impl BatchBuilder {
    /// Adds a record of `bytes` (whole blocks) whose payload comes in parts.
    pub fn push_write<'a>(
        &mut self,
        lsn: Lsn,
        txg: Txg,
        dataset: DatasetId,
        offset: u64,
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let bytes: usize = payload.clone().map(<[u8]>::len).sum();
        self.record(lsn, txg, dataset, offset, bytes as u64, bytes as u32, 1);
        payload.for_each(|part| self.records.bytes(part));
    }

    /// Adds a record that makes a range a hole.
    pub fn push_zero(&mut self, lsn: Lsn, txg: Txg, dataset: DatasetId, offset: u64, bytes: u64) {
        self.record(lsn, txg, dataset, offset, bytes, 0, 2);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of the record, in order")]
    fn record(
        &mut self,
        lsn: Lsn,
        txg: Txg,
        dataset: DatasetId,
        offset: u64,
        bytes: u64,
        payload_bytes: u32,
        kind: u8,
    ) {
        self.records.u64(lsn.0);
        self.records.u64(txg.0);
        self.records.u64(dataset.0);
        self.records.u64(offset);
        self.records.u64(bytes);
        self.records.u32(payload_bytes);
        self.records.u8(kind);
        self.records.bytes(&[0; 3]);
        self.count += 1;
    }

    /// Whether no record was added.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The batch of these records, compressed where that makes it shorter by a unit.
    pub fn pack(self) -> PackedBatch {
        let raw = self.records.0;
        let raw_bytes = raw.len() as u32;
        let shorter = batch_bytes(raw.len()) - ALIGN_BYTES;
        let packed = shorter.checked_sub(HEADER_BYTES).and_then(|max| lz4_pack(&raw, max));
        let (is_packed, count) = (packed.is_some(), self.count);
        PackedBatch { stored: packed.unwrap_or(raw), raw_bytes, is_packed, count }
    }
}

impl PackedBatch {
    /// Length of the whole batch.
    pub fn batch_bytes(&self) -> usize {
        batch_bytes(self.stored.len())
    }

    /// Writes the batch into `out`, whose length is [`Self::batch_bytes`]; `offset`: where in the
    /// log region it is to be.
    pub fn finish(self, id: BatchId, offset: u64, out: &mut [u8]) {
        assert_eq!(out.len(), self.batch_bytes(), "the caller sized the buffer");
        let mut header = Writer::default();
        header.u64(MAGIC);
        header.u64(id.pool.0);
        header.u64(id.epoch);
        header.u64(id.batch);
        header.u32(out.len() as u32);
        header.u32(self.count);
        header.u32(self.raw_bytes);
        header.u32(if self.is_packed { self.stored.len() as u32 } else { 0 });
        let mut parts = [&header.0[..], &self.stored];
        for bytes in out.as_chunks_mut::<SECTOR_BYTES>().0 {
            let (content, _) = bytes.split_at_mut(SECTOR_CONTENT_BYTES);
            fill(content, &mut parts);
        }
        id.stamp(offset, out);
    }
}

/// Numbers of the sectors from a byte offset of the log region on.
pub fn sectors_at(offset: u64) -> std::ops::RangeFrom<u64> {
    offset / SECTOR_BYTES as u64..
}

/// Sectors of a batch that begins at a byte offset of the log region.
pub fn sectors_of(offset: u64) -> impl Iterator<Item = SectorPlace> {
    let first = offset / SECTOR_BYTES as u64;
    (first..).map(move |number| SectorPlace { number, is_first: number == first })
}

/// Moves the next bytes of `parts` into `out`, then zeros.
fn fill(mut out: &mut [u8], parts: &mut [&[u8]]) {
    for part in parts {
        let (head, rest) = part.split_at(part.len().min(out.len()));
        let (filled, room) = out.split_at_mut(head.len());
        filled.copy_from_slice(head);
        (*part, out) = (rest, room);
    }
    out.fill(0);
}

/// Reads a header only; the batch may still be torn.
///
/// # Errors
/// No header, or a length that cannot be.
pub fn decode_header(bytes: &[u8]) -> Result<BatchHeader, FormatError> {
    let mut r = Reader::new(WHAT, bytes);
    if r.u64()? != MAGIC {
        return Err(FormatError::Magic { what: WHAT });
    }
    let (pool, epoch, batch) = (Guid(r.u64()?), r.u64()?, r.u64()?);
    let (batch_bytes, count) = (r.u32()?, r.u32()?);
    let (raw_bytes, packed_bytes) = (r.u32()?, r.u32()?);
    if batch_bytes == 0 || !(batch_bytes as usize).is_multiple_of(ALIGN_BYTES) {
        return Err(r.bad("batch_bytes", batch_bytes));
    }
    let header = BatchHeader { pool, epoch, batch, batch_bytes, count, raw_bytes, packed_bytes };
    let room = content_bytes(batch_bytes as usize) - HEADER_BYTES;
    if header.stored_bytes() as usize > room {
        return Err(r.bad("stored bytes", header.stored_bytes()));
    }
    Ok(header)
}

/// A batch that was read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    header: BatchHeader,
    raw: Vec<u8>,
}

impl Batch {
    /// Its header.
    pub fn header(&self) -> BatchHeader {
        self.header
    }

    /// Its records in order.
    pub fn records(&self) -> Vec<LogRecord<'_>> {
        decode_records(self.header, &self.raw).expect("checked when it was decoded")
    }
}

/// Reads a whole batch at `offset` of the log region: `bytes` is as long as its header says.
///
/// # Errors
/// A torn or damaged batch, or records that do not fit it.
pub fn decode_batch(bytes: &[u8], offset: u64) -> Result<Batch, FormatError> {
    let header = decode_header(bytes)?;
    if bytes.len() != header.batch_bytes as usize {
        return Err(FormatError::Truncated { what: WHAT });
    }
    let id = header.id();
    let (sectors, _) = bytes.as_chunks::<SECTOR_BYTES>();
    let is_whole =
        |(place, sector): (_, &[u8; SECTOR_BYTES])| id.part(sector, place) == Part::Whole;
    if !sectors_of(offset).zip(sectors).all(is_whole) {
        return Err(FormatError::Checksum { what: WHAT });
    }
    let content: Vec<&[u8]> =
        sectors.iter().filter_map(|sector| sector.get(..SECTOR_CONTENT_BYTES)).collect();
    let content = content.concat();
    let end = HEADER_BYTES + header.stored_bytes() as usize;
    let stored = content.get(HEADER_BYTES..end).ok_or(FormatError::Truncated { what: WHAT })?;
    let raw = match header.packed_bytes {
        0 => stored.to_vec(),
        packed => {
            let (field, value) = ("packed_bytes", u64::from(packed));
            lz4_unpack(stored, header.raw_bytes as usize).map_err(|_| FormatError::Field {
                what: WHAT,
                field,
                value,
            })?
        }
    };
    decode_records(header, &raw)?;
    Ok(Batch { header, raw })
}

fn decode_records(header: BatchHeader, raw: &[u8]) -> Result<Vec<LogRecord<'_>>, FormatError> {
    let mut r = Reader::new(WHAT, raw);
    (0..header.count).map(|_| decode_record(&mut r)).collect()
}

fn decode_record<'a>(r: &mut Reader<'a>) -> Result<LogRecord<'a>, FormatError> {
    const BLOCK: u64 = weir_base::BLOCK_BYTES as u64;
    let (lsn, txg, dataset) = (Lsn(r.u64()?), Txg(r.u64()?), DatasetId(r.u64()?));
    let (offset, bytes, payload_bytes) = (r.u64()?, r.u64()?, r.u32()?);
    let kind = r.u8()?;
    r.take(3)?;
    if !offset.is_multiple_of(BLOCK) || !bytes.is_multiple_of(BLOCK) || bytes == 0 {
        return Err(r.bad("bytes", bytes));
    }
    if offset.checked_add(bytes).is_none() {
        return Err(r.bad("offset", offset));
    }
    let op = match kind {
        1 if u64::from(payload_bytes) == bytes => LogOp::Write(r.take(payload_bytes as usize)?),
        2 if payload_bytes == 0 => LogOp::Zero(bytes),
        1 | 2 => return Err(r.bad("payload_bytes", payload_bytes)),
        other => return Err(r.bad("type", other)),
    };
    Ok(LogRecord { lsn, txg, dataset, offset, op })
}
