//! The record size of a volume: the unit of checksums, compression and block pointers.
//!
//! weir-dataset and weir-pool convert between blocks and records.
//!
//! Invariants:
//! - a record consists of 2^n blocks and is at most 1 MiB long;
//! - the record size of a volume never changes, and the size of the volume is a multiple of it.

use std::fmt;
use std::ops::Range;

use crate::BLOCK_BYTES;
use crate::size::Human;

/// Number of blocks in a record, stored as its log2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordSize(u8);

impl RecordSize {
    /// One block: the default record size.
    pub const BLOCK: Self = Self(0);
    /// Maximum record size, 1 MiB.
    pub const MAX: Self = Self(8);

    /// Returns the record size of `bytes` bytes; `None` unless `bytes` is a power of two from 4 KiB
    /// to 1 MiB.
    pub fn from_bytes(bytes: u64) -> Option<Self> {
        Self::all().find(|size| size.bytes() as u64 == bytes)
    }

    /// Returns the record size with this value of [`Self::shift`].
    pub const fn from_shift(shift: u8) -> Option<Self> {
        if shift <= Self::MAX.0 { Some(Self(shift)) } else { None }
    }

    /// All record sizes, smallest first.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> {
        (0..=Self::MAX.0).map(Self)
    }

    /// log2 of the number of blocks in a record.
    pub const fn shift(self) -> u8 {
        self.0
    }

    /// Number of blocks in a record.
    pub const fn blocks(self) -> u64 {
        1 << self.0
    }

    /// Length of a record in bytes.
    pub const fn bytes(self) -> usize {
        BLOCK_BYTES << self.0
    }

    /// True if a record is one block.
    pub const fn is_block(self) -> bool {
        self.0 == 0
    }

    /// Index of the record that contains a block.
    pub const fn record_of(self, block: u64) -> u64 {
        block >> self.0
    }

    /// Index of a block within its record.
    pub const fn part_of(self, block: u64) -> usize {
        (block & (self.blocks() - 1)) as usize
    }

    /// Index of the first block of a record.
    pub const fn first_block(self, record: u64) -> u64 {
        record << self.0
    }

    /// Indexes of the blocks in a range of records.
    pub const fn blocks_of(self, records: &Range<u64>) -> Range<u64> {
        self.first_block(records.start)..self.first_block(records.end)
    }

    /// Indexes of the records that a range of blocks overlaps.
    pub const fn touched(self, blocks: &Range<u64>) -> Range<u64> {
        self.record_of(blocks.start)..blocks.end.div_ceil(self.blocks())
    }

    /// Indexes of the records that lie completely in a range of blocks. If there is none, the
    /// result is an empty range at the first record boundary of `blocks`.
    pub const fn inside(self, blocks: &Range<u64>) -> Range<u64> {
        let start = blocks.start.div_ceil(self.blocks());
        let end = self.record_of(blocks.end);
        if end > start { start..end } else { start..start }
    }

    /// Indexes of the records that a range of blocks covers only partly: at most two.
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

    /// Number of records in a volume of `size_bytes`, which is a multiple of the record size.
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
