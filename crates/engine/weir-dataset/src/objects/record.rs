//! Records of a volume: their size, and which records a change needs.
//!
//! Not here: reading and writing them (`volume`).
//!
//! Invariant: a record is a power of two of blocks.

use std::sync::LazyLock;

use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_format::TreeRoot;

/// What blocks are that read as zeros and are part of a record that is data: all the same cell.
pub(crate) static ZERO_BLOCK: LazyLock<Block> = LazyLock::new(|| Block::copy_of(&[0; BLOCK_BYTES]));

/// The size of a volume, and of what its tree has a pointer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSize {
    /// Whole records.
    pub bytes: u64,
    /// Of a record.
    pub record: RecordSize,
}

impl From<u64> for VolumeSize {
    /// Of a volume whose records are blocks.
    fn from(bytes: u64) -> Self {
        Self { bytes, record: RecordSize::BLOCK }
    }
}

impl VolumeSize {
    pub(crate) fn records(self) -> u64 {
        self.record.records_in(self.bytes)
    }

    /// Levels of nodes over its records.
    pub(crate) fn height(self) -> u8 {
        TreeRoot::height_for(self.records())
    }
}

/// Why a record is wanted whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// To change what it holds.
    Write,
    /// To make a part of it a hole: nothing is to be done where all of it is one.
    Zero,
}
