//! Traces the path from a tree's root to one record, down to the first unreadable node, to identify
//! the damaged part.
//!
//! Lookups for reads and writes are in `radix_tree`; they return an error at an unreadable node.
//!
//! Invariant: an unreadable node ends the trace without an error.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashMap;
use weir_base::{ErrorKind, ObjectId, RecordSize};
use weir_block::Block;
use weir_format::{BlockPtr, NODE_FANOUT, NODE_SHIFT, ObjectSlot, PtrKind, TreeRoot, node_pointer};

use crate::error::PoolError;
use crate::state::pool::Pool;
use crate::tree::place::Objects;
use crate::tree::radix_tree::Tree;

/// End of the path to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Level of the node; 0 is the record itself.
    pub level: u8,
    /// Index of the node or record in its level.
    pub index: u64,
    /// Pointer at that index: a hole, the pointer to the record, or the pointer to an unreadable
    /// node.
    pub ptr: BlockPtr,
    /// Record size in the slot of the object; `None` for a volume or an object table, and if the
    /// slot is unused or unreadable.
    pub size: Option<RecordSize>,
}

impl Traced {
    /// Returns the hole that contains a record beyond the end of a tree. The hole is as large as
    /// the numbering of nodes allows, so that a walk in steps of [`Self::records`] needs at most
    /// 127 steps for each level.
    fn beyond(record: u64) -> Self {
        let mut levels = (0..=TreeRoot::HEIGHT_MAX).rev();
        let level = levels.find(|level| record >= TreeRoot::capacity(*level)).unwrap_or_default();
        let index = record >> (NODE_SHIFT * u32::from(level));
        Self { level, index, ptr: BlockPtr::HOLE, size: None }
    }

    /// Range of the records whose paths end at this node or record.
    pub fn records(&self) -> Range<u64> {
        let count = TreeRoot::capacity(self.level);
        let start = self.index.saturating_mul(count);
        start..start.saturating_add(count)
    }

    /// True if the trace of an object of a dataset with `objects` ends in the object table, because
    /// the slot of the object cannot be read.
    pub fn is_above(&self, object: ObjectId, objects: Objects) -> bool {
        let is_unreadable = self.size.is_none() && !self.ptr.is_hole();
        objects == Objects::Many && object != ObjectId::TABLE && is_unreadable
    }

    /// True if two traces end at the same index with the same pointer.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.level, self.index, self.ptr) == (other.level, other.index, other.ptr)
    }
}

/// Traces paths in the trees of one pool.
pub struct Tracer<'p> {
    pool: &'p Pool,
    /// True: the tracer reads each node from disk, once. False: the tracer also uses cached nodes.
    fresh: bool,
    /// Nodes on the path to the record that was traced last, by address; `None` for an unreadable
    /// node.
    path: HashMap<u64, Option<Block>>,
}

impl<'p> Tracer<'p> {
    /// Creates a tracer that also uses cached nodes.
    pub fn new(pool: &'p Pool) -> Self {
        Self { pool, fresh: false, path: HashMap::default() }
    }

    /// Creates a tracer that reads all nodes from disk.
    pub fn fresh(pool: &'p Pool) -> Self {
        Self { fresh: true, ..Self::new(pool) }
    }

    /// Traces the path to a record.
    ///
    /// # Errors
    /// `NoSegment` if the root is out of date; another error if the pool is suspended. Damage is no
    /// error.
    #[boxed(?Send)]
    pub async fn trace(&mut self, root: TreeRoot, record: u64) -> Result<Traced, PoolError> {
        let mut at = Traced { level: root.height, index: 0, ptr: root.ptr, size: None };
        if record >= TreeRoot::capacity(root.height) {
            return Ok(Traced::beyond(record));
        }
        // The map has more nodes than the path to a slot and the path to a record together: drop
        // the nodes of earlier records.
        if self.path.len() > 4 * usize::from(TreeRoot::HEIGHT_MAX) {
            self.path.clear();
        }
        while at.level > 0 && at.ptr.kind == PtrKind::Node {
            let Some(node) = self.node(&at.ptr).await? else { break };
            let level = at.level - 1;
            let index = record >> (NODE_SHIFT * u32::from(level));
            let Ok(ptr) = node_pointer(&node, index as usize % NODE_FANOUT) else { break };
            // An unreadable node behind a damage marker ends the trace at the marker.
            let found = match Tree::new(self.pool, root).resolve(ptr, level, index).await {
                Err(error @ PoolError::NoSegment { .. }) => return Err(error),
                Err(error) if error.kind() == ErrorKind::Data => ptr,
                found => found?,
            };
            at = Traced { level, index, ptr: found, size: None };
        }
        Ok(at)
    }

    /// Traces the path to a record of an object of a dataset. If the slot of the object cannot be
    /// read, the trace ends above all records of the object, at the unreadable block or node of the
    /// object table. If the dataset has no slot block of the object, the trace ends above all
    /// records of the object, at a hole.
    ///
    /// # Errors
    /// As [`Self::trace`].
    #[boxed(?Send)]
    pub async fn trace_object(
        &mut self,
        (objects, root): (Objects, TreeRoot),
        object: ObjectId,
        record: u64,
    ) -> Result<Traced, PoolError> {
        if objects == Objects::One || object == ObjectId::TABLE {
            return self.trace(root, record).await;
        }
        let of_slot = self.trace(root, ObjectSlot::block_of(object)).await?;
        let block = match of_slot.level {
            0 if !of_slot.ptr.is_hole() => self.node(&of_slot.ptr).await?,
            _ => None,
        };
        let slot = block.and_then(|block| {
            self.pool.root_in_slot(&of_slot.ptr, &block, object).ok()?;
            ObjectSlot::read(&block, object).ok()
        });
        let Some(slot) = slot else {
            let (level, ptr) = (TreeRoot::HEIGHT_MAX, of_slot.ptr);
            return Ok(Traced { level, index: 0, ptr, size: None });
        };
        let traced = self.trace(slot.root, record).await?;
        Ok(Traced { size: Some(slot.record_size), ..traced })
    }

    async fn node(&mut self, ptr: &BlockPtr) -> Result<Option<Block>, PoolError> {
        if let Some(known) = self.path.get(&ptr.address()) {
            return Ok(known.clone());
        }
        let read = if self.fresh {
            self.pool.read_fresh(ptr).await.map(|blocks| blocks[0].clone())
        } else {
            self.pool.read_block(ptr).await
        };
        let node = match read {
            Ok(node) => Some(node),
            Err(error @ PoolError::NoSegment { .. }) => return Err(error),
            Err(error) if error.kind() == ErrorKind::Data => None,
            Err(error) => return Err(error),
        };
        self.path.insert(ptr.address(), node.clone());
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the search for damage in an object visited each leaf up to the largest record
    /// number, although the tree of the object ended after a few records.
    #[test]
    fn walk_beyond_the_end_of_a_tree_takes_few_steps() {
        for height in 0..TreeRoot::HEIGHT_MAX {
            let (mut at, mut steps) = (TreeRoot::capacity(height), 0);
            while at < TreeRoot::BLOCKS_MAX {
                let records = Traced::beyond(at).records();
                assert!(records.contains(&at) && records.start >= TreeRoot::capacity(height));
                (at, steps) = (records.end, steps + 1);
            }
            assert!(steps <= 127 * u32::from(TreeRoot::HEIGHT_MAX), "{steps} steps");
        }
    }
}
