//! Blocks of one record, shared by their holders.
//!
//! A single block is in `arena`.
//!
//! Invariants:
//! - the number of blocks is the number of blocks of a record: a power of two, at most 256;
//! - a clone shares the blocks and costs the change of one reference count.

use std::ops::Deref;
use std::sync::Arc;

use weir_base::{BLOCK_BYTES, RecordSize};

use crate::arena::Block;

/// Blocks of a record.
#[derive(Clone, Debug)]
pub enum Blocks {
    /// A record of one block.
    One(Block),
    /// A record of several blocks.
    Many(Arc<[Block]>),
}

impl Blocks {
    /// Size of the record.
    ///
    /// # Panics
    /// No record has this number of blocks.
    pub fn size(&self) -> RecordSize {
        let bytes = self.len() * BLOCK_BYTES;
        RecordSize::from_bytes(bytes as u64).expect("they are the blocks of a record")
    }
}

impl From<Block> for Blocks {
    fn from(block: Block) -> Self {
        Self::One(block)
    }
}

impl From<Vec<Block>> for Blocks {
    fn from(mut blocks: Vec<Block>) -> Self {
        if blocks.len() > 1 {
            return Self::Many(blocks.into());
        }
        Self::One(blocks.pop().expect("a record has at least one block"))
    }
}

impl Deref for Blocks {
    type Target = [Block];

    fn deref(&self) -> &[Block] {
        match self {
            Self::One(block) => std::slice::from_ref(block),
            Self::Many(blocks) => blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clone_shares_the_blocks() {
        for count in [1, 2, 256] {
            let contents: Vec<_> = (0..count).map(|n| [n as u8; BLOCK_BYTES]).collect();
            let blocks = Blocks::from(Block::copies_of(&contents));
            assert_eq!(blocks.size().blocks(), count);
            assert_eq!(matches!(blocks, Blocks::One(_)), count == 1);
            let other = blocks.clone();
            assert!(blocks.iter().zip(&*other).all(|(a, b)| a.same_cell(b)));
            assert!(other.iter().map(|block| **block).eq(contents));
        }
    }
}
