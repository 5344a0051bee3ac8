//! Replays the intent log into the volumes of a pool during import.
//!
//! weir-pool finds the batches during import; `partial` handles unreadable records.
//!
//! Invariants:
//! - I7: replay skips log records of committed txgs and applies the rest in order; a crash during
//!   replay leaves the log unchanged, so that replay can be repeated;
//! - a log record never changes bytes beyond its volume, whatever its fields contain;
//! - replay never drops a logged block because other data is unreadable, unless an administrator
//!   forced the import.

use std::collections::BTreeSet;
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, Txg};
use weir_block::Block;
use weir_format::log::{Batch, LogOp, LogRecord};
use weir_pool::{Imported, PlantedBug, PoolError};

use crate::commit::replay_objects::{LoggedObjectRecord, ObjectLayer, replay_object_record};
use crate::error::DatasetError;
use crate::objects::log_queue::Payload;
use crate::objects::record::PartialChange;
use crate::state::directory_losses::DirectoryLosses;
use crate::state::engine::Engine;
use crate::state::volume::Volume;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Engine {
    /// Applies the records of all batches to the open txg, except records of txgs up to
    /// `committed`.
    ///
    /// # Errors
    /// A volume's tree is unreadable, or `layer` cannot apply a record without `force`.
    #[boxed(?Send)]
    pub(crate) async fn replay(
        &self,
        batches: &[Batch],
        committed: Txg,
        how: (&dyn ObjectLayer, bool),
    ) -> Result<(), DatasetError> {
        let volumes: HashMap<DatasetId, _> =
            self.all_volumes().into_iter().map(|volume| (volume.id, volume)).collect();
        let mut replayed = 0_u64;
        for batch in batches {
            for record in batch.records() {
                if record.txg <= committed {
                    continue;
                }
                // A missing volume was destroyed in a txg that was committed after the log record
                // was written.
                if let Some(volume) = volumes.get(&record.dataset) {
                    replay_record(volume, &record, how).await?;
                    replayed += 1;
                } else if self.core.directory_losses.lock().is_unread(record.dataset) {
                    tracing::error!(
                        dataset = record.dataset.0,
                        record.offset,
                        "a logged write is dropped: the record of its dataset cannot be read"
                    );
                }
            }
        }
        if replayed > 0 {
            let pool = self.core.pool.name();
            tracing::info!(pool, batches = batches.len(), records = replayed, "log replayed");
        }
        Ok(())
    }
}

/// Refuses an import that would drop logged writes to datasets whose directory entries are
/// unreadable.
pub(crate) fn refuse_logged_for_unread(
    imported: &Imported,
    losses: &DirectoryLosses,
) -> Result<(), PoolError> {
    let logged = imported.records_to_replay();
    let unread = logged.filter(|record| losses.is_unread(record.dataset));
    let unread: BTreeSet<u64> = unread.map(|record| record.dataset.0).collect();
    if unread.is_empty() {
        return Ok(());
    }
    let datasets = unread.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    Err(PoolError::LoggedForLost { pool: imported.pool.name().to_owned(), datasets })
}

async fn replay_record(
    volume: &Volume,
    logged: &LogRecord<'_>,
    how: (&dyn ObjectLayer, bool),
) -> Result<(), DatasetError> {
    let bytes = match logged.op {
        LogOp::Write(data) => data.len() as u64,
        LogOp::Zero(bytes) => bytes,
        LogOp::Object { object, kind, payload } => {
            let record = LoggedObjectRecord { lsn: logged.lsn, object, kind, payload };
            return replay_object_record(volume, record, how).await;
        }
    };
    let checked = volume.check(&volume.state.lock(), logged.offset, bytes);
    if let Err(error) = checked {
        // The volume shrank or was destroyed after this log record was written, so the record's
        // data is obsolete.
        tracing::debug!(%error, "record not replayed");
        return Ok(());
    }
    let all = Volume::blocks_of(logged.offset, bytes);
    let blocks = load_cut_records(volume, logged, all.clone()).await?;
    let mut state = volume.state.lock();
    let whole = state.record.record_size.inside(&all);
    state.drop_partial(whole);
    if blocks.is_empty() {
        return Ok(());
    }
    let payload = match logged_blocks(logged, &all, &blocks) {
        Some(data) => Payload::Many(Block::copies_of(data)),
        None => Payload::Zero { bytes: (blocks.end - blocks.start) * BLOCK },
    };
    volume.insert(&mut state, blocks.start * BLOCK, payload);
    Ok(())
}

/// Returns the logged content for `some` of the blocks `all`; `None` if the change writes zeros.
fn logged_blocks<'a>(
    logged: &LogRecord<'a>,
    all: &Range<u64>,
    some: &Range<u64>,
) -> Option<&'a [[u8; BLOCK_BYTES]]> {
    let LogOp::Write(data) = logged.op else { return None };
    let (data, _) = data.as_chunks();
    Some(&data[(some.start - all.start) as usize..(some.end - all.start) as usize])
}

/// Loads into the open txg the records that a logged change covers only partly. Returns the blocks
/// to which the caller can apply the change.
///
/// A record may be unreadable, for example while the disk with its only good copy is missing. The
/// logged blocks then become a partial record: they were acknowledged as durable, and the log is
/// overwritten once the replay is committed.
async fn load_cut_records(
    volume: &Volume,
    logged: &LogRecord<'_>,
    all: Range<u64>,
) -> Result<Range<u64>, DatasetError> {
    let kind = if matches!(logged.op, LogOp::Write(_)) {
        PartialChange::Write
    } else {
        PartialChange::Zero
    };
    let (size, mut blocks) = (volume.record_size(), all.clone());
    let keeps = volume.core.pool.bug() != PlantedBug::ReplayDropsParts;
    for record in size.cut(&all) {
        let is_partial = volume.state.lock().object.partial.contains_key(&record);
        if !is_partial {
            match volume.load_for_replay(record, kind).await {
                Err(error) if error.kind() == ErrorKind::Data => {
                    let (number, at) = (volume.id.0, record * size.bytes() as u64);
                    tracing::error!(
                        volume = number, at, %error,
                        "a logged write changes a part of a damaged record: the rest is lost"
                    );
                    let of_record = size.blocks_of(&(record..record + 1));
                    volume.note_unreadable(of_record, false).await;
                    if keeps {
                        volume.begin_partial(record).await?;
                    }
                }
                done => {
                    done?;
                    continue;
                }
            }
        }
        let of_record = size.blocks_of(&(record..record + 1));
        let known = all.start.max(of_record.start)..all.end.min(of_record.end);
        if keeps {
            let data = logged_blocks(logged, &all, &known);
            volume.put_partial(&mut volume.state.lock(), record, known, data);
        }
        if of_record.start <= blocks.start {
            blocks.start = of_record.end.min(blocks.end);
        } else {
            blocks.end = of_record.start;
        }
    }
    Ok(blocks)
}
