//! Volume: its state under one lock, and writes, zeroes and TRIM that need no wait.
//!
//! Writes that may wait are in `volume::write`, reads in `volume::read`, flushes in
//! `volume::flush`, block status in `volume::extents`.
//!
//! Invariants:
//! - the log queue has the order of the changes to the dirty table, because both change under the
//!   same lock;
//! - no task holds the lock across I/O;
//! - one txg contains all parts of a change, and so does one log batch if the change is logged.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use weir_base::limits::{HOLE_RANGES_MAX, HOLE_RANGES_POOL_MAX};
use weir_base::{BLOCK_BYTES, DatasetId, ObjectId, RecordSize, Txg};
use weir_block::Block;
use weir_format::{BlockPtr, Compression, DatasetRecord, DatasetState, TreeRoot};
use weir_pool::{Pool, PoolError, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::Dirty;
use crate::objects::log_queue::Payload;
use crate::objects::object::Object;
use crate::objects::object_set::ObjectSet;
use crate::objects::record::PartialChange;
use crate::state::block_clone::BlockClone;
use crate::state::limits::Limits;
use crate::state::mark::Mark;
use crate::state::shared::{Core, Nodes};
use crate::state::snapshot::{Snapshot, descent};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Description of a volume, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Name inside the pool.
    pub name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Unit of checksums, compression and pointers.
    pub record_size: RecordSize,
    /// Compression of new blocks.
    pub compression: Compression,
    /// True if writes to the volume are deduplicated.
    pub dedupe: bool,
    /// Written blocks that are not trimmed, in bytes, as of the last commit.
    pub used_bytes: u64,
    /// Space that these written blocks occupy on disk, without copies and parity.
    pub stored_bytes: u64,
    /// Part of `stored_bytes` that deduplication or block clones share with earlier blocks.
    pub shared_bytes: u64,
    /// Time of creation, by the wall clock.
    pub created_unix_ms: u64,
    /// Breakdown of the space of the volume and its snapshots.
    pub space: VolumeSpace,
}

/// Space of a volume and its snapshots as of the last commit: bytes of data and tree nodes as
/// stored. Counts each byte once, whatever the redundancy of the vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeSpace {
    /// Space that destroying the volume and all its snapshots would free.
    pub used: u64,
    /// Part of `used` that the volume references.
    pub by_volume: u64,
    /// Part of `used` that only snapshots reference.
    pub by_snapshots: u64,
    /// Space that the volume references, including space shared with its origin.
    pub referenced: u64,
    /// Part of `referenced` written since the newest snapshot.
    pub written: u64,
    /// Additional space reserved by the refreservation.
    pub by_refreservation: u64,
}

#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(crate) struct State {
    pub(crate) record: DatasetRecord,
    /// True if the commit must write the volume's directory entry again.
    pub(crate) record_dirty: bool,
    /// The tree of the volume: a volume has one object.
    pub(crate) object: Object,
    /// Changes of a dataset with many objects; `None` for a volume.
    pub(crate) objects: Option<Box<ObjectSet>>,
    /// Records that block clones will replace once the earlier dirty data is committed.
    pub(crate) announced_clones: Vec<Range<u64>>,
    /// Block clones of the open txg. The commit applies them before the txg's other changes.
    pub(crate) clones: Vec<BlockClone>,
    /// Records that block clones of the syncing txg replace, until that txg is durable.
    pub(crate) syncing_clones: Vec<Range<u64>>,
    /// Upper bound of the space that the clones of the open and the syncing txg add to `used`.
    pub(crate) cloning_bytes: u64,
    /// Snapshots of the volume, ordered by time.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Bookmarks of the volume, ordered by time.
    pub(crate) bookmarks: Vec<Mark>,
    /// Bookmarks that the open txg removes from the directory.
    pub(crate) forgotten: Vec<DatasetId>,
    /// Snapshot that the open txg creates at its end. The commit fills in the fields that depend on
    /// the tree.
    pub(crate) taking: Option<DatasetRecord>,
    /// True if the volume is an unfinished copy of another volume. Until the copy is complete, its
    /// stored state is "destroying", no client sees it, and the engine frees none of its space.
    pub(crate) is_coming: bool,
    /// True if this volume shows a snapshot and is therefore not writable.
    pub(crate) is_view: bool,
    /// True if writes are refused: the property is set on the volume or inherited from the pool.
    pub(crate) is_read_only: bool,
    pub(crate) limits: Limits,
    /// True if a stream is being received into the volume.
    pub(crate) claimed: bool,
    /// True while one holder has the exclusive use of the objects.
    pub(crate) has_open_objects: bool,
    /// Requested smaller size of the volume, while the engine checks the range beyond this size for
    /// data. During the check, commits do not store this size, but accesses cannot exceed it.
    pub(crate) shrinking_to: Option<u64>,
    /// Number of records before the volume grew, until a commit stores the new size.
    pub(crate) grown_from: Option<u64>,
}

/// Location of the newest content of a block.
pub(crate) enum Source {
    Dirty(Dirty),
    /// In the committed tree, in the record at this pointer.
    Stored(BlockPtr),
    /// In the committed tree with this root. Nodes must be read to find the record.
    Tree(TreeRoot),
}

impl State {
    /// Updates the cached values of properties that each write reads.
    pub(crate) fn apply_properties(&mut self, core: &Core) {
        self.is_read_only = core.is_read_only(&self.record.properties);
    }

    /// Change of a block in the open or syncing txg.
    pub(crate) fn dirty(&self, block: u64) -> Option<Dirty> {
        self.object.dirty(block)
    }

    /// Locates the newest content of a block without I/O.
    pub(crate) fn source(&mut self, pool: &Pool, block: u64) -> Result<Source, PoolError> {
        if let Some(dirty) = self.dirty(block) {
            return Ok(Source::Dirty(dirty));
        }
        let (root, record) = (self.record.root, self.record.record_size.record_of(block));
        let find = || Tree::new(pool, root).leaf_cached(record);
        let place = (ObjectId::TABLE, record);
        let found = self.object.leaves.pointer(pool, root, place, find)?;
        found.map_or(Ok(()), |ptr| pool.check_record(&ptr, self.record.record_size))?;
        Ok(found.map_or(Source::Tree(root), Source::Stored))
    }

    /// Upper bound of the nodes that further changes of the open txg can add.
    pub(crate) fn nodes(&self) -> Nodes {
        Nodes::left(self.record.root.height, self.size(), self.object.open.nodes)
    }

    /// True if the volume was destroyed, so that its space is being freed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.record.state == DatasetState::Destroying && !self.is_coming
    }

    /// Removes the changes of a txg that was committed from the log queues.
    pub(crate) fn settle_log(&mut self, txg: Txg) {
        self.object.log.settle(txg);
        if let Some(set) = &mut self.objects {
            set.log.settle(txg, self.object.log.durable());
        }
    }

    /// Queues a part of the newest change for the intent log.
    fn enqueue(&mut self, txg: Txg, offset: u64, payload: Payload) {
        if !self.object.log.push(txg, offset, payload) {
            tracing::debug!(dataset = self.record.id.0, "log queue dropped");
        }
    }
}

/// A block volume.
pub struct Volume {
    pub(crate) core: Arc<Core>,
    pub(crate) id: DatasetId,
    pub(crate) state: Mutex<State>,
    /// Number of flushes in progress. The log writer includes the changes of each volume for which
    /// this is not 0.
    pub(crate) flush_waiters: AtomicUsize,
}

impl Volume {
    pub(crate) fn new(core: Arc<Core>, record: DatasetRecord, record_dirty: bool) -> Self {
        let state = State {
            record_dirty,
            object: Object::new(&core.log_total),
            objects: record.objects.is_some().then(|| Box::new(ObjectSet::new(&core.log_total))),
            announced_clones: Vec::new(),
            clones: Vec::new(),
            syncing_clones: Vec::new(),
            cloning_bytes: 0,
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
            forgotten: Vec::new(),
            taking: None,
            is_coming: false,
            is_view: false,
            is_read_only: false,
            limits: Limits::default(),
            claimed: false,
            has_open_objects: false,
            shrinking_to: None,
            grown_from: None,
            record,
        };
        let id = state.record.id;
        Self { core, id, state: Mutex::new(state), flush_waiters: AtomicUsize::new(0) }
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state.lock().record.size_bytes
    }

    /// True if writes are refused.
    pub fn is_read_only(&self) -> bool {
        let state = self.state.lock();
        state.is_view || state.is_read_only
    }

    /// Describes the volume.
    pub fn info(&self) -> VolumeInfo {
        let state = self.state.lock();
        VolumeInfo {
            name: state.record.name.clone(),
            size_bytes: state.record.size_bytes,
            record_size: state.record.record_size,
            compression: self.core.compression_of(&state.record.properties),
            dedupe: self.core.dedupes(&state.record.properties),
            used_bytes: state.record.used_blocks * BLOCK,
            stored_bytes: state.record.stored_units * weir_format::layout::PACK_BYTES as u64,
            shared_bytes: state.record.shared_units * weir_format::layout::PACK_BYTES as u64,
            created_unix_ms: state.record.created_unix_ms,
            space: if state.is_view { VolumeSpace::default() } else { state.space() },
        }
    }

    pub(crate) fn full_name(&self, state: &State) -> String {
        format!("{}/{}", self.core.pool.name(), state.record.name)
    }

    /// Checks that the volume exists and that the range is within it.
    pub(crate) fn check(&self, state: &State, offset: u64, len: u64) -> Result<(), DatasetError> {
        if state.is_destroyed() {
            return Err(DatasetError::Destroyed { name: self.full_name(state) });
        }
        let size = state.shrinking_to.unwrap_or(state.record.size_bytes);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(DatasetError::OutOfRange {
                name: self.full_name(state),
                offset,
                len,
                size,
            });
        }
        Ok(())
    }

    /// Checks that the volume is writable and that the range of the change is within it.
    pub(crate) fn check_change(
        &self,
        state: &State,
        offset: u64,
        len: u64,
    ) -> Result<(), DatasetError> {
        if state.is_view {
            return Err(DatasetError::ReadOnly { name: self.full_name(state) });
        }
        if state.is_read_only {
            return Err(DatasetError::WritesRefused { name: self.full_name(state) });
        }
        self.check_not_receiving(state)?;
        self.check(state, offset, len)
    }

    /// Checks that no stream is being received into the volume.
    pub(crate) fn check_not_receiving(&self, state: &State) -> Result<(), DatasetError> {
        let Some(receiving) = &descent(&state.record).receiving else { return Ok(()) };
        let why = format!("is receiving a stream, up to snapshot {}", receiving.snapshot);
        Err(DatasetError::InUse { name: self.full_name(state), why, next: None })
    }

    /// Takes a write into memory if it needs no wait. On `Ok(false)` the caller uses
    /// [`Self::write`].
    ///
    /// # Durability
    /// None until a flush.
    pub fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, DatasetError> {
        self.core.pool.check_alive()?;
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        if !rest.is_empty() || !offset.is_multiple_of(BLOCK) {
            return Ok(false);
        }
        if blocks.is_empty() {
            return Ok(true);
        }
        let mut state = self.state.lock();
        let range = Self::blocks_of(offset, data.len() as u64);
        self.check_change(&state, offset, data.len() as u64)?;
        let adds = state.adds(&range);
        if !state.is_ready(&range, PartialChange::Write)
            || (adds > 0 && !self.admit(&state, adds, true)?)
        {
            return Ok(false);
        }
        if state.object.log.skips(self.core.open_txg()) {
            self.overwrite(&mut state, offset / BLOCK, blocks);
            return Ok(true);
        }
        let payload = match blocks {
            [one] => Payload::One(Block::copy_of(one)),
            many => Payload::Many(Block::copies_of(many)),
        };
        self.insert(&mut state, offset, payload);
        Ok(true)
    }

    /// Puts blocks into the open txg without logging them. No log queue references the blocks, so
    /// the dirty table changes already dirty blocks in place.
    fn overwrite(&self, state: &mut State, first: u64, blocks: &[[u8; BLOCK_BYTES]]) {
        let added = (first..)
            .zip(blocks)
            .map(|(at, bytes)| u64::from(state.object.open.overwrite(at, bytes)))
            .sum();
        state.object.log.begin_change();
        self.charge(state, added);
    }

    /// Reserves pool space for blocks added to the open txg's dirty table.
    pub(crate) fn charge(&self, state: &mut State, added: u64) {
        let nodes = state.nodes();
        let cost = nodes.cost(added);
        state.object.open.nodes += nodes.of(added);
        state.object.open.charge += cost;
        self.core.add_dirty(added, cost);
        self.cover(state, cost);
    }

    /// Reserves pool space for nodes that the txg writes although no new block is below them.
    fn charge_nodes(&self, state: &mut State, nodes: u64) {
        if nodes > 0 {
            let cost = nodes * BLOCK;
            state.object.open.nodes += nodes;
            state.object.open.charge += cost;
            self.core.add_dirty(0, cost);
            self.cover(state, cost);
        }
    }

    /// As [`Self::try_write`], without a copy. If it returns true, it has taken `blocks`: whole
    /// blocks at consecutive addresses from `offset`.
    ///
    /// # Durability
    /// None until a flush.
    pub fn try_write_blocks(
        &self,
        offset: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, DatasetError> {
        assert!(offset.is_multiple_of(BLOCK), "whole blocks have addresses of whole blocks");
        self.core.pool.check_alive()?;
        let mut state = self.state.lock();
        let range = Self::blocks_of(offset, blocks.len() as u64 * BLOCK);
        self.check_change(&state, offset, blocks.len() as u64 * BLOCK)?;
        let adds = state.adds(&range);
        if !state.is_ready(&range, PartialChange::Write)
            || (adds > 0 && !self.admit(&state, adds, true)?)
        {
            return Ok(false);
        }
        self.insert(&mut state, offset, Payload::Many(std::mem::take(blocks)));
        Ok(true)
    }

    /// Adds a change of whole blocks to the open txg.
    pub(crate) fn insert(&self, state: &mut State, offset: u64, payload: Payload) {
        self.insert_all(state, [(offset, payload)]);
    }

    /// Adds one change with one or more ranges of whole blocks to the open txg.
    pub(crate) fn insert_all(
        &self,
        state: &mut State,
        parts: impl IntoIterator<Item = (u64, Payload)>,
    ) {
        // All parts share one LSN, so that one log batch holds all of them.
        state.object.log.begin_change();
        for (offset, payload) in parts {
            self.put(state, offset, payload);
        }
    }

    fn put(&self, state: &mut State, offset: u64, payload: Payload) {
        let first = offset / BLOCK;
        let added = match &payload {
            Payload::One(block) => u64::from(state.object.open.write(first, block.clone())),
            Payload::Many(blocks) => state.object.open.write_all(first, blocks.clone()) as u64,
            Payload::Zero { bytes } => {
                let replaced = Self::zero_in_open(state, &(first..first + bytes / BLOCK));
                self.charge_nodes(state, state.nodes_of_trim());
                self.core.sub_dirty(replaced as u64);
                self.core.note_freeing(self.core.open_txg());
                let all = self.count_holes(state);
                // Request the commit at half of the limit: TRIMs before the commit have the rest.
                if state.object.open.hole_ranges() >= HOLE_RANGES_MAX / 2
                    || all >= HOLE_RANGES_POOL_MAX / 2
                {
                    self.core.want(self.core.open_txg());
                }
                0
            }
        };
        state.enqueue(self.core.open_txg(), offset, payload);
        self.charge(state, added);
    }

    /// Recounts the hole ranges of the open txg. Returns the sum over all volumes of the pool.
    pub(crate) fn count_holes(&self, state: &mut State) -> usize {
        let before =
            std::mem::replace(&mut state.object.counted_holes, state.object.open.hole_ranges());
        self.core.count_holes(before, state.object.counted_holes)
    }

    /// Waits for the next commit, which releases the space reserved for the txg's dirty data.
    ///
    /// # Errors
    /// The pool is suspended.
    pub async fn wait_for_room(&self) -> Result<(), DatasetError> {
        let committed = self.core.pool.committed_txg();
        // The commit of the syncing txg may release enough space; the commit of the open txg
        // certainly does.
        self.core.want(self.core.open_txg());
        self.core.committed(committed.next()).await
    }

    /// Zeroes whole blocks if that needs no wait. On `Ok(false)` the caller uses [`Self::zero`].
    ///
    /// # Durability
    /// None until a flush.
    pub fn try_zero(&self, offset: u64, len: u64) -> Result<bool, DatasetError> {
        self.core.pool.check_alive()?;
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || len == 0 {
            return Ok(false);
        }
        let mut state = self.state.lock();
        self.check_change(&state, offset, len)?;
        let taken = state.is_ready(&Self::blocks_of(offset, len), PartialChange::Zero)
            && self.admit_trim(&state, 0)?
            && self.core.admit_trim(0);
        if taken {
            self.insert(&mut state, offset, Payload::Zero { bytes: len });
        }
        Ok(taken)
    }

    /// Record size of the volume.
    pub fn record_size(&self) -> RecordSize {
        self.state.lock().record.record_size
    }

    /// True if changes of the volume wait for a commit.
    pub(crate) fn has_changes(state: &State) -> bool {
        let snapshots = || state.snapshots.iter().any(|snapshot| snapshot.dirty);
        let bookmarks =
            || !state.forgotten.is_empty() || state.bookmarks.iter().any(|mark| mark.dirty);
        let has_objects = |set: &ObjectSet| !set.open.objects.is_empty();
        let written = !state.object.open.is_empty()
            || state.objects.as_deref().is_some_and(has_objects)
            || !state.clones.is_empty()
            || !state.object.partial.is_empty();
        written || state.record_dirty || state.taking.is_some() || snapshots() || bookmarks()
    }

    pub(crate) fn waiters(&self) -> usize {
        self.flush_waiters.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use weir_format::Compression;

    use super::*;
    use crate::copy::block_clone::tests::{engine, now};
    use crate::state::engine::VolumeSpec;

    // Regression: during a slow commit, TRIMs created as many hole ranges as the pool had space for
    // nodes. On a 10 TiB pool these ranges took several GiB of memory.
    #[test]
    fn trims_of_many_ranges_wait_for_a_commit() {
        let (engine, ..) = engine();
        let (name, compression) = ("holes".to_owned(), Compression::Off);
        now(engine.create_volume(&VolumeSpec { name, size_bytes: 1 << 30, compression })).unwrap();
        let volume = engine.volume("holes").unwrap();
        let trim = |range: u64| volume.try_zero(range * 2 * BLOCK, BLOCK).unwrap();
        let add = |ranges: Range<u64>| {
            let mut state = volume.state.lock();
            // Set the ranges directly: `try_zero` reserves space for nodes, and this small pool has
            // no space for so many nodes.
            ranges
                .for_each(|range| assert_eq!(state.object.open.zero(range * 2..range * 2 + 1), 0));
        };
        let is_wanted = || engine.core.wanted() == engine.core.open_txg();
        add(0..32_766);
        assert!(trim(32_766) && !is_wanted());
        assert!(trim(32_767) && is_wanted(), "a commit is asked for at half of the limit");
        add(32_768..65_535);
        assert!(trim(65_535));
        assert!(!trim(65_536), "{} ranges", volume.state.lock().object.open.hole_ranges());
        let waits = volume.zero(65_536 * 2 * BLOCK, BLOCK);
        now(async {
            let mut waits = std::pin::pin!(waits);
            assert!(futures_util::poll!(&mut waits).is_pending());
            engine.sync().await.unwrap();
            waits.await.unwrap();
        });
        assert_eq!(volume.state.lock().object.open.hole_ranges(), 1);
    }

    #[test]
    fn trims_of_all_volumes_share_a_total() {
        let (engine, ..) = engine();
        let make = |name: String| {
            let compression = Compression::Off;
            let spec = VolumeSpec { name: name.clone(), size_bytes: 1 << 30, compression };
            now(engine.create_volume(&spec)).unwrap();
            engine.volume(&name).unwrap()
        };
        let volumes: Vec<_> = (0..8).map(|number| make(number.to_string())).collect();
        let share = (HOLE_RANGES_POOL_MAX / volumes.len()) as u64;
        assert!(share < HOLE_RANGES_MAX as u64, "no volume reaches its own limit");
        let add = |volume: &Volume, ranges: u64| {
            let mut state = volume.state.lock();
            (0..ranges)
                .for_each(|range| assert_eq!(state.object.open.zero(range * 2..range * 2 + 1), 0));
            volume.count_holes(&mut state)
        };
        let trim = |range: u64| volumes[0].try_zero(range * 2 * BLOCK, BLOCK).unwrap();
        let is_wanted = || engine.core.wanted() == engine.core.open_txg();
        volumes[1..4].iter().for_each(|volume| assert!(add(volume, share) > 0));
        add(&volumes[0], share - 2);
        assert!(trim(share - 2) && !is_wanted());
        assert!(trim(share - 1) && is_wanted(), "a commit is asked for at half of the limit");
        volumes[4..].iter().for_each(|volume| assert!(add(volume, share) > 0));
        assert!(!trim(share));
        now(engine.sync()).unwrap();
        assert_eq!(engine.core.hole_ranges(), 0);
        assert!(trim(share));
        assert_eq!(engine.core.hole_ranges(), 1);
    }
}
