//! EXTENDED COPY (LID1).
//!
//! `codec::copy_list` decodes the parameter list, `transfer` moves the data, `copy_results` reports
//! copy results, and `token_copy` copies with ROD tokens.
//!
//! Spec: SPC-4 5.16.7 and 6.4.
//!
//! Invariants:
//! - a copy accesses only logical units that its I_T_L nexus may use, and obeys reservations and
//!   write protection;
//! - an invalid parameter list copies nothing; after an error during the copy, the copy result
//!   contains the progress, and the sense data contains the number of the failed segment.

use std::sync::atomic::Ordering;

use crate::codec::copy_list::{self, CopyList, Segment, SegmentKind};
use crate::codec::operation::Access;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{SegmentPointer, Sense, key};
use crate::command::block::{check_writable, settle};
use crate::command::copy_run::{ABORTED, CopyRun};
use crate::command::task::Task;
use crate::command::transfer::{self, End, Place, failed};
use crate::fields::be32;
use crate::limits::COPY_SEGMENT_BYTES_MAX;
use crate::unit::copies::CopyName;
use crate::unit::logical_unit::Unit;
use crate::unit::range::Range;

/// COPY TARGET DEVICE NOT REACHABLE.
pub(crate) const UNREACHABLE: Sense = Sense::new(key::COPY_ABORTED, 0x0D, 0x02);
const INEXACT: Sense = Sense::new(key::COPY_ABORTED, 0x26, 0x0A);

/// Executes EXTENDED COPY.
pub(crate) async fn extended_copy(task: &Task<'_>) -> Outcome {
    let len = be32(task.cdb, 10);
    if len == 0 {
        return Ok(());
    }
    let copy_list = copy_list::parse(task.data(len.into())?)?;
    let list = copy_list.list.map(u32::from);
    let run = CopyRun::begin(task, CopyName { list, is_immediate: false })?;
    let outcome = copy_segments(&run, task, &copy_list).await;
    run.end(outcome)
}

/// Byte offsets of fields in a segment descriptor (SPC-4 6.4.6).
const SOURCE: u16 = 4;
const DESTINATION: u16 = 6;
const SOURCE_LBA: u16 = 12;
const DESTINATION_LBA: u16 = 20;

/// Adds the invalid field to sense data; [`in_segment`] then adds the number of the segment
/// descriptor.
fn at_field(mut sense: Sense, byte: u16) -> Sense {
    sense.segment = Some(SegmentPointer { segment: 0, byte: Some(byte) });
    sense
}

/// Adds the number of the failed segment to sense data; for merged segments, the number of the
/// first of them.
fn in_segment(refusal: Refusal, segment: usize) -> Refusal {
    match refusal {
        Refusal::Check(sense) if sense.key == key::COPY_ABORTED => {
            let byte = sense.segment.and_then(|pointer| pointer.byte);
            let segment = u16::try_from(segment).unwrap_or(u16::MAX);
            Refusal::Check(Sense { segment: Some(SegmentPointer { segment, byte }), ..sense })
        }
        other => other,
    }
}

/// Finds the logical unit of a CSCD descriptor, if this nexus may use it.
fn find(task: &Task<'_>, copy_list: &CopyList, index: u16) -> Result<End, Sense> {
    let target = copy_list.targets.get(usize::from(index)).ok_or(UNREACHABLE)?;
    let end = target.naa.and_then(|naa| End::find(task, naa)).ok_or(UNREACHABLE)?;
    if target.block_bytes != 0 && target.block_bytes != end.unit.options.block_bytes {
        // INCORRECT COPY TARGET DEVICE TYPE.
        return Err(Sense::new(key::COPY_ABORTED, 0x0D, 0x03));
    }
    Ok(end)
}

async fn copy_segments(run: &CopyRun<'_>, task: &Task<'_>, copy_list: &CopyList) -> Outcome {
    let mut rest = &copy_list.segments[..];
    while !rest.is_empty() {
        let number = copy_list.segments.len() - rest.len();
        let done = copy_first(run, task, copy_list, rest).await;
        let count = done.map_err(|refusal| in_segment(refusal, number))?;
        rest = rest.get(count..).unwrap_or_default();
    }
    settle(task, false).await
}

/// Copies the first of `segments`, merged with the following segments that continue its ranges.
/// Returns the number of segments copied.
async fn copy_first(
    run: &CopyRun<'_>,
    task: &Task<'_>,
    copy_list: &CopyList,
    segments: &[Segment],
) -> Result<usize, Refusal> {
    let Some(first) = segments.first() else { return Ok(0) };
    let source = find(task, copy_list, first.source).map_err(|sense| at_field(sense, SOURCE))?;
    let destination =
        find(task, copy_list, first.destination).map_err(|sense| at_field(sense, DESTINATION))?;
    let (count, from, to) = joined(segments, first, &source.unit, &destination.unit)?;
    if !source.allows(task, Access::Read) || !destination.allows(task, Access::Write) {
        return Err(UNREACHABLE.into());
    }
    check_writable(&destination.unit).map_err(|sense| Sense { key: key::COPY_ABORTED, ..sense })?;
    let _run = destination.itl_nexus.as_ref().map(|itl_nexus| itl_nexus.run());
    let from = Place { unit: &source.unit, range: from };
    let to = Place { unit: &destination.unit, range: to };
    transfer::copy(run, from, to, false).await?;
    let len = from.range.len_bytes();
    destination.unit.counting.cloned_bytes.fetch_add(len, Ordering::Relaxed);
    run.advance(count as u64, len);
    if !destination.unit.mode.write_cache() {
        destination.unit.medium.flush().await.map_err(failed)?;
    }
    Ok(count)
}

/// Merges the first segment with following segments that continue its source and destination
/// ranges. Returns the number of merged segments, the source range and the destination range.
/// Merging saves flushes: each clone of blocks waits until it is durable. Segments within one
/// logical unit are not merged, because a segment may read data that an earlier segment wrote.
fn joined(
    segments: &[Segment],
    first: &Segment,
    source: &Unit,
    destination: &Unit,
) -> Result<(usize, Range, Range), Sense> {
    let (mut from, mut to) = ranges(first, source, destination)?;
    let mut count = 1;
    if std::ptr::eq(source, destination) {
        return Ok((count, from, to));
    }
    let ends = (first.source, first.destination);
    for next in segments.iter().skip(1).take_while(|next| (next.source, next.destination) == ends) {
        match ranges(next, source, destination) {
            Ok((behind, there)) if behind.start == from.end && there.start == to.end => {
                (from.end, to.end) = (behind.end, there.end);
                count += 1;
            }
            // This segment does not continue the ranges, or it is invalid. The next call of
            // `copy_first` starts with it and reports its error.
            _ => break,
        }
    }
    Ok((count, from, to))
}

/// Source and destination range of a segment.
fn ranges(segment: &Segment, source: &Unit, destination: &Unit) -> Result<(Range, Range), Sense> {
    let (from_block, to_block) = (source.block(), destination.block());
    let (len, from_offset, to_offset) = match segment.kind {
        SegmentKind::Blocks { count, of_destination } => {
            let block = if of_destination { to_block } else { from_block };
            (u64::from(count) * block, 0, 0)
        }
        SegmentKind::Bytes { count, source_offset, destination_offset } => {
            (count.into(), source_offset.into(), destination_offset.into())
        }
    };
    let is_whole = |bytes: u64, block: u64| bytes.is_multiple_of(block);
    if !is_whole(len, from_block)
        || !is_whole(len, to_block)
        || !is_whole(from_offset, from_block)
        || !is_whole(to_offset, to_block)
        || len > COPY_SEGMENT_BYTES_MAX.into()
    {
        return Err(INEXACT);
    }
    let range = |unit: &Unit, lba: u64, offset: u64, field: u16| {
        let lba = lba.checked_add(offset / unit.block());
        let range = lba.and_then(|lba| unit.range(lba, len / unit.block()).ok());
        range.ok_or(at_field(ABORTED, field))
    };
    let from = range(source, segment.source_lba, from_offset, SOURCE_LBA)?;
    let to = range(destination, segment.destination_lba, to_offset, DESTINATION_LBA)?;
    Ok((from, to))
}
