//! The dirty table: what one txg changes in one volume, and the log records of those changes.
//!
//! Not here: its lock (volume) and its way to disk (commit).
//!
//! Invariants:
//! - a block is in `blocks` or in `holes`, never in both: the later write wins;
//! - of a record all blocks are here or none, and all in the same (records);
//! - a frozen table never changes.

use std::ops::Range;

use weir_base::{BLOCK_BYTES, Lsn, RecordSize, Txg};
use weir_block::Block;
use weir_codec::compress::is_zero;
use weir_pool::{Blocks, Change};

use crate::objects::block_map::BlockMap;
use crate::objects::range_set::RangeSet;

/// What a txg did to a block.
#[derive(Clone, Debug)]
pub(crate) enum Dirty {
    Data(Block),
    Hole,
}

/// Changes of one txg to one volume.
#[derive(Default)]
pub(crate) struct DirtyTable {
    blocks: BlockMap,
    holes: RangeSet,
    /// Bytes of the pool's space that were promised to these changes.
    pub(crate) charge: u64,
    /// Nodes among them.
    pub(crate) nodes: u64,
}

impl DirtyTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.holes.is_empty()
    }

    /// Blocks that hold data.
    pub(crate) fn data_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Ranges that became holes.
    pub(crate) fn hole_ranges(&self) -> usize {
        self.holes.len()
    }

    pub(crate) fn get(&self, block: u64) -> Option<Dirty> {
        if let Some(data) = self.blocks.get(block) {
            return Some(Dirty::Data(data.clone()));
        }
        (!self.holes.is_empty() && self.holes.contains(block)).then_some(Dirty::Hole)
    }

    /// Puts a block; true if it takes space that was not taken before.
    pub(crate) fn write(&mut self, block: u64, data: Block) -> bool {
        if !self.holes.is_empty() {
            self.holes.remove(block..block + 1);
        }
        self.blocks.insert(block, data)
    }

    /// As [`Self::write`], but in place where the table alone holds the block.
    pub(crate) fn overwrite(&mut self, block: u64, bytes: &[u8; BLOCK_BYTES]) -> bool {
        match self.blocks.get_mut(block).map(Block::get_mut) {
            Some(Some(cell)) => {
                *cell = *bytes;
                false
            }
            _ => self.write(block, Block::copy_of(bytes)),
        }
    }

    /// Makes a range a hole; returns how many data blocks it replaced.
    pub(crate) fn zero(&mut self, range: Range<u64>) -> usize {
        let replaced = self.blocks.remove(&range);
        self.holes.insert(range);
        replaced
    }

    /// Data blocks inside a range, in no order.
    pub(crate) fn data_within(&self, range: &Range<u64>) -> Vec<u64> {
        self.blocks.within(range)
    }

    /// Holes inside a range.
    pub(crate) fn holes_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.holes.within(range)
    }

    /// Everything as sorted, disjoint tree changes, and the data of those that are records.
    /// Records of zeros are holes.
    pub(crate) fn changes(&self, size: RecordSize) -> Vec<(Change, Option<Blocks>)> {
        let hole = |range: Range<u64>| {
            assert!(size.cut(&range).next().is_none(), "tables hold whole records: {range:?}");
            Change::hole(size.touched(&range))
        };
        let mut blocks: Vec<(u64, &Block)> = self.blocks.iter().collect();
        blocks.sort_unstable_by_key(|(block, _)| *block);
        let record = |blocks: &[(u64, &Block)]| {
            let is_data = blocks.iter().any(|(_, data)| !is_zero(&data[..]));
            let data = || match blocks {
                [(_, one)] => Blocks::One((*one).clone()),
                many => Blocks::Many(many.iter().map(|(_, block)| (*block).clone()).collect()),
            };
            (hole(blocks[0].0..blocks[0].0 + blocks.len() as u64), is_data.then(data))
        };
        let same = |(a, _): &(u64, &Block), (b, _): &(u64, &Block)| {
            size.record_of(*a) == size.record_of(*b)
        };
        let records = blocks.chunk_by(same).map(record);
        let mut changes: Vec<(Change, Option<Blocks>)> =
            records.chain(self.holes.iter().map(|range| (hole(range), None))).collect();
        changes.sort_unstable_by_key(|(change, _)| change.start);
        changes
    }
}

/// What a logged write carries.
#[derive(Clone)]
pub(crate) enum Payload {
    One(Block),
    Many(Vec<Block>),
    Zero { bytes: u64 },
}

impl Payload {
    pub(crate) fn queued_bytes(&self) -> u64 {
        match self {
            Self::One(_) => BLOCK_BYTES as u64,
            Self::Many(blocks) => (blocks.len() * BLOCK_BYTES) as u64,
            // What it costs to keep.
            Self::Zero { .. } => 64,
        }
    }
}

/// A change, or a part of one, that waits to be logged or committed.
#[derive(Clone)]
pub(crate) struct QueuedRecord {
    /// Of the change: its parts have the same.
    pub(crate) lsn: Lsn,
    pub(crate) txg: Txg,
    pub(crate) offset: u64,
    pub(crate) payload: Payload,
}
