//! Object set: uncommitted changes of a dataset with many objects.
//!
//! The lock of the dataset's `State` protects the set. `volume::objects` adds changes,
//! `commit::write_objects` writes them out.
//!
//! Invariants:
//! - the set has the committed content of each block of the object table that a commit of its
//!   changes rewrites, so that the commit reads no slot;
//! - a txg contains all changes of a call or none.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_format::{BlockPtr, NODE_SHIFT, ObjectSlot, TreeRoot};
use weir_pool::PlantedBug;

use crate::objects::dirty::{DirtyBlocks, DirtyTable};
use crate::objects::log_bytes::LogTotal;
use crate::objects::object_log::ObjectLog;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Number of changed leaves whose entries take about as much memory as a block.
const LEAVES_OF_BLOCK: usize = 64;
/// Number of references to records that take about as much memory as a block.
const REFERENCES_OF_BLOCK: usize = 32;
/// Maximum bytes that one reference adds to the reference tables.
const COUNT_BYTES: u64 = 8;

/// Bytes of an object slot that belong to the layer above the engine.
pub type SlotBody = [u8; ObjectSlot::BODY_BYTES];

/// A record of the last committed txg. It stays where it is until the open txg is committed.
#[derive(Clone, Copy, Debug)]
pub struct StoredRecord {
    pub(crate) ptr: BlockPtr,
}

/// Change of one object.
#[derive(Clone, Debug)]
pub enum ObjectChange {
    /// Writes one whole record of an object with records of `size`.
    Write {
        /// The object.
        object: ObjectId,
        /// Record size of the object. All changes of one object name the same size.
        size: RecordSize,
        /// Number of the record.
        record: u64,
        /// Content, as many blocks as a record has.
        blocks: Vec<Block>,
    },
    /// Makes a record a reference to a stored record. [`RecordCopyTurn::copy`] creates this change.
    ///
    /// [`RecordCopyTurn::copy`]: crate::RecordCopyTurn::copy
    Refer {
        /// The object.
        object: ObjectId,
        /// Record size of the object, and of the stored record.
        size: RecordSize,
        /// Number of the record.
        record: u64,
        /// The stored record.
        to: StoredRecord,
    },
    /// Makes records holes. The range may extend beyond the last record of the object.
    Zero {
        /// The object.
        object: ObjectId,
        /// Record size of the object.
        size: RecordSize,
        /// Numbers of the records.
        records: Range<u64>,
    },
    /// Sets the bytes of the layer above in the slot of an object. An unused slot becomes used.
    SetSlot {
        /// The object.
        object: ObjectId,
        /// Record size of the object.
        size: RecordSize,
        /// Bytes of the layer above.
        body: Box<SlotBody>,
    },
    /// Makes all records holes and the slot unused. The commit reads all nodes of the object, so
    /// the caller first makes the records of a large object holes, some in each txg.
    Remove {
        /// The object.
        object: ObjectId,
    },
}

impl ObjectChange {
    /// The changed object.
    pub fn object(&self) -> ObjectId {
        match self {
            Self::Write { object, .. }
            | Self::Refer { object, .. }
            | Self::Zero { object, .. }
            | Self::SetSlot { object, .. }
            | Self::Remove { object } => *object,
        }
    }

    /// Leaf of the record of a reference.
    fn leaf(&self) -> Option<u64> {
        if let Self::Refer { record, .. } = self { Some(record >> NODE_SHIFT) } else { None }
    }
}

/// Slot of an object after a txg.
#[derive(Debug, Default)]
pub(crate) enum NewSlot {
    /// Only the tree root changes.
    #[default]
    Kept,
    Set(Box<SlotBody>),
    Unused,
}

/// Uncommitted content of blocks of a record.
pub(crate) enum DirtyRecord {
    /// The data of the blocks, or a hole.
    Changed(DirtyBlocks),
    /// The record is a reference to this stored record.
    Stored(BlockPtr),
}

/// Changes of one txg to one object.
#[derive(Default)]
pub(crate) struct DirtyObject {
    /// Record size; `None` if only the slot becomes unused.
    pub(crate) size: Option<RecordSize>,
    pub(crate) table: DirtyTable,
    /// Records that become references to stored records. `table` has no change of these records.
    pub(crate) references: BTreeMap<u64, BlockPtr>,
    pub(crate) slot: NewSlot,
    /// Leaves of the object's tree with a changed record. `ObjectChanges::charge` includes each
    /// leaf with the nodes above it.
    leaves: BTreeSet<u64>,
}

/// Changes of one txg.
#[derive(Default)]
pub(crate) struct ObjectChanges {
    pub(crate) objects: BTreeMap<ObjectId, DirtyObject>,
    /// Bytes of pool space reserved for writing these changes.
    pub(crate) charge: u64,
    /// Memory of the changes in blocks: the sum of [`DirtyObject::memory_blocks`].
    pub(crate) blocks: u64,
    /// Bytes of the records to which the txg adds references. They count towards the quota.
    pub(crate) referenced_bytes: u64,
}

/// Upper bounds of the memory and space that a call adds to the open txg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Memory, in blocks.
    pub(crate) blocks: u64,
    /// Memory that one of the changed objects has in the open txg already: the largest one.
    pub(crate) own_blocks: u64,
    /// Space for writing the changes, in bytes.
    pub(crate) cost: u64,
    /// Bytes of the records to which the call adds references.
    pub(crate) referenced_bytes: u64,
}

impl ObjectChanges {
    /// Upper bounds of the memory and space that changes add to the open txg. `table_height`:
    /// height of the object table after the txg.
    pub(crate) fn bound(&self, changes: &[ObjectChange], table_height: u8) -> Added {
        let mut added = Added::default();
        let mut stored = 0;
        // Object and leaf of the previous change, which counted the slot and the nodes of the leaf.
        // A copy has many references in one leaf.
        let mut last: Option<(ObjectId, Option<u64>)> = None;
        for change in changes {
            let known = self.objects.get(&change.object());
            let own = known.map_or(0, DirtyObject::memory_blocks);
            added.own_blocks = added.own_blocks.max(own);
            let last = last.replace((change.object(), change.leaf()));
            let last = last.filter(|_| matches!(change, ObjectChange::Refer { .. }));
            let mut nodes = 0;
            if known.is_none() && last.is_none_or(|(object, _)| object != change.object()) {
                stored += 1;
                nodes += u64::from(table_height);
            }
            let records = match change {
                ObjectChange::Write { size, record, blocks, .. } => {
                    // A record that the txg writes already has its space: the new data replaces the
                    // old data in memory.
                    let first = size.first_block(*record);
                    let is_written = known.is_some_and(|known| known.table.is_data(first));
                    stored += if is_written { 0 } else { blocks.len() as u64 };
                    Some(record..record)
                }
                ObjectChange::Refer { record, size, .. } => {
                    added.cost += COUNT_BYTES;
                    added.referenced_bytes += size.bytes() as u64;
                    Some(record..record)
                }
                ObjectChange::Zero { records, .. } => Some(&records.start..&records.end),
                ObjectChange::SetSlot { .. } | ObjectChange::Remove { .. } => None,
            };
            // A range of holes rewrites at most the nodes at its ends. The nodes between them are
            // freed.
            for record in records.into_iter().flat_map(|records| [records.start, records.end]) {
                // Add a block for one more range of holes or `LEAVES_OF_BLOCK` more leaves.
                added.blocks += 1;
                let leaf = record >> NODE_SHIFT;
                let is_known = known.is_some_and(|known| known.leaves.contains(&leaf))
                    || last == Some((change.object(), Some(leaf)));
                nodes += if is_known { 0 } else { u64::from(TreeRoot::HEIGHT_MAX) };
            }
            added.cost += nodes * BLOCK;
        }
        added.blocks += stored;
        added.cost += stored * BLOCK;
        added
    }

    /// Adds a change. Returns by how many blocks the memory grew; negative if it shrank.
    pub(crate) fn add(&mut self, change: ObjectChange, bug: PlantedBug) -> i64 {
        let known = self.objects.get(&change.object());
        let before = known.map_or(0, DirtyObject::memory_blocks);
        let object = self.objects.entry(change.object()).or_default();
        match change {
            ObjectChange::Write { size, record, blocks, .. } => {
                object.note(size, [record]);
                assert_eq!(blocks.len() as u64, size.blocks(), "records are whole");
                object.references.remove(&record);
                object.table.write_all(size.first_block(record), blocks);
            }
            ObjectChange::Refer { size, record, to, .. } => {
                object.note(size, [record]);
                object.table.drop_range(size.blocks_of(&(record..record + 1)));
                object.references.insert(record, to.ptr);
                self.referenced_bytes += size.bytes() as u64;
            }
            ObjectChange::Zero { size, records, .. } => {
                object.note(size, [records.start, records.end]);
                object.drop_references(&records);
                let blocks = size.first_block(records.start)..size.first_block(records.end);
                object.table.zero(blocks);
            }
            ObjectChange::SetSlot { size, body, .. } => {
                object.note(size, []);
                let is_reused = matches!(object.slot, NewSlot::Unused);
                if is_reused && bug == PlantedBug::ReusedSlotKeepsRecords {
                    object.table = DirtyTable::default();
                    object.references.clear();
                }
                object.slot = NewSlot::Set(body);
            }
            ObjectChange::Remove { .. } => {
                let all = RecordSize::all().next_back().expect("there are several");
                object.table.zero(0..all.first_block(TreeRoot::BLOCKS_MAX));
                object.references.clear();
                object.leaves.clear();
                object.size = None;
                object.slot = NewSlot::Unused;
            }
        }
        let added = object.memory_blocks().cast_signed() - before.cast_signed();
        self.blocks = self.blocks.strict_add_signed(added);
        added
    }
}

impl DirtyObject {
    /// Memory of the changes in blocks: the data, one block for the slot and small parts, and more
    /// for many holes or changed leaves. Without that additional count, a client that punches holes
    /// into one object could fill the memory.
    pub(crate) fn memory_blocks(&self) -> u64 {
        let (data, holes) = (self.table.data_blocks(), self.table.hole_ranges());
        let references = self.references.len() / REFERENCES_OF_BLOCK;
        let leaves = self.leaves.len() / LEAVES_OF_BLOCK;
        (1 + data + holes.saturating_sub(1) + references + leaves) as u64
    }

    fn drop_references(&mut self, records: &Range<u64>) {
        let gone: Vec<u64> = self.references.range(records.clone()).map(|(at, _)| *at).collect();
        gone.iter().for_each(|record| _ = self.references.remove(record));
    }

    fn note<const N: usize>(&mut self, size: RecordSize, records: [u64; N]) {
        let known = *self.size.get_or_insert(size);
        assert_eq!(known, size, "the changes of an object have one record size");
        self.leaves.extend(records.map(|record| record >> NODE_SHIFT));
    }
}

pub(crate) struct ObjectSet {
    /// Changes of the open txg.
    pub(crate) open: ObjectChanges,
    /// Changes of the txg that is being written out.
    pub(crate) syncing: Option<Arc<ObjectChanges>>,
    /// Committed content of the blocks of the object table with the slots of changed objects.
    pub(crate) slot_blocks: BTreeMap<u64, Block>,
    /// Changes not yet logged or committed.
    pub(crate) log: ObjectLog,
}

impl ObjectSet {
    /// A set without changes. Its log adds its bytes to `total`.
    pub(crate) fn new(total: &Arc<LogTotal>) -> Self {
        Self {
            open: ObjectChanges::default(),
            syncing: None,
            slot_blocks: BTreeMap::new(),
            log: ObjectLog::new(total),
        }
    }

    /// Returns the newest value that `of` finds in the changes of an object: from the open txg, or
    /// else from the syncing txg.
    fn newest<T>(&self, object: ObjectId, of: impl Fn(&DirtyObject) -> Option<T>) -> Option<T> {
        let of = |changes: &ObjectChanges| changes.objects.get(&object).and_then(&of);
        of(&self.open).or_else(|| self.syncing.as_deref().and_then(of))
    }

    /// Returns the newest uncommitted content of some blocks of a record; `None` if the record has
    /// no change.
    pub(crate) fn dirty(
        &self,
        object: ObjectId,
        record: u64,
        blocks: Range<u64>,
    ) -> Option<DirtyRecord> {
        self.newest(object, |object| {
            let stored = || object.references.get(&record).copied().map(DirtyRecord::Stored);
            let changed = object.table.get_all(blocks.clone());
            changed.map(DirtyRecord::Changed).or_else(stored)
        })
    }

    /// True if a record with an uncommitted change has data, and false if it is a hole; `None` if
    /// the record has no change. `first`: number of the first block of the record.
    pub(crate) fn becomes_data(&self, object: ObjectId, record: u64, first: u64) -> Option<bool> {
        self.newest(object, |object| {
            let stored = || object.references.contains_key(&record).then_some(true);
            object.table.becomes_data(first).or_else(stored)
        })
    }

    /// Returns the uncommitted slot of an object: record size and body. `None`: the slot has no
    /// change. `Some(None)`: a change made the slot unused.
    #[expect(clippy::option_option, reason = "unchanged, unused and set are three cases")]
    pub(crate) fn slot(&self, object: ObjectId) -> Option<Option<(RecordSize, Box<SlotBody>)>> {
        self.newest(object, |object| match &object.slot {
            NewSlot::Kept => None,
            NewSlot::Set(body) => Some(object.size.map(|size| (size, body.clone()))),
            NewSlot::Unused => Some(None),
        })
    }

    /// True if the set has changes that are not in the committed trees yet.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.open.objects.is_empty() || self.syncing.is_some()
    }

    /// Maximum pool space that writing the changes takes, in bytes.
    pub(crate) fn charge(&self) -> u64 {
        self.open.charge + self.syncing.as_ref().map_or(0, |syncing| syncing.charge)
    }

    /// Closes the open txg: its changes become the changes of the syncing txg.
    pub(crate) fn freeze(&mut self) {
        assert!(self.syncing.is_none(), "one txg is written out at a time");
        let changes = std::mem::take(&mut self.open);
        self.syncing = (!changes.objects.is_empty()).then(|| Arc::new(changes));
    }

    /// Ends the syncing txg, which wrote these blocks of the object table. Returns its changes.
    pub(crate) fn publish(
        &mut self,
        written: impl IntoIterator<Item = (u64, Block)>,
    ) -> Option<Arc<ObjectChanges>> {
        for (index, block) in written {
            self.slot_blocks.insert(index, block);
        }
        let syncing = self.syncing.take();
        self.drop_unused_blocks();
        syncing
    }

    /// Drops the blocks of the object table that no change needs.
    pub(crate) fn drop_unused_blocks(&mut self) {
        let changes = self.syncing.as_deref().into_iter().chain([&self.open]);
        let objects = changes.flat_map(|changes| changes.objects.keys().copied());
        let needed: BTreeSet<u64> = objects.map(ObjectSlot::block_of).collect();
        self.slot_blocks.retain(|index, _| needed.contains(index));
    }

    /// Discards the changes of the open txg, and returns them.
    pub(crate) fn discard_open(&mut self) -> ObjectChanges {
        assert!(self.syncing.is_none(), "the caller holds the committer's lock");
        self.slot_blocks.clear();
        self.log.clear();
        std::mem::take(&mut self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(object: u64, record: u64) -> ObjectChange {
        let blocks = vec![Block::copy_of(&[1; BLOCK_BYTES])];
        ObjectChange::Write { object: ObjectId(object), size: RecordSize::BLOCK, record, blocks }
    }

    #[test]
    fn table_blocks_are_kept_while_a_change_needs_them() {
        let zeros = || Block::copy_of(&[0; BLOCK_BYTES]);
        let mut set = ObjectSet::new(&Arc::new(LogTotal::new(u64::MAX)));
        set.slot_blocks.extend((0..4).map(|index| (index, zeros())));
        set.open.add(write(5, 0), PlantedBug::None);
        set.freeze();
        set.open.add(write(9, 0), PlantedBug::None);
        set.drop_unused_blocks();
        assert!(set.slot_blocks.keys().eq([1, 2].iter()), "blocks of objects 5 and 9");
        assert!(set.publish([(1, zeros())]).is_some());
        assert!(set.slot_blocks.keys().eq([2].iter()));
        let discarded = set.discard_open();
        assert_eq!((discarded.charge, discarded.blocks), (0, 2));
        assert!(set.slot_blocks.is_empty());
    }

    #[test]
    fn bound_of_a_call_is_at_least_what_it_adds() {
        let mut changes = ObjectChanges::default();
        let calls = [
            vec![write(5, 0), write(5, 1), write(6, 200)],
            vec![write(5, 0), ObjectChange::Remove { object: ObjectId(6) }],
            vec![write(6, 0), write(5, 100_000)],
        ];
        for call in calls {
            let bound = changes.bound(&call, 2);
            let added: i64 =
                call.into_iter().map(|change| changes.add(change, PlantedBug::None)).sum();
            assert!(added <= bound.blocks.cast_signed(), "{added} of {bound:?}");
            assert!(bound.cost >= added.max(0).unsigned_abs() * BLOCK, "{added} of {bound:?}");
        }
        assert_eq!(changes.blocks, 2 + 4, "two slots and the records that are left");
    }

    // Regression: each rewrite reserved space again. A client that rewrote a small file used up the
    // space that the open txg may reserve, so all clients waited for the commit.
    #[test]
    fn rewrites_of_a_record_within_a_txg_reserve_its_space_once() {
        let mut changes = ObjectChanges::default();
        let first = changes.bound(&[write(5, 7)], 2).cost;
        changes.add(write(5, 7), PlantedBug::None);
        assert!(first > BLOCK);
        assert_eq!(changes.bound(&[write(5, 7)], 2).cost, 0);
        assert_eq!(changes.bound(&[write(5, 7), write(5, 8)], 2).cost, BLOCK);
        let (object, size) = (ObjectId(5), RecordSize::BLOCK);
        changes.add(ObjectChange::Zero { object, size, records: 7..8 }, PlantedBug::None);
        assert_eq!(changes.bound(&[write(5, 7)], 2).cost, BLOCK, "the hole has no space");
    }

    #[test]
    fn holes_and_leaves_of_one_object_count_as_memory() {
        let mut changes = ObjectChanges::default();
        let (object, size) = (ObjectId(5), RecordSize::BLOCK);
        for hole in 0..1_000 {
            let records = hole * 1_000..hole * 1_000 + 1;
            let call = [ObjectChange::Zero { object, size, records }];
            let bound = changes.bound(&call, 2);
            let [call] = call;
            let added = changes.add(call, PlantedBug::None);
            assert!(added <= bound.blocks.cast_signed(), "{added} of {bound:?}");
        }
        assert_eq!(changes.blocks, 1_000 + 1_000 / 64);
        changes.add(ObjectChange::Zero { object, size, records: 0..1_000_000 }, PlantedBug::None);
        assert_eq!(changes.blocks, 1 + 1_001 / 64, "one hole is left");
        changes.add(ObjectChange::Remove { object }, PlantedBug::None);
        assert_eq!(changes.blocks, 1);
    }
}
