//! Parts of a segment that a scan verifies, and the results.
//!
//! Not here: reading and repairing (`copies`, `repair`).
//!
//! Invariant: parts of one run do not overlap.

use std::ops::Range;

use crate::disks::leg::Leg;
use crate::disks::scan_kind::ScanKind;
use crate::state::pool::Pool;
use crate::tree::live::Live;

/// Result of checking the copies of some blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Stored bytes of the blocks.
    pub(crate) bytes: u64,
    /// Bytes written to legs whose copy was bad or missing.
    pub(crate) repaired_bytes: u64,
    /// Number of copies that the scan could not rewrite, or that differed when it read them back.
    pub(crate) unrepaired: u64,
    /// Number of blocks without any good copy.
    pub(crate) damaged: u64,
    /// Indexes of the blocks without any good copy, in the segment's list of live blocks.
    pub(crate) lost: Vec<usize>,
    /// Number of wrong parity strips that the scan must not rewrite before its second pass.
    pub(crate) postponed: u64,
}

impl Checked {
    /// Counts a block without any good copy.
    pub(crate) fn lose(&mut self, index: usize) {
        self.damaged += 1;
        self.lost.push(index);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.repaired_bytes += other.repaired_bytes;
        self.unrepaired += other.unrepaired;
        self.damaged += other.damaged;
        self.lost.extend(other.lost);
        self.postponed += other.postponed;
    }
}

/// Blocks that a scan checks together.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    /// All live blocks of a segment, by address.
    pub(crate) all: &'a [Live],
    /// Index of the first block of the part.
    pub(crate) from: usize,
    /// Index after the last block of the part.
    pub(crate) to: usize,
    /// Start of the segment in the vdev's segment area.
    pub(crate) start: u64,
}

impl<'a> Part<'a> {
    pub(crate) fn items(&self) -> &'a [Live] {
        &self.all[self.from..self.to]
    }

    /// Stored bytes of the part's blocks.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.items().iter().map(|live| live.len as u64).sum()
    }

    /// Bytes from the start of the part's first block to the end of the last.
    pub(crate) fn len(&self) -> usize {
        let items = self.items();
        // In a pool with crafted metadata blocks may overlap, so another block may end after the
        // last one.
        let end = items.iter().map(Live::end).max().unwrap_or_default();
        (end - items[0].at) as usize
    }

    /// The blocks in `range` alone, as a part.
    pub(crate) fn of(self, range: Range<usize>) -> Self {
        Self { from: range.start, to: range.end, ..self }
    }

    /// Splits the part before each block for which `splits` returns true. The arguments of `splits`
    /// are the first block of the present piece, the previous block and this block.
    pub(crate) fn split(self, splits: impl Fn(&Live, &Live, &Live) -> bool) -> Vec<Self> {
        let (mut pieces, mut first) = (Vec::new(), self.from);
        for next in self.from + 1..=self.to {
            let cut =
                next == self.to || splits(&self.all[first], &self.all[next - 1], &self.all[next]);
            if cut {
                pieces.push(self.of(first..next));
                first = next;
            }
        }
        pieces
    }
}

/// Legs that a scan reads and writes.
pub(crate) struct Scope<'a> {
    /// Pool of the blocks. Its cache may have the content of a block that no leg has.
    pub(crate) pool: &'a Pool,
    pub(crate) kind: ScanKind,
    /// Legs in use whose copies are verified.
    pub(crate) good: Vec<&'a Leg>,
    /// Legs in use that may lack this segment. The scan writes to them.
    pub(crate) behind: Vec<&'a Leg>,
    /// True in the second pass, after a commit: the scan may then rewrite parity that differs from
    /// its row.
    pub(crate) settles: bool,
    /// Number of legs that are read concurrently.
    pub(crate) legs_in_flight: usize,
}

/// Reason why no copy of a block could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// Disks answered, but none with the right bytes.
    Damaged,
    /// Too few disks answered.
    Unavailable,
}
