//! Data movement between logical units, for EXTENDED COPY and WRITE USING TOKEN.
//!
//! The commands choose the source and destination ranges.
//!
//! Invariants:
//! - a copy clones blocks where the storage can clone; it copies the other data in pieces and holds
//!   at most one piece ([`PIECE_BYTES`]) in memory;
//! - an aborted copy stops before its next piece.

use std::sync::Arc;

use weir_base::ErrorKind;
use weir_block::ExportError;

use crate::codec::operation::Access;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{Sense, key};
use crate::command::copy_run::CopyRun;
use crate::command::task::Task;
use crate::limits::PIECE_BYTES;
use crate::medium::Medium;
use crate::unit::itl_nexus::ItlNexus;
use crate::unit::logical_unit::Unit;
use crate::unit::range::Range;

/// Copy source or copy destination.
pub(crate) struct End {
    pub(crate) unit: Arc<Unit>,
    /// I_T_L nexus of the task on this unit; `None` if the unit belongs to another target and was
    /// found in the `Directory`.
    pub(crate) itl_nexus: Option<Arc<ItlNexus>>,
}

impl End {
    /// Finds a logical unit by its NAA designator, if this nexus may use it.
    pub(crate) fn find(task: &Task<'_>, naa: [u8; 16]) -> Option<Self> {
        match task.nexus.itl_nexus_of(naa) {
            Some(itl_nexus) => {
                Some(Self { unit: Arc::clone(&itl_nexus.unit), itl_nexus: Some(itl_nexus) })
            }
            None => {
                let unit = task.nexus.find(naa)?;
                Some(Self { unit, itl_nexus: None })
            }
        }
    }

    /// Returns true if reservations allow this nexus to access the unit in this way.
    pub(crate) fn allows(&self, task: &Task<'_>, access: Access) -> bool {
        match &self.itl_nexus {
            Some(itl_nexus) => {
                self.unit.reservations.allows(itl_nexus.id, &itl_nexus.name.path, access)
            }
            None => {
                let port = &task.itl_nexus.name.path.initiator_port;
                self.unit.reservations.allows_port(port, access == Access::Write)
            }
        }
    }
}

/// Source range or destination range of a copy, with its logical unit.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) unit: &'a Unit,
    pub(crate) range: Range,
}

/// Copies a range: clones blocks where the storage can clone, and copies the remaining data. Locks
/// the destination for each clone or piece, unless the caller has already locked it (`is_held`).
pub(crate) async fn copy(
    run: &CopyRun<'_>,
    from: Place<'_>,
    to: Place<'_>,
    is_held: bool,
) -> Outcome {
    let is_same = std::ptr::eq(from.unit, to.unit);
    if from.range.is_empty() || (is_same && from.range == to.range) {
        return Ok(());
    }
    if is_same && from.range.overlaps(to.range) {
        return copy_pieces(run, from, to, is_held).await;
    }
    for (offset, len) in parts(from, to) {
        let part = |place: Place<'_>| {
            let start = place.range.start + offset;
            Range { start, end: start + len }
        };
        let from = Place { range: part(from), ..from };
        let to = Place { range: part(to), ..to };
        run.check()?;
        if !share(from, to, is_held).await? {
            copy_pieces(run, from, to, is_held).await?;
        }
    }
    Ok(())
}

/// Splits a copy into head, middle and tail. The middle consists of whole records on both sides, so
/// the storage can clone it. Returns offset and length of each part that is not empty.
fn parts(from: Place<'_>, to: Place<'_>) -> impl Iterator<Item = (u64, u64)> {
    let record = u64::from(to.unit.medium.block_bytes_preferred());
    let same_record = u64::from(from.unit.medium.block_bytes_preferred()) == record;
    let before = |start: u64| start.next_multiple_of(record) - start;
    let (head, len) = (before(to.range.start), to.range.len_bytes());
    let fits = same_record && before(from.range.start) == head;
    let head = if fits { head.min(len) } else { 0 };
    let middle = if fits { (len - head) / record * record } else { len };
    let all = [(0, head), (head, middle), (head + middle, len - head - middle)];
    all.into_iter().filter(|(_, len)| *len > 0)
}

async fn share(from: Place<'_>, to: Place<'_>, is_held: bool) -> Result<bool, Refusal> {
    let _held = if is_held { None } else { Some(to.unit.ranges.shared(to.range).await) };
    let (source, medium): (&dyn Medium, &dyn Medium) = (&*from.unit.medium, &*to.unit.medium);
    let len = to.range.len_bytes();
    let done = medium.clone_from(source, from.range.start, to.range.start, len).await;
    done.map_err(failed)
}

async fn copy_pieces(run: &CopyRun<'_>, from: Place<'_>, to: Place<'_>, is_held: bool) -> Outcome {
    // Copy backwards if a forward copy would overwrite source data before reading it.
    let backwards = std::ptr::eq(from.unit, to.unit)
        && from.range.overlaps(to.range)
        && to.range.start > from.range.start;
    let len = from.range.len_bytes();
    let mut buffer = vec![0; len.min(PIECE_BYTES) as usize];
    let mut done = 0;
    while done < len {
        run.check()?;
        let size = (len - done).min(PIECE_BYTES);
        let offset = if backwards { len - done - size } else { done };
        let piece = buffer.get_mut(..size as usize).unwrap_or_default();
        from.unit.medium.read(from.range.start + offset, piece).await.map_err(failed)?;
        let start = to.range.start + offset;
        let written = Range { start, end: start + size };
        let _held = if is_held { None } else { Some(to.unit.ranges.shared(written).await) };
        to.unit.medium.write(start, piece).await.map_err(failed)?;
        done += size;
    }
    Ok(())
}

/// Maps a storage error of a copy: THIRD PARTY DEVICE FAILURE, or SPACE ALLOCATION FAILED.
#[expect(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
pub(crate) fn failed(error: ExportError) -> Refusal {
    tracing::debug!(%error, "a copy failed");
    match error.kind() {
        ErrorKind::NoSpace => Sense::new(key::COPY_ABORTED, 0x27, 0x07).into(),
        _ => Sense::new(key::COPY_ABORTED, 0x0D, 0x01).into(),
    }
}
