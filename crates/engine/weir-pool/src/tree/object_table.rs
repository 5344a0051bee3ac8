//! Lookups of objects in the object table of a dataset.
//!
//! The table is object 0; `weir_format::ObjectSlot` is its entry. Traversals of all objects are in
//! `dataset_diff` and `dataset_walk`.
//!
//! Invariant: I8 holds across the table: the root of an object is not younger than the block that
//! holds its slot.

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, RecordSize};
use weir_block::{Block, BlockMut};
use weir_format::{BlockPtr, ObjectSlot, TreeRoot};

use crate::error::PoolError;
use crate::segments::sanity;
use crate::state::pool::Pool;
use crate::tree::radix_tree::{Leaf, Tree};

impl Pool {
    /// Returns the tree root of an object; the root of an empty tree if the object table has no
    /// slot for the object.
    ///
    /// # Errors
    /// `Damaged`: the slot or a node above it cannot be read.
    #[boxed(?Send)]
    pub async fn object_root(
        &self,
        table: TreeRoot,
        object: ObjectId,
    ) -> Result<TreeRoot, PoolError> {
        let found = self.find_slots(table, ObjectSlot::block_of(object)).await?;
        found.map_or(Ok(TreeRoot::EMPTY), |(ptr, block)| self.root_in_slot(&ptr, &block, object))
    }

    /// Returns the same root as [`Self::object_root`], from cached blocks only. `None`: a block
    /// must be read first.
    ///
    /// # Errors
    /// `Damaged`: a cached block is invalid.
    pub fn object_root_cached(
        &self,
        table: TreeRoot,
        object: ObjectId,
    ) -> Result<Option<TreeRoot>, PoolError> {
        let (tree, index) = (Tree::new(self, table), ObjectSlot::block_of(object));
        let ptr = match tree.leaf_cached(index)? {
            Leaf::Unknown => return Ok(None),
            Leaf::Hole => BlockPtr::HOLE,
            Leaf::Root(ptr) => ptr,
            Leaf::Node(of, node) => tree.pointer_in(&of, &node, index)?,
        };
        if ptr.is_hole() {
            return Ok(Some(TreeRoot::EMPTY));
        }
        let Some(block) = self.cached(&ptr, 0) else { return Ok(None) };
        self.root_in_slot(&ptr, &block, object).map(Some)
    }

    /// Reads a block of the object table and validates its slots. Returns zeros if the table has no
    /// such block.
    ///
    /// # Errors
    /// `Damaged`: the block or a node above it cannot be read, or a slot is invalid.
    #[boxed(?Send)]
    pub async fn slot_block(&self, table: TreeRoot, index: u64) -> Result<Block, PoolError> {
        let Some((ptr, block)) = self.find_slots(table, index).await? else {
            return Ok(BlockMut::zeroed().freeze());
        };
        self.check_slots(&ptr, index, &block)?;
        Ok(block)
    }

    /// Validates the slots of a block of the object table that was read from `ptr`.
    ///
    /// # Errors
    /// `Damaged`: the pointer or a slot is invalid.
    pub fn check_slots(&self, ptr: &BlockPtr, index: u64, block: &Block) -> Result<(), PoolError> {
        self.check_record(ptr, RecordSize::BLOCK)?;
        for object in ObjectSlot::objects_in(index) {
            self.root_in_slot(ptr, block, object)?;
        }
        Ok(())
    }

    /// Reads blocks of the object table into the cache, with the nodes above them, level by level.
    /// `indexes`: numbers of the blocks, ascending. Skips damaged blocks: a read of the block finds
    /// the damage again.
    #[boxed(?Send)]
    pub async fn load_slot_blocks(&self, table: TreeRoot, indexes: &[u64]) {
        Tree::new(self, table).load(indexes).await;
    }

    /// Reads a block of the object table, with its pointer; `None` if the table has no such block.
    async fn find_slots(
        &self,
        table: TreeRoot,
        index: u64,
    ) -> Result<Option<(BlockPtr, Block)>, PoolError> {
        let ptr = Tree::new(self, table).lookup(index).await?;
        if ptr.is_hole() {
            return Ok(None);
        }
        Ok(Some((ptr, self.read_block(&ptr).await?)))
    }

    /// Decodes and validates the tree root in a slot; `of` is the pointer of the slot's block.
    pub(crate) fn root_in_slot(
        &self,
        of: &BlockPtr,
        block: &Block,
        object: ObjectId,
    ) -> Result<TreeRoot, PoolError> {
        let judged = ObjectSlot::read_root(block, object).and_then(|root| {
            sanity::root(&root, of.birth)?;
            Ok(root)
        });
        judged.map_err(|source| self.bad_block(of, "object slot", source))
    }
}
