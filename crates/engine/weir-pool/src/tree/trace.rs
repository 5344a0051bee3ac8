//! Following a tree to one record, as far as its nodes can be read: to say what is damaged.
//!
//! Not here: lookups of reads and writes, which end with an error there (tree).
//!
//! Invariant: a node that cannot be read ends the way and is no error.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::ErrorKind;
use weir_base::hash::HashMap;
use weir_block::Block;
use weir_format::{BlockPtr, NODE_FANOUT, NODE_SHIFT, PtrKind, TreeRoot, node_pointer};

use crate::error::PoolError;
use crate::state::pool::Pool;
use crate::tree::radix_tree::Tree;

/// Where the way to a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// 0 at the record itself.
    pub level: u8,
    /// Place among the records or nodes of that level.
    pub index: u64,
    /// The pointer to it: a hole, the record's, or that of a node that cannot be read.
    pub ptr: BlockPtr,
}

impl Traced {
    /// All records that share this end.
    pub fn records(&self) -> Range<u64> {
        let count = TreeRoot::capacity(self.level);
        let start = self.index.saturating_mul(count);
        start..start.saturating_add(count)
    }

    /// Whether two trees have the same thing there.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.level, self.index, self.ptr) == (other.level, other.index, other.ptr)
    }
}

/// Follows trees of one pool.
pub struct Tracer<'p> {
    pool: &'p Pool,
    /// Whether nodes are read from disk, each once; else they may be cached ones.
    fresh: bool,
    /// The nodes on the way to the last record; `None` for one that cannot be read.
    path: HashMap<u64, Option<Block>>,
}

impl<'p> Tracer<'p> {
    /// A tracer that takes nodes from the cache, too.
    pub fn new(pool: &'p Pool) -> Self {
        Self { pool, fresh: false, path: HashMap::default() }
    }

    /// A tracer that believes disks alone.
    pub fn fresh(pool: &'p Pool) -> Self {
        Self { fresh: true, ..Self::new(pool) }
    }

    /// Follows a tree to a record.
    ///
    /// # Errors
    /// `NoSegment` where the root is out of date; the pool is suspended. Damage is no error.
    #[boxed(?Send)]
    pub async fn trace(&mut self, root: TreeRoot, record: u64) -> Result<Traced, PoolError> {
        let mut at = Traced { level: root.height, index: 0, ptr: root.ptr };
        if record >= TreeRoot::capacity(root.height) {
            return Ok(Traced { level: 0, index: record, ptr: BlockPtr::HOLE });
        }
        // Longer than any path: what other records needed makes room.
        if self.path.len() > 2 * usize::from(TreeRoot::HEIGHT_MAX) {
            self.path.clear();
        }
        while at.level > 0 && at.ptr.kind == PtrKind::Node {
            let Some(node) = self.node(&at.ptr).await? else { break };
            let level = at.level - 1;
            let index = record >> (NODE_SHIFT * u32::from(level));
            let Ok(ptr) = node_pointer(&node, index as usize % NODE_FANOUT) else { break };
            // A damage marker whose node cannot be read ends the way as that node did.
            let found = match Tree::new(self.pool, root).resolve(ptr, level, index).await {
                Err(error @ PoolError::NoSegment { .. }) => return Err(error),
                Err(error) if error.kind() == ErrorKind::Data => ptr,
                found => found?,
            };
            at = Traced { level, index, ptr: found };
        }
        Ok(at)
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
