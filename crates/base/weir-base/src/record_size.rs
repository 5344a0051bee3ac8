//! The record size of a volume: how much is checksummed, compressed and pointed to as one.
//!
//! Not here: making records of blocks and blocks of records (weir-dataset, weir-pool).
//!
//! Invariants:
//! - a record is a power of two of blocks, from one block to 1 MiB;
//! - a volume's record size never changes, and its size is whole records.

use std::fmt;
use std::ops::Range;

use crate::BLOCK_BYTES;
use crate::size::Human;

/// Blocks of a record, as a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordSize(u8);

impl RecordSize {
    /// One block: what a volume has unless another size was asked for.
    pub const BLOCK: Self = Self(0);
    /// 1 MiB.
    pub const MAX: Self = Self(8);

    /// The size of so many bytes; `None` unless that is a power of two from 4 KiB to 1 MiB.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::all().find(|size| size.bytes() as u64 == bytes)
    }

    /// As [`Self::shift`] says it.
    pub const fn from_shift(shift: u8) -> Option<Self> {
        if shift <= Self::MAX.0 { Some(Self(shift)) } else { None }
    }

    /// All of them, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=Self::MAX.0).map(Self)
    }

    /// log2 of its blocks.
    pub const fn shift(self) -> u8 {
        self.0
    }

    /// Blocks of a record.
    pub const fn blocks(self) -> u64 {
        1 << self.0
    }

    /// Bytes of a record.
    pub const fn bytes(self) -> usize {
        BLOCK_BYTES << self.0
    }

    /// Whether a record is a block.
    pub const fn is_block(self) -> bool {
        self.0 == 0
    }

    /// The record that a block is in.
    pub const fn record_of(self, block: u64) -> u64 {
        block >> self.0
    }

    /// Where in its record a block is.
    pub const fn part_of(self, block: u64) -> usize {
        (block & (self.blocks() - 1)) as usize
    }

    /// The first block of a record.
    pub const fn first_block(self, record: u64) -> u64 {
        record << self.0
    }

    /// The blocks of records.
    pub const fn blocks_of(self, records: &Range<u64>) -> Range<u64> {
        self.first_block(records.start)..self.first_block(records.end)
    }

    /// The records that a range of blocks touches.
    pub const fn touched(self, blocks: &Range<u64>) -> Range<u64> {
        self.record_of(blocks.start)..blocks.end.div_ceil(self.blocks())
    }

    /// The records that lie wholly in a range of blocks; empty, with its start kept, if none does.
    pub const fn inside(self, blocks: &Range<u64>) -> Range<u64> {
        let start = blocks.start.div_ceil(self.blocks());
        let end = self.record_of(blocks.end);
        if end > start { start..end } else { start..start }
    }

    /// The records of which a range of blocks takes a part: two at most.
    pub fn cut(self, blocks: &Range<u64>) -> impl Iterator<Item = u64> + use<> {
        let touched = if blocks.is_empty() { 0..0 } else { self.touched(blocks) };
        let last = touched.end.saturating_sub(1);
        let (start, end) = (blocks.start, blocks.end);
        let is_cut = move |record: &u64| {
            self.first_block(*record) < start || self.first_block(record + 1) > end
        };
        let first = (!touched.is_empty()).then_some(touched.start);
        first.into_iter().chain((last > touched.start).then_some(last)).filter(is_cut)
    }

    /// Records of a volume of this size, which is whole ones.
    pub const fn records_in(self, size_bytes: u64) -> u64 {
        size_bytes / self.bytes() as u64
    }
}

impl fmt::Display for RecordSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Human(self.bytes() as u64).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_from_a_block_to_a_mebibyte() {
        assert_eq!(RecordSize::from_bytes(4096), Some(RecordSize::BLOCK));
        assert_eq!(RecordSize::from_bytes(1 << 20), Some(RecordSize::MAX));
        for bytes in [0, 512, 2048, 4097, 12288, 2 << 20, u64::MAX] {
            assert_eq!(RecordSize::from_bytes(bytes), None, "{bytes}");
        }
        assert!(RecordSize::all().all(|size| RecordSize::from_shift(size.shift()) == Some(size)));
        assert_eq!(RecordSize::from_shift(9), None);
        assert_eq!(RecordSize::MAX.to_string(), "1MiB");
    }

    #[test]
    fn ranges_of_blocks_and_records_agree() {
        let of_four = RecordSize::from_shift(2).expect("4 blocks");
        assert_eq!((of_four.record_of(7), of_four.part_of(7)), (1, 3));
        assert_eq!(of_four.touched(&(3..9)), 0..3);
        assert_eq!(of_four.inside(&(3..9)), 1..2);
        assert_eq!(of_four.inside(&(4..8)), 1..2);
        assert!(of_four.inside(&(5..7)).is_empty() && of_four.inside(&(3..5)).is_empty());
        assert_eq!(of_four.blocks_of(&(1..3)), 4..12);
        assert_eq!(RecordSize::BLOCK.inside(&(3..9)), 3..9);
        let cut = |blocks| of_four.cut(&blocks).collect::<Vec<_>>();
        assert_eq!((cut(3..9), cut(4..8), cut(5..6)), (vec![0, 2], vec![], vec![1]));
        assert_eq!((cut(4..9), cut(1..8), cut(6..6)), (vec![2], vec![0], vec![]));
        assert_eq!(RecordSize::BLOCK.cut(&(3..9)).count(), 0);
    }
}
