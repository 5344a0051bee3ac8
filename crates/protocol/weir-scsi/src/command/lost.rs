//! Which logical block of a command is lost.
//!
//! Not here: sense codes (`sense`), other errors of the storage.
//!
//! Spec: SBC-3 4.18.1: INFORMATION of a medium error is the LBA of the first block with an error.
//!
//! Invariant: the LBA lies inside the range of the command.

use weir_base::ErrorKind;
use weir_block::ExportError;

use crate::codec::refusal::Refusal;
use crate::command::task::Task;
use crate::unit::range::Range;

/// The refusal for an error of reading or writing `range`. Of lost data it names the first block
/// that cannot be read. A write of a part of a record fails if the rest of the record is lost, so
/// whole records are looked at.
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

/// The first byte of a range in a record that cannot be read; the start if all can be read now.
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
