//! Cache of the leaf nodes that recent reads of a volume used. A hit avoids the lookup from the
//! root.
//!
//! The node cache also holds these nodes; this table only saves the lookups in the node cache.
//!
//! Invariants: entries belong to one root; a new root empties the table; no result is a damage
//! marker, because only a read can resolve it.

use weir_block::Block;
use weir_format::{BlockPtr, NODE_SHIFT, TreeRoot};
use weir_pool::{Leaf, PoolError, Tree};

/// Leaves cached for each volume: at most 8 MiB of nodes, for 1 GiB of blocks.
const SLOTS: usize = 2048;

/// A direct-mapped table of leaves.
#[derive(Default)]
pub(crate) struct Leaves {
    root: TreeRoot,
    /// Leaf with its index and pointer, for each slot. Empty until the first read.
    slots: Vec<Option<(u64, BlockPtr, Block)>>,
}

impl Leaves {
    /// Returns the pointer to a block in the tree with root `tree`. `None`: the caller must read a
    /// node first.
    pub(crate) fn pointer(
        &mut self,
        tree: &Tree<'_>,
        root: TreeRoot,
        block: u64,
    ) -> Result<Option<BlockPtr>, PoolError> {
        if self.root != root {
            self.slots.clear();
            self.root = root;
        }
        let leaf = block >> NODE_SHIFT;
        let slot = leaf as usize % SLOTS;
        if let Some(Some((known, of, node))) = self.slots.get(slot)
            && *known == leaf
        {
            return readable(tree.pointer_in(of, node, block)?);
        }
        match tree.leaf_cached(block)? {
            Leaf::Unknown => Ok(None),
            Leaf::Hole => Ok(Some(BlockPtr::HOLE)),
            Leaf::Root(ptr) => readable(ptr),
            Leaf::Node(of, node) => {
                let ptr = tree.pointer_in(&of, &node, block)?;
                if self.slots.is_empty() {
                    self.slots.resize_with(SLOTS, || None);
                }
                self.slots[slot] = Some((leaf, of, node));
                readable(ptr)
            }
        }
    }
}

/// Returns `None` for a damage marker: only a read can find the pointers that the marker replaces.
#[expect(clippy::unnecessary_wraps, reason = "what lookups return")]
fn readable(ptr: BlockPtr) -> Result<Option<BlockPtr>, PoolError> {
    Ok((!ptr.is_damaged()).then_some(ptr))
}
