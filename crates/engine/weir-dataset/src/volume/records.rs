//! Records of several blocks: what a change of a part of one needs.
//!
//! Not here: putting changes into a table (volume), storing records (write_table).
//!
//! A record is stored as one, so whoever changes a part of it must have the rest. That is read when
//! the change is made, not when it is written out: a record that cannot be read fails the write
//! that needs it, and no commit.
//!
//! Invariants:
//! - a table of changes holds records whole: each as data alone, or as a hole alone;
//! - what is put into a table to make a record whole changes nothing: it is not logged and not
//!   acknowledged, and costs what a record costs.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_format::TreeRoot;
use weir_pool::{PlantedBug, Pool, PoolError, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::Dirty;
use crate::objects::record::{VolumeSize, Wish, ZERO_BLOCK};
use crate::state::volume::{Source, State, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What was found in the place of a record under this root; `None`: a hole.
type Known = (TreeRoot, Option<Vec<Block>>);

/// What is in the place of a record now.
enum Old {
    Hole,
    Blocks(Vec<Block>),
    /// To be read from under this root.
    Unread(TreeRoot),
}

impl State {
    pub(crate) fn size(&self) -> VolumeSize {
        VolumeSize { bytes: self.record.size_bytes, record: self.record.record_size }
    }

    /// Whether the table of the open txg has what such a change of these blocks leaves of the
    /// records they cut.
    pub(crate) fn is_ready(&self, blocks: &Range<u64>, wish: Wish) -> bool {
        let size = self.record.record_size;
        size.is_block() || size.cut(blocks).all(|record| self.has_record(record, wish))
    }

    fn has_record(&self, record: u64, wish: Wish) -> bool {
        match self.open.get(self.record.record_size.first_block(record)) {
            Some(Dirty::Data(_)) => true,
            Some(Dirty::Hole) => wish == Wish::Zero,
            None => false,
        }
    }

    /// Most blocks that a write to these adds to the open txg beside records that they cut.
    pub(crate) fn adds(&self, blocks: &Range<u64>) -> u64 {
        let whole = self.record.record_size.inside(blocks);
        (whole.end - whole.start) * self.record.record_size.blocks()
    }

    /// What a record is now, as far as that is known without reading.
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
    pub(crate) wish: Wish,
    /// How many records it changes whole.
    pub(crate) whole: u64,
    /// Records of which it changes a part, two at most: it needs what the rest of them holds.
    pub(crate) cut: Vec<u64>,
}

/// What keeps a change from being made.
enum Obstacle {
    /// A record is to be read from under this root first.
    Unread(u64, TreeRoot),
    /// A commit is to be waited for: for room, or to see a clone.
    Wait,
    /// As [`Self::Wait`]; of a trim, which takes of a room of its own.
    NoRoom,
}

impl Change {
    /// A change of some bytes, one at least.
    pub(crate) fn of_bytes(size: RecordSize, offset: u64, len: u64, wish: Wish) -> Self {
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
        Self { blocks: offset / BLOCK..end.div_ceil(BLOCK), wish, whole, cut }
    }
}

impl Volume {
    /// Makes a change once what it needs is known and there is room for it: `apply` puts it into
    /// the open txg, all of it.
    ///
    /// # Errors
    /// `Damaged` where a record that it cuts cannot be read; `Full`, `Quota`; those of
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
                    // Replaced under the read: it is looked up again. Under a root that is still
                    // the volume's, it is a pointer to a segment that never was.
                    Err(PoolError::NoSegment { .. }) if self.state.lock().record.root != root => {}
                    found => drop(known.insert(record, (root, found?))),
                },
                Obstacle::NoRoom if waited_in_vain && !coming => break self.core.full(),
                Obstacle::NoRoom => {
                    waited_in_vain = true;
                    self.core.committed(self.core.open_txg()).await?;
                }
                Obstacle::Wait => self.wait_for_room().await?,
            }
        };
        Err(obstacle)
    }

    /// Makes the open txg ready for a change, or tells what keeps it from that.
    fn prepare(
        &self,
        state: &mut State,
        change: &Change,
        known: &HashMap<u64, Known>,
    ) -> Result<Option<Obstacle>, DatasetError> {
        let size = state.record.record_size;
        let mut loads = Vec::new();
        for &record in &change.cut {
            if state.has_record(record, change.wish) {
                continue;
            }
            match state.old(&self.core.pool, record, known.get(&record))? {
                Old::Unread(root) => return Ok(Some(Obstacle::Unread(record, root))),
                // Wait until the clone of this range is complete.
                _ if state.is_becoming_clone(size.first_block(record)) => {
                    return Ok(Some(Obstacle::Wait));
                }
                old => loads.push((record, old)),
            }
        }
        let is_data = |(_, old): &&(u64, Old)| !matches!(old, Old::Hole);
        let is_admitted = match change.wish {
            Wish::Write => {
                let adds = (change.whole + loads.len() as u64) * size.blocks();
                adds == 0 || self.admit(state, adds, false)?
            }
            Wish::Zero => {
                let rewritten = loads.iter().filter(is_data).count() as u64 * size.blocks();
                let fits = self.admit_trim(state, rewritten)? && self.core.fits_memory(rewritten);
                if fits && !self.core.admit_trim(rewritten) {
                    return Ok(Some(Obstacle::NoRoom));
                }
                fits
            }
        };
        if !is_admitted {
            return Ok(Some(Obstacle::Wait));
        }
        for (record, old) in loads {
            self.put_loaded(state, record, old, change.wish);
        }
        Ok(None)
    }

    /// Puts a record into the open txg as it is, while nobody else changes the volume, and whatever
    /// room there is.
    #[boxed(?Send)]
    pub(crate) async fn load_for_replay(
        &self,
        record: u64,
        wish: Wish,
    ) -> Result<(), DatasetError> {
        let mut known: Option<Known> = None;
        loop {
            let root = {
                let mut state = self.state.lock();
                if state.has_record(record, wish) {
                    return Ok(());
                }
                match state.old(&self.core.pool, record, known.as_ref())? {
                    _ if self.core.pool.bug() == PlantedBug::ReplayForgetsRest => {
                        self.put_loaded(&mut state, record, Old::Hole, wish);
                        return Ok(());
                    }
                    Old::Unread(root) => root,
                    old => {
                        self.put_loaded(&mut state, record, old, wish);
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

    /// Puts a record whose blocks are all known into the open txg, for [`crate::commit::partial`].
    pub(crate) fn put_whole(&self, state: &mut State, record: u64, blocks: Vec<Block>) {
        self.put_loaded(state, record, Old::Blocks(blocks), Wish::Write);
    }

    fn put_loaded(&self, state: &mut State, record: u64, old: Old, wish: Wish) {
        let blocks = state.record.record_size.blocks_of(&(record..record + 1));
        let added = match old {
            Old::Hole if wish == Wish::Zero => {
                let replaced = state.open.zero(blocks);
                assert_eq!(replaced, 0, "records are whole in tables");
                0
            }
            Old::Hole => blocks
                .map(|block| u64::from(state.open.write(block, Block::clone(&ZERO_BLOCK))))
                .sum(),
            Old::Blocks(old) => {
                blocks.zip(old).map(|(block, data)| u64::from(state.open.write(block, data))).sum()
            }
            Old::Unread(_) => unreachable!("it was read before"),
        };
        self.charge(state, added);
    }

    /// Makes blocks of the open txg holes, and of records that they cut, zeros; how many blocks of
    /// data are no more.
    pub(crate) fn zero_in_open(state: &mut State, blocks: &Range<u64>) -> usize {
        let size = state.record.record_size;
        let whole = size.blocks_of(&size.inside(blocks));
        let replaced = if whole.is_empty() { 0 } else { state.open.zero(whole) };
        for record in size.cut(blocks) {
            let of_record = size.blocks_of(&(record..record + 1));
            for block in blocks.start.max(of_record.start)..blocks.end.min(of_record.end) {
                match state.open.get(block) {
                    Some(Dirty::Data(_)) => {
                        state.open.write(block, Block::clone(&ZERO_BLOCK));
                    }
                    Some(Dirty::Hole) => {}
                    None => unreachable!("the rest of record {record} was brought before"),
                }
            }
        }
        replaced
    }

    /// The blocks of so many bytes, which are whole.
    pub(crate) fn blocks_of(offset: u64, len: u64) -> Range<u64> {
        offset / BLOCK..(offset + len) / BLOCK
    }
}
