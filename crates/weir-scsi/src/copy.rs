//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS.
//!
//! Not here: tokens (POPULATE TOKEN and its like), which are not supported.
//!
//! Spec: SPC-4 5.16.7, 6.4 and 6.26.
//!
//! Invariants:
//! - a copy reads and writes only logical units that its nexus may use, as far as reservations
//!   and write protection let it;
//! - a list that is wrong copies nothing; an error while copying says how far it came;
//! - of what is copied at most a piece is held in memory, and none where blocks can be shared.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_base::ErrorKind;
use weir_serve::{ExportError, OutBuf};

use crate::block::{check_writable, settle};
use crate::fields::{be16, be24, be32, be64, byte, set};
use crate::limits::{
    COPIES_RUNNING_MAX, COPY_LIST_BYTES_MAX, COPY_RESULTS_MAX, COPY_SEGMENT_BYTES_MAX,
    COPY_SEGMENTS_MAX, COPY_TARGETS_MAX, PIECE_BYTES,
};
use crate::medium::Medium;
use crate::operation::{Access, SERVICE_ACTION};
use crate::ranges::Range;
use crate::seat::Seat;
use crate::sense::{LIST_LENGTH, Refusal, Sense, invalid_cdb, invalid_parameter, key};
use crate::task::{Outcome, Task, reply};
use crate::transport::Status;
use crate::unit::Unit;

/// Block device to block device, in blocks.
const BLOCKS: u8 = 0x02;
/// Block device to block device, in bytes with an offset.
const BYTES: u8 = 0x0A;
/// Identification descriptor.
const IDENTIFICATION: u8 = 0xE4;
/// Codes of descriptors that are understood, in ascending order.
pub(crate) const DESCRIPTORS: [u8; 3] = [BLOCKS, BYTES, IDENTIFICATION];

const UNREACHABLE: Sense = Sense::new(key::COPY_ABORTED, 0x0D, 0x02);
const ABORTED: Sense = Sense::new(key::COPY_ABORTED, 0, 0);
const INEXACT: Sense = Sense::new(key::COPY_ABORTED, 0x26, 0x0A);

/// Copies of a nexus: those under way, and what became of the last.
#[derive(Default)]
pub(crate) struct Copies {
    running: u8,
    results: VecDeque<CopyResult>,
}

#[derive(Clone)]
struct CopyResult {
    list: u8,
    ended: Option<Outcome>,
    segments: u16,
    bytes: u64,
}

/// One segment, in bytes.
struct Segment {
    source: u16,
    destination: u16,
    kind: SegmentKind,
    source_lba: u64,
    destination_lba: u64,
}

enum SegmentKind {
    Blocks { count: u16, of_destination: bool },
    Bytes { count: u32, source_offset: u16, destination_offset: u16 },
}

/// What EXTENDED COPY was asked for.
struct CopyList {
    /// `None` where its outcome is not to be kept.
    list: Option<u8>,
    targets: Vec<CopyTarget>,
    segments: Vec<Segment>,
}

struct CopyTarget {
    naa: Option<[u8; 16]>,
    block_bytes: u32,
}

/// EXTENDED COPY.
pub(crate) async fn extended_copy(task: &Task<'_>) -> Outcome {
    let len = be32(task.cdb, 10);
    if len == 0 {
        return Ok(());
    }
    let copy_list = parse(task.data(len.into())?)?;
    begin(task, copy_list.list)?;
    let mut done = (0, 0);
    let outcome = copy_segments(task, &copy_list, &mut done).await;
    let mut copies = task.seat.copies.lock();
    copies.running -= 1;
    if let Some(list) = copy_list.list
        && let Some(result) = copies.results.iter_mut().find(|result| result.list == list)
    {
        (result.segments, result.bytes) = done;
        result.ended = Some(outcome.clone());
    }
    outcome
}

fn begin(task: &Task<'_>, list: Option<u8>) -> Outcome {
    let mut copies = task.seat.copies.lock();
    if copies.running >= COPIES_RUNNING_MAX {
        return Err(Refusal::Status(Status::Busy));
    }
    if let Some(list) = list {
        if copies.results.iter().any(|known| known.list == list && known.ended.is_none()) {
            // OPERATION IN PROGRESS.
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x00, 0x16).into());
        }
        copies.results.retain(|known| known.list != list);
        if copies.results.len() >= COPY_RESULTS_MAX {
            let oldest = copies.results.iter().position(|known| known.ended.is_some());
            oldest.and_then(|at| copies.results.remove(at));
        }
        copies.results.push_back(CopyResult { list, ended: None, segments: 0, bytes: 0 });
    }
    copies.running += 1;
    Ok(())
}

/// A parameter list (SPC-4 6.4.3).
fn parse(list: &[u8]) -> Result<CopyList, Refusal> {
    if list.len() < 16 {
        return Err(LIST_LENGTH.into());
    }
    let usage = byte(list, 1) >> 3 & 3;
    let targets_len = u32::from(be16(list, 2));
    let segments_len = be32(list, 8);
    if usage == 1 || (usage == 3 && byte(list, 0) != 0) {
        return Err(invalid_parameter(0).into());
    }
    if be32(list, 12) != 0 {
        return Err(invalid_parameter(12).into());
    }
    let total = targets_len.checked_add(segments_len).ok_or(LIST_LENGTH)?;
    if total > COPY_LIST_BYTES_MAX || total as usize > list.len() - 16 {
        return Err(LIST_LENGTH.into());
    }
    let rest = list.get(16..).unwrap_or_default();
    let (targets, rest) = rest.split_at_checked(targets_len as usize).ok_or(LIST_LENGTH)?;
    let segments = rest.get(..segments_len as usize).ok_or(LIST_LENGTH)?;
    Ok(CopyList {
        list: (usage != 3).then(|| byte(list, 0)),
        targets: parse_targets(targets)?,
        segments: parse_segments(segments, 16 + targets.len())?,
    })
}

fn parse_targets(bytes: &[u8]) -> Result<Vec<CopyTarget>, Refusal> {
    let (descriptors, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(LIST_LENGTH.into());
    }
    if descriptors.len() > usize::from(COPY_TARGETS_MAX) {
        // TOO MANY TARGET DESCRIPTORS.
        return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x06).into());
    }
    let mut targets = Vec::new();
    for (place, descriptor) in descriptors.iter().enumerate() {
        if byte(descriptor, 0) != IDENTIFICATION {
            // UNSUPPORTED TARGET DESCRIPTOR TYPE CODE.
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x07).into());
        }
        if byte(descriptor, 1) & 0x1F != 0 {
            // Not a direct access block device.
            return Err(invalid_parameter((16 + 32 * place + 1) as u16).into());
        }
        // A binary designator of the logical unit by NAA, 16 bytes long.
        let is_naa = byte(descriptor, 4) & 0x0F == 1 && byte(descriptor, 5) & 0x3F == 3;
        let naa = descriptor.get(8..24).filter(|_| is_naa && byte(descriptor, 7) == 16);
        targets.push(CopyTarget {
            naa: naa.and_then(|naa| naa.try_into().ok()),
            block_bytes: be24(descriptor, 29),
        });
    }
    Ok(targets)
}

fn parse_segments(bytes: &[u8], at: usize) -> Result<Vec<Segment>, Refusal> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if segments.len() == usize::from(COPY_SEGMENTS_MAX) {
            // TOO MANY SEGMENT DESCRIPTORS.
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x08).into());
        }
        let code = byte(rest, 0);
        let len = match code {
            BLOCKS => 28,
            BYTES => 32,
            // UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE.
            _ => return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x09).into()),
        };
        let (segment, next) = rest.split_at_checked(len).ok_or(LIST_LENGTH)?;
        let place = at + bytes.len() - rest.len();
        if usize::from(be16(segment, 2)) != len - 4 {
            return Err(invalid_parameter((place + 2) as u16).into());
        }
        let kind = if code == BLOCKS {
            let of_destination = byte(segment, 1) & 0x02 != 0;
            SegmentKind::Blocks { count: be16(segment, 10), of_destination }
        } else {
            SegmentKind::Bytes {
                count: be32(segment, 8),
                source_offset: be16(segment, 28),
                destination_offset: be16(segment, 30),
            }
        };
        segments.push(Segment {
            source: be16(segment, 4),
            destination: be16(segment, 6),
            kind,
            source_lba: be64(segment, 12),
            destination_lba: be64(segment, 20),
        });
        rest = next;
    }
    Ok(segments)
}

/// A logical unit of a copy.
struct End {
    unit: Arc<Unit>,
    /// The seat of the nexus on it; without one it was found in the directory.
    seat: Option<Arc<Seat>>,
}

impl End {
    fn allows(&self, task: &Task<'_>, access: Access) -> bool {
        match &self.seat {
            Some(seat) => self.unit.reservations.allows(seat, access),
            None => {
                let port = &task.seat.name.path.initiator_port;
                self.unit.reservations.allows_port(port, access == Access::Write)
            }
        }
    }
}

/// Finds a logical unit that this nexus may use.
fn find(task: &Task<'_>, copy_list: &CopyList, index: u16) -> Result<End, Sense> {
    let target = copy_list.targets.get(usize::from(index)).ok_or(UNREACHABLE)?;
    let naa = target.naa.ok_or(UNREACHABLE)?;
    let seats = task.nexus.seats();
    let seat = seats.into_iter().find(|seat| seat.unit.identity.naa == naa);
    let end = match seat {
        Some(seat) => End { unit: Arc::clone(&seat.unit), seat: Some(seat) },
        None => {
            let name = &task.seat.name;
            let unit = name.target.find(&name.initiator, naa).ok_or(UNREACHABLE)?;
            End { unit, seat: None }
        }
    };
    if target.block_bytes != 0 && target.block_bytes != end.unit.options.block_bytes {
        // INCORRECT COPY TARGET DEVICE TYPE.
        return Err(Sense::new(key::COPY_ABORTED, 0x0D, 0x03));
    }
    Ok(end)
}

async fn copy_segments(task: &Task<'_>, copy_list: &CopyList, done: &mut (u16, u64)) -> Outcome {
    for segment in &copy_list.segments {
        let source = find(task, copy_list, segment.source)?;
        let destination = find(task, copy_list, segment.destination)?;
        let (from, to) = ranges(segment, &source.unit, &destination.unit)?;
        if !source.allows(task, Access::Read) || !destination.allows(task, Access::Write) {
            return Err(UNREACHABLE.into());
        }
        check_writable(&destination.unit)
            .map_err(|sense| Sense { key: key::COPY_ABORTED, ..sense })?;
        let _run = destination.seat.as_ref().map(|seat| seat.run());
        copy(task, (&source.unit, from), (&destination.unit, to)).await?;
        let len = from.len_bytes();
        destination.unit.counting.cloned_bytes.fetch_add(len, Ordering::Relaxed);
        *done = (done.0 + 1, done.1 + len);
        if !destination.unit.mode.write_cache() {
            destination.unit.medium.flush().await.map_err(failed)?;
        }
    }
    settle(task, false).await
}

/// Where a segment copies from and to.
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

/// Copies a range: by reference where the storage can, in pieces otherwise.
async fn copy(task: &Task<'_>, from: (&Arc<Unit>, Range), to: (&Arc<Unit>, Range)) -> Outcome {
    let ((source, from), (destination, to)) = (from, to);
    let is_same = Arc::ptr_eq(source, destination);
    let overlaps = is_same && from.start < to.end && to.start < from.end;
    if from.is_empty() || (is_same && from == to) {
        return Ok(());
    }
    if !overlaps {
        let _held = destination.ranges.shared(to).await;
        let medium: &dyn Medium = &*destination.medium;
        let len = to.len_bytes();
        let cloned = medium.clone_from(&*source.medium, from.start, to.start, len).await;
        if cloned.map_err(failed)? {
            return Ok(());
        }
    }
    // Where the ranges overlap, what is still to be read must not be overwritten before.
    let backwards = overlaps && to.start > from.start;
    let aborts = task.seat.aborts();
    let len = from.len_bytes();
    let mut buffer = vec![0; len.min(PIECE_BYTES) as usize];
    let mut done = 0;
    while done < len {
        if task.seat.aborts() != aborts {
            return Err(ABORTED.into());
        }
        let size = (len - done).min(PIECE_BYTES);
        let offset = if backwards { len - done - size } else { done };
        let piece = buffer.get_mut(..size as usize).unwrap_or_default();
        source.medium.read(from.start + offset, piece).await.map_err(failed)?;
        let start = to.start + offset;
        let _held = destination.ranges.shared(Range { start, end: start + size }).await;
        destination.medium.write(start, piece).await.map_err(failed)?;
        done += size;
    }
    Ok(())
}

/// What the storage said, of a copy: THIRD PARTY DEVICE FAILURE, or no space.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: ExportError) -> Refusal {
    tracing::debug!(%error, "EXTENDED COPY failed");
    match error.kind() {
        ErrorKind::NoSpace => Sense::new(key::COPY_ABORTED, 0x27, 0x07).into(),
        _ => Sense::new(key::COPY_ABORTED, 0x0D, 0x01).into(),
    }
}

/// RECEIVE COPY RESULTS.
pub(crate) fn results(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let list = byte(task.cdb, 2);
    let bytes = match byte(task.cdb, 1) & SERVICE_ACTION {
        0x03 => operating_parameters(),
        0x00 => copy_status(&*find_result(task, list)?),
        _ => {
            let result = find_result(task, list)?;
            let details = failed_segment(task, &result);
            // They are told once.
            task.seat.copies.lock().results.retain(|known| known.list != list);
            details
        }
    };
    reply(out, &bytes, task.allocation());
    Ok(())
}

fn find_result(task: &Task<'_>, list: u8) -> Result<Box<CopyResult>, Sense> {
    let copies = task.seat.copies.lock();
    let result = copies.results.iter().find(|known| known.list == list);
    Ok(Box::new(result.ok_or(invalid_cdb(2))?.clone()))
}

/// COPY STATUS.
fn copy_status(result: &CopyResult) -> Vec<u8> {
    let status = match &result.ended {
        None => 0,
        Some(Ok(())) => 1,
        Some(Err(_)) => 2,
    };
    let mut bytes = vec![0, 0, 0, 8, status];
    bytes.extend(result.segments.to_be_bytes());
    // Counted in KiB.
    bytes.push(1);
    bytes.extend(u32::try_from(result.bytes >> 10).unwrap_or(u32::MAX).to_be_bytes());
    bytes
}

/// FAILED SEGMENT DETAILS: the status and the sense data of the copy, or nothing.
fn failed_segment(task: &Task<'_>, result: &CopyResult) -> Vec<u8> {
    let (status, sense) = match &result.ended {
        Some(Err(Refusal::Check(sense))) => {
            let descriptor = task.unit.mode.descriptor_sense();
            let sense = Sense { descriptor, ..sense.clone() };
            (Status::CheckCondition as u8, sense.to_bytes())
        }
        Some(Err(Refusal::Status(status))) => (*status as u8, Vec::new()),
        _ => return vec![0; 4],
    };
    let mut bytes = vec![0; 60];
    set(&mut bytes, 0, &(56 + sense.len() as u32).to_be_bytes());
    set(&mut bytes, 56, &[status]);
    set(&mut bytes, 58, &(sense.len() as u16).to_be_bytes());
    bytes.extend(sense);
    bytes
}

/// OPERATING PARAMETERS.
fn operating_parameters() -> Vec<u8> {
    // SNLID: list identifiers may be left out.
    let mut bytes = vec![0, 0, 0, 0, 1, 0, 0, 0];
    bytes.extend(COPY_TARGETS_MAX.to_be_bytes());
    bytes.extend(COPY_SEGMENTS_MAX.to_be_bytes());
    bytes.extend(COPY_LIST_BYTES_MAX.to_be_bytes());
    bytes.extend(COPY_SEGMENT_BYTES_MAX.to_be_bytes());
    bytes.resize(34, 0);
    bytes.extend([0, COPIES_RUNNING_MAX, COPIES_RUNNING_MAX]);
    // Granularity of data: 512 bytes.
    bytes.extend([9, 0, 0, 0, 0, 0]);
    bytes.push(DESCRIPTORS.len() as u8);
    bytes.extend(DESCRIPTORS);
    let len = bytes.len() as u32 - 4;
    set(&mut bytes, 0, &len.to_be_bytes());
    bytes
}
