//! Dirty table: the changes of one txg to one object.
//!
//! The holder of a table, such as `state::volume`, locks it; `commit` writes the table out.
//!
//! Invariants:
//! - a block is in `blocks` or in `holes`, never in both: the later change wins;
//! - a table has all blocks of a record or none; they are either all data or all a hole
//!   (`records`);
//! - a frozen table never changes.

use std::ops::Range;

use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::{Block, Blocks};
use weir_codec::compress::is_zero;
use weir_pool::Change;

use crate::objects::block_map::BlockMap;
use crate::objects::range_set::RangeSet;

/// Change of a block in a txg.
#[derive(Clone, Debug)]
pub(crate) enum Dirty {
    Data(Block),
    Hole,
}

/// Change of several blocks of one record in a txg.
#[derive(Clone, Debug)]
pub(crate) enum DirtyBlocks {
    Data(Vec<Block>),
    Hole,
}

/// Changes of one txg to one volume.
#[derive(Default)]
pub(crate) struct DirtyTable {
    blocks: BlockMap,
    holes: RangeSet,
    /// Bytes of pool space reserved for writing these changes.
    pub(crate) charge: u64,
    /// Number of tree nodes that `charge` includes.
    pub(crate) nodes: u64,
}

impl DirtyTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.holes.is_empty()
    }

    /// Number of blocks with data.
    pub(crate) fn data_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Number of hole ranges.
    pub(crate) fn hole_ranges(&self) -> usize {
        self.holes.len()
    }

    pub(crate) fn get(&self, block: u64) -> Option<Dirty> {
        if let Some(data) = self.blocks.get(block) {
            return Some(Dirty::Data(data.clone()));
        }
        (!self.holes.is_empty() && self.holes.contains(block)).then_some(Dirty::Hole)
    }

    /// Returns the change of some blocks of one record; `None` if the table has no change of it.
    pub(crate) fn get_all(&self, blocks: Range<u64>) -> Option<DirtyBlocks> {
        let first = blocks.start;
        if self.is_data(first) {
            let count = (blocks.end - first) as usize;
            let mut data = Vec::with_capacity(count);
            self.blocks.copy_to(blocks, &mut data);
            assert_eq!(data.len(), count, "tables hold whole records");
            return Some(DirtyBlocks::Data(data));
        }
        (!self.holes.is_empty() && self.holes.contains(first)).then_some(DirtyBlocks::Hole)
    }

    /// True if the table has data for a block, and false if it makes the block a hole; `None` if
    /// the table has no change of it.
    pub(crate) fn becomes_data(&self, block: u64) -> Option<bool> {
        if self.is_data(block) {
            return Some(true);
        }
        (!self.holes.is_empty() && self.holes.contains(block)).then_some(false)
    }

    /// True if the table has data for a block.
    pub(crate) fn is_data(&self, block: u64) -> bool {
        self.blocks.get(block).is_some()
    }

    /// Writes a block. Returns true if the table had no data for the block before.
    pub(crate) fn write(&mut self, block: u64, data: Block) -> bool {
        if !self.holes.is_empty() {
            self.holes.remove(block..block + 1);
        }
        self.blocks.insert(block, data)
    }

    /// Writes adjacent blocks from the number `first` on. Returns how many of these blocks had no
    /// data in the table before.
    pub(crate) fn write_all(&mut self, first: u64, data: Vec<Block>) -> usize {
        if !self.holes.is_empty() {
            self.holes.remove(first..first + data.len() as u64);
        }
        self.blocks.insert_all(first, data)
    }

    /// As [`Self::write`], but changes the block in place if only the table references it.
    pub(crate) fn overwrite(&mut self, block: u64, bytes: &[u8; BLOCK_BYTES]) -> bool {
        match self.blocks.get_mut(block).map(Block::get_mut) {
            Some(Some(cell)) => {
                *cell = *bytes;
                false
            }
            _ => self.write(block, Block::copy_of(bytes)),
        }
    }

    /// Makes a range a hole. Returns the number of data blocks that the hole replaced.
    pub(crate) fn zero(&mut self, range: Range<u64>) -> usize {
        let replaced = self.blocks.remove(&range);
        self.holes.insert(range);
        replaced
    }

    /// Drops the changes of a range.
    pub(crate) fn drop_range(&mut self, range: Range<u64>) {
        self.blocks.remove(&range);
        self.holes.remove(range);
    }

    /// Numbers of the data blocks inside a range, unordered.
    pub(crate) fn data_within(&self, range: &Range<u64>) -> Vec<u64> {
        self.blocks.within(range)
    }

    /// Holes inside a range.
    pub(crate) fn holes_within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        self.holes.within(range)
    }

    /// All changes, sorted and disjoint. A change that writes a record comes with the data of the
    /// record; a record of zeros becomes a hole.
    pub(crate) fn changes(&self, size: RecordSize) -> Vec<(Change, Option<Blocks>)> {
        let hole = |range: Range<u64>| {
            assert!(size.cut(&range).next().is_none(), "tables hold whole records: {range:?}");
            Change::hole(size.touched(&range))
        };
        let blocks = self.blocks.sorted();
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
