//! Write-out of the records of a dirty table: stores each record or references an existing copy.
//!
//! `txg` adds the records to the tree; weir-pool compares contents.
//!
//! Invariant: consecutive records whose blocks all share one memory cell (WRITE SAME) are stored
//! once.

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::{Block, Blocks};
use weir_format::{BlockOwner, BlockPtr, Compression, DatasetRecord, PtrKind, SegmentClass};
use weir_pool::{
    Candidate, Change, CompressHistory, Lookup, NewContents, PoolError, Sharing, WriteOut,
};

use crate::objects::dirty::DirtyTable;
use crate::state::engine::Engine;
use crate::state::volume::Volume;

/// Bytes that one batch compares with data on disk: enough concurrent reads for any disk. The
/// packed copies of these bytes need as much memory again.
const DEDUPE_TOGETHER: usize = 1 << 20;

/// Object whose records are stored.
#[derive(Clone, Copy)]
pub(crate) struct StoredAs {
    pub(crate) object: ObjectId,
    pub(crate) size: RecordSize,
}

/// Changes of an object while its records are stored.
struct Storing<'a> {
    engine: &'a Engine,
    volume: &'a Volume,
    object: ObjectId,
    /// Requested compression.
    compression: Compression,
    dedupe: bool,
    history: CompressHistory,
    changes: Vec<Change>,
    /// Records to be compared with dedupe candidates, and the indexes of their changes.
    waiting: Vec<Candidate>,
    places: Vec<usize>,
    /// Changes that repeat the record of an earlier change: index of the change, index of the
    /// earlier change, blocks.
    repeats: Vec<(usize, usize, Blocks)>,
}

impl Engine {
    /// Stores the records of a table. Returns the changes to the object's tree, sorted and
    /// disjoint. `record` is the directory entry of the dataset.
    #[boxed(?Send)]
    pub(crate) async fn write_table(
        &self,
        out: &mut WriteOut<'_>,
        volume: &Volume,
        record: &DatasetRecord,
        StoredAs { object, size }: StoredAs,
        table: &DirtyTable,
    ) -> Result<Vec<Change>, PoolError> {
        let mut storing = Storing {
            engine: self,
            volume,
            object,
            compression: self.core.compression_of(&record.properties),
            dedupe: self.core.dedupes(&record.properties),
            history: volume.state.lock().object.history,
            changes: Vec::new(),
            waiting: Vec::new(),
            places: Vec::new(),
            repeats: Vec::new(),
        };
        let mut last: Option<(usize, Block)> = None;
        for (change, data) in table.changes(size) {
            let at = storing.changes.len();
            storing.changes.push(change);
            let Some(blocks) = data else { continue };
            let is_one_cell = blocks.iter().all(|block| block.same_cell(&blocks[0]));
            match &last {
                Some((first, cell)) if is_one_cell && blocks[0].same_cell(cell) => {
                    storing.repeats.push((at, *first, blocks));
                }
                _ => {
                    last = is_one_cell.then(|| (at, blocks[0].clone()));
                    storing.store(out, at, &blocks).await?;
                }
            }
        }
        storing.store_waiting(out).await?;
        storing.repeat(out).await?;
        volume.state.lock().object.history = storing.history;
        Ok(storing.changes)
    }
}

impl Storing<'_> {
    fn owner(&self, at: usize) -> BlockOwner {
        BlockOwner {
            dataset: self.volume.id,
            object: self.object,
            level: 0,
            index: self.changes[at].start,
        }
    }

    async fn store(
        &mut self,
        out: &mut WriteOut<'_>,
        at: usize,
        blocks: &Blocks,
    ) -> Result<(), PoolError> {
        if self.dedupe {
            let (owner, compression) =
                (self.owner(at), self.engine.core.compression_now(self.compression));
            match out.write_deduped(owner, blocks, compression, &mut self.history).await? {
                Lookup::Done(ptr) => self.changes[at].to = NewContents::Pointer(ptr),
                Lookup::Candidate(candidate) => {
                    self.waiting.push(candidate);
                    self.places.push(at);
                }
            }
            if self.waiting.len() * blocks.len() * BLOCK_BYTES >= DEDUPE_TOGETHER {
                self.store_waiting(out).await?;
            }
            return Ok(());
        }
        self.changes[at].to = NewContents::Pointer(self.store_plainly(out, at, blocks).await?);
        Ok(())
    }

    async fn store_plainly(
        &mut self,
        out: &mut WriteOut<'_>,
        at: usize,
        blocks: &Blocks,
    ) -> Result<BlockPtr, PoolError> {
        let (class, kind, owner) = (SegmentClass::Data, PtrKind::Data, self.owner(at));
        let compression = self.engine.core.compression_now(self.compression);
        out.write_record(class, Some(owner), kind, blocks, compression, &mut self.history).await
    }

    async fn store_waiting(&mut self, out: &mut WriteOut<'_>) -> Result<(), PoolError> {
        let ptrs = out.write_candidates(&self.waiting).await?;
        for (at, ptr) in self.places.drain(..).zip(ptrs) {
            self.changes[at].to = NewContents::Pointer(ptr);
        }
        self.waiting.clear();
        Ok(())
    }

    /// Stores each repeated record as a reference to the first record with its content.
    async fn repeat(&mut self, out: &mut WriteOut<'_>) -> Result<(), PoolError> {
        let repeats = std::mem::take(&mut self.repeats);
        for same in repeats.chunk_by(|(_, a, _), (_, b, _)| a == b) {
            let NewContents::Pointer(ptr) = self.changes[same[0].1].to else {
                unreachable!("a table's records are stored one by one")
            };
            let sharing = Sharing::of(std::iter::repeat_n(&ptr, same.len()));
            // Dedupe may have chosen a block that already has many references: check that the block
            // can take the additional references.
            let fits = self.engine.core.pool.check_share(&sharing).await.is_ok();
            if fits {
                out.share(&sharing).await?;
            }
            for (at, _, blocks) in same {
                let ptr = if fits {
                    ptr.shared_in(out.txg)
                } else {
                    self.store_plainly(out, *at, blocks).await?
                };
                self.changes[*at].to = NewContents::Pointer(ptr);
            }
        }
        Ok(())
    }
}
