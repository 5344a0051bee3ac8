//! Fuzzes the intent log batch: any bytes, and any log records in a batch with a valid header and
//! valid stamps.
//!
//! The order of batches and their replay belong to the import of a pool, which `forged` fuzzes.
//!
//! Invariants: no panic; log records stay inside their batch; the records of an accepted batch
//! survive encoding and decoding.

use weir_base::{DatasetId, Guid, Lsn, ObjectId, Txg};
use weir_format::log::{
    ALIGN_BYTES, BatchBuilder, BatchHeader, BatchId, HEADER_BYTES, HEADER_FIELDS, LogOp, LogRecord,
    SECTOR_BYTES, SECTOR_CONTENT_BYTES, STAMP_BYTES, decode_batch, decode_header,
};

/// Runs the fuzz target on one input.
pub fn run(data: &[u8]) {
    check(data);
    // Random bytes never have a valid checksum, so add one; then the decoder also reads the log
    // records. The first byte is the record count. The other bytes, repeated to fill the batch, are
    // either raw records, or two bytes with a raw length and an LZ4 block of this length.
    let Some((count, records)) = data.split_first() else { return };
    let Some((raw_bytes, packed)) = records.split_first_chunk() else { return };
    check(&batch(*count, records, false, 0));
    check(&batch(*count, packed, true, u16::from_le_bytes(*raw_bytes)));
}

/// Batches with compressible and incompressible log records, and the records without their batch.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut noise = [0; 512];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    [&noise[..], &[7; 8192]]
        .into_iter()
        .flat_map(|block| {
            let mut builder = BatchBuilder::default();
            builder.push_write(Lsn(1), Txg(1), DatasetId(1), 4096, std::iter::once(block));
            builder.push_zero(Lsn(2), Txg(1), DatasetId(2), 8192, 1 << 20);
            let payload = [b"name", &block[..64]].into_iter();
            builder.push_object((Lsn(3), Txg(1)), DatasetId(3), (ObjectId(7), 16), payload);
            let packed = builder.pack();
            let mut bytes = vec![0; packed.batch_bytes()];
            packed.finish(ID, OFFSET, &mut bytes);
            let header = decode_header(&bytes).expect("an encoded batch is valid");
            let content = bytes.chunks(SECTOR_BYTES).flat_map(|part| &part[..SECTOR_CONTENT_BYTES]);
            let mut input = vec![header.count as u8];
            let stored_bytes = if header.packed_bytes > 0 {
                input.extend((header.raw_bytes as u16).to_le_bytes());
                header.packed_bytes
            } else {
                header.raw_bytes
            };
            input.extend(content.skip(HEADER_BYTES).take(stored_bytes as usize));
            [input, bytes]
        })
        .collect()
}

/// Offset of the batch in the log region of a disk.
const OFFSET: u64 = 8192;
const ID: BatchId = BatchId { pool: Guid(1), epoch: 1, batch: 1 };

/// Builds a batch of these stored bytes, with a valid header and valid stamps.
fn batch(count: u8, records: &[u8], is_packed: bool, raw_bytes: u16) -> Vec<u8> {
    let mut content = empty_batch();
    content.truncate(HEADER_BYTES);
    if records.is_empty() {
        return empty_batch();
    }
    let len = (2 * (HEADER_BYTES + records.len())).next_multiple_of(ALIGN_BYTES) + ALIGN_BYTES;
    let room = len / SECTOR_BYTES * SECTOR_CONTENT_BYTES;
    content.extend(records.iter().cycle().take(room - HEADER_BYTES));
    let stored = (room - HEADER_BYTES) as u32;
    let (raw, packed) =
        if is_packed { (u32::from(raw_bytes), records.len() as u32) } else { (stored, 0) };
    put(&mut content, "raw_bytes", &raw.to_le_bytes());
    put(&mut content, "packed_bytes", &packed.to_le_bytes());
    put(&mut content, "batch_bytes", &(len as u32).to_le_bytes());
    put(&mut content, "count", &u32::from(count).to_le_bytes());
    let mut bytes = Vec::with_capacity(len);
    for part in content.chunks(SECTOR_CONTENT_BYTES) {
        bytes.extend(part);
        bytes.extend([0; STAMP_BYTES]);
    }
    ID.stamp(OFFSET, &mut bytes);
    bytes
}

fn check(bytes: &[u8]) {
    let header = decode_header(bytes);
    let Ok(batch) = decode_batch(bytes, OFFSET) else { return };
    let (decoded, records) = (batch.header(), batch.records());
    assert_eq!(header, Ok(decoded));
    assert_eq!(records.len(), decoded.count as usize);
    let again = encode(decoded, &records);
    let read_back = decode_batch(&again, OFFSET).expect("an encoded batch is valid");
    assert_eq!(read_back.records(), records);
}

fn encode(header: BatchHeader, records: &[LogRecord<'_>]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for record in records {
        let LogRecord { lsn, txg, dataset, offset, op } = *record;
        match op {
            LogOp::Write(data) => {
                builder.push_write(lsn, txg, dataset, offset, std::iter::once(data));
            }
            LogOp::Zero(bytes) => builder.push_zero(lsn, txg, dataset, offset, bytes),
            LogOp::Object { object, kind, payload } => {
                let payload = std::iter::once(payload);
                builder.push_object((lsn, txg), dataset, (object, kind), payload);
            }
        }
    }
    let packed = builder.pack();
    let mut out = vec![0; packed.batch_bytes()];
    packed.finish(header.id(), OFFSET, &mut out);
    out
}

fn empty_batch() -> Vec<u8> {
    let packed = BatchBuilder::default().pack();
    let mut out = vec![0; packed.batch_bytes()];
    packed.finish(ID, OFFSET, &mut out);
    out
}

/// Overwrites a field in the header of a batch.
fn put(batch: &mut [u8], name: &str, value: &[u8]) {
    let before = HEADER_FIELDS.iter().take_while(|field| field.name != name);
    let offset: usize = before.map(|field| field.bytes).sum();
    batch[offset..offset + value.len()].copy_from_slice(value);
}
