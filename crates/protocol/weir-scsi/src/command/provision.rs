//! Thin provisioning: WRITE SAME, UNMAP and GET LBA STATUS.
//!
//! `vital` and `log` report the parameters of thin provisioning to initiators.
//!
//! Spec: SBC-3 4.7, 5.4, 5.28, 5.45 and 5.46.
//!
//! Invariants:
//! - an invalid parameter list changes nothing;
//! - unmapped blocks read as zeros.

use std::sync::atomic::Ordering;

use weir_block::OutBuf;

use crate::codec::operation::extent;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{
    DATA_LENGTH, LIST_LENGTH, OUT_OF_RANGE, invalid_cdb, invalid_cdb_bit, invalid_parameter,
};
use crate::command::block::{check_protection, check_writable, settle};
use crate::command::task::{Task, reply};
use crate::fields::{be16, be32, be64, bit, byte};
use crate::limits::{
    STATUS_DESCRIPTORS_MAX, UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BYTES_MAX,
};
use crate::unit::range::Range;

/// WRITE SAME (10) and (16).
pub(crate) async fn write_same(task: &Task<'_>) -> Outcome {
    let cdb = task.cdb;
    check_protection(cdb)?;
    if bit(cdb, 1, 0x10) {
        // ANCHOR requests anchored blocks, and this unit has none.
        return Err(invalid_cdb_bit(1, 4).into());
    }
    if bit(cdb, 1, 0x06) {
        // PBDATA and LBDATA are obsolete, so a CDB that sets one of them is refused.
        return Err(invalid_cdb_bit(1, 2).into());
    }
    let extent = extent(cdb);
    let range = task.unit.range(extent.lba, extent.blocks)?;
    if range.is_empty() || range.len_bytes() > WRITE_SAME_BYTES_MAX {
        return Err(invalid_cdb(extent.field).into());
    }
    check_writable(task.unit)?;
    let is_bare = byte(cdb, 0) == 0x93 && bit(cdb, 1, 0x01);
    let pattern = if is_bare { &[] } else { task.data };
    // A pattern of several blocks is refused like a short one: the initiator's intent is unclear.
    if !is_bare && pattern.len() as u64 != task.unit.block() {
        return Err(DATA_LENGTH.into());
    }
    let len = range.len_bytes();
    let unmaps = bit(cdb, 1, 0x08);
    {
        let _held = task.unit.ranges.shared(range).await;
        let medium = &task.unit.medium;
        if pattern.iter().all(|&byte| byte == 0) {
            if !medium.try_zero(range.start, len, unmaps)? {
                medium.zero(range.start, len, unmaps).await?;
            }
        } else {
            medium.write_same(range.start, len, pattern).await?;
        }
    }
    let counting = &task.unit.counting;
    let counter = if unmaps { &counting.unmapped_bytes } else { &counting.zeroed_bytes };
    counter.fetch_add(len, Ordering::Relaxed);
    settle(task, false).await
}

/// Executes UNMAP.
pub(crate) async fn unmap(task: &Task<'_>) -> Outcome {
    if bit(task.cdb, 1, 0x01) {
        return Err(invalid_cdb_bit(1, 0).into());
    }
    let ranges = unmap_list(task)?;
    if ranges.is_empty() {
        return Ok(());
    }
    check_writable(task.unit)?;
    for range in ranges {
        let len = range.len_bytes();
        {
            let _held = task.unit.ranges.shared(range).await;
            let medium = &task.unit.medium;
            if !medium.try_zero(range.start, len, true)? {
                medium.zero(range.start, len, true).await?;
            }
        }
        task.unit.counting.unmapped_bytes.fetch_add(len, Ordering::Relaxed);
    }
    settle(task, false).await
}

/// Ranges of an UNMAP parameter list (SBC-3 5.28.2), without the empty ranges.
fn unmap_list(task: &Task<'_>) -> Result<Vec<Range>, Refusal> {
    let len = task.allocation();
    if len == 0 {
        return Ok(Vec::new());
    }
    if len < 8 {
        return Err(LIST_LENGTH.into());
    }
    let list = task.data(len as u64)?;
    let descriptors_len = usize::from(be16(list, 2));
    if !descriptors_len.is_multiple_of(16) && descriptors_len < len - 8 {
        return Err(invalid_parameter(2).into());
    }
    let descriptors = list.get(8..).unwrap_or_default();
    let descriptors = descriptors.get(..descriptors_len).ok_or(LIST_LENGTH)?;
    let (descriptors, _) = descriptors.as_chunks::<16>();
    if descriptors.len() > UNMAP_DESCRIPTORS_MAX as usize {
        return Err(invalid_parameter(2).into());
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut total = 0;
    for (place, descriptor) in descriptors.iter().enumerate() {
        let blocks = u64::from(be32(descriptor, 8));
        let range = task.unit.range(be64(descriptor, 0), blocks)?;
        total += blocks;
        if total > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(invalid_parameter((8 + 16 * place + 8) as u16).into());
        }
        if !range.is_empty() {
            ranges.push(range);
        }
    }
    Ok(ranges)
}

/// Executes GET LBA STATUS.
pub(crate) async fn lba_status(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let lba = be64(task.cdb, 2);
    let capacity = task.unit.blocks();
    if lba >= capacity {
        return Err(OUT_OF_RANGE.with_information(lba).into());
    }
    let room = (task.allocation().saturating_sub(8) / 16) as u64;
    let most = room.clamp(1, STATUS_DESCRIPTORS_MAX);
    let runs = runs(task, lba, capacity, most as usize).await?;
    let mut bytes = (4 + 16 * runs.len() as u32).to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    for run in runs {
        bytes.extend(run.lba.to_be_bytes());
        bytes.extend(run.blocks.to_be_bytes());
        // Provisioning status of the run: mapped or deallocated.
        bytes.extend([u8::from(run.hole), 0, 0, 0]);
    }
    reply(out, &bytes, task.allocation());
    Ok(())
}

struct Run {
    lba: u64,
    blocks: u32,
    hole: bool,
}

/// Runs of blocks with the same provisioning status, starting at `lba`. A block counts as
/// deallocated only if all of the block is a hole.
async fn runs(task: &Task<'_>, lba: u64, capacity: u64, most: usize) -> Result<Vec<Run>, Refusal> {
    let block = task.unit.block();
    let (start, end) = (lba * block, capacity * block);
    let extents = task.unit.medium.extents(start, end - start, most).await?;
    let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
    let (mut at, mut from) = (start, lba);
    for extent in extents {
        at = at.saturating_add(extent.len_bytes).min(end);
        // A block that lies only partly in a hole counts as mapped, so a hole ends at the last
        // whole block and data ends after its last partial block.
        let to = if extent.hole { at / block } else { at.div_ceil(block) };
        let blocks = u32::try_from(to.saturating_sub(from)).unwrap_or(u32::MAX);
        if blocks == 0 {
            continue;
        }
        match runs.last_mut() {
            Some(last) if last.hole == extent.hole && last.blocks.checked_add(blocks).is_some() => {
                last.blocks += blocks;
            }
            _ => runs.push(Run { lba: from, blocks, hole: extent.hole }),
        }
        from += u64::from(blocks);
        if from < to {
            break;
        }
    }
    if runs.is_empty() {
        // The medium returned one hole that is shorter than a logical block; the block counts as
        // mapped.
        runs.push(Run { lba, blocks: 1, hole: false });
    }
    Ok(runs)
}
