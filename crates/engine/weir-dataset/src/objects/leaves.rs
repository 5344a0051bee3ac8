//! Cache of the leaf nodes that recent reads of a dataset used. A hit avoids the lookup from the
//! root.
//!
//! The node cache also holds these nodes; this table only saves the lookups in the node cache.
//!
//! Invariants: entries belong to one root of the dataset; a new root empties the table; no result
//! is a damage marker, because only a read can resolve it.

use weir_base::ObjectId;
use weir_format::{BlockPtr, NODE_SHIFT, TreeRoot};
use weir_pool::{Leaf, Pool, PoolError, Tree};

/// Leaves cached for each dataset: at most 8 MiB of nodes, for 1 GiB of blocks.
const SLOTS: usize = 2048;
/// Distance of the slots of two objects with consecutive numbers. It is a prime, so that the first
/// leaves of many objects are spread over the table.
const OBJECT_STRIDE: u64 = 389;

/// A direct-mapped table of leaves.
#[derive(Default)]
pub(crate) struct Leaves {
    /// Root of the dataset: of the volume's tree, or of the object table.
    root: TreeRoot,
    /// Leaf with its object and index, for each slot. Empty until the first read.
    slots: Vec<Option<(ObjectId, u64, Leaf)>>,
}

impl Leaves {
    /// Returns the pointer to record `record` of an object in the dataset with root `root`. `find`
    /// finds the leaf of the record in cached nodes. `None`: the caller must read a node first.
    pub(crate) fn pointer(
        &mut self,
        pool: &Pool,
        root: TreeRoot,
        (object, record): (ObjectId, u64),
        find: impl FnOnce() -> Result<Leaf, PoolError>,
    ) -> Result<Option<BlockPtr>, PoolError> {
        if self.root != root {
            self.slots.clear();
            self.root = root;
        }
        let leaf = record >> NODE_SHIFT;
        let slot = object.0.wrapping_mul(OBJECT_STRIDE).wrapping_add(leaf) as usize % SLOTS;
        if let Some(Some((of, index, found))) = self.slots.get(slot)
            && (*of, *index) == (object, leaf)
        {
            return pointer_in(pool, root, found, record);
        }
        let found = find()?;
        let pointer = pointer_in(pool, root, &found, record)?;
        // `Hole` depends on the record: a tree without nodes has only its first record.
        if matches!(found, Leaf::Node(..) | Leaf::Root(_)) {
            if self.slots.is_empty() {
                self.slots.resize_with(SLOTS, || None);
            }
            self.slots[slot] = Some((object, leaf, found));
        }
        Ok(pointer)
    }
}

/// Returns the pointer to a record from its leaf. `None` for an unknown leaf, and for a damage
/// marker: only a read can find the pointers that the marker replaces.
fn pointer_in(
    pool: &Pool,
    root: TreeRoot,
    leaf: &Leaf,
    record: u64,
) -> Result<Option<BlockPtr>, PoolError> {
    let ptr = match leaf {
        Leaf::Unknown => return Ok(None),
        Leaf::Root(ptr) if record == 0 => *ptr,
        Leaf::Root(_) | Leaf::Hole => BlockPtr::HOLE,
        Leaf::Node(of, node) => Tree::new(pool, root).pointer_in(of, node, record)?,
    };
    Ok((!ptr.is_damaged()).then_some(ptr))
}
