//! Leaf nodes that reads of a volume met lately, one step away instead of a walk from the root.
//!
//! Not here: the node cache, which also holds them; this only saves its lookups.
//!
//! Invariants: entries belong to one root; a new root empties the table; no answer is a damage
//! marker, which a lookup must see through.

use weir_block::Block;
use weir_format::{BlockPtr, NODE_SHIFT, TreeRoot};
use weir_pool::{Leaf, PoolError, Tree};

/// Leaves kept per volume: 8 MiB of nodes at most, for 1 GiB of blocks.
const SLOTS: usize = 2048;

/// A direct-mapped table of leaves.
#[derive(Default)]
pub(crate) struct Leaves {
    root: TreeRoot,
    /// Empty until the first read.
    slots: Vec<Option<(u64, BlockPtr, Block)>>,
}

impl Leaves {
    /// The pointer of a block under `tree`'s root, `None` if a node must be read first, or again.
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

/// Of a damage marker nothing is known without reading.
#[expect(clippy::unnecessary_wraps, reason = "what lookups return")]
fn readable(ptr: BlockPtr) -> Result<Option<BlockPtr>, PoolError> {
    Ok((!ptr.is_damaged()).then_some(ptr))
}
