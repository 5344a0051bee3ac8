//! Replaying the intent log into the volumes of a pool that is being opened.
//!
//! Not here: finding the batches (weir-pool's import).
//!
//! Invariants:
//! - I7: records of committed txgs are skipped, the rest are applied in order; a crash during
//!   replay leaves the log as it was, so replay can be repeated;
//! - a record never reaches beyond its volume, whatever it says.

use weir_base::hash::HashMap;
use weir_base::{BLOCK_BYTES, DatasetId, Txg};
use weir_device::Block;
use weir_format::log::Batch;
use weir_format::log::{LogOp, LogRecord};

use crate::dirty::Payload;
use crate::engine::Engine;
use crate::volume::Volume;

impl Engine {
    /// Puts the records of all batches into the open txg, those of txgs up to `committed` left out.
    pub(crate) fn replay(&self, batches: &[Batch], committed: Txg) {
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
                    replay_record(volume, &record);
                    replayed += 1;
                }
            }
        }
        if replayed > 0 {
            let pool = self.core.pool.name();
            tracing::info!(pool, batches = batches.len(), records = replayed, "log replayed");
        }
    }
}

fn replay_record(volume: &Volume, record: &LogRecord<'_>) {
    let (bytes, payload) = match record.op {
        LogOp::Write(data) => {
            let (blocks, _) = data.as_chunks::<BLOCK_BYTES>();
            (data.len() as u64, Payload::Many(Block::copies_of(blocks)))
        }
        LogOp::Zero(bytes) => (bytes, Payload::Zero { bytes }),
    };
    let mut state = volume.state.lock();
    if let Err(error) = volume.check(&state, record.offset, bytes) {
        // The volume shrank or went after this was logged; its data was in nobody's way then.
        tracing::debug!(%error, "record not replayed");
        return;
    }
    volume.insert(&mut state, record.offset, payload);
}
