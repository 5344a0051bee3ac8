//! READ, WRITE, PRE-FETCH, SYNCHRONIZE CACHE, START STOP UNIT and READ CAPACITY.
//!
//! VERIFY is in `verify`, COMPARE AND WRITE and ORWRITE are in `compare`, UNMAP and WRITE SAME in
//! `provision`.
//!
//! Spec: SBC-3 5.7 to 5.20 and 5.32 to 5.37.
//!
//! Invariants:
//! - a write with FUA, or with the write cache off, is durable before its response;
//! - no command reads or writes outside the capacity of the logical unit.

use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::{Block, OutBuf};

use crate::codec::operation::extent;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{SOFTWARE_WRITE_PROTECTED, Sense, WRITE_PROTECTED, invalid_cdb_bit};
use crate::command::lost;
use crate::command::task::{Task, reply};
use crate::fields::{be64, bit, byte};
use crate::limits::PIECE_BYTES;
use crate::unit::logical_unit::Unit;
use crate::unit::range::Range;

/// FUA: force unit access.
const FUA: u8 = 0x08;
/// Mask of RDPROTECT, WRPROTECT, VRPROTECT or ORPROTECT, which request protection information.
const PROTECT: u8 = 0xE0;

/// True if a CDB of more than 6 bytes has the FUA bit set.
pub(crate) fn forces_access(cdb: &[u8]) -> bool {
    byte(cdb, 0) >> 5 != 0 && bit(cdb, 1, FUA)
}

/// Refuses a CDB of more than 6 bytes that requests protection information (SBC-3 4.22).
pub(crate) fn check_protection(cdb: &[u8]) -> Result<(), Sense> {
    if byte(cdb, 0) >> 5 != 0 && bit(cdb, 1, PROTECT) {
        return Err(invalid_cdb_bit(1, 7));
    }
    Ok(())
}

/// Refuses a write to a write-protected logical unit.
pub(crate) fn check_writable(unit: &Unit) -> Result<(), Sense> {
    if unit.medium.read_only() {
        return Err(WRITE_PROTECTED);
    }
    if unit.mode.software_write_protect() {
        return Err(SOFTWARE_WRITE_PROTECTED);
    }
    Ok(())
}

/// Returns the byte range of a transfer, after checks of the CDB fields.
pub(crate) fn transfer_range(task: &Task<'_>) -> Result<Range, Sense> {
    check_protection(task.cdb)?;
    let extent = extent(task.cdb);
    task.unit.transfer(extent.lba, extent.blocks, extent.field)
}

/// Makes a write durable if the FUA bit is set or the write cache is off.
pub(crate) async fn settle(task: &Task<'_>, forced: bool) -> Outcome {
    if forced || !task.unit.mode.write_cache() {
        task.unit.medium.flush().await?;
    }
    Ok(())
}

/// Runs READ without waiting; returns `None` if the command must wait.
pub(crate) fn try_read(task: &Task<'_>, out: &mut OutBuf) -> Option<Outcome> {
    let range = match transfer_range(task) {
        Ok(range) => range,
        Err(sense) => return Some(Err(sense.into())),
    };
    if range.is_empty() {
        return Some(Ok(()));
    }
    if forces_access(task.cdb) {
        return None;
    }
    match task.unit.medium.try_read(range.start, out.space(range.len_bytes() as usize)) {
        Ok(true) => {
            task.unit.read(range.len_bytes());
            Some(Ok(()))
        }
        Ok(false) => None,
        // The caller then runs `read`, which finds the first unreadable block by further reads.
        Err(error) if error.kind() == ErrorKind::Data => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Runs a READ of `len_bytes` whose blocks are all in memory, and appends handles of whole blocks
/// to `blocks`. Returns false, with undefined contents of `blocks`, if the blocks cannot be shared
/// or the command needs a check; [`read`] then reads the blocks and reports errors.
pub(crate) fn try_share(task: &Task<'_>, len_bytes: u64, blocks: &mut Vec<Block>) -> bool {
    let Ok(range) = transfer_range(task) else { return false };
    let whole = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES as u64);
    if range.len_bytes() != len_bytes
        || range.is_empty()
        || !whole(range.start)
        || !whole(len_bytes)
        || forces_access(task.cdb)
        || !task.unit.medium.try_share(range.start, len_bytes, blocks).unwrap_or(false)
    {
        return false;
    }
    task.unit.read(len_bytes);
    true
}

/// Runs READ. With FUA, first flushes earlier writes, so that a power cut cannot lose data that
/// this READ returned.
pub(crate) async fn read(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let range = transfer_range(task)?;
    if range.is_empty() {
        return Ok(());
    }
    if forces_access(task.cdb) {
        task.unit.medium.flush().await?;
    }
    let read = task.unit.medium.read(range.start, out.space(range.len_bytes() as usize)).await;
    if let Err(error) = read {
        return Err(lost::refusal(task, range, error).await);
    }
    task.unit.read(range.len_bytes());
    Ok(())
}

/// Checks a write, and returns its byte range and its data. If the initiator sent less data than
/// the transfer length, the command writes only the whole blocks that arrived, and the transport
/// reports the residual count (SAM-5 5.1, RFC 7143 11.4.5).
pub(crate) fn write_request<'a>(task: &Task<'a>) -> Result<(Range, &'a [u8]), Refusal> {
    let range = transfer_range(task)?;
    check_writable(task.unit)?;
    let came = task.data.len() as u64 / task.unit.block() * task.unit.block();
    let len_bytes = range.len_bytes().min(came);
    Ok((Range { end: range.start + len_bytes, ..range }, task.data(len_bytes)?))
}

/// Runs WRITE without waiting; returns `None` if the command must wait. The caller holds a
/// `Ranges::quick` registration.
pub(crate) fn try_write(task: &Task<'_>) -> Option<Outcome> {
    let (range, data) = match write_request(task) {
        Ok(request) => request,
        Err(refusal) => return Some(Err(refusal)),
    };
    if range.is_empty() {
        return Some(Ok(()));
    }
    if forces_access(task.cdb) || !task.unit.mode.write_cache() {
        return None;
    }
    task.unit.ranges.tokens.changing(range);
    match task.unit.medium.try_write(range.start, data) {
        Ok(true) => {
            task.unit.wrote(range.len_bytes());
            Some(Ok(()))
        }
        Ok(false) => None,
        Err(error) if error.kind() == ErrorKind::Data => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Executes WRITE.
pub(crate) async fn write(task: &Task<'_>) -> Outcome {
    let (range, data) = write_request(task)?;
    if range.is_empty() {
        return Ok(());
    }
    {
        let _held = task.unit.ranges.shared(range).await;
        if let Err(error) = task.unit.medium.write(range.start, data).await {
            return Err(lost::refusal(task, range, error).await);
        }
    }
    task.unit.wrote(range.len_bytes());
    settle(task, forces_access(task.cdb)).await
}

/// SYNCHRONIZE CACHE. Checks the range of the CDB, then flushes the whole cache. Even with IMMED
/// the response waits for the flush, as SBC-3 5.21 allows.
pub(crate) async fn synchronize_cache(task: &Task<'_>) -> Outcome {
    let extent = extent(task.cdb);
    task.unit.range(extent.lba, extent.blocks)?;
    task.unit.medium.flush().await?;
    Ok(())
}

/// PRE-FETCH. Ends with GOOD and never with CONDITION MET: CONDITION MET reports that the cache has
/// space for all blocks, which the target does not know in advance.
pub(crate) async fn prefetch(task: &Task<'_>) -> Outcome {
    let extent = extent(task.cdb);
    let mut range = task.unit.range(extent.lba, extent.blocks)?;
    if extent.blocks == 0 {
        range.end = task.unit.blocks() * task.unit.block();
    }
    // Limit the bytes that one command reads into the cache.
    range.end = range.end.min(range.start + 16 * PIECE_BYTES);
    if !range.is_empty() {
        task.unit.medium.cache(range.start, range.len_bytes()).await?;
    }
    Ok(())
}

/// START STOP UNIT. The unit has no power states and no removable medium. A request to stop the
/// unit only flushes the cache (SBC-3 5.25).
pub(crate) async fn start_stop(task: &Task<'_>) -> Outcome {
    let flags = byte(task.cdb, 4);
    if flags & 0xF0 == 0 && flags & 0x02 != 0 {
        // LOEJ: the medium is not removable.
        return Err(invalid_cdb_bit(4, 1).into());
    }
    let no_flush = flags & 0x04 != 0;
    if flags & 0xF1 == 0 && !no_flush {
        task.unit.medium.flush().await?;
    }
    Ok(())
}

/// READ CAPACITY (10): the last LBA, or FFFFFFFFh if the initiator needs READ CAPACITY (16).
pub(crate) fn read_capacity_10(task: &Task<'_>, out: &mut OutBuf) {
    let last = task.unit.blocks().saturating_sub(1);
    out.put(&u32::try_from(last).unwrap_or(u32::MAX).to_be_bytes());
    out.put(&task.unit.options.block_bytes.to_be_bytes());
}

/// READ CAPACITY (16) (SBC-3 5.16).
pub(crate) fn read_capacity_16(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    if be64(task.cdb, 2) != 0 || bit(task.cdb, 14, 1) {
        return Err(crate::codec::sense::invalid_cdb(2).into());
    }
    let mut bytes = Vec::with_capacity(32);
    bytes.extend(task.unit.blocks().saturating_sub(1).to_be_bytes());
    bytes.extend(task.unit.options.block_bytes.to_be_bytes());
    // First byte: no protection information. Second byte: log2 of the number of logical blocks in a
    // physical block of 4096 bytes.
    bytes.extend([0, (4096 / task.unit.options.block_bytes).trailing_zeros() as u8]);
    // LBPME: the unit is thin provisioned. LBPRZ: deallocated blocks read as zeros.
    bytes.extend([0xC0, 0]);
    bytes.resize(32, 0);
    reply(out, &bytes, task.allocation());
    Ok(())
}
