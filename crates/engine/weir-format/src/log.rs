//! Intent log batches: make a flush durable before the commit of its txg.
//!
//! weir-pool has the ring and the replay, weir-dataset the group commit.
//!
//! Invariants:
//! - a batch is one contiguous write of whole [`ALIGN_BYTES`] units;
//! - each sector of 512 bytes shows, without other sectors, whether batch `k` wrote it and whether
//!   it was damaged later ([`Part`]);
//! - batch `k + 1` is written after batch `k` is durable. An intact sector of a later batch proves
//!   that batch `k` was acknowledged;
//! - the decoder checks each length before it allocates that many bytes.

use weir_base::{DatasetId, Guid, Lsn, ObjectId, Txg};
use weir_codec::checksum::xxh3_64;
use weir_codec::compress::{lz4_pack, lz4_unpack};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::object_slot::OBJECTS_MAX;

const WHAT: &str = "log batch";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRLOGB");

/// Alignment and granularity of batches in the ring.
pub const ALIGN_BYTES: usize = 4096;
/// Length of a sector: each sector has a stamp, because disks write whole sectors of at least this
/// size.
pub const SECTOR_BYTES: usize = 512;
/// Length of a stamp.
pub const STAMP_BYTES: usize = 24;
/// Bytes of a sector before its stamp.
pub const SECTOR_CONTENT_BYTES: usize = SECTOR_BYTES - STAMP_BYTES;
/// Length of the batch header.
pub const HEADER_BYTES: usize = 48;
/// Length of one log record without its payload.
pub const RECORD_BYTES: usize = 48;
/// Lowest type of the log records of a layer above the engine.
pub const OBJECT_TYPE_MIN: u8 = 16;

/// Fields of the header, for the format documentation.
pub const HEADER_FIELDS: &[Field] = &[
    field(8, "magic", "\"WEIRLOGB\""),
    field(8, "pool", "pool guid"),
    field(8, "epoch", "log epoch; changes at every import"),
    field(8, "batch", "batch number, incremented by one"),
    field(4, "batch_bytes", "length of the whole batch, a multiple of 4 KiB"),
    field(4, "count", "records"),
    field(4, "raw_bytes", "length of the records with their payloads"),
    field(4, "packed_bytes", "length of the LZ4 block that contains the records; 0: stored raw"),
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

/// Fields of a log record, for the format documentation.
pub const RECORD_FIELDS: &[Field] = &[
    field(8, "lsn", "sequence number of acknowledgement; equal for the parts of one change"),
    field(8, "txg", "txg of the change"),
    field(8, "dataset", "dataset number"),
    field(8, "offset", "types 1 and 2: byte offset in the dataset, whole blocks; others: object"),
    field(8, "bytes", "types 1 and 2: length in bytes, whole blocks; others: 0"),
    field(4, "payload_bytes", "length of the payload that follows"),
    field(1, "type", "1 write, 2 zero, 16 to 255: types of the layer above a dataset with objects"),
    field(3, "reserved", "zero"),
];

/// Operation of a log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOp<'a> {
    /// Writes these bytes.
    Write(&'a [u8]),
    /// Turns this many bytes into a hole.
    Zero(u64),
    /// Changes an object. The layer above the engine interprets the type and the payload.
    Object {
        /// The object.
        object: ObjectId,
        /// Type of the log record, [`OBJECT_TYPE_MIN`] or higher.
        kind: u8,
        /// Payload of the log record.
        payload: &'a [u8],
    },
}

/// A decoded log record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Log sequence number: the position of the change in the order of acknowledgement.
    pub lsn: Lsn,
    /// Txg that will contain the change.
    pub txg: Txg,
    /// Dataset that the change belongs to.
    pub dataset: DatasetId,
    /// Byte offset of the operation in a volume; 0 for [`LogOp::Object`].
    pub offset: u64,
    /// Operation.
    pub op: LogOp<'a>,
}

/// Header of a batch: its identity, and the sizes of its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Guid of the pool.
    pub pool: Guid,
    /// Log epoch of the batch.
    pub epoch: u64,
    /// Number of the batch.
    pub batch: u64,
    /// Length of the whole batch.
    pub batch_bytes: u32,
    /// Number of log records in the batch.
    pub count: u32,
    /// Length of the log records with their payloads, uncompressed.
    pub raw_bytes: u32,
    /// Length of the LZ4 block that contains the log records; 0 if the log records are stored
    /// uncompressed.
    pub packed_bytes: u32,
}

impl BatchHeader {
    /// Identity of the batch.
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

/// A finished batch whose length is known; [`Self::finish`] encodes it.
///
/// ```text
/// content: | header 48 B | record 48 B | payload | record 48 B | payload | ... | zeros |
///                        |<----------------- raw, or one LZ4 block --------------->|
/// sectors: | 488 B of content | stamp 24 B | 488 B of content | stamp 24 B | ... to 4 KiB |
/// ```
pub struct PackedBatch {
    stored: Vec<u8>,
    raw_bytes: u32,
    is_packed: bool,
    count: u32,
}

/// Length of a batch whose stored records occupy `stored_bytes`.
fn batch_bytes(stored_bytes: usize) -> usize {
    let sectors = (HEADER_BYTES + stored_bytes).div_ceil(SECTOR_CONTENT_BYTES);
    (sectors * SECTOR_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// Content bytes in a batch of this length.
fn content_bytes(batch_bytes: usize) -> usize {
    batch_bytes / SECTOR_BYTES * SECTOR_CONTENT_BYTES
}

/// Identity of one batch of one pool; a part of the key of each sector's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// Guid of the pool.
    pub pool: Guid,
    /// Log epoch of the batch.
    pub epoch: u64,
    /// Number of the batch.
    pub batch: u64,
}

/// Position of a sector in the log region and in its batch. Client data can look like a batch
/// header, so the stamp of a sector includes whether its batch begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectorPlace {
    /// Sector number, counted from the start of the log region.
    pub number: u64,
    /// True if the batch begins with this sector.
    pub is_first: bool,
}

/// State of one sector in the range of a batch. A torn batch lacks sectors; a damaged batch has
/// sectors with bytes that no log write leaves (docs/decisions/0014).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The sector is intact: it has the content that the batch wrote.
    Whole,
    /// The batch did not write the sector: it has zeros or a sector of an earlier batch.
    Absent,
    /// The sector was damaged after the write, or has bytes that no log write leaves.
    Damaged,
}

impl BatchId {
    fn checksum(&self, content: &[u8], SectorPlace { number, is_first }: SectorPlace) -> u64 {
        let key = [self.pool.0, self.epoch, self.batch, number, u64::from(is_first)];
        xxh3_64(&[content, key.map(u64::to_le_bytes).as_flattened()])
    }

    /// Stamps each sector of this batch. `offset`: byte offset in the log region at which the batch
    /// will be written.
    ///
    /// The checksum covers the sector's content, its position, its batch, and whether the batch
    /// begins there. The batch number is the last part of the stamp, so that a partly written
    /// sector still has the old number.
    pub fn stamp(&self, offset: u64, batch: &mut [u8]) {
        for (place, bytes) in sectors_of(offset).zip(batch.as_chunks_mut::<SECTOR_BYTES>().0) {
            let (content, stamp) = bytes.split_at_mut(SECTOR_CONTENT_BYTES);
            let words = [self.checksum(content, place), self.epoch, self.batch];
            stamp.copy_from_slice(words.map(u64::to_le_bytes).as_flattened());
        }
    }

    /// Classifies a sector of the log region that may belong to this batch.
    pub fn part(&self, bytes: &[u8], place: SectorPlace) -> Part {
        let Some((content, checksum, epoch, batch)) = split_stamp(bytes) else {
            return Part::Damaged;
        };
        if self.checksum(content, place) == checksum {
            // The key of the checksum includes batch and position, so a match proves both.
            return Part::Whole;
        }
        let blank = (epoch, batch) == (0, 0);
        let earlier = epoch > 0 && batch > 0 && (epoch, batch) < (self.epoch, self.batch);
        if blank || earlier { Part::Absent } else { Part::Damaged }
    }
}

/// Returns the batch that wrote sector `number` of the log region, and whether that batch begins
/// there. Returns `None` if the sector is not intact.
pub fn stamped_batch(pool: Guid, bytes: &[u8], number: u64) -> Option<(BatchId, bool)> {
    let (content, checksum, epoch, batch) = split_stamp(bytes)?;
    let id = BatchId { pool, epoch, batch };
    let is_first = [true, false].into_iter().find(|is_first| {
        id.checksum(content, SectorPlace { number, is_first: *is_first }) == checksum
    });
    Some((id, is_first?))
}

/// Returns epoch and batch number of a sector's stamp, without verification.
pub fn named_batch(bytes: &[u8]) -> Option<(u64, u64)> {
    split_stamp(bytes).map(|(_, _, epoch, batch)| (epoch, batch))
}

/// Splits a sector into content, checksum, epoch and batch number.
fn split_stamp(sector: &[u8]) -> Option<(&[u8], u64, u64, u64)> {
    let (content, stamp) = sector.split_last_chunk::<STAMP_BYTES>()?;
    let mut r = Reader::new(WHAT, stamp);
    Some((content, r.u64().ok()?, r.u64().ok()?, r.u64().ok()?))
}

impl BatchBuilder {
    /// Adds a write record of whole blocks; the payload may consist of several parts.
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

    /// Adds a log record that turns a range into a hole.
    pub fn push_zero(&mut self, lsn: Lsn, txg: Txg, dataset: DatasetId, offset: u64, bytes: u64) {
        self.record(lsn, txg, dataset, offset, bytes, 0, 2);
    }

    /// Adds a log record of the layer above a dataset with many objects. The payload may consist of
    /// several parts.
    pub fn push_object<'a>(
        &mut self,
        (lsn, txg): (Lsn, Txg),
        dataset: DatasetId,
        (object, kind): (ObjectId, u8),
        payload: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        assert!(kind >= OBJECT_TYPE_MIN, "lower types belong to volumes");
        let bytes: usize = payload.clone().map(<[u8]>::len).sum();
        self.record(lsn, txg, dataset, object.0, 0, bytes as u32, kind);
        payload.for_each(|part| self.records.bytes(part));
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

    /// True if the batch has no log records.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Finishes the batch. Compresses the log records if that makes the batch shorter by at least
    /// [`ALIGN_BYTES`].
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

    /// Encodes the batch into `out`, whose length is [`Self::batch_bytes`]. `offset`: byte offset
    /// in the log region at which the batch will be written.
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

/// Numbers of the sectors that begin at a byte offset of the log region.
pub fn sectors_at(offset: u64) -> std::ops::RangeFrom<u64> {
    offset / SECTOR_BYTES as u64..
}

/// Positions of the sectors of a batch at a byte offset of the log region.
pub fn sectors_of(offset: u64) -> impl Iterator<Item = SectorPlace> {
    let first = offset / SECTOR_BYTES as u64;
    (first..).map(move |number| SectorPlace { number, is_first: number == first })
}

/// Moves the next bytes of `parts` into `out` and fills the remainder with zeros.
fn fill(mut out: &mut [u8], parts: &mut [&[u8]]) {
    for part in parts {
        let (head, rest) = part.split_at(part.len().min(out.len()));
        let (filled, room) = out.split_at_mut(head.len());
        filled.copy_from_slice(head);
        (*part, out) = (rest, room);
    }
    out.fill(0);
}

/// Decodes a header only; the batch may still be torn.
///
/// # Errors
/// The bytes hold no header, or the header states an impossible length.
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

/// A decoded batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    header: BatchHeader,
    raw: Vec<u8>,
}

impl Batch {
    /// Header of the batch.
    pub fn header(&self) -> BatchHeader {
        self.header
    }

    /// Log records of the batch, in order.
    pub fn records(&self) -> Vec<LogRecord<'_>> {
        decode_records(self.header, &self.raw).expect("checked when it was decoded")
    }
}

/// Decodes the batch at byte `offset` of the log region. `bytes` has the length that the header
/// states.
///
/// # Errors
/// The batch is torn or damaged, or its log records do not fit into it.
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
    if kind >= OBJECT_TYPE_MIN {
        if !(1..OBJECTS_MAX).contains(&offset) {
            return Err(r.bad("object", offset));
        }
        if bytes != 0 {
            return Err(r.bad("bytes", bytes));
        }
        let (object, payload) = (ObjectId(offset), r.take(payload_bytes as usize)?);
        let op = LogOp::Object { object, kind, payload };
        return Ok(LogRecord { lsn, txg, dataset, offset: 0, op });
    }
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
