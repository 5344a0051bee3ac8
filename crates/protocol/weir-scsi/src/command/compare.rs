//! COMPARE AND WRITE and ORWRITE: atomic read-modify-write commands.
//!
//! `range_lock` excludes other writers.
//!
//! Spec: SBC-3 5.2 and 5.5.
//!
//! Invariants:
//! - no other writer changes the range between the comparison and the write;
//! - a miscompare changes no data.

use weir_base::ErrorKind;

use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{MISCOMPARE, invalid_cdb};
use crate::command::block::{
    check_protection, check_writable, forces_access, settle, transfer_range,
};
use crate::command::lost;
use crate::command::task::Task;
use crate::fields::{be64, byte};
use crate::unit::range::Range;

/// Decoded COMPARE AND WRITE request.
struct Request<'a> {
    range: Range,
    expected: &'a [u8],
    new: &'a [u8],
}

impl<'a> Request<'a> {
    /// Checks the CDB and splits the Data-Out in the middle: the first half is compared with the
    /// stored data, and the second half is written. Data-Out of another length is refused.
    fn new(task: &Task<'a>) -> Result<Self, Refusal> {
        check_protection(task.cdb)?;
        let blocks = byte(task.cdb, 13);
        let range = task.unit.range(be64(task.cdb, 2), blocks.into())?;
        check_writable(task.unit)?;
        let len = range.len_bytes() as usize;
        let halves = task.data.split_at_checked(len).filter(|(_, new)| new.len() == len);
        let (expected, new) = halves.ok_or(invalid_cdb(13))?;
        Ok(Self { range, expected, new })
    }

    fn compare(&self, found: &[u8]) -> Outcome {
        if found == self.expected {
            return Ok(());
        }
        let differs = found.iter().zip(self.expected).position(|(a, b)| a != b);
        Err(MISCOMPARE.with_information(differs.unwrap_or_default() as u64).into())
    }
}

/// Runs COMPARE AND WRITE without waiting; returns `None` if the command must wait.
pub(crate) fn try_compare_and_write(task: &Task<'_>) -> Option<Outcome> {
    let request = match Request::new(task) {
        Ok(request) => request,
        Err(refusal) => return Some(Err(refusal)),
    };
    if request.range.is_empty() {
        return Some(Ok(()));
    }
    if forces_access(task.cdb) || !task.unit.mode.write_cache() {
        return None;
    }
    let mut found = vec![0; request.expected.len()];
    let _held = task.unit.ranges.try_alone(request.range)?;
    let medium = &task.unit.medium;
    match medium.try_read(request.range.start, &mut found) {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) if error.kind() == ErrorKind::Data => return None,
        Err(error) => return Some(Err(error.into())),
    }
    if let Err(refusal) = request.compare(&found) {
        return Some(Err(refusal));
    }
    match medium.try_write(request.range.start, request.new) {
        Ok(true) => {
            task.unit.wrote(request.range.len_bytes());
            Some(Ok(()))
        }
        Ok(false) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Executes COMPARE AND WRITE.
pub(crate) async fn compare_and_write(task: &Task<'_>) -> Outcome {
    let request = Request::new(task)?;
    if request.range.is_empty() {
        return Ok(());
    }
    {
        let _held = task.unit.ranges.alone(request.range).await;
        let mut found = vec![0; request.expected.len()];
        let (medium, range) = (&task.unit.medium, request.range);
        if let Err(error) = medium.read(range.start, &mut found).await {
            return Err(lost::refusal(task, range, error).await);
        }
        request.compare(&found)?;
        if let Err(error) = medium.write(range.start, request.new).await {
            return Err(lost::refusal(task, range, error).await);
        }
    }
    task.unit.wrote(request.range.len_bytes());
    settle(task, forces_access(task.cdb)).await
}

/// ORWRITE (16): ORs the Data-Out into the stored data.
pub(crate) async fn or_write(task: &Task<'_>) -> Outcome {
    let range = transfer_range(task)?;
    check_writable(task.unit)?;
    let data = task.data(range.len_bytes())?;
    if range.is_empty() {
        return Ok(());
    }
    {
        let _held = task.unit.ranges.alone(range).await;
        let mut bytes = vec![0; data.len()];
        if let Err(error) = task.unit.medium.read(range.start, &mut bytes).await {
            return Err(lost::refusal(task, range, error).await);
        }
        bytes.iter_mut().zip(data).for_each(|(byte, bits)| *byte |= bits);
        task.unit.medium.write(range.start, &bytes).await?;
    }
    task.unit.wrote(range.len_bytes());
    settle(task, forces_access(task.cdb)).await
}
