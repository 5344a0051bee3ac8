//! Intent log batches: what makes a flush durable before its txg is.
//!
//! Not here: the ring, group commit and replay (weir-pool).
//!
//! Invariants:
//! - a batch is one contiguous write of whole [`ALIGN_BYTES`] units; its checksum covers all of it,
//!   so a torn batch is no batch;
//! - records are stored as one LZ4 block where that saves a unit; a length that is read is checked
//!   before anything of that length is allocated;
//! - `watermark` is a batch number that was durable when this batch was written: a reader that
//!   finds batch `k` broken and a later one with `watermark >= k` has found damage, not a torn
//!   tail (design 3.2).
//!
//! ```text
//! | header 64 B | record 48 B | payload | record 48 B | payload | ... | zeros to 4 KiB |
//!               |<------------------- raw, or one LZ4 block ------------------->|
//! ```

use weir_base::{DatasetId, Guid, Lsn, Txg};
use weir_codec::checksum::xxh3_64;
use weir_codec::compress::{lz4_pack, lz4_unpack};

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;

const WHAT: &str = "log batch";
const MAGIC: u64 = u64::from_le_bytes(*b"WEIRLOGB");
const CHECKSUM_OFFSET: usize = 40;

/// Alignment and granularity of batches in the ring.
pub const ALIGN_BYTES: usize = 4096;
/// Length of the header.
pub const HEADER_BYTES: usize = 64;
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
    field(8, "checksum", "XXH3-64 of the whole batch with this field zero"),
    field(8, "watermark", "batches below this number were durable when this one was written"),
    field(4, "raw_bytes", "length of the records with their payloads"),
    field(4, "packed_bytes", "length of the LZ4 block that they are stored as; 0: stored raw"),
];

/// Fields of a record, for the format documentation.
pub const RECORD_FIELDS: &[Field] = &[
    field(8, "lsn", "order of acknowledgement"),
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
    /// Batches below this were durable when this one was written.
    pub watermark: u64,
    /// Length of the records with their payloads.
    pub raw_bytes: u32,
    /// Length of the LZ4 block that they are stored as; 0: stored raw.
    pub packed_bytes: u32,
}

impl BatchHeader {
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
    (HEADER_BYTES + stored_bytes).next_multiple_of(ALIGN_BYTES)
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

    /// Writes the batch into `out`, whose length is [`Self::batch_bytes`] and whose bytes are zero.
    pub fn finish(self, pool: Guid, epoch: u64, batch: u64, watermark: u64, out: &mut [u8]) {
        assert_eq!(out.len(), self.batch_bytes(), "the caller sized the buffer");
        let mut header = Writer::default();
        header.u64(MAGIC);
        header.u64(pool.0);
        header.u64(epoch);
        header.u64(batch);
        header.u32(out.len() as u32);
        header.u32(self.count);
        header.u64(0);
        header.u64(watermark);
        header.u32(self.raw_bytes);
        header.u32(if self.is_packed { self.stored.len() as u32 } else { 0 });
        let (head, tail) = out.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header.0);
        let (filled, _) = tail.split_at_mut(self.stored.len());
        filled.copy_from_slice(&self.stored);
        let (before, rest) = out.split_at_mut(CHECKSUM_OFFSET);
        let (place, after) = rest.split_at_mut(8);
        let checksum = xxh3_64(&[before, &[0; 8], after]);
        place.copy_from_slice(&checksum.to_le_bytes());
    }
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
    r.u64()?;
    let watermark = r.u64()?;
    let (raw_bytes, packed_bytes) = (r.u32()?, r.u32()?);
    if batch_bytes == 0 || !(batch_bytes as usize).is_multiple_of(ALIGN_BYTES) {
        return Err(r.bad("batch_bytes", batch_bytes));
    }
    let header =
        BatchHeader { pool, epoch, batch, batch_bytes, count, watermark, raw_bytes, packed_bytes };
    if header.stored_bytes() > batch_bytes - HEADER_BYTES as u32 {
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

/// Reads a whole batch: `bytes` is exactly as long as its header says.
///
/// # Errors
/// A torn or damaged batch, or records that do not fit it.
pub fn decode_batch(bytes: &[u8]) -> Result<Batch, FormatError> {
    let header = decode_header(bytes)?;
    if bytes.len() != header.batch_bytes as usize {
        return Err(FormatError::Truncated { what: WHAT });
    }
    let (before, rest) = bytes.split_at(CHECKSUM_OFFSET);
    let (stored, after) = rest.split_first_chunk().ok_or(FormatError::Truncated { what: WHAT })?;
    if u64::from_le_bytes(*stored) != xxh3_64(&[before, &[0; 8], after]) {
        return Err(FormatError::Checksum { what: WHAT });
    }
    let end = HEADER_BYTES + header.stored_bytes() as usize;
    let stored = bytes.get(HEADER_BYTES..end).ok_or(FormatError::Truncated { what: WHAT })?;
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
