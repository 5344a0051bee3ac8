//! Checks that a target can run a spec.
//!
//! `profile::check` checks the limits of a profile.
//!
//! Invariant: after the check, every operation of the run consists of whole blocks inside one file
//! of the dataset.

use super::RunError;
use crate::spec::{Access, BlockShare, OpKind, RunSpec, StreamSpec};
use crate::target::{Target, TargetError};

/// Checks that every operation of the spec fits the target and the dataset.
pub(super) fn check(spec: &RunSpec, target: &dyn Target) -> Result<(), RunError> {
    let info = target.info();
    let (address, block_bytes) = (info.address.clone(), info.block_bytes);
    let sizes = spec.cells.iter().flat_map(|cell| {
        let sizes = |stream: &StreamSpec| {
            let access = stream.access;
            let blocks = stream.blocks.iter().map(move |share| (share.bytes, access));
            blocks.collect::<Vec<_>>()
        };
        let sizes = cell.streams.iter().flat_map(sizes);
        sizes.map(|(bytes, access)| (cell.name.as_str(), bytes, access))
    });
    check_operations(spec, target)?;
    let fill = ("fill", spec.fill.block_bytes, Access::Sequential);
    for (cell, bytes, access) in sizes.chain([fill]) {
        if bytes == 0 || !bytes.is_multiple_of(block_bytes) || bytes < content_block(spec) {
            let bytes = u64::from(bytes);
            return Err(TargetError::Unaligned { address, block_bytes, bytes }.into());
        }
        if !access.fits(bytes, spec.dataset.file_bytes) {
            let (cell, part_bytes) = (cell.to_owned(), spec.dataset.file_bytes);
            return Err(RunError::Block { cell, block_bytes: bytes, part_bytes });
        }
    }
    Ok(())
}

/// Checks that the target supports the operations of the spec at their sizes.
fn check_operations(spec: &RunSpec, target: &dyn Target) -> Result<(), RunError> {
    for cell in &spec.cells {
        for stream in &cell.streams {
            if !stream.is_consistent() {
                let (cell, stream) = (cell.name.clone(), stream.name.clone());
                return Err(RunError::Stream { cell, stream });
            }
            if stream.needs_files() && target.files().is_none() {
                let (cell, address) = (cell.name.clone(), target.info().address.clone());
                return Err(RunError::NoFiles { cell, address });
            }
            let reads_and_writes = vec![OpKind::Read, OpKind::Write];
            for kind in stream.op.map_or(reads_and_writes, |op| vec![op]) {
                let bytes_max = target.op_bytes_max(kind);
                let too_large = |share: &&BlockShare| u64::from(share.bytes) > bytes_max;
                if let Some(share) = stream.blocks.iter().find(too_large) {
                    let (cell, address) = (cell.name.clone(), target.info().address.clone());
                    let (op, bytes) = (kind.name(), share.bytes);
                    return Err(RunError::Operation { cell, address, op, bytes, bytes_max });
                }
            }
        }
    }
    Ok(())
}

/// If a cell uses COMPARE AND WRITE, checks that the contents of the blocks are known.
pub(super) fn check_known(spec: &RunSpec, is_known: bool) -> Result<(), RunError> {
    let compares = |stream: &StreamSpec| stream.op == Some(OpKind::CompareAndWrite);
    let cell = spec.cells.iter().find(|cell| cell.streams.iter().any(compares));
    match cell {
        Some(cell) if !is_known => Err(RunError::Unknown { cell: cell.name.clone() }),
        _ => Ok(()),
    }
}

/// Size of a stamped block in bytes: a divisor of the size of every operation.
pub(super) fn content_block(spec: &RunSpec) -> u32 {
    let blocks = spec.cells.iter().flat_map(|cell| &cell.streams).flat_map(|s| &s.blocks);
    let mut bytes = blocks.map(|share| share.bytes).chain([spec.fill.block_bytes]);
    if bytes.all(|bytes| bytes.is_multiple_of(4096)) { 4096 } else { 512 }
}
