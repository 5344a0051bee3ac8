//! Queries and aborts of copies. An initiator names a copy by its list identifier.
//!
//! The copy commands are in `copy` and `token_copy`.
//!
//! Spec: SPC-4 5.17.4, 6.3, and 6.21 to 6.26.
//!
//! Invariants:
//! - a list identifier belongs to one copy at a time;
//! - a copy that has ended for any reason no longer counts as a running copy;
//! - an aborted copy writes nothing after the response to COPY OPERATION ABORT.

use std::sync::atomic::Ordering;

use weir_block::OutBuf;

use crate::codec::command::Status;
use crate::codec::copy_list::DESCRIPTORS;
use crate::codec::operation::SERVICE_ACTION;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{Sense, invalid_cdb};
use crate::command::copy_run::{ABORTED, CLEARED, UNDERRUN};
use crate::command::task::{Task, reply};
use crate::fields::{be32, byte, set};
use crate::limits::{
    COPIES_RUNNING_MAX, COPY_LIST_BYTES_MAX, COPY_SEGMENT_BYTES_MAX, COPY_SEGMENTS_MAX,
    COPY_TARGETS_MAX,
};
use crate::unit::copies::CopyResult;

fn find_result(task: &Task<'_>, list: u32) -> Result<CopyResult, Sense> {
    let copies = task.itl_nexus.copies.lock();
    let result = copies.results.iter().find(|known| known.list == list);
    Ok(result.ok_or(invalid_cdb(2))?.clone())
}

/// COPY OPERATION ABORT. Waits for the end of the aborted copy before it sends its response.
pub(crate) async fn abort(task: &Task<'_>) -> Outcome {
    let result = find_result(task, be32(task.cdb, 2))?;
    if result.ended.is_none() {
        result.progress.is_aborted.store(true, Ordering::Release);
        drop(result.progress.turn.lock().await);
    }
    Ok(())
}

/// RECEIVE COPY RESULTS (LID1): COPY STATUS, FAILED SEGMENT DETAILS and OPERATING PARAMETERS.
pub(crate) fn results(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let list = byte(task.cdb, 2).into();
    let bytes = match byte(task.cdb, 1) & SERVICE_ACTION {
        0x03 => operating_parameters(),
        0x00 => short_status(&find_result(task, list)?),
        _ => {
            let result = find_result(task, list)?;
            let details = failed_segment(task, &result);
            // An initiator can read the details of a failed segment only once, so remove the copy
            // result.
            task.itl_nexus.copies.lock().results.retain(|known| known.list != list);
            details
        }
    };
    reply(out, &bytes, task.allocation());
    Ok(())
}

/// COPY STATUS response: whether the copy is running, has succeeded or has failed, and its
/// progress.
fn short_status(result: &CopyResult) -> Vec<u8> {
    let status = match &result.ended {
        None => 0,
        Some(Ok(())) => 1,
        Some(Err(_)) => 2,
    };
    let mut bytes = vec![0, 0, 0, 8, status];
    let segments = result.progress.segments.load(Ordering::Relaxed);
    bytes.extend(u16::try_from(segments).unwrap_or(u16::MAX).to_be_bytes());
    // The next byte sets the unit of the transfer count: KiB.
    bytes.push(1);
    let copied = result.progress.bytes.load(Ordering::Relaxed);
    bytes.extend(u32::try_from(copied >> 10).unwrap_or(u32::MAX).to_be_bytes());
    bytes
}

/// Status and sense data of an ended copy.
fn ending(task: &Task<'_>, result: &CopyResult) -> (u8, Vec<u8>) {
    match &result.ended {
        Some(Err(Refusal::Check(sense))) => {
            let descriptor = task.unit.mode.descriptor_sense();
            let sense = Sense { descriptor, ..sense.clone() };
            (Status::CheckCondition as u8, sense.to_bytes())
        }
        Some(Err(Refusal::Status(status))) => (*status as u8, Vec::new()),
        None | Some(Ok(())) => (Status::Good as u8, Vec::new()),
    }
}

/// FAILED SEGMENT DETAILS response: status and sense data of a failed copy, or an empty list if the
/// copy did not fail.
fn failed_segment(task: &Task<'_>, result: &CopyResult) -> Vec<u8> {
    if !matches!(result.ended, Some(Err(_))) {
        return vec![0; 4];
    }
    let (status, sense) = ending(task, result);
    let mut bytes = vec![0; 60];
    set(&mut bytes, 0, &(56 + sense.len() as u32).to_be_bytes());
    set(&mut bytes, 56, &[status]);
    set(&mut bytes, 58, &(sense.len() as u16).to_be_bytes());
    bytes.extend(sense);
    bytes
}

/// OPERATING PARAMETERS response.
fn operating_parameters() -> Vec<u8> {
    // SNLID is set: an initiator may omit the list identifier.
    let mut bytes = vec![0, 0, 0, 0, 1, 0, 0, 0];
    bytes.extend(COPY_TARGETS_MAX.to_be_bytes());
    bytes.extend(COPY_SEGMENTS_MAX.to_be_bytes());
    bytes.extend(COPY_LIST_BYTES_MAX.to_be_bytes());
    bytes.extend(COPY_SEGMENT_BYTES_MAX.to_be_bytes());
    bytes.resize(34, 0);
    bytes.extend([0, COPIES_RUNNING_MAX, COPIES_RUNNING_MAX]);
    // Data segment granularity: 512 bytes, encoded as the exponent 9.
    bytes.extend([9, 0, 0, 0, 0, 0]);
    bytes.push(DESCRIPTORS.len() as u8);
    bytes.extend(DESCRIPTORS);
    let len = bytes.len() as u32 - 4;
    set(&mut bytes, 0, &len.to_be_bytes());
    bytes
}

/// Executes RECEIVE COPY STATUS (LID4).
pub(crate) fn status(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let bytes = long_status(task, &find_result(task, be32(task.cdb, 2))?);
    reply(out, &sized(bytes), task.allocation());
    Ok(())
}

/// RECEIVE ROD TOKEN INFORMATION: the copy status, and the ROD token if the copy created one.
pub(crate) fn token_information(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let result = find_result(task, be32(task.cdb, 2))?;
    let mut bytes = long_status(task, &result);
    let token = result.token.as_ref().filter(|_| matches!(result.ended, Some(Ok(()))));
    match token {
        Some(token) => {
            bytes.extend((token.bytes().len() as u32 + 2).to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(token.bytes());
        }
        None => bytes.extend([0; 4]),
    }
    reply(out, &sized(bytes), task.allocation());
    Ok(())
}

/// Response header of RECEIVE COPY STATUS and RECEIVE ROD TOKEN INFORMATION (SPC-4 6.24), except
/// the AVAILABLE DATA field.
fn long_status(task: &Task<'_>, result: &CopyResult) -> Vec<u8> {
    let is_of_token = result.action != 0;
    let is = |sense: &Sense, other: &Sense| {
        (sense.key, sense.asc, sense.ascq) == (other.key, other.asc, other.ascq)
    };
    let status = match &result.ended {
        None if result.is_immediate => 0x12,
        None => 0x11,
        Some(Ok(())) => 0x01,
        Some(Err(Refusal::Check(sense))) if is(sense, &UNDERRUN) => 0x03,
        Some(Err(Refusal::Check(sense))) if is(sense, &ABORTED) || is(sense, &CLEARED) => 0x60,
        Some(Err(_)) => 0x02,
    };
    let segments = result.progress.segments.load(Ordering::Relaxed) as u16;
    let copied = result.progress.bytes.load(Ordering::Relaxed);
    let (ending, sense) = ending(task, result);
    let mut bytes = vec![0, 0, 0, 0, result.action, status, 0, 0];
    // Estimated status update delay in milliseconds, after which an initiator asks again. FFFFFFFEh
    // means that the copy has ended and that its status no longer changes.
    let delay: u32 = if result.ended.is_some() { 0xFFFF_FFFE } else { 1000 };
    bytes.extend(delay.to_be_bytes());
    bytes.extend([ending, sense.len() as u8, sense.len() as u8]);
    // Transfer count units: logical blocks for copies with ROD tokens, bytes for EXTENDED COPY.
    bytes.push(if is_of_token { 0xF1 } else { 0x00 });
    let block = if is_of_token { task.unit.block() } else { 1 };
    bytes.extend((copied / block).to_be_bytes());
    bytes.extend(if is_of_token { [0; 2] } else { segments.to_be_bytes() });
    bytes.resize(32, 0);
    bytes.extend(sense);
    bytes
}

/// Writes the length of the remaining response into its AVAILABLE DATA field.
fn sized(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.len() as u32 - 4;
    set(&mut bytes, 0, &len.to_be_bytes());
    bytes
}
