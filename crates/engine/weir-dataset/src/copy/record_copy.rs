//! Record copy: makes records of an object references to records of another object.
//!
//! `block_clone` does the same with volumes.
//!
//! Invariants:
//! - a copy has the content that its source had at the call, from the open txg or from the last
//!   committed one;
//! - while a copy looks up stored records, no txg is being written out. So each pointer that it
//!   finds is in the tree from which the open txg starts;
//! - the txg counts the references of a copy before it frees anything.

use std::collections::BTreeMap;
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use tokio::sync::MutexGuard;
use weir_base::limits::COPY_RECORDS_MAX;
use weir_base::{ObjectId, RecordSize};
use weir_format::BlockPtr;
use weir_pool::{PlantedBug, Shared, Sharing, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::DirtyBlocks;
use crate::objects::object_set::{DirtyRecord, ObjectChange, StoredRecord};
use crate::state::volume::Volume;
use crate::volume::objects::{By, Tried};

/// Records of an object that become references to records of another or of the same object.
#[derive(Clone, Debug)]
pub struct RecordCopy {
    /// Object that is read.
    pub source: ObjectId,
    /// Records of the source, at most [`COPY_RECORDS_MAX`].
    pub records: Range<u64>,
    /// Object that changes.
    pub object: ObjectId,
    /// First record of the object that becomes a reference.
    pub to: u64,
    /// Record size of both objects.
    pub size: RecordSize,
}

/// The right to copy records. No txg is written out meanwhile.
pub struct RecordCopyTurn<'v> {
    volume: &'v Volume,
    _committer: MutexGuard<'v, ()>,
}

impl RecordCopyTurn<'_> {
    /// Applies `changes`, and then makes records of an object references to records of another one,
    /// all in one txg. Copies only records with data: `changes` must make the other records of the
    /// range holes. Reads and writes no data, except for records that no commit has stored.
    ///
    /// Returns false while too much data is dirty: the caller then repeats the call in a new turn
    /// after [`Volume::wait_for_room`].
    ///
    /// # Durability
    /// As [`Self::change_objects`]. The log has no record of the change, so a sync of any object
    /// waits for the commit.
    ///
    /// # Errors
    /// `TooManyReferences` if a block of the source has too many references; `Data` if a node of
    /// the source is damaged on every leg; the errors of [`Self::change_objects`]. Nothing was
    /// changed then.
    #[boxed(?Send)]
    pub async fn copy(
        &self,
        copy: &RecordCopy,
        changes: &[ObjectChange],
    ) -> Result<bool, DatasetError> {
        assert!(copy.records.end - copy.records.start <= COPY_RECORDS_MAX, "{copy:?}");
        let volume = self.volume;
        loop {
            volume.core.pool.check_alive()?;
            let source = (copy.source, copy.records.start..copy.records.start);
            let found = volume.stored_records(copy).await;
            let stored = volume.noted_object(source.0, source.1, found).await?;
            let copied = volume.copied_records(copy, &stored)?;
            let checked = volume.check_references(&copied).await;
            volume.noted_object(copy.source, copy.records.clone(), checked).await?;
            let mut all = changes.to_vec();
            all.extend(copied);
            match volume.change_once(&mut all, &mut By::Client, false).await? {
                Tried::Done => return Ok(true),
                // A rollback replaced the object table meanwhile.
                Tried::Replaced => {}
                Tried::Full => return Ok(false),
            }
        }
    }
}

impl Volume {
    /// Waits until no txg is being written out.
    pub async fn record_copy_turn(&self) -> RecordCopyTurn<'_> {
        RecordCopyTurn { volume: self, _committer: self.core.committer.lock().await }
    }

    /// Finds the stored records of the source.
    async fn stored_records(
        &self,
        copy: &RecordCopy,
    ) -> Result<BTreeMap<u64, BlockPtr>, DatasetError> {
        let pool = &self.core.pool;
        let table = {
            let state = self.state.lock();
            self.check(&state, 0, 0)?;
            state.record.root
        };
        let root = pool.object_root(table, copy.source).await?;
        let mut stored = BTreeMap::new();
        let mut visit = |record: u64, ptr: BlockPtr| {
            stored.insert(record, ptr);
            true
        };
        Tree::new(pool, root).scan(copy.records.clone(), &mut visit).await?;
        Ok(stored)
    }

    /// Checks that the records to which changes refer can have more references. The open txg may
    /// have replaced other records of the source, for example to change the record size.
    async fn check_references(&self, changes: &[ObjectChange]) -> Result<(), DatasetError> {
        let pool = &self.core.pool;
        let mut referenced = Vec::new();
        for change in changes {
            if let ObjectChange::Refer { to, size, .. } = change {
                pool.check_record(&to.ptr, *size)?;
                pool.refuse_partial(&to.ptr)?;
                referenced.push(Shared::from(&to.ptr));
            }
        }
        Ok(pool.check_share(&Sharing::new(referenced)).await?)
    }

    /// Returns the changes that copy the records with data of the source.
    fn copied_records(
        &self,
        copy: &RecordCopy,
        stored: &BTreeMap<u64, BlockPtr>,
    ) -> Result<Vec<ObjectChange>, DatasetError> {
        let RecordCopy { source, object, size, .. } = *copy;
        let state = self.state.lock();
        self.check(&state, 0, 0)?;
        let Some(set) = &state.objects else { return Err(self.no_objects(&state)) };
        assert!(set.syncing.is_none(), "the caller holds the committer's lock");
        let ignores_dirty = self.core.pool.bug() == PlantedBug::CopyIgnoresDirty;
        let mut changes = Vec::new();
        for from in copy.records.clone() {
            let record = copy.to + (from - copy.records.start);
            let refer = |ptr: &BlockPtr| {
                let to = StoredRecord { ptr: *ptr };
                ObjectChange::Refer { object, size, record, to }
            };
            match set.dirty(source, from, size.blocks_of(&(from..from + 1))) {
                Some(DirtyRecord::Stored(ptr)) => changes.push(refer(&ptr)),
                // Both objects share the memory of the blocks.
                Some(DirtyRecord::Changed(DirtyBlocks::Data(blocks))) if !ignores_dirty => {
                    changes.push(ObjectChange::Write { object, size, record, blocks });
                }
                Some(DirtyRecord::Changed(DirtyBlocks::Hole)) if !ignores_dirty => {}
                _ => changes.extend(stored.get(&from).map(refer)),
            }
        }
        Ok(changes)
    }
}
