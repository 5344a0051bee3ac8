//! The changes that a txg wrote for a volume, until the txg publishes them.
//!
//! Not here: writing it (`txg`).
//!
//! Invariant: it is published whole or not at all.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use weir_base::DatasetId;
use weir_format::DatasetRecord;
use weir_pool::{Change, Delta};

use crate::state::volume::Volume;

/// What write-out made of it.
#[expect(clippy::struct_excessive_bools, reason = "each is asked alone, none excludes another")]
pub(crate) struct Written {
    pub(crate) volume: Arc<Volume>,
    /// `None`: the tree was not touched, or its record goes.
    pub(crate) record: Option<DatasetRecord>,
    /// The volume and all its snapshots are gone.
    pub(crate) is_gone: bool,
    pub(crate) data_blocks: u64,
    pub(crate) charge: u64,
    /// Of [`State::cloning_bytes`], its part.
    pub(crate) cloned_bytes: u64,
    /// By a client, not by a commit that rewrites what it must.
    pub(crate) changed: bool,
    pub(crate) delta: Delta,
    /// What it did to the tree.
    pub(crate) changes: Vec<Change>,
    /// Records that the volume gained: nothing of them is lost.
    pub(crate) gained: Option<Range<u64>>,
    /// Records that the txg stores as damage: partial ones, and clones of damaged ones.
    pub(crate) new_damage: Vec<Range<u64>>,
    /// Whether snapshots, or the volume as a whole, came, went or changed hands.
    pub(crate) is_reshaped: bool,
    pub(crate) taken: Option<DatasetRecord>,
    pub(crate) frees: bool,
    /// Records of snapshots and bookmarks to be stored; `None` for one that is gone.
    pub(crate) others: BTreeMap<DatasetId, Option<DatasetRecord>>,
}

impl Written {
    /// Stores a snapshot's record with this txg.
    pub(crate) fn note(&mut self, record: DatasetRecord) {
        self.others.insert(record.id, Some(record));
    }

    /// Takes a snapshot's record out of the directory with this txg.
    pub(crate) fn forget(&mut self, snapshot: DatasetId) {
        self.others.insert(snapshot, None);
    }
}
