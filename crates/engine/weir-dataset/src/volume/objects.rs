//! Reads and changes of a dataset with many objects.
//!
//! `objects::object_set` holds the changes until a commit writes them (`commit::write_objects`).
//! The layer above the engine gives the objects and their slots a meaning.
//!
//! Invariants:
//! - all changes of a call join one txg, under one lock;
//! - a read returns the newest content: from the open txg, else the syncing txg, else the tree;
//! - a change of an object whose slot cannot be read fails.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, RecordSize};
use weir_block::Block;
use weir_format::log::OBJECT_TYPE_MIN;
use weir_format::{BlockPtr, OBJECTS_MAX, ObjectSlot, TreeRoot};
use weir_pool::{Leaf, PoolError, RecordPart, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::DirtyBlocks;
use crate::objects::object_log::{ObjectRecord, fits_batch};
use crate::objects::object_set::{Added, DirtyRecord, ObjectChange, ObjectSet, SlotBody};
use crate::state::shared::NewBlocks;
use crate::state::snapshot::descent_mut;
use crate::state::volume::{State, Volume};
use crate::volume::read::{RESTARTS_MAX, restarted};

/// Blocks of a record: the record size, the number of the record, and the blocks in the record.
type Parts = (RecordSize, u64, Range<u64>);

/// Result of the search for blocks of a record in the changes in memory.
enum Found {
    Data(Vec<Block>),
    Hole,
    /// A reference to a stored record.
    Stored(BlockPtr),
    /// No change in memory: the record is in the committed trees below this root of the object
    /// table.
    Tree(TreeRoot),
}

/// Result of [`Volume::try_read_object`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectInMemory {
    /// The blocks were in memory.
    Data,
    /// The record is a hole.
    Hole,
    /// A block or a node above it is not in memory.
    No,
}

/// Origin of changes, which determines whether the log or a commit makes the changes durable.
pub(crate) enum By {
    /// A client, without a log record. A sync waits for the commit of the txg.
    Client,
    /// A client, with this log record. A sync writes the record to the intent log. The new content
    /// of these blocks of the record's object follows the blocks of the record.
    Logged(ObjectRecord, Range<u64>),
    /// A record of the intent log, during an import. The import commits before a client syncs
    /// anything.
    Replay,
    /// A received stream: the changes advance its position to this record of this object.
    Stream(ObjectId, u64),
}

impl By {
    /// A client, with this log record.
    fn logged(record: ObjectRecord, blocks: Range<u64>) -> Self {
        assert!(record.kind >= OBJECT_TYPE_MIN, "lower types belong to volumes");
        assert!((1..OBJECTS_MAX).contains(&record.object.0), "slots have numbers of objects");
        Self::Logged(record, blocks)
    }
}

/// Result of an attempt to change objects.
pub(crate) enum Tried {
    Done,
    /// A commit replaced the object table meanwhile: try again with the new table.
    Replaced,
    /// Too much data is dirty: try again after a commit.
    Full,
}

impl Volume {
    /// Applies changes to objects, all in one txg. Waits while too much data is dirty.
    ///
    /// # Durability
    /// None until a flush. After a crash the dataset has all changes of the call or none.
    ///
    /// # Errors
    /// `Full` or `Quota` if there is no space. `Data` if the slot of one of the objects cannot be
    /// read. Nothing was changed then.
    #[boxed(?Send)]
    pub async fn change_objects(&self, changes: Vec<ObjectChange>) -> Result<(), DatasetError> {
        self.apply_changes(changes, By::Client).await
    }

    /// As [`Self::change_objects`], with a log record of the change. A sync then writes the record
    /// to the intent log instead of waiting for a commit. An import passes the record to
    /// [`ObjectLayer::replay`](crate::ObjectLayer::replay) if the crash lost the txg.
    ///
    /// # Errors
    /// As [`Self::change_objects`].
    #[boxed(?Send)]
    pub async fn change_logged_objects(
        &self,
        changes: Vec<ObjectChange>,
        record: ObjectRecord,
    ) -> Result<(), DatasetError> {
        self.apply_changes(changes, By::logged(record, 0..0)).await
    }

    /// As [`Self::change_logged_objects`], but does not wait while too much data is dirty: returns
    /// the record then, and does not take `changes`. The caller repeats the call after
    /// [`Self::wait_for_room`].
    ///
    /// `blocks`: blocks of the record's object whose new content follows the record. The log takes
    /// them from `changes`, and shares their memory with the dirty data.
    ///
    /// # Errors
    /// As [`Self::change_objects`].
    #[boxed(?Send)]
    pub async fn try_change_logged_objects(
        &self,
        changes: &mut Vec<ObjectChange>,
        record: ObjectRecord,
        blocks: Range<u64>,
    ) -> Result<Option<ObjectRecord>, DatasetError> {
        let mut by = By::logged(record, blocks);
        let is_done = self.try_apply(changes, &mut by, &mut 0).await?;
        Ok(
            if let By::Logged(record, _) = by
                && !is_done
            {
                Some(record)
            } else {
                None
            },
        )
    }

    /// As [`Self::change_objects`], for changes of any origin.
    #[boxed(?Send)]
    pub(crate) async fn apply_changes(
        &self,
        mut changes: Vec<ObjectChange>,
        mut by: By,
    ) -> Result<(), DatasetError> {
        let mut tries = 0;
        while !self.try_apply(&mut changes, &mut by, &mut tries).await? {
            self.wait_for_room().await?;
        }
        Ok(())
    }

    /// Applies the changes, unless too much data is dirty: returns false then. `tries`: number of
    /// commits that replaced the object table.
    async fn try_apply(
        &self,
        changes: &mut Vec<ObjectChange>,
        by: &mut By,
        tries: &mut usize,
    ) -> Result<bool, DatasetError> {
        let is_object = |change: &ObjectChange| (1..OBJECTS_MAX).contains(&change.object().0);
        assert!(changes.iter().all(is_object), "slots have numbers of objects");
        loop {
            match self.change_once(changes, by, *tries < RESTARTS_MAX).await? {
                Tried::Done => return Ok(true),
                Tried::Replaced => *tries += 1,
                Tried::Full => return Ok(false),
            }
        }
    }

    /// Tries to apply the changes. `may_restart`: a commit that replaces the object table is no
    /// error.
    pub(crate) async fn change_once(
        &self,
        changes: &mut Vec<ObjectChange>,
        by: &mut By,
        may_restart: bool,
    ) -> Result<Tried, DatasetError> {
        self.core.pool.check_alive()?;
        let (table, missing) = self.missing_slots(changes, by)?;
        let mut read = Vec::new();
        for index in missing {
            match self.core.pool.slot_block(table, index).await {
                Ok(block) => read.push((index, block)),
                // A commit replaced the object table: begin again.
                Err(PoolError::NoSegment { .. }) if may_restart => break,
                Err(error) => {
                    let failed = Err(DatasetError::from(error));
                    return self.noted_object(ObjectId::TABLE, index..index + 1, failed).await;
                }
            }
        }
        self.try_change(table, read, changes, by)
    }

    /// Applies the changes if `table` is still the root of the object table. `read` has blocks that
    /// the caller read from this table.
    fn try_change(
        &self,
        table: TreeRoot,
        read: Vec<(u64, Block)>,
        changes: &mut Vec<ObjectChange>,
        by: &mut By,
    ) -> Result<Tried, DatasetError> {
        let mut state = self.state.lock();
        self.check_by(&state, by)?;
        if state.record.root != table {
            return Ok(Tried::Replaced);
        }
        let Some(set) = &mut state.objects else { return Err(self.no_objects(&state)) };
        set.slot_blocks.extend(read);
        if changes.iter().any(|change| !has_slot(set, change)) {
            return Ok(Tried::Replaced);
        }
        let added = set.open.bound(changes, table_height(table, changes));
        let admitted = match by {
            // The calls of the clients reserved the space before the crash.
            By::Replay => Ok(Some(added.cost)),
            By::Logged(record, _) if record.frees => self.admit_freeing(&state, added),
            By::Client | By::Logged(..) | By::Stream(..) => self.admit_objects(&state, added),
        };
        let txg = self.core.open_txg();
        let is_logged = !state.object.log.skips(txg);
        let Some(set) = &mut state.objects else { return Err(self.no_objects(&state)) };
        let Ok(Some(charge)) = admitted else {
            // Drop the blocks that were read for this refused call, so that they do not accumulate.
            set.drop_unused_blocks();
            return admitted.map(|_| Tried::Full);
        };
        if let By::Logged(record, blocks) = by
            && is_logged
            && set.log.accepts(record, txg)
        {
            record.blocks.extend(new_blocks(changes, record.object, blocks));
        }
        self.add_objects(set, std::mem::take(changes), charge);
        state.cloning_bytes += added.referenced_bytes;
        self.queue_change(&mut state, std::mem::replace(by, By::Client));
        Ok(Tried::Done)
    }

    /// Checks that the dataset accepts changes of this origin. A replay also changes read-only
    /// datasets.
    fn check_by(&self, state: &State, by: &By) -> Result<(), DatasetError> {
        match by {
            By::Client | By::Logged(..) => self.check_change(state, 0, 0),
            By::Replay | By::Stream(..) => self.check(state, 0, 0),
        }
    }

    /// Queues the log record of a change. After a change without a record, syncs wait for the
    /// commit of the open txg.
    fn queue_change(&self, state: &mut State, by: By) {
        let (txg, bug) = (self.core.open_txg(), self.core.pool.bug());
        if let By::Stream(object, record) = by {
            // The log cannot store the position in the stream, so only a commit makes it durable.
            let receiving = &mut descent_mut(&mut state.record).receiving;
            receiving.as_mut().expect("only the claim holder ends it").pass(object, record);
            state.object.log.skip_until(txg);
            return;
        }
        state.object.log.begin_change();
        if state.object.log.skips(txg) {
            return;
        }
        let lsn = state.object.log.acked();
        let set = state.objects.as_mut().expect("the caller changed objects");
        match by {
            By::Logged(record, _) if fits_batch(&record) => {
                if !set.log.push((lsn, txg), record, bug) {
                    tracing::debug!(dataset = self.id.0, "namespace log queue dropped");
                    state.object.log.skip_until(txg);
                    self.core.want(txg);
                }
            }
            By::Replay => {}
            By::Client | By::Logged(..) | By::Stream(..) => state.object.log.skip_until(txg),
        }
    }

    /// Returns the root of the object table, and the indexes of those blocks of the table that the
    /// changes need and the object set lacks.
    fn missing_slots(
        &self,
        changes: &[ObjectChange],
        by: &By,
    ) -> Result<(TreeRoot, Vec<u64>), DatasetError> {
        let state = self.state.lock();
        self.check_by(&state, by)?;
        let Some(set) = &state.objects else { return Err(self.no_objects(&state)) };
        let missing = changes.iter().filter(|change| !has_slot(set, change));
        let mut missing: Vec<u64> =
            missing.map(|change| ObjectSlot::block_of(change.object())).collect();
        missing.sort_unstable();
        missing.dedup();
        Ok((state.record.root, missing))
    }

    pub(crate) fn no_objects(&self, state: &State) -> DatasetError {
        let why = "is a volume and has no objects".to_owned();
        DatasetError::Unfit { name: self.full_name(state), why }
    }

    /// Returns the bytes to charge if a call may join the open txg, and `None` if it must wait for
    /// a commit.
    fn admit_objects(&self, state: &State, added: Added) -> Result<Option<u64>, DatasetError> {
        let fits = self.fits_quota(state, added.cost + added.referenced_bytes)?;
        let blocks = NewBlocks { added: added.blocks, own: added.own_blocks };
        Ok((fits && self.fits_pool(blocks, added.cost)?).then_some(added.cost))
    }

    /// As [`Self::admit_objects`], for a call that frees space. If there is no space for the call,
    /// it uses the space that the cleaner and TRIM share, and exceeds a quota by its nodes. So a
    /// client can remove files from a full filesystem.
    fn admit_freeing(&self, state: &State, added: Added) -> Result<Option<u64>, DatasetError> {
        let admitted = self.admit_objects(state, added);
        if matches!(admitted, Ok(Some(_))) {
            return admitted;
        }
        if !self.core.fits_memory(NewBlocks { added: added.blocks, own: added.own_blocks }) {
            return Ok(None);
        }
        if self.core.admit_from_reserve(added.cost) { Ok(Some(0)) } else { admitted }
    }

    fn add_objects(&self, set: &mut ObjectSet, changes: Vec<ObjectChange>, cost: u64) {
        let bug = self.core.pool.bug();
        let added: i64 = changes.into_iter().map(|change| set.open.add(change, bug)).sum();
        set.open.charge += cost;
        self.core.add_dirty(added.max(0).unsigned_abs(), cost);
        self.core.sub_dirty(added.min(0).unsigned_abs());
        // The commit frees the blocks that holes replace.
        self.core.note_freeing(self.core.open_txg());
    }

    /// Reads a record of an object with records of `size`; `None` is a hole.
    ///
    /// # Errors
    /// `Data` if the record, its slot or a node is damaged on every leg.
    pub async fn read_object(
        &self,
        object: ObjectId,
        size: RecordSize,
        record: u64,
    ) -> Result<Option<Vec<Block>>, DatasetError> {
        self.read_object_parts(object, size, (record, 0..size.blocks())).await
    }

    /// Reads some blocks of a record, as [`Self::read_object`]. `parts`: numbers of the blocks in
    /// the record.
    ///
    /// # Errors
    /// As [`Self::read_object`].
    #[boxed(?Send)]
    pub async fn read_object_parts(
        &self,
        object: ObjectId,
        size: RecordSize,
        (record, parts): (u64, Range<u64>),
    ) -> Result<Option<Vec<Block>>, DatasetError> {
        let place = (size, record, parts);
        let read = restarted(async || match self.find_record(object, &place)? {
            Found::Data(blocks) => Ok(Some(blocks)),
            Found::Hole => Ok(None),
            Found::Stored(ptr) => Ok(self.read_pointer(ptr, &place).await?),
            Found::Tree(table) => Ok(self.read_stored(table, object, &place).await?),
        });
        self.noted_object(object, record..record + 1, read.await).await
    }

    /// Appends some blocks of a record to `blocks`, if all of them are in memory. Otherwise appends
    /// nothing; on [`ObjectInMemory::No`] the caller uses [`Self::read_object_parts`].
    ///
    /// # Errors
    /// The dataset was closed or destroyed. Damage is no error here: a read finds it again.
    pub fn try_read_object(
        &self,
        object: ObjectId,
        size: RecordSize,
        (record, parts): (u64, Range<u64>),
        blocks: &mut Vec<Block>,
    ) -> Result<ObjectInMemory, DatasetError> {
        let ptr = match self.locate(object, &(size, record, parts.clone()))? {
            Found::Data(data) => {
                blocks.extend(data);
                return Ok(ObjectInMemory::Data);
            }
            Found::Hole => return Ok(ObjectInMemory::Hole),
            Found::Tree(_) => return Ok(ObjectInMemory::No),
            Found::Stored(ptr) => ptr,
        };
        let Some(cached) = self.core.pool.cached_record(&ptr) else {
            return Ok(ObjectInMemory::No);
        };
        let Some(cached) = cached.get(parts.start as usize..parts.end as usize) else {
            return Ok(ObjectInMemory::No);
        };
        blocks.extend_from_slice(cached);
        Ok(ObjectInMemory::Data)
    }

    /// True if a record has data, and false if it is a hole. `None` if a node above the record is
    /// not in memory.
    ///
    /// # Errors
    /// As [`Self::try_read_object`].
    pub fn try_is_data(
        &self,
        object: ObjectId,
        size: RecordSize,
        record: u64,
    ) -> Result<Option<bool>, DatasetError> {
        {
            let state = self.state.lock();
            self.check(&state, 0, 0)?;
            let Some(set) = &state.objects else { return Err(self.no_objects(&state)) };
            let is_data = set.becomes_data(object, record, size.first_block(record));
            if is_data.is_some() {
                return Ok(is_data);
            }
        }
        Ok(match self.locate(object, &(size, record, 0..1))? {
            Found::Data(_) | Found::Stored(_) => Some(true),
            Found::Hole => Some(false),
            Found::Tree(_) => None,
        })
    }

    /// Searches the changes and the nodes in memory for blocks of a record. `Tree` if a node must
    /// be read first; a `Stored` record is no hole.
    fn locate(&self, object: ObjectId, place: &Parts) -> Result<Found, DatasetError> {
        let mut state = self.state.lock();
        self.check(&state, 0, 0)?;
        let (pool, (size, record, _)) = (&self.core.pool, place);
        let found = self.found_in(&state, object, place)?;
        let ptr = match found {
            Found::Stored(ptr) => Some(ptr),
            Found::Tree(table) => {
                let find = || match pool.object_root_cached(table, object)? {
                    Some(root) => Tree::new(pool, root).leaf_cached(*record),
                    None => Ok(Leaf::Unknown),
                };
                let leaves = &mut state.object.leaves;
                leaves.pointer(pool, table, (object, *record), find).ok().flatten()
            }
            Found::Data(_) | Found::Hole => None,
        };
        Ok(match ptr {
            Some(ptr) if ptr.is_hole() => Found::Hole,
            Some(ptr) if pool.check_record(&ptr, *size).is_ok() => Found::Stored(ptr),
            Some(_) => Found::Tree(state.record.root),
            None => found,
        })
    }

    fn find_record(&self, object: ObjectId, place: &Parts) -> Result<Found, DatasetError> {
        let state = self.state.lock();
        self.check(&state, 0, 0)?;
        self.found_in(&state, object, place)
    }

    /// Searches the changes in memory for blocks of a record.
    fn found_in(
        &self,
        state: &State,
        object: ObjectId,
        (size, record, parts): &Parts,
    ) -> Result<Found, DatasetError> {
        let Some(set) = &state.objects else { return Err(self.no_objects(state)) };
        let first = size.first_block(*record);
        let blocks = first + parts.start..first + parts.end;
        Ok(match set.dirty(object, *record, blocks) {
            Some(DirtyRecord::Changed(DirtyBlocks::Data(data))) => Found::Data(data),
            Some(DirtyRecord::Changed(DirtyBlocks::Hole)) => Found::Hole,
            Some(DirtyRecord::Stored(ptr)) => Found::Stored(ptr),
            None => Found::Tree(state.record.root),
        })
    }

    async fn read_stored(
        &self,
        table: TreeRoot,
        object: ObjectId,
        place: &Parts,
    ) -> Result<Option<Vec<Block>>, PoolError> {
        let pool = &self.core.pool;
        let root = pool.object_root(table, object).await?;
        let ptr = Tree::new(pool, root).lookup(place.1).await?;
        self.read_pointer(ptr, place).await
    }

    async fn read_pointer(
        &self,
        ptr: BlockPtr,
        (size, _, parts): &Parts,
    ) -> Result<Option<Vec<Block>>, PoolError> {
        let pool = &self.core.pool;
        if ptr.is_hole() {
            return Ok(None);
        }
        pool.check_record(&ptr, *size)?;
        let parts: Vec<RecordPart> =
            parts.clone().map(|part| RecordPart { ptr, part: part as usize }).collect();
        pool.read_parts(&parts).await.into_iter().collect::<Result<_, _>>().map(Some)
    }

    /// Reads the slots of some objects into the cache, together. Skips damaged slots:
    /// [`Self::object_slot`] finds the damage.
    #[boxed(?Send)]
    pub async fn load_slots(&self, objects: &[ObjectId]) {
        let (table, mut blocks) = {
            let state = self.state.lock();
            let Some(set) = &state.objects else { return };
            let stored = objects.iter().filter(|object| set.slot(**object).is_none());
            let blocks: Vec<u64> = stored.map(|object| ObjectSlot::block_of(*object)).collect();
            (state.record.root, blocks)
        };
        blocks.sort_unstable();
        blocks.dedup();
        self.core.pool.load_slot_blocks(table, &blocks).await;
    }

    /// Reads the slot of an object: its record size and the bytes of the layer above. `None`: the
    /// slot is unused.
    ///
    /// # Errors
    /// `Data` if the slot or a node of the object table is damaged on every leg.
    #[boxed(?Send)]
    pub async fn object_slot(
        &self,
        object: ObjectId,
    ) -> Result<Option<(RecordSize, Box<SlotBody>)>, DatasetError> {
        let read = restarted(async || {
            let table = {
                let state = self.state.lock();
                self.check(&state, 0, 0)?;
                let Some(set) = &state.objects else { return Err(self.no_objects(&state)) };
                if let Some(slot) = set.slot(object) {
                    return Ok(slot);
                }
                state.record.root
            };
            let block = self.core.pool.slot_block(table, ObjectSlot::block_of(object)).await?;
            let slot = ObjectSlot::read(&block, object);
            let slot = slot.expect("the pool checked the slots of the block");
            Ok(slot.is_used().then(|| (slot.record_size, Box::new(slot.body))))
        });
        self.noted_object(object, 0..0, read.await).await
    }
}

/// New content of a range of blocks of an object, in ascending order.
fn new_blocks(changes: &[ObjectChange], of: ObjectId, range: &Range<u64>) -> Vec<Block> {
    let mut found = Vec::with_capacity((range.end - range.start) as usize);
    for change in changes {
        if let ObjectChange::Write { object, size, record, blocks } = change
            && *object == of
        {
            let start = size.first_block(*record);
            let first = range.start.saturating_sub(start) as usize;
            let last = range.end.saturating_sub(start).min(blocks.len() as u64) as usize;
            found.extend_from_slice(blocks.get(first..last).unwrap_or_default());
        }
    }
    assert_eq!(found.len() as u64, range.end - range.start, "the changes write all logged blocks");
    found
}

fn has_slot(set: &ObjectSet, change: &ObjectChange) -> bool {
    set.slot_blocks.contains_key(&ObjectSlot::block_of(change.object()))
}

/// Height of the object table after the changes.
fn table_height(table: TreeRoot, changes: &[ObjectChange]) -> u8 {
    let blocks = changes.iter().map(|change| ObjectSlot::block_of(change.object()) + 1).max();
    table.height.max(TreeRoot::height_for(blocks.unwrap_or_default()))
}
