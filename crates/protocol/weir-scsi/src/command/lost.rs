//! Finds the first unreadable logical block of a failed command.
//!
//! Sense codes are in `codec::sense`; `codec::refusal` maps other storage errors.
//!
//! Spec: SBC-3 4.18.1: INFORMATION of a medium error is the LBA of the first block with an error.
//!
//! Invariant: the LBA lies inside the range of the command.

use weir_base::ErrorKind;
use weir_block::ExportError;

use crate::codec::refusal::Refusal;
use crate::command::task::Task;
use crate::unit::range::Range;

/// Maps a storage error during a read or write of `range` to a refusal. For unreadable data, the
/// INFORMATION field is the LBA of the first unreadable block. The search reads whole records,
/// because a write of a part of a record also fails if the rest of that record is unreadable.
pub(crate) async fn refusal(task: &Task<'_>, range: Range, error: ExportError) -> Refusal {
    let is_lost = error.kind() == ErrorKind::Data;
    match Refusal::from(error) {
        Refusal::Check(sense) if is_lost => {
            let lba = first_lost(task, range).await / task.unit.block();
            sense.with_information(lba).into()
        }
        other => other,
    }
}

/// Returns the offset of the first byte of `range` that lies in an unreadable record. Returns the
/// start of `range` if all its records have become readable in the meantime.
async fn first_lost(task: &Task<'_>, range: Range) -> u64 {
    let medium = &task.unit.medium;
    let record = u64::from(medium.block_bytes_preferred()).max(task.unit.block());
    let size = task.unit.blocks() * task.unit.block();
    let mut buffer = vec![0; record as usize];
    let mut at = range.start - range.start % record;
    while at < range.end {
        let len = record.min(size.saturating_sub(at));
        let Some(piece) = buffer.get_mut(..len as usize).filter(|piece| !piece.is_empty()) else {
            break;
        };
        let read = medium.read(at, piece).await;
        if read.is_err_and(|error| error.kind() == ErrorKind::Data) {
            return at.max(range.start);
        }
        at += len;
    }
    range.start
}
