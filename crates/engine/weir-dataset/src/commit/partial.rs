//! Partial records in replay: keep the logged blocks of an unreadable record. The record's other
//! blocks are damage.
//!
//! `replay` finds the logged parts; weir-pool stores and reads partial records.
//!
//! A dirty table holds complete records only. So the volume keeps the parts separately until the
//! commit that ends the replay stores them. No client uses the volume before that commit.
//!
//! Invariants:
//! - a flushed block reads back after replay, even if the rest of its record is lost;
//! - replay never invents the content of a block;
//! - a partial record is on the list of permanent errors from the commit that stores it.

use std::ops::Range;
use std::pin::pin;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, select};
use weir_base::limits::SETTLED_RECORDS_MAX;
use weir_base::{BLOCK_BYTES, DatasetId, ErrorKind, ObjectId};
use weir_block::Block;
use weir_format::{BlockOwner, DamagedRange};
use weir_pool::{Change, PartialRecord, PoolError, Tracer, WriteOut};

use crate::error::DatasetError;
use crate::objects::record::{PartialChange, ZERO_BLOCK};
use crate::state::engine::Engine;
use crate::state::volume::{State, Volume};
use crate::volume::records;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl State {
    /// Drops the partial records that a later change replaces completely.
    pub(crate) fn drop_partial(&mut self, records: Range<u64>) {
        self.object.partial.retain(|record, _| !records.contains(record));
    }
}

impl Volume {
    /// Begins a partial record in place of an unreadable record.
    ///
    /// # Errors
    /// Too few disks respond, or the pool is suspended. Damage is no error.
    pub(crate) async fn begin_partial(&self, record: u64) -> Result<(), PoolError> {
        let pool = &self.core.pool;
        let (root, size) = {
            let state = self.state.lock();
            (state.record.root, state.record.record_size)
        };
        let is_damage = |error: &PoolError| error.kind() == ErrorKind::Data;
        let traced = Tracer::new(pool).trace(root, record).await?;
        // The record is below an unreadable node, so a damage marker takes the place of the
        // record's pointer.
        let is_below = traced.level > 0 && !traced.ptr.is_hole();
        let old = if is_below { traced.ptr.damage_marker_of(traced.level) } else { traced.ptr };
        let known = if old.is_partial() { Some(pool.read_partial(&old).await) } else { None };
        let partial = match known {
            Some(Err(error)) if !is_damage(&error) => return Err(error),
            Some(Ok(known)) => known,
            Some(Err(_)) | None => PartialRecord::new(size, old, record),
        };
        self.state.lock().object.partial.insert(record, partial);
        Ok(())
    }

    /// Adds logged blocks to a partial record: `data`, one for each of `blocks`, or zeros. The
    /// record joins the open txg once all its blocks are known.
    ///
    /// # Panics
    /// [`Self::begin_partial`] was not called for the record.
    pub(crate) fn put_partial(
        &self,
        state: &mut State,
        record: u64,
        blocks: Range<u64>,
        data: Option<&[[u8; BLOCK_BYTES]]>,
    ) {
        let size = state.record.record_size;
        let partial = state.object.partial.get_mut(&record).expect("the caller began it");
        for (index, block) in blocks.enumerate() {
            let content =
                data.map_or_else(|| Block::clone(&ZERO_BLOCK), |data| Block::copy_of(&data[index]));
            partial.put(size.part_of(block), content);
        }
        if let Some(whole) = partial.whole() {
            state.object.partial.remove(&record);
            self.put_whole(state, record, whole);
        }
    }
}

/// Stores the partial records of a volume and returns the changes of its tree.
pub(crate) async fn write_partial(
    out: &mut WriteOut<'_>,
    volume: DatasetId,
    partial: &[(u64, PartialRecord)],
) -> Result<Vec<Change>, PoolError> {
    let mut changes = Vec::with_capacity(partial.len());
    for (record, known) in partial {
        let owner =
            BlockOwner { dataset: volume, object: ObjectId::VOLUME, level: 0, index: *record };
        changes.push(Change::one(*record, out.write_partial(owner, known).await?));
    }
    Ok(changes)
}

impl Engine {
    /// Rewrites each partial record whose lost part is readable again, for example after a disk
    /// reconnected. Like every overwritten record, such a record leaves the list of permanent
    /// errors with the next commit.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub(crate) async fn complete_partial(&self) -> Result<(), DatasetError> {
        let ranges = self.pool().damage().ranges;
        // Objects have no partial records.
        let of_volume = |range: &&DamagedRange| {
            range.until == DamagedRange::HEAD && range.object == ObjectId::VOLUME
        };
        for range in ranges.iter().filter(of_volume) {
            let volume = self.all_volumes().into_iter().find(|volume| volume.id == range.volume);
            if let Some(volume) = volume
                && let Err(error) = self.complete_range(&volume, range.first..range.end()).await
            {
                self.pool().check_alive()?;
                // The next scan tries again to complete the record.
                tracing::debug!(%error, "partial record not completed");
            }
        }
        Ok(())
    }

    async fn complete_range(
        &self,
        volume: &Volume,
        records: Range<u64>,
    ) -> Result<(), DatasetError> {
        let mut tracer = Tracer::new(self.pool());
        let (size, mut record, mut looked) = (volume.record_size(), records.start, 0);
        while record < records.end && looked < SETTLED_RECORDS_MAX {
            let root = volume.state.lock().record.root;
            let traced = tracer.trace(root, record).await?;
            if traced.level == 0 && traced.ptr.is_partial() {
                let blocks = size.blocks_of(&(record..record + 1));
                let at = blocks.start * BLOCK;
                let change = records::Change {
                    blocks,
                    kind: PartialChange::Write,
                    whole: 0,
                    cut: vec![record],
                };
                // In a full pool the change waits for commits. Stop waiting if the engine stops,
                // because it then makes only one more commit.
                let stopped = pin!(self.core.news_until(|| self.is_stopping()));
                let change = pin!(volume.change(&change, |_| {}));
                match select(change, stopped).await {
                    Either::Right(_) => return Ok(()),
                    Either::Left((Ok(()), _)) => {
                        tracing::info!(volume = volume.id.0, at, "lost part rewritten");
                    }
                    // This record stays unreadable, but an available disk may have other records of
                    // the range.
                    Either::Left((Err(error), _)) if error.kind() == ErrorKind::Data => {}
                    Either::Left((Err(error), _)) => return Err(error),
                }
            }
            (record, looked) = (traced.records().end.max(record + 1), looked + 1);
        }
        Ok(())
    }
}
