//! Changes of a volume that a txg wrote and has not published yet.
//!
//! `txg` writes and publishes the changes.
//!
//! Invariant: the txg publishes all changes of a volume or none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use weir_base::{DatasetId, ObjectId};
use weir_block::Block;
use weir_format::DatasetRecord;
use weir_pool::{Change, Delta};

use crate::state::volume::Volume;

/// Result of the write-out of one volume.
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent")]
pub(crate) struct Written {
    pub(crate) volume: Arc<Volume>,
    /// Directory entry of the volume after the txg. `None` only until the write-out sets it.
    pub(crate) record: Option<DatasetRecord>,
    /// True if the volume and all its snapshots are completely freed and removed.
    pub(crate) is_gone: bool,
    pub(crate) data_blocks: u64,
    pub(crate) charge: u64,
    /// The txg's part of [`State::cloning_bytes`].
    pub(crate) cloned_bytes: u64,
    /// True if a client changed the volume. False if the commit only rewrites directory entries.
    pub(crate) changed: bool,
    pub(crate) delta: Delta,
    /// Changes to the tree.
    pub(crate) changes: Vec<Change>,
    /// Records that the volume gained by growing. Such records cannot be damaged.
    pub(crate) gained: Option<Range<u64>>,
    /// Records that become permanent errors in this txg: partial records, and clones of damaged
    /// records.
    pub(crate) new_damage: Vec<Range<u64>>,
    /// True if a snapshot or the volume itself was created, changed or destroyed.
    pub(crate) is_reshaped: bool,
    pub(crate) taken: Option<DatasetRecord>,
    pub(crate) frees: bool,
    /// Directory entries of snapshots and bookmarks to store. `None` removes the entry.
    pub(crate) others: BTreeMap<DatasetId, Option<DatasetRecord>>,
    /// New content of the rewritten blocks of the object table.
    pub(crate) slot_blocks: BTreeMap<u64, Block>,
    /// Changed records of objects and the object table, which are no longer permanent errors.
    pub(crate) changed_objects: Vec<(ObjectId, Vec<Range<u64>>)>,
}

impl Written {
    /// Stores a snapshot's directory entry in this txg.
    pub(crate) fn note(&mut self, record: DatasetRecord) {
        self.others.insert(record.id, Some(record));
    }

    /// Removes a snapshot's directory entry in this txg.
    pub(crate) fn forget(&mut self, snapshot: DatasetId) {
        self.others.insert(snapshot, None);
    }
}
