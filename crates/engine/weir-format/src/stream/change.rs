//! Decodes one change of a stream: a record or a range of holes. Change frames (volumes) and object
//! frames contain changes in the same encoding.
//!
//! `read` decodes change frames, `objects` decodes object frames.
//!
//! Invariant: the stored bytes of a returned record match the checksum in the stream.

use weir_base::RecordSize;
use weir_codec::checksum::xxh3_128;

use super::{CODE_HOLE, StreamChange, StreamCounts, StreamFault};
use crate::bytes::Reader;
use crate::compression::Codec;
use crate::layout::PACK_BYTES;

/// Name of the structure in errors.
pub(super) const WHAT: &str = "stream frame";

/// Decodes a change whose code the caller has read. Its first record must be `next` or later, and
/// its last record must be below `records`.
pub(super) fn read_change(
    (r, payload): (&mut Reader<'_>, &[u8]),
    code: u8,
    size: RecordSize,
    (next, records): (u64, u64),
    counts: &mut StreamCounts,
) -> Result<StreamChange, StreamFault> {
    let start = r.u64()?;
    let (count, stored) = if code == CODE_HOLE {
        let count = r.u64()?;
        counts.hole_records = counts.hole_records.saturating_add(count);
        (count, None)
    } else {
        let codec = Codec::from_code(code - 1)?;
        let len = usize::from(r.u16()?) * PACK_BYTES;
        let most = size.bytes();
        let fits = match codec {
            Codec::Raw => len == most,
            Codec::Lz4 | Codec::Zstd => (PACK_BYTES..most).contains(&len),
        };
        if !fits {
            return Err(r.bad("stored", len as u64).into());
        }
        let checksum = r.u128()?;
        let at = payload.len() - r.left();
        if xxh3_128(r.take(len)?) != checksum {
            return Err(r.bad("checksum", start).into());
        }
        counts.records += 1;
        counts.stored_bytes += len as u64;
        (1, Some((codec, at..at + len)))
    };
    let fits = start.checked_add(count).is_some_and(|end| end <= records);
    if start < next || count == 0 || !fits {
        return Err(r.bad("start", start).into());
    }
    Ok(StreamChange { start, count, stored })
}
