//! VERIFY and WRITE AND VERIFY.
//!
//! COMPARE AND WRITE is in `compare`.
//!
//! Spec: SBC-3 5.29 to 5.31 and 5.40 to 5.42.
//!
//! Invariant: a command holds at most one piece ([`PIECE_BYTES`]) of stored data in memory.

use crate::codec::operation::extent;
use crate::codec::refusal::Outcome;
use crate::codec::sense::{MISCOMPARE, invalid_cdb_bit};
use crate::command::block::{check_protection, settle, write_request};
use crate::command::lost;
use crate::command::task::Task;
use crate::fields::byte;
use crate::limits::PIECE_BYTES;
use crate::unit::range::Range;

/// VERIFY: reads the range, and the storage verifies its checksums. If BYTCHK requests a
/// comparison, compares the stored data with the Data-Out.
pub(crate) async fn verify(task: &Task<'_>) -> Outcome {
    check_protection(task.cdb)?;
    let extent = extent(task.cdb);
    match byte(task.cdb, 1) >> 1 & 3 {
        0 => {
            let range = task.unit.range(extent.lba, extent.blocks)?;
            compare(task, range, &[]).await
        }
        1 => {
            let range = task.unit.transfer(extent.lba, extent.blocks, extent.field)?;
            compare(task, range, task.data(range.len_bytes())?).await
        }
        3 => {
            let range = task.unit.range(extent.lba, extent.blocks)?;
            if range.is_empty() {
                return Ok(());
            }
            compare(task, range, task.data(task.unit.block())?).await
        }
        _ => Err(invalid_cdb_bit(1, 2).into()),
    }
}

/// WRITE AND VERIFY: writes, flushes, and reads the data back.
pub(crate) async fn write_and_verify(task: &Task<'_>) -> Outcome {
    let compares = match byte(task.cdb, 1) >> 1 & 3 {
        0 => false,
        1 => true,
        _ => return Err(invalid_cdb_bit(1, 2).into()),
    };
    let (range, data) = write_request(task)?;
    if range.is_empty() {
        return Ok(());
    }
    {
        // Hold this range lock until the end of the comparison: a concurrent write would look like
        // a miscompare.
        let _held = task.unit.ranges.alone(range).await;
        if let Err(error) = task.unit.medium.write(range.start, data).await {
            return Err(lost::refusal(task, range, error).await);
        }
        settle(task, true).await?;
        compare(task, range, if compares { data } else { &[] }).await?;
    }
    task.unit.wrote(range.len_bytes());
    Ok(())
}

/// Reads a range and compares it with `expected`, repeated to the length of the range. If
/// `expected` is empty, only reads the range.
async fn compare(task: &Task<'_>, range: Range, expected: &[u8]) -> Outcome {
    let mut buffer = vec![0; range.len_bytes().min(PIECE_BYTES) as usize];
    let mut expected_bytes = expected.iter().cycle();
    let mut at = range.start;
    while at < range.end {
        let len = (range.end - at).min(PIECE_BYTES);
        let piece = buffer.get_mut(..len as usize).unwrap_or_default();
        if let Err(error) = task.unit.medium.read(at, piece).await {
            let piece = Range { start: at, end: at + len };
            return Err(lost::refusal(task, piece, error).await);
        }
        if !expected.is_empty() {
            let differs = piece.iter().zip(expected_bytes.by_ref()).position(|(a, b)| a != b);
            if let Some(differs) = differs {
                let offset = at - range.start + differs as u64;
                return Err(MISCOMPARE.with_information(offset).into());
            }
        }
        at += len;
    }
    Ok(())
}
