//! Lists the objects in use of a dataset, and the records with data of an object. Damage does not
//! end a list, so that a rescue can read the rest.
//!
//! `objects` reads slots and records.
//!
//! Invariant: a list shows the state of the last commit. It contains every unreadable range, marked
//! as unreadable.

use std::cell::RefCell;
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, ObjectId};
use weir_format::{BlockPtr, OBJECT_SLOTS_PER_BLOCK, OBJECTS_MAX, ObjectSlot, TreeRoot};
use weir_pool::{PoolError, Tree};

use crate::error::DatasetError;
use crate::state::volume::Volume;
use crate::volume::read::restarted;

const SLOTS: u64 = OBJECT_SLOTS_PER_BLOCK as u64;
/// Maximum number of blocks of the object table that one part of a list covers.
const SLOT_BLOCKS_AT_ONCE: usize = 64;

/// Part of a list of objects or records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundRanges {
    /// Numbers of objects in use, or of records with data, ascending.
    pub used: Vec<Range<u64>>,
    /// Numbers that may be in use: damage hides whether they are.
    pub unreadable: Vec<Range<u64>>,
    /// First number after this part; `None` at the end of the list.
    pub next: Option<u64>,
}

/// Result of [`search`]: blocks of a tree that have data or are unreadable.
#[derive(Default)]
struct FoundBlocks {
    used: Vec<u64>,
    unreadable: Vec<Range<u64>>,
    /// True if the search ended because it had found the requested number of blocks.
    is_full: bool,
}

impl FoundBlocks {
    /// First block that was not searched.
    fn end(&self) -> u64 {
        let used = self.used.last().map_or(0, |last| last + 1);
        self.unreadable.last().map_or(used, |last| last.end.max(used))
    }
}

fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Searches a tree for blocks from `first` on, until `most` blocks or unreadable ranges are found.
async fn search(tree: Tree<'_>, first: u64, most: usize) -> Result<FoundBlocks, PoolError> {
    let found = RefCell::new(FoundBlocks::default());
    let goes_on = |found: &mut FoundBlocks| {
        found.is_full = found.used.len() + found.unreadable.len() >= most;
        !found.is_full
    };
    let mut damaged = |range| {
        let mut found = found.borrow_mut();
        found.unreadable.push(range);
        goes_on(&mut found)
    };
    let mut visit = |index, _: BlockPtr| {
        let mut found = found.borrow_mut();
        found.used.push(index);
        goes_on(&mut found)
    };
    tree.scan_past_damage(first..TreeRoot::BLOCKS_MAX, &mut damaged, &mut visit).await?;
    Ok(found.into_inner())
}

impl Volume {
    /// Lists the objects in use from number `first` on. A call returns one part of the list, with
    /// at most 256 objects.
    ///
    /// # Errors
    /// `Unfit` for a volume; the pool is suspended. Damage is no error.
    #[boxed(?Send)]
    pub async fn objects_in_use(&self, first: u64) -> Result<FoundRanges, DatasetError> {
        let list = async |may_restart| {
            Ok(self.list_objects(self.table_root()?, first, may_restart).await?)
        };
        match restarted(async || list(true).await).await {
            // The segment is missing in each new table as well: a pointer of the table is wrong.
            Err(DatasetError::Pool(PoolError::NoSegment { .. })) => list(false).await,
            listed => listed,
        }
    }

    /// Lists the records with data of an object from record `first` on. A call returns one part of
    /// the list, with at most `most` records.
    ///
    /// # Errors
    /// `Data` if the slot of the object is unreadable; the errors of [`Self::objects_in_use`].
    /// Other damage is no error.
    #[boxed(?Send)]
    pub async fn object_records(
        &self,
        object: ObjectId,
        first: u64,
        most: usize,
    ) -> Result<FoundRanges, DatasetError> {
        let wanted = (first, most);
        let list = async || Ok(self.list_records(self.table_root()?, object, wanted).await?);
        self.noted_object(object, 0..0, restarted(list).await).await
    }

    fn table_root(&self) -> Result<TreeRoot, DatasetError> {
        let state = self.state.lock();
        self.check(&state, 0, 0)?;
        if state.objects.is_none() {
            return Err(self.no_objects(&state));
        }
        Ok(state.record.root)
    }

    /// Lists one part of the objects. `may_restart`: returns `NoSegment`, so that the caller can
    /// repeat the call with a newer table; otherwise the block of slots counts as unreadable.
    async fn list_objects(
        &self,
        table: TreeRoot,
        first: u64,
        may_restart: bool,
    ) -> Result<FoundRanges, PoolError> {
        let pool = &self.core.pool;
        let start = first.max(1);
        let blocks = search(Tree::new(pool, table), start / SLOTS, SLOT_BLOCKS_AT_ONCE).await?;
        let mut found = FoundRanges::default();
        for index in &blocks.used {
            let slots = (index * SLOTS).max(start)..(index + 1) * SLOTS;
            let block = match pool.slot_block(table, *index).await {
                Err(error @ PoolError::NoSegment { .. }) if may_restart => return Err(error),
                Err(error) if error.kind() == ErrorKind::Data => {
                    push(&mut found.unreadable, slots);
                    continue;
                }
                block => block?,
            };
            for (ObjectId(object), _) in ObjectSlot::used_in(*index, &block) {
                if slots.contains(&object) {
                    push(&mut found.used, object..object + 1);
                }
            }
        }
        let nodes = blocks.unreadable.iter().map(|range| {
            (range.start * SLOTS).max(start)..range.end.saturating_mul(SLOTS).min(OBJECTS_MAX)
        });
        found.unreadable.extend(nodes);
        found.unreadable.sort_by_key(|range| range.start);
        found.next = blocks.is_full.then(|| blocks.end().saturating_mul(SLOTS));
        Ok(found)
    }

    async fn list_records(
        &self,
        table: TreeRoot,
        object: ObjectId,
        (first, most): (u64, usize),
    ) -> Result<FoundRanges, PoolError> {
        let root = self.core.pool.object_root(table, object).await?;
        let blocks = search(Tree::new(&self.core.pool, root), first, most).await?;
        let mut found = FoundRanges::default();
        blocks.used.iter().for_each(|record| push(&mut found.used, *record..record + 1));
        found.next = blocks.is_full.then(|| blocks.end());
        found.unreadable = blocks.unreadable;
        Ok(found)
    }
}
