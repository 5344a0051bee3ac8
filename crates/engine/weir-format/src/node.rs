//! Tree nodes: 128 block pointers in 4 KiB, and the tree root that a dataset or table stores.
//!
//! Walks and changes of trees are in weir-pool's `tree`.
//!
//! Invariants: a node is exactly one block; height 0 means that the root pointer refers to block 0.

use weir_base::BLOCK_BYTES;

use crate::bytes::{Field, Reader, Writer, field};
use crate::error::FormatError;
use crate::pointer::BlockPtr;

/// Number of pointers in one node.
pub const NODE_FANOUT: usize = BLOCK_BYTES / BlockPtr::BYTES;
/// log2 of [`NODE_FANOUT`].
pub const NODE_SHIFT: u32 = NODE_FANOUT.trailing_zeros();

/// The pointer in slot `index` (`< NODE_FANOUT`) of a node.
///
/// # Errors
/// The slot holds no valid pointer.
#[inline]
pub fn node_pointer(node: &[u8; BLOCK_BYTES], index: usize) -> Result<BlockPtr, FormatError> {
    let (slots, _) = node.as_chunks::<{ BlockPtr::BYTES }>();
    BlockPtr::decode(slots.get(index).expect("index is below the fanout"))
}

/// Stores a pointer in slot `index` (`< NODE_FANOUT`).
pub fn set_node_pointer(node: &mut [u8; BLOCK_BYTES], index: usize, ptr: &BlockPtr) {
    let (slots, _) = node.as_chunks_mut::<{ BlockPtr::BYTES }>();
    *slots.get_mut(index).expect("index is below the fanout") = ptr.encode();
}

/// Root of one tree: a pointer, and the number of node levels above the blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeRoot {
    /// Pointer to the top node, or to block 0 itself if `height` is 0.
    pub ptr: BlockPtr,
    /// Number of node levels above the blocks.
    pub height: u8,
}

impl TreeRoot {
    /// Maximum height of a tree: 128^6 blocks are more than 2^40.
    pub const HEIGHT_MAX: u8 = 6;
    /// Number of blocks of the largest tree.
    pub const BLOCKS_MAX: u64 = Self::capacity(Self::HEIGHT_MAX);
    /// Encoded size of a tree root in bytes.
    pub const BYTES: usize = BlockPtr::BYTES + 1;
    /// The root of an empty tree.
    pub const EMPTY: Self = Self { ptr: BlockPtr::HOLE, height: 0 };

    /// Fields, for the format documentation.
    pub const FIELDS: &[Field] = &[
        field(32, "pointer", "block pointer of the top node"),
        field(1, "height", "node levels above the blocks"),
    ];

    /// Maximum number of blocks in a tree of this height.
    pub const fn capacity(height: u8) -> u64 {
        1 << (NODE_SHIFT * height as u32)
    }

    /// Lowest height whose capacity is at least `blocks`.
    pub fn height_for(blocks: u64) -> u8 {
        (0..=Self::HEIGHT_MAX)
            .find(|h| Self::capacity(*h) >= blocks)
            .expect("object sizes are bounded far below 128^6 blocks")
    }

    /// Maximum number of blocks in this tree.
    pub const fn blocks(&self) -> u64 {
        Self::capacity(self.height)
    }

    pub(crate) fn write(&self, w: &mut Writer) {
        w.bytes(&self.ptr.encode());
        w.u8(self.height);
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        let bytes = r.take(BlockPtr::BYTES)?;
        let ptr = BlockPtr::decode(bytes.first_chunk().expect("took exactly one pointer"))?;
        let height = r.u8()?;
        if height > Self::HEIGHT_MAX {
            return Err(r.bad("height", height));
        }
        Ok(Self { ptr, height })
    }
}
