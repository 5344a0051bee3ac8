//! Receives a dataset with many objects: applies the entries of object frames.
//!
//! `receive` applies the changes of volumes. weir-format has the frames.
//!
//! Invariants:
//! - changes join a txg together with the position in the stream up to which they are received;
//! - a txg removes at most twice [`LEAVES_AT_ONCE`] leaves, because its commit reads them;
//! - a resumed stream may repeat an entry that was already applied: the entry then changes nothing.

use std::ops::Range;
use std::sync::Arc;

use weir_base::{ObjectId, RecordSize, Txg};
use weir_format::stream::{StreamEntries, StreamEntry};
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, ObjectSlot, TreeRoot};
use weir_pool::{DiffSpec, Objects, Place, PoolError, Tree};

use super::{BLOCKS_AT_ONCE, Receiver};
use crate::error::DatasetError;
use crate::objects::object_set::{ObjectChange, SlotBody};
use crate::state::engine::Engine;
use crate::state::volume::Volume;
use crate::volume::objects::By;
use crate::volume::read::restarted;

/// Maximum number of leaves that one step removes: 4 MiB of nodes, which the commit reads. When the
/// steps of a txg together reach this number, the receiver commits the txg.
const LEAVES_AT_ONCE: u64 = 1024;
/// Maximum number of changes that one call adds to a txg.
const CHANGES_AT_ONCE: usize = 128;
/// Maximum number of blocks of the object table that one search for objects to remove reads.
const SLOT_BLOCKS_AT_ONCE: usize = 64;

/// State of the receive while it applies the entries of a frame.
struct Applying {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    /// Changes that have not joined a txg yet.
    changes: Vec<ObjectChange>,
    /// Number of blocks in `changes`.
    blocks: usize,
    /// Position in the stream after `changes`: an object and one of its records.
    place: (ObjectId, u64),
    /// Number of leaves that the open txg removes.
    leaves: u64,
}

/// Records of an object that one step replaces by holes.
struct Step {
    records: Range<u64>,
    /// Number of leaves with these records.
    leaves: u64,
    is_last: bool,
}

impl Receiver {
    /// Applies the entries of an object frame.
    pub(super) async fn apply_objects(
        &mut self,
        entries: &StreamEntries,
    ) -> Result<(), DatasetError> {
        let claim = self.claim.as_ref().expect("the reader returns the begin before entries");
        let mut applying = Applying {
            engine: Arc::clone(&self.engine),
            volume: Arc::clone(&claim.volume),
            changes: Vec::new(),
            blocks: 0,
            place: (ObjectId(0), 0),
            leaves: self.removed_leaves,
        };
        for entry in entries.iter() {
            match entry {
                StreamEntry::Object { object, size, records, body } => {
                    self.engine.check_record(&self.spec.volume, size)?;
                    applying.object(object, size, records, body).await?;
                }
                StreamEntry::Unused { objects } => applying.unused(objects).await?,
                StreamEntry::Change { object, size, change, stored: None } => {
                    let records = change.start..change.start + change.count;
                    applying.hole(object, size, records).await?;
                }
                StreamEntry::Change { object, size, change, stored: Some((codec, stored)) } => {
                    let Some(blocks) = self.unpack(size, codec, stored) else {
                        return Err(self.refuse_record(change.start).await);
                    };
                    let (record, blocks) = (change.start, blocks.to_vec());
                    let change = ObjectChange::Write { object, size, record, blocks };
                    applying.add(change, (object, record + 1)).await?;
                }
            }
        }
        applying.flush().await?;
        self.removed_leaves = applying.leaves;
        Ok(())
    }

    /// Checks the entries of an object frame as [`Self::apply_objects`] does, but changes nothing;
    /// for a dry run.
    pub(super) async fn look_at_objects(
        &mut self,
        entries: &StreamEntries,
    ) -> Result<(), DatasetError> {
        for entry in entries.iter() {
            match entry {
                StreamEntry::Object { size, .. } => {
                    self.engine.check_record(&self.spec.volume, size)?;
                }
                StreamEntry::Change { size, change, stored: Some((codec, stored)), .. } => {
                    if self.unpack(size, codec, stored).is_none() {
                        return Err(self.refuse_record(change.start).await);
                    }
                }
                StreamEntry::Unused { .. } | StreamEntry::Change { stored: None, .. } => {}
            }
        }
        Ok(())
    }
}

impl Applying {
    /// Adds a change. `place`: position in the stream after the change.
    async fn add(
        &mut self,
        change: ObjectChange,
        place: (ObjectId, u64),
    ) -> Result<(), DatasetError> {
        if let ObjectChange::Write { blocks, .. } = &change {
            self.blocks += blocks.len();
        }
        self.changes.push(change);
        self.place = place;
        if self.changes.len() >= CHANGES_AT_ONCE || self.blocks >= BLOCKS_AT_ONCE {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), DatasetError> {
        self.blocks = 0;
        if self.changes.is_empty() {
            return Ok(());
        }
        let (object, record) = self.place;
        let changes = std::mem::take(&mut self.changes);
        self.volume.apply_changes(changes, By::Stream(object, record)).await
    }

    /// Counts the leaves that a step removes. Commits the open txg when its steps have removed
    /// [`LEAVES_AT_ONCE`] leaves.
    async fn removed(&mut self, leaves: u64) -> Result<(), DatasetError> {
        self.leaves += leaves;
        if self.leaves >= LEAVES_AT_ONCE {
            self.flush().await?;
            self.engine.sync().await?;
            self.leaves = 0;
        }
        Ok(())
    }

    /// Applies the entry of an object in use. Removes the old records from number `records` on, or
    /// the whole old object if its record size differs; then sets the slot.
    async fn object(
        &mut self,
        object: ObjectId,
        size: RecordSize,
        records: u64,
        body: &SlotBody,
    ) -> Result<(), DatasetError> {
        match self.volume.object_slot(object).await? {
            Some((old, _)) if old != size => self.remove(object, old).await?,
            Some(_) => self.zero(object, size, records..TreeRoot::BLOCKS_MAX, (object, 0)).await?,
            None => {}
        }
        let body = Box::new(*body);
        self.add(ObjectChange::SetSlot { object, size, body }, (object, 0)).await
    }

    async fn hole(
        &mut self,
        object: ObjectId,
        size: RecordSize,
        records: Range<u64>,
    ) -> Result<(), DatasetError> {
        let place = (object, records.end);
        self.zero(object, size, records, place).await?;
        self.place = place;
        Ok(())
    }

    /// Replaces records of an object by holes, in steps. The last step sets the position in the
    /// stream to `place`.
    async fn zero(
        &mut self,
        object: ObjectId,
        size: RecordSize,
        mut records: Range<u64>,
        place: (ObjectId, u64),
    ) -> Result<(), DatasetError> {
        loop {
            let Step { records: now, leaves, is_last } =
                self.next_step(object, records.clone()).await?;
            records.start = now.end;
            if leaves > 0 {
                let place = if is_last { place } else { (object, 0) };
                self.add(ObjectChange::Zero { object, size, records: now }, place).await?;
                self.removed(leaves).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Removes an object with records of `size`, in steps.
    async fn remove(&mut self, object: ObjectId, size: RecordSize) -> Result<(), DatasetError> {
        let place = (object, 0);
        self.zero(object, size, 0..TreeRoot::BLOCKS_MAX, place).await?;
        self.add(ObjectChange::Remove { object }, place).await
    }

    /// Root of the committed object table.
    fn table(&self) -> TreeRoot {
        self.volume.state.lock().record.root
    }

    /// Finds the first part of `records` that one step can replace by holes.
    async fn next_step(&self, object: ObjectId, records: Range<u64>) -> Result<Step, DatasetError> {
        restarted(async || Ok(self.step_in(self.table(), object, &records).await?)).await
    }

    async fn step_in(
        &self,
        table: TreeRoot,
        object: ObjectId,
        records: &Range<u64>,
    ) -> Result<Step, PoolError> {
        let pool = self.engine.pool();
        let last = |leaves| Step { records: records.clone(), leaves, is_last: true };
        let root = pool.object_root(table, object).await?;
        if root.ptr.is_hole() || root.blocks() <= records.start {
            return Ok(last(0));
        }
        if root.height <= 1 {
            return Ok(last(1));
        }
        let what = DiffSpec::of_tree(Objects::One, root, None, Txg(0));
        let mut diff = pool.unshared(DiffSpec { from: Place::in_volume(records.start), ..what });
        let mut leaves = 0;
        loop {
            let is_end = diff.next().await?.is_empty();
            leaves += u64::from(!is_end);
            let position = diff.position().block;
            if is_end || position >= records.end {
                return Ok(last(leaves));
            }
            if leaves >= LEAVES_AT_ONCE {
                return Ok(Step { records: records.start..position, leaves, is_last: false });
            }
        }
    }

    /// Removes the objects of this range that are in use.
    async fn unused(&mut self, objects: Range<u64>) -> Result<(), DatasetError> {
        let mut rest = objects.clone();
        while !rest.is_empty() {
            let (used, end) = self.next_used(&rest).await?;
            for (object, size) in used {
                self.remove(object, size).await?;
            }
            rest.start = end;
        }
        self.place = (ObjectId(objects.end), 0);
        Ok(())
    }

    /// Returns the objects in use in the first part of a range of objects, with their record sizes,
    /// and the end of this part.
    async fn next_used(
        &self,
        objects: &Range<u64>,
    ) -> Result<(Vec<(ObjectId, RecordSize)>, u64), DatasetError> {
        restarted(async || Ok(self.used_in(self.table(), objects).await?)).await
    }

    async fn used_in(
        &self,
        table: TreeRoot,
        objects: &Range<u64>,
    ) -> Result<(Vec<(ObjectId, RecordSize)>, u64), PoolError> {
        let pool = self.engine.pool();
        let slots = OBJECT_SLOTS_PER_BLOCK as u64;
        let blocks = objects.start / slots..objects.end.div_ceil(slots).min(table.blocks());
        let mut found = Vec::new();
        if !blocks.is_empty() {
            let mut visit = |index: u64, _: BlockPtr| {
                found.push(index);
                found.len() < SLOT_BLOCKS_AT_ONCE
            };
            Tree::new(pool, table).scan(blocks, &mut visit).await?;
        }
        let mut used = Vec::new();
        for index in &found {
            let block = pool.slot_block(table, *index).await?;
            let slots = ObjectSlot::used_in(*index, &block);
            let slots = slots.filter(|(object, _)| objects.contains(&object.0));
            used.extend(slots.map(|(object, slot)| (object, slot.record_size)));
        }
        let end = match found.last() {
            Some(last) if found.len() == SLOT_BLOCKS_AT_ONCE => (last + 1) * slots,
            _ => objects.end,
        };
        Ok((used, end.min(objects.end)))
    }
}
