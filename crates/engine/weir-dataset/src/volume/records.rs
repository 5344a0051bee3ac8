//! Records of several blocks: read-modify-write for partial changes.
//!
//! `state::volume` puts changes into a table; `commit::write_table` stores records.
//!
//! A record is stored as a unit, so a change to a part of it needs the rest. The engine reads the
//! rest when the change is made, not at write-out. So if the record is unreadable, the change
//! fails, and commits still succeed.
//!
//! Invariants:
//! - a dirty table holds complete records; each is either data or a hole;
//! - loading a record into a table changes no content: the load is neither logged nor acknowledged,
//!   and pool space is reserved for the record as for any other.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_format::TreeRoot;
use weir_pool::{PlantedBug, Pool, PoolError, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::Dirty;
use crate::objects::record::{PartialChange, VolumeSize, ZERO_BLOCK};
use crate::state::shared::NewBlocks;
use crate::state::volume::{Source, State, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Root of a tree, and content of a record that was read under this root. `None`: the record is a
/// hole.
type Known = (TreeRoot, Option<Vec<Block>>);

/// Present content of a record.
enum Old {
    Hole,
    Blocks(Vec<Block>),
    /// The record was not read yet and must be looked up under this root.
    Unread(TreeRoot),
}

impl State {
    pub(crate) fn size(&self) -> VolumeSize {
        VolumeSize { bytes: self.record.size_bytes, record: self.record.record_size }
    }

    /// True if the dirty table of the open txg already has every record that a change of these
    /// blocks covers only in part.
    pub(crate) fn is_ready(&self, blocks: &Range<u64>, kind: PartialChange) -> bool {
        let size = self.record.record_size;
        size.is_block() || size.cut(blocks).all(|record| self.has_record(record, kind))
    }

    fn has_record(&self, record: u64, kind: PartialChange) -> bool {
        match self.object.open.get(self.record.record_size.first_block(record)) {
            Some(Dirty::Data(_)) => true,
            Some(Dirty::Hole) => kind == PartialChange::Zero,
            None => false,
        }
    }

    /// Upper bound of the blocks that a write adds to the open txg, without the records that it
    /// covers only in part.
    pub(crate) fn adds(&self, blocks: &Range<u64>) -> u64 {
        let whole = self.record.record_size.inside(blocks);
        (whole.end - whole.start) * self.record.record_size.blocks()
    }

    /// Present content of a record, if it is known without reading.
    fn old(&mut self, pool: &Pool, record: u64, known: Option<&Known>) -> Result<Old, PoolError> {
        let (size, root) = (self.record.record_size, self.record.root);
        Ok(match self.source(pool, size.first_block(record))? {
            Source::Dirty(Dirty::Hole) => Old::Hole,
            Source::Dirty(Dirty::Data(_)) => {
                let data = |block| match self.dirty(block) {
                    Some(Dirty::Data(data)) => data,
                    other => unreachable!("records are whole in tables: {block} is {other:?}"),
                };
                Old::Blocks(size.blocks_of(&(record..record + 1)).map(data).collect())
            }
            Source::Stored(ptr) if ptr.is_hole() => Old::Hole,
            Source::Stored(_) | Source::Tree(_) => match known {
                Some((under, found))
                    if *under == root || pool.bug() == PlantedBug::RestOutlivesTxg =>
                {
                    found.as_ref().map_or(Old::Hole, |blocks| Old::Blocks(blocks.clone()))
                }
                _ => Old::Unread(root),
            },
        })
    }
}

/// A change of some blocks of a volume.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) blocks: Range<u64>,
    pub(crate) kind: PartialChange,
    /// Number of records that the change covers completely.
    pub(crate) whole: u64,
    /// Records that the change covers only in part, at most two. The rest of their content must be
    /// read first.
    pub(crate) cut: Vec<u64>,
}

/// Reason why a change cannot be made yet.
enum Obstacle {
    /// A record must be read under this root first.
    Unread(u64, TreeRoot),
    /// The change must wait for a commit, for space or for a block clone.
    Wait,
    /// As [`Self::Wait`], for a TRIM, which has its own space budget.
    CannotReserve,
}

impl Change {
    /// Describes a change of one or more bytes.
    pub(crate) fn of_bytes(size: RecordSize, offset: u64, len: u64, kind: PartialChange) -> Self {
        let (end, record) = (offset + len, size.bytes() as u64);
        let touched = offset / record..end.div_ceil(record);
        let is_cut = |at: &u64| at * record < offset || (at + 1) * record > end;
        let last = touched.end - 1;
        let ends = [touched.start, last];
        let cut: Vec<u64> = ends[..if last > touched.start { 2 } else { 1 }]
            .iter()
            .copied()
            .filter(is_cut)
            .collect();
        let whole = touched.end - touched.start - cut.len() as u64;
        Self { blocks: offset / BLOCK..end.div_ceil(BLOCK), kind, whole, cut }
    }
}

impl Volume {
    /// Makes a change once the records that it needs are loaded and there is space for it. `apply`
    /// puts the complete change into the open txg.
    ///
    /// # Errors
    /// `Damaged` if a partly covered record is unreadable; `Full`, `Quota`; the errors of
    /// [`Self::check_change`].
    pub(crate) async fn change(
        &self,
        change: &Change,
        apply: impl FnOnce(&mut State),
    ) -> Result<(), DatasetError> {
        let changed = self.make_change(change, apply).await;
        let size = self.record_size();
        let cut = size.blocks_of(&size.touched(&change.blocks));
        self.noted(cut, changed).await
    }

    async fn make_change(
        &self,
        change: &Change,
        apply: impl FnOnce(&mut State),
    ) -> Result<(), DatasetError> {
        let Range { start, end } = change.blocks;
        let mut known = HashMap::default();
        let mut waited_in_vain = false;
        let obstacle = loop {
            self.core.pool.check_alive()?;
            let coming = self.core.space_is_coming();
            let obstacle = {
                let mut state = self.state.lock();
                self.check_change(&state, start * BLOCK, (end - start) * BLOCK)?;
                match self.prepare(&mut state, change, &known)? {
                    None => {
                        apply(&mut state);
                        return Ok(());
                    }
                    Some(obstacle) => obstacle,
                }
            };
            match obstacle {
                Obstacle::Unread(record, root) => match self.read_old(root, record).await {
                    // A new root: the segment was reused during the read, so look up the record
                    // again. The same root: the pointer names a segment that never existed.
                    Err(PoolError::NoSegment { .. }) if self.state.lock().record.root != root => {}
                    found => drop(known.insert(record, (root, found?))),
                },
                Obstacle::CannotReserve if waited_in_vain && !coming => break self.core.full(),
                Obstacle::CannotReserve => {
                    waited_in_vain = true;
                    self.core.committed(self.core.open_txg()).await?;
                }
                Obstacle::Wait => self.wait_for_room().await?,
            }
        };
        Err(obstacle)
    }

    /// Loads the records that a change needs into the open txg, or returns the obstacle.
    fn prepare(
        &self,
        state: &mut State,
        change: &Change,
        known: &HashMap<u64, Known>,
    ) -> Result<Option<Obstacle>, DatasetError> {
        let size = state.record.record_size;
        let mut loads = Vec::new();
        for &record in &change.cut {
            if state.has_record(record, change.kind) {
                continue;
            }
            match state.old(&self.core.pool, record, known.get(&record))? {
                Old::Unread(root) => return Ok(Some(Obstacle::Unread(record, root))),
                // Wait for the commit of the clone that replaces this record.
                _ if state.is_becoming_clone(size.first_block(record)) => {
                    return Ok(Some(Obstacle::Wait));
                }
                old => loads.push((record, old)),
            }
        }
        let is_data = |(_, old): &&(u64, Old)| !matches!(old, Old::Hole);
        let is_admitted = match change.kind {
            PartialChange::Write => {
                let adds = (change.whole + loads.len() as u64) * size.blocks();
                adds == 0 || self.admit(state, adds, false)?
            }
            PartialChange::Zero => {
                let rewritten = loads.iter().filter(is_data).count() as u64 * size.blocks();
                let own = state.object.open.data_blocks() as u64;
                let blocks = NewBlocks { added: rewritten, own };
                let fits = self.admit_trim(state, rewritten)? && self.core.fits_memory(blocks);
                if fits && !self.core.admit_trim(rewritten) {
                    return Ok(Some(Obstacle::CannotReserve));
                }
                fits
            }
        };
        if !is_admitted {
            return Ok(Some(Obstacle::Wait));
        }
        for (record, old) in loads {
            self.put_loaded(state, record, old, change.kind);
        }
        Ok(None)
    }

    /// Loads a record unchanged into the open txg, without a check of the space budget. No other
    /// task changes the volume during replay.
    #[boxed(?Send)]
    pub(crate) async fn load_for_replay(
        &self,
        record: u64,
        kind: PartialChange,
    ) -> Result<(), DatasetError> {
        let mut known: Option<Known> = None;
        loop {
            let root = {
                let mut state = self.state.lock();
                if state.has_record(record, kind) {
                    return Ok(());
                }
                match state.old(&self.core.pool, record, known.as_ref())? {
                    _ if self.core.pool.bug() == PlantedBug::ReplayForgetsRest => {
                        self.put_loaded(&mut state, record, Old::Hole, kind);
                        return Ok(());
                    }
                    Old::Unread(root) => root,
                    old => {
                        self.put_loaded(&mut state, record, old, kind);
                        return Ok(());
                    }
                }
            };
            known = Some((root, self.read_old(root, record).await?));
        }
    }

    async fn read_old(&self, root: TreeRoot, record: u64) -> Result<Option<Vec<Block>>, PoolError> {
        let (pool, size) = (&self.core.pool, self.record_size());
        let ptr = Tree::new(pool, root).lookup(record).await?;
        pool.check_record(&ptr, size)?;
        if ptr.is_hole() {
            return Ok(None);
        }
        Ok(Some(pool.read_record(&ptr).await?.to_vec()))
    }

    /// Puts a record into the open txg, with all its blocks, for [`crate::commit::partial`].
    pub(crate) fn put_whole(&self, state: &mut State, record: u64, blocks: Vec<Block>) {
        self.put_loaded(state, record, Old::Blocks(blocks), PartialChange::Write);
    }

    fn put_loaded(&self, state: &mut State, record: u64, old: Old, kind: PartialChange) {
        let blocks = state.record.record_size.blocks_of(&(record..record + 1));
        let added = match old {
            Old::Hole if kind == PartialChange::Zero => {
                let replaced = state.object.open.zero(blocks);
                assert_eq!(replaced, 0, "records are whole in tables");
                0
            }
            Old::Hole => blocks
                .map(|block| u64::from(state.object.open.write(block, Block::clone(&ZERO_BLOCK))))
                .sum(),
            Old::Blocks(old) => state.object.open.write_all(blocks.start, old) as u64,
            Old::Unread(_) => unreachable!("read earlier"),
        };
        self.charge(state, added);
    }

    /// Makes records of the open txg holes if the range covers them completely, and zeros the
    /// blocks of partly covered records. Returns the number of data blocks removed.
    pub(crate) fn zero_in_open(state: &mut State, blocks: &Range<u64>) -> usize {
        let size = state.record.record_size;
        let whole = size.blocks_of(&size.inside(blocks));
        let replaced = if whole.is_empty() { 0 } else { state.object.open.zero(whole) };
        for record in size.cut(blocks) {
            let of_record = size.blocks_of(&(record..record + 1));
            for block in blocks.start.max(of_record.start)..blocks.end.min(of_record.end) {
                match state.object.open.get(block) {
                    Some(Dirty::Data(_)) => {
                        state.object.open.write(block, Block::clone(&ZERO_BLOCK));
                    }
                    Some(Dirty::Hole) => {}
                    None => unreachable!("the rest of record {record} was loaded before"),
                }
            }
        }
        replaced
    }

    /// Block numbers of a byte range that consists of whole blocks.
    pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
        offset / BLOCK..(offset + len) / BLOCK
    }
}
