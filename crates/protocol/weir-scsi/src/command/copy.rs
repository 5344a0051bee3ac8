//! EXTENDED COPY (LID1).
//!
//! Its parameter list is in `codec::copy_list`, data movement in `transfer`, RECEIVE COPY RESULTS
//! in `copy_results`, copies with ROD tokens in `token_copy`.
//!
//! Spec: SPC-4 5.16.7 and 6.4.
//!
//! Invariants:
//! - a copy accesses only logical units that its nexus may use, and obeys reservations and write
//!   protection;
//! - an invalid list copies nothing; after an error during the copy, the copy result contains the
//!   progress.

use std::sync::atomic::Ordering;

use crate::codec::copy_list::{self, CopyList, Segment, SegmentKind};
use crate::codec::operation::Access;
use crate::codec::refusal::Outcome;
use crate::codec::sense::{Sense, key};
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

/// EXTENDED COPY.
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
    while let Some(first) = rest.first() {
        let source = find(task, copy_list, first.source)?;
        let destination = find(task, copy_list, first.destination)?;
        let (count, from, to) = joined(rest, first, &source.unit, &destination.unit)?;
        if !source.allows(task, Access::Read) || !destination.allows(task, Access::Write) {
            return Err(UNREACHABLE.into());
        }
        check_writable(&destination.unit)
            .map_err(|sense| Sense { key: key::COPY_ABORTED, ..sense })?;
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
        rest = rest.get(count..).unwrap_or_default();
    }
    settle(task, false).await
}

/// Merges the first segment with following segments that continue it in source and destination.
/// Returns the number of merged segments and both ranges. Fewer copies save flushes, because each
/// clone waits until it is durable. Segments within one logical unit are not merged, because a
/// segment may read the data that its predecessor wrote.
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
            // The later copy of that segment reports its error.
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
    let range = |unit: &Unit, lba: u64, offset: u64| {
        let lba = lba.checked_add(offset / unit.block()).ok_or(ABORTED)?;
        unit.range(lba, len / unit.block()).map_err(|_| ABORTED)
    };
    let from = range(source, segment.source_lba, from_offset)?;
    let to = range(destination, segment.destination_lba, to_offset)?;
    Ok((from, to))
}
