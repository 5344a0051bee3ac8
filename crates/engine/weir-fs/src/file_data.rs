//! Bytes that a read of a file returned: parts of shared blocks, or a copy of bytes in an inode.
//!
//! Invariant: the parts in their order are the bytes of the read, without gaps.

use std::ops::Range;

use weir_base::BLOCK_BYTES;
use weir_block::Block;

/// Bytes of a file. They share the blocks of the block cache, so that a server can send them
/// without a copy.
#[derive(Clone, Debug, Default)]
pub struct FileData(Content);

#[derive(Clone, Debug)]
enum Content {
    Bytes(Vec<u8>),
    /// Blocks, and the part of their bytes that the read returned.
    Blocks(Vec<Block>, Range<usize>),
}

impl Default for Content {
    fn default() -> Self {
        Self::Bytes(Vec::new())
    }
}

/// A part of the bytes of a read.
#[derive(Clone, Copy, Debug)]
pub enum FilePart<'a> {
    /// All bytes of a block.
    Block(&'a Block),
    /// Bytes of a block, or bytes in an inode.
    Bytes(&'a [u8]),
}

impl FilePart<'_> {
    /// The bytes of the part.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Block(block) => &block[..],
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl FileData {
    /// A copy of bytes.
    pub(crate) fn copied(bytes: Vec<u8>) -> Self {
        Self(Content::Bytes(bytes))
    }

    /// The bytes `range` of some blocks. The first and the last block have bytes of the range.
    pub(crate) fn shared(blocks: Vec<Block>, range: Range<usize>) -> Self {
        let spanned = range.end.div_ceil(BLOCK_BYTES);
        assert!(range.start < BLOCK_BYTES && spanned == blocks.len(), "bytes {range:?} of blocks");
        Self(Content::Blocks(blocks, range))
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Content::Bytes(bytes) => bytes.len(),
            Content::Blocks(_, range) => range.len(),
        }
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parts of the bytes, in order.
    pub fn parts(&self) -> impl Iterator<Item = FilePart<'_>> {
        let (bytes, blocks, range) = match &self.0 {
            Content::Bytes(bytes) => (Some(FilePart::Bytes(bytes)), &[][..], 0..0),
            Content::Blocks(blocks, range) => (None, &blocks[..], range.clone()),
        };
        let of_blocks = blocks.iter().enumerate().map(move |(index, block)| {
            let start = index * BLOCK_BYTES;
            let first = range.start.saturating_sub(start);
            let last = (range.end - start).min(BLOCK_BYTES);
            if (first, last) == (0, BLOCK_BYTES) {
                return FilePart::Block(block);
            }
            FilePart::Bytes(block.get(first..last).unwrap_or_default())
        });
        bytes.into_iter().chain(of_blocks)
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len());
        self.parts().for_each(|part| copy.extend_from_slice(part.bytes()));
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_blocks_are_shared_and_the_ends_are_cut() {
        let blocks: Vec<Block> = (1..=3).map(|n| Block::copy_of(&[n; BLOCK_BYTES])).collect();
        let data = FileData::shared(blocks.clone(), 4000..2 * BLOCK_BYTES + 10);
        assert_eq!(data.len(), 96 + BLOCK_BYTES + 10);
        let expected = [vec![1; 96], vec![2; BLOCK_BYTES], vec![3; 10]];
        assert_eq!(data.to_vec(), expected.concat());
        let whole: Vec<bool> =
            data.parts().map(|part| matches!(part, FilePart::Block(_))).collect();
        assert_eq!(whole, [false, true, false]);
        let one = FileData::shared(blocks[..1].to_vec(), 5..9);
        assert_eq!(one.to_vec(), [1; 4]);
        assert!(FileData::default().is_empty());
        assert_eq!(FileData::copied(vec![7]).to_vec(), [7]);
    }

    #[test]
    #[should_panic(expected = "bytes 4096..4097 of blocks")]
    fn first_block_without_a_byte_of_the_range_panics() {
        FileData::shared(vec![Block::copy_of(&[1; BLOCK_BYTES]); 2], 4096..4097);
    }
}
