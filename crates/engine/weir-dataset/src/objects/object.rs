//! Object: the uncommitted changes of one tree of a dataset.
//!
//! The holder of an object locks it. For a volume, the holder is its `State`, which has one object
//! and the volume's block clones. The committed root and size of the tree are in the record of the
//! dataset.
//!
//! Invariant: the log queue has the order of the changes to the dirty table, because both change
//! under the lock of the holder.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_pool::{CompressHistory, PartialRecord};

use crate::objects::dirty::{Dirty, DirtyTable};
use crate::objects::leaves::Leaves;
use crate::objects::log_bytes::LogTotal;
use crate::objects::log_queue::LogQueue;

pub(crate) struct Object {
    /// Changes of the open txg.
    pub(crate) open: DirtyTable,
    /// Hole ranges of `open` that [`crate::state::shared::Core::hole_ranges`] includes.
    pub(crate) counted_holes: usize,
    /// Changes of the txg that is being written out.
    pub(crate) syncing: Option<Arc<DirtyTable>>,
    /// Partial records that log replay produced. The dirty tables contain only complete records.
    pub(crate) partial: BTreeMap<u64, PartialRecord>,
    /// Changes not yet logged or committed.
    pub(crate) log: LogQueue,
    pub(crate) history: CompressHistory,
    pub(crate) leaves: Leaves,
}

impl Object {
    /// An object without changes. Its log queue adds its bytes to `total`.
    pub(crate) fn new(total: &Arc<LogTotal>) -> Self {
        Self {
            open: DirtyTable::default(),
            counted_holes: 0,
            syncing: None,
            partial: BTreeMap::new(),
            log: LogQueue::new(total),
            history: CompressHistory::default(),
            leaves: Leaves::default(),
        }
    }

    /// Change of a block in the open or syncing txg.
    pub(crate) fn dirty(&self, block: u64) -> Option<Dirty> {
        let syncing = || self.syncing.as_ref().and_then(|syncing| syncing.get(block));
        self.open.get(block).or_else(syncing)
    }

    /// True if an acknowledged write is not in the committed tree yet. Clones do not count:
    /// concurrent clones join one txg.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.open.is_empty() || self.syncing.is_some()
    }

    /// Worst-case cost of writing the dirty data.
    pub(crate) fn charge(&self) -> u64 {
        self.open.charge + self.syncing.as_ref().map_or(0, |syncing| syncing.charge)
    }

    /// Closes the open txg: its changes become the changes of the syncing txg.
    pub(crate) fn freeze(&mut self) {
        assert!(self.syncing.is_none(), "one txg is written out at a time");
        self.log.freeze();
        let table = std::mem::take(&mut self.open);
        self.syncing = (!table.is_empty()).then(|| Arc::new(table));
    }
}
