//! Replaying the intent log into the volumes of a pool that is being opened.
//!
//! Not here: finding the batches (weir-pool's import).
//!
//! Invariants:
//! - I7: records of committed txgs are skipped, the rest are applied in order; a crash during
//!   replay leaves the log as it was, so replay can be repeated;
//! - a record never reaches beyond its volume, whatever it says.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, Txg};
use weir_device::Block;
use weir_format::log::Batch;
use weir_format::log::{LogOp, LogRecord};

use crate::dirty::Payload;
use crate::engine::Engine;
use crate::error::DatasetError;
use crate::records::Wish;
use crate::volume::Volume;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Engine {
    /// Puts the records of all batches into the open txg, those of txgs up to `committed` left out.
    ///
    /// # Errors
    /// A volume's tree cannot be read.
    #[boxed(?Send)]
    pub(crate) async fn replay(
        &self,
        batches: &[Batch],
        committed: Txg,
    ) -> Result<(), DatasetError> {
        let volumes: HashMap<DatasetId, _> =
            self.all_volumes().into_iter().map(|volume| (volume.id, volume)).collect();
        let mut replayed = 0_u64;
        for batch in batches {
            for record in batch.records() {
                if record.txg <= committed {
                    continue;
                }
                // A volume that is not there was destroyed in a txg that was committed after the
                // record was logged.
                if let Some(volume) = volumes.get(&record.dataset) {
                    replay_record(volume, &record).await?;
                    replayed += 1;
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

async fn replay_record(volume: &Volume, logged: &LogRecord<'_>) -> Result<(), DatasetError> {
    let bytes = match logged.op {
        LogOp::Write(data) => data.len() as u64,
        LogOp::Zero(bytes) => bytes,
    };
    let checked = volume.check(&volume.state.lock(), logged.offset, bytes);
    if let Err(error) = checked {
        // The volume shrank or went after this was logged; its data was in nobody's way then.
        tracing::debug!(%error, "record not replayed");
        return Ok(());
    }
    let all = Volume::blocks_of(logged.offset, bytes);
    let blocks = replayable(volume, logged, all.clone()).await?;
    if blocks.is_empty() {
        return Ok(());
    }
    let offset = blocks.start * BLOCK;
    let payload = match logged.op {
        LogOp::Write(data) => {
            let (data, _) = data.as_chunks::<BLOCK_BYTES>();
            let part = (blocks.start - all.start) as usize..(blocks.end - all.start) as usize;
            Payload::Many(Block::copies_of(&data[part]))
        }
        LogOp::Zero(_) => Payload::Zero { bytes: (blocks.end - blocks.start) * BLOCK },
    };
    volume.insert(&mut volume.state.lock(), offset, payload);
    Ok(())
}

/// Brings the rest of the records that a logged change cuts; the blocks that can be changed then.
///
/// What the log has of a record that was damaged since, on every leg, goes with the record: it is
/// stored as a whole, and what is made up for the rest would be taken for data.
async fn replayable(
    logged_to: &Volume,
    logged: &LogRecord<'_>,
    mut blocks: Range<u64>,
) -> Result<Range<u64>, DatasetError> {
    let wish = if matches!(logged.op, LogOp::Write(_)) { Wish::Write } else { Wish::Zero };
    let size = logged_to.record_size();
    for record in size.cut(&blocks.clone()) {
        match logged_to.load_for_replay(record, wish).await {
            Err(error) if error.kind() == ErrorKind::Data => {
                let (volume, at) = (logged_to.id.0, record * size.bytes() as u64);
                tracing::error!(volume, at, %error, "a logged write to a damaged record is lost");
                let lost = size.blocks_of(&(record..record + 1));
                logged_to.note_unreadable(lost.clone(), false).await;
                if lost.start <= blocks.start {
                    blocks.start = lost.end.min(blocks.end);
                } else {
                    blocks.end = lost.start;
                }
            }
            done => done?,
        }
    }
    Ok(blocks)
}
