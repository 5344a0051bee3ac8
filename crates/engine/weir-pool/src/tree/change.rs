//! Changes to a tree: new pointers for ranges of blocks.
//!
//! `txg::apply_nodes` applies them; weir-dataset derives them from the writes of clients.
//!
//! Invariants:
//! - the changes of one tree are disjoint and are applied in block order;
//! - a run lies within one leaf, so one leaf update applies it completely.

use std::ops::Range;

use weir_base::BLOCK_BYTES;
use weir_format::{BlockPtr, NODE_FANOUT};

use crate::tree::delta::Delta;

/// A change to a tree: gives blocks `start .. start + count` new pointers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// First block.
    pub start: u64,
    /// Number of blocks.
    pub count: u64,
    /// New pointers of the blocks.
    pub to: NewContents,
}

/// New pointers of changed blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewContents {
    /// One block, or a hole of any size.
    Pointer(BlockPtr),
    /// Several blocks of one leaf.
    Run(LeafRun),
}

impl NewContents {
    /// True if the change sets exactly the pointer `ptr`.
    pub(crate) fn is(&self, ptr: &BlockPtr) -> bool {
        matches!(self, Self::Pointer(to) if to == ptr)
    }
}

impl Change {
    /// Turns a range of blocks into a hole.
    pub fn hole(blocks: Range<u64>) -> Self {
        let Range { start, end } = blocks;
        Self { start, count: end - start, to: NewContents::Pointer(BlockPtr::HOLE) }
    }

    /// Points one block to `ptr`.
    pub fn one(start: u64, ptr: BlockPtr) -> Self {
        Self { start, count: 1, to: NewContents::Pointer(ptr) }
    }

    /// Points neighbouring blocks of one leaf to `ptrs`, in order.
    pub fn run(start: u64, ptrs: &[BlockPtr]) -> Self {
        if let [ptr] = ptrs {
            return Self::one(start, *ptr);
        }
        let count = ptrs.len() as u64;
        let fits = start % NODE_FANOUT as u64 + count <= NODE_FANOUT as u64;
        assert!(fits && count > 0, "a run lies within one leaf: {count} blocks from {start}");
        Self { start, count, to: NewContents::Run(LeafRun::of(ptrs)) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.count
    }

    /// True if the change leaves a hole.
    pub fn is_hole(&self) -> bool {
        matches!(&self.to, NewContents::Pointer(ptr) if ptr.is_hole())
    }

    /// The new pointer, if this change covers all of `blocks` with one pointer.
    pub(crate) fn covers(&self, blocks: &Range<u64>) -> Option<BlockPtr> {
        match self.to {
            NewContents::Pointer(ptr) if self.start <= blocks.start && self.end() >= blocks.end => {
                Some(ptr)
            }
            _ => None,
        }
    }
}

/// Pointers of neighbouring blocks, none of them a hole, in the encoding of a leaf. The pointers
/// are encoded once, and their space is counted as one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRun {
    slots: Box<[[u8; BlockPtr::BYTES]]>,
    /// Space that the pointers add to a tree.
    pub(crate) gain: Delta,
}

impl LeafRun {
    fn of(ptrs: &[BlockPtr]) -> Self {
        let mut gain = Delta::default();
        ptrs.iter().for_each(|ptr| gain.gain(ptr));
        Self { slots: ptrs.iter().map(BlockPtr::encode).collect(), gain }
    }

    /// Copies the pointers into a leaf, starting at slot `first`.
    pub(crate) fn put(&self, leaf: &mut [u8; BLOCK_BYTES], first: usize) {
        let (slots, _) = leaf.as_chunks_mut::<{ BlockPtr::BYTES }>();
        slots[first..first + self.slots.len()].copy_from_slice(&self.slots);
    }
}

/// Adds holes for all gaps between `changes` up to `end`, except the ascending ranges in `kept`.
/// With no `kept` ranges, the resulting tree does not depend on its earlier contents.
pub fn filled(changes: Vec<Change>, end: u64, kept: &[Range<u64>]) -> Vec<Change> {
    let mut all = Vec::with_capacity(changes.len());
    let mut next = 0;
    let fill = |all: &mut Vec<Change>, gap: Range<u64>| {
        let mut from = gap.start;
        for keep in kept.iter().filter(|keep| keep.start < gap.end && keep.end > gap.start) {
            if from < keep.start {
                all.push(Change::hole(from..keep.start));
            }
            from = from.max(keep.end);
        }
        if from < gap.end {
            all.push(Change::hole(from..gap.end));
        }
    };
    for change in changes {
        fill(&mut all, next..change.start);
        next = change.end();
        all.push(change);
    }
    fill(&mut all, next..end);
    all
}

/// Returns the changes that touch `base .. base + len`.
pub(crate) fn within(changes: &[Change], base: u64, len: u64) -> &[Change] {
    let first = changes.partition_point(|change| change.end() <= base);
    let end = changes.partition_point(|change| change.start < base + len);
    &changes[first..end.max(first)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_become_holes_unless_kept() {
        let one = |at| Change::one(at, BlockPtr::HOLE);
        let holes = |ranges: &[Range<u64>]| -> Vec<Change> {
            ranges.iter().cloned().map(Change::hole).collect()
        };
        let of = |changes, kept: &[Range<u64>]| -> Vec<Change> { filled(changes, 10, kept) };
        let all = std::slice::from_ref(&(0..10));
        assert_eq!(of(vec![], &[]), holes(all));
        assert_eq!(of(vec![one(0), one(3), one(9)], &[]), holes(&[0..1, 1..3, 3..4, 4..9, 9..10]));
        assert_eq!(of(vec![one(3)], &[0..2, 5..6, 8..12]), holes(&[2..3, 3..4, 4..5, 6..8]));
        assert_eq!(of(vec![], all), []);
    }
}
