//! Record size of a volume, and the kinds of changes to a part of a record.
//!
//! `volume` reads and writes records.
//!
//! Invariant: the number of blocks in a record is a power of two.

use std::sync::LazyLock;

use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::Block;
use weir_format::TreeRoot;

/// Block of zeros that all holes share, and also all zero blocks of records with data.
pub static ZERO_BLOCK: LazyLock<Block> = LazyLock::new(|| Block::copy_of(&[0; BLOCK_BYTES]));

/// Size of a volume and of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSize {
    /// Size in bytes, whole records.
    pub bytes: u64,
    /// Record size.
    pub record: RecordSize,
}

impl From<u64> for VolumeSize {
    /// Size of a volume whose record size is one block.
    fn from(bytes: u64) -> Self {
        Self { bytes, record: RecordSize::BLOCK }
    }
}

impl VolumeSize {
    pub(crate) fn records(self) -> u64 {
        self.record.records_in(self.bytes)
    }

    /// Height of the tree over the volume's records.
    pub(crate) fn height(self) -> u8 {
        TreeRoot::height_for(self.records())
    }
}

/// Kind of a change that covers a record only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialChange {
    /// Writes data.
    Write,
    /// Makes a part of the record a hole. If the record is a hole already, nothing changes.
    Zero,
}
