//! Write-out of a dataset with many objects: the tree of each changed object, then the blocks of
//! the object table with the slots of these objects, then the table.
//!
//! `write_table` stores the records, `txg` publishes the result.
//!
//! Invariant: a commit reads no slot from disk. The `ObjectSet` has the committed content of each
//! block of the object table that the commit rewrites.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, RecordSize};
use weir_block::{Block, BlockMut, Blocks};
use weir_codec::compress::is_zero;
use weir_format::{
    BlockOwner, BlockPtr, DatasetRecord, ObjectSlot, PtrKind, SegmentClass, TreeRoot,
};
use weir_pool::{
    Change, Delta, NewContents, PlantedBug, PoolError, Sharing, Tree, TreeKind, WriteOut,
};

use crate::commit::write_table::StoredAs;
use crate::objects::dirty::DirtyTable;
use crate::objects::object_set::{DirtyObject, NewSlot, ObjectChanges};
use crate::state::damage::changed_records;
use crate::state::engine::Engine;
use crate::state::snapshot::FrozenVersions;
use crate::state::volume::{State, Volume};

/// Changes of a dataset with many objects in a frozen txg.
pub(crate) struct FrozenObjects {
    pub(crate) changes: Arc<ObjectChanges>,
    /// Committed content of the blocks of the object table that the changes rewrite.
    slot_blocks: BTreeMap<u64, Block>,
    /// Result of [`Engine::add_references`].
    referenced: BTreeMap<ObjectId, Referenced>,
}

/// Records of an object that the txg makes references to stored records.
#[derive(Default)]
struct Referenced {
    /// Changes of the tree.
    changes: Vec<Change>,
    /// Copies of records whose blocks have no room for another reference.
    copies: DirtyTable,
}

/// Freezes the changes of a dataset with many objects. `None` if the dataset has no changes.
pub(crate) fn freeze_objects(state: &State) -> Option<FrozenObjects> {
    let set = state.objects.as_ref()?;
    let changes = Arc::clone(set.syncing.as_ref()?);
    let (slot_blocks, referenced) = (set.slot_blocks.clone(), BTreeMap::new());
    Some(FrozenObjects { changes, slot_blocks, referenced })
}

/// A changed object: number, record size, committed root, and changes.
type Changed<'a> = (ObjectId, RecordSize, TreeRoot, &'a DirtyObject);

/// Result of the write-out of a dataset with many objects.
pub(crate) struct WrittenObjects {
    pub(crate) delta: Delta,
    /// New content of the rewritten blocks of the object table.
    pub(crate) slot_blocks: BTreeMap<u64, Block>,
    /// Changed records of the objects and of the object table.
    pub(crate) changed: Vec<(ObjectId, Vec<Range<u64>>)>,
}

impl Engine {
    /// Counts the references that a txg adds to stored records, before the txg frees anything. The
    /// txg stores a copy of a record whose blocks have no room for another reference.
    ///
    /// # Errors
    /// The txg has failed.
    #[boxed(?Send)]
    pub(crate) async fn add_references(
        &self,
        out: &mut WriteOut<'_>,
        frozen: &mut FrozenObjects,
    ) -> Result<(), PoolError> {
        let pool = &self.core.pool;
        let FrozenObjects { changes, referenced, .. } = frozen;
        for (object, dirty) in changes.objects.iter().filter(|(_, d)| !d.references.is_empty()) {
            let size = dirty.size.expect("a reference has a record size");
            let all = Sharing::of(dirty.references.values());
            let fits = pool.check_share(&all).await.is_ok();
            if fits {
                out.share(&all).await?;
            }
            let of_object: &mut Referenced = referenced.entry(*object).or_default();
            for (record, ptr) in &dirty.references {
                let one = Sharing::of([ptr]);
                if fits || pool.check_share(&one).await.is_ok() {
                    if !fits {
                        out.share(&one).await?;
                    }
                    of_object.changes.push(Change::one(*record, ptr.shared_in(out.txg)));
                    continue;
                }
                let blocks = pool.read_record(ptr).await?;
                of_object.copies.write_all(size.first_block(*record), blocks.to_vec());
            }
        }
        Ok(())
    }

    /// Writes the changed objects and their slots, and sets the new root of the object table in
    /// `record`.
    #[boxed(?Send)]
    pub(crate) async fn write_objects(
        &self,
        out: &mut WriteOut<'_>,
        volume: &Volume,
        record: &mut DatasetRecord,
        frozen: &FrozenObjects,
        versions: &FrozenVersions,
    ) -> Result<WrittenObjects, PoolError> {
        let (mut delta, mut changed) = (Delta::default(), Vec::new());
        let mut blocks = BTreeMap::<u64, BlockMut>::new();
        for (object, dirty) in &frozen.changes.objects {
            let index = ObjectSlot::block_of(*object);
            let block = blocks.entry(index).or_insert_with(|| {
                let known = frozen.slot_blocks.get(&index);
                let mut copy = BlockMut::zeroed();
                copy.copy_from_slice(&known.expect("the set has the slots of its changes")[..]);
                copy
            });
            let old = ObjectSlot::read(block, *object).expect("the change checked the slot");
            let size = dirty.size.unwrap_or(old.record_size);
            let wrote = (*object, size, old.root, dirty);
            let referenced = frozen.referenced.get(object);
            let wrote = (wrote, referenced);
            let wrote = self.write_object(out, volume, record, wrote, &mut changed, versions);
            let (root, gained) = wrote.await?;
            delta += gained;
            let root = match self.core.pool.bug() {
                PlantedBug::SlotHasNeighboursRoot => {
                    ObjectSlot::read(block, ObjectId(object.0 ^ 1)).map_or(root, |next| next.root)
                }
                _ => root,
            };
            let slot = match &dirty.slot {
                NewSlot::Kept => ObjectSlot { root, record_size: size, body: old.body },
                NewSlot::Set(body) => ObjectSlot { root, record_size: size, body: **body },
                NewSlot::Unused => ObjectSlot { root, ..ObjectSlot::default() },
            };
            slot.write(block, *object);
        }
        let blocks: BTreeMap<u64, Block> =
            blocks.into_iter().map(|(index, block)| (index, block.freeze())).collect();
        let compression = self.core.compression_of(&record.properties);
        let mut history = volume.state.lock().object.history;
        let mut changes = Vec::with_capacity(blocks.len());
        for (index, block) in &blocks {
            let ptr = if is_zero(&block[..]) {
                BlockPtr::HOLE
            } else {
                let (dataset, object) = (volume.id, ObjectId::TABLE);
                let owner = Some(BlockOwner { dataset, object, level: 0, index: *index });
                let (class, kind) = (SegmentClass::Data, PtrKind::Data);
                let block = Blocks::One(block.clone());
                out.write_record(class, owner, kind, &block, compression, &mut history).await?
            };
            changes.push(Change::one(*index, ptr));
        }
        let (object, root) = (ObjectId::TABLE, record.root);
        changed.push((object, changed_records(&changes)));
        let (root, gained) = self.apply(out, volume, (object, root), changes, versions).await?;
        record.root = root;
        delta += gained;
        Ok(WrittenObjects { delta, slot_blocks: blocks, changed })
    }

    /// Writes the changed records of one object. Returns the new root of its tree.
    async fn write_object(
        &self,
        out: &mut WriteOut<'_>,
        volume: &Volume,
        record: &DatasetRecord,
        ((object, size, root, dirty), referenced): (Changed<'_>, Option<&Referenced>),
        changed: &mut Vec<(ObjectId, Vec<Range<u64>>)>,
        versions: &FrozenVersions,
    ) -> Result<(TreeRoot, Delta), PoolError> {
        if dirty.table.is_empty() && referenced.is_none() {
            return Ok((root, Delta::default()));
        }
        let stored_as = StoredAs { object, size };
        let mut changes = self.write_table(out, volume, record, stored_as, &dirty.table).await?;
        if let Some(Referenced { changes: references, copies }) = referenced {
            changes.extend(self.write_table(out, volume, record, stored_as, copies).await?);
            changes.extend_from_slice(references);
            changes.sort_unstable_by_key(|change| change.start);
        }
        // Shorten holes that extend beyond the last record, so that the tree does not grow for
        // them.
        let is_data = |change: &&Change| change.to != NewContents::Pointer(BlockPtr::HOLE);
        let data = changes.iter().filter(is_data).map(|change| change.start + change.count);
        let end = data.max().unwrap_or_default().max(root.blocks());
        let leaves_tail = self.core.pool.bug() == PlantedBug::TruncateLeavesTail;
        changes.retain_mut(|change| {
            let kept = end.saturating_sub(change.start);
            let is_tail = leaves_tail && change.count > kept;
            change.count = change.count.min(if is_tail { 1 } else { kept });
            change.count > 0
        });
        changed.push((object, changed_records(&changes)));
        self.apply(out, volume, (object, root), changes, versions).await
    }

    /// Applies changes to the tree of an object, which grows as needed.
    async fn apply(
        &self,
        out: &mut WriteOut<'_>,
        volume: &Volume,
        (object, root): (ObjectId, TreeRoot),
        changes: Vec<Change>,
        versions: &FrozenVersions,
    ) -> Result<(TreeRoot, Delta), PoolError> {
        let (pool, home) = (&self.core.pool, TreeKind::Object(volume.id, object));
        let end = changes.last().map_or(0, |change| change.start + change.count);
        let height = TreeRoot::height_for(end).max(root.height);
        let (root, mut delta) = Tree::new(pool, root).grow(out, home, height).await?;
        let tree = Tree::new(pool, root);
        let past = versions.before_head(object);
        let (root, changed) = tree.apply(out, home, &past, &changes).await?;
        delta += changed;
        let is_empty = root.ptr.is_hole() && object != ObjectId::TABLE;
        Ok((if is_empty { TreeRoot::EMPTY } else { root }, delta))
    }
}
