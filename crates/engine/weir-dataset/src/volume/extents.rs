//! Data and hole extents of a volume, for NBD block status and similar queries.
//!
//! The protocol crates translate the extents to protocol flags.
//!
//! Invariants: extents are in order and adjacent; the first starts at the requested offset; a hole
//! reads as zeros; an answer may end early but has at least one extent. A damaged range is never
//! reported as a hole.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::BLOCK_BYTES;
use weir_format::BlockPtr;
use weir_pool::Tree;

use crate::error::DatasetError;
use crate::objects::range_set::RangeSet;
use crate::state::volume::Volume;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Maximum number of records and damaged ranges that one call visits. For a longer range the result
/// ends early.
const BLOCKS_MAX: usize = 1 << 18;

/// Range of data, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// True if the range is a hole.
    pub hole: bool,
}

impl Volume {
    /// Returns the byte ranges that are unreadable because a node of the committed tree above them
    /// is lost: the first `max` ranges, ascending.
    ///
    /// # Errors
    /// Disks are missing; the pool is suspended.
    #[boxed(?Send)]
    pub async fn unreadable(&self, max: usize) -> Result<Vec<Range<u64>>, DatasetError> {
        let (root, size, end) = {
            let state = self.state.lock();
            (state.record.root, state.record.record_size, state.record.size_bytes)
        };
        let mut lost = RangeSet::default();
        let mut damaged = |records: Range<u64>| {
            lost.insert(size.blocks_of(&records));
            lost.len() < max
        };
        Tree::new(&self.core.pool, root)
            .scan_past_damage(0..size.records_in(end), &mut damaged, &mut |_, _| true)
            .await?;
        let bytes = |range: Range<u64>| range.start * BLOCK..(range.end * BLOCK).min(end);
        Ok(lost.within(0..end.div_ceil(BLOCK)).map(bytes).collect())
    }

    /// Returns the extents of `offset .. offset + len`, at most `max` of them.
    #[boxed(?Send)]
    pub async fn extents(
        &self,
        offset: u64,
        len: u64,
        max: usize,
    ) -> Result<Vec<Extent>, DatasetError> {
        let first = offset / BLOCK;
        let mut end = (offset + len).div_ceil(BLOCK);
        // Copy the dirty ranges and the root under one lock, before the tree is read.
        let (root, size, overlay) = {
            let state = self.state.lock();
            self.check(&state, offset, len)?;
            let mut overlay = Vec::new();
            for table in state.object.syncing.as_deref().into_iter().chain([&state.object.open]) {
                let holes: Vec<_> = table.holes_within(first..end).collect();
                overlay.push((holes, table.data_within(&(first..end))));
            }
            (state.record.root, state.record.record_size, overlay)
        };
        let mut data = RangeSet::default();
        let mut seen = 0;
        let mut stopped_at = None;
        let mut insert = |records: Range<u64>| {
            let blocks = size.blocks_of(&records);
            seen += 1;
            // Each data range yields two extents: the range, and the hole before it.
            if seen > BLOCKS_MAX || data.len() * 2 > max + 2 {
                stopped_at = Some(blocks.start);
                return false;
            }
            data.insert(blocks);
            true
        };
        let insert = std::cell::RefCell::new(&mut insert);
        let mut met_damage = false;
        let mut damaged = |records: Range<u64>| {
            met_damage = true;
            (insert.borrow_mut())(records)
        };
        let mut found = |record: u64, _: BlockPtr| (insert.borrow_mut())(record..record + 1);
        Tree::new(&self.core.pool, root)
            .scan_past_damage(size.touched(&(first..end)), &mut damaged, &mut found)
            .await?;
        if met_damage {
            self.note_unreadable(first..end, true).await;
        }
        end = stopped_at.unwrap_or(end).max(first + 1);
        for (holes, blocks) in overlay {
            holes.into_iter().for_each(|hole| data.remove(hole));
            blocks.into_iter().for_each(|block| data.insert(block..block + 1));
        }
        Ok(to_extents(&data, offset..(end * BLOCK).min(offset + len), max))
    }
}

fn to_extents(data: &RangeSet, bytes: Range<u64>, max: usize) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut at = bytes.start;
    let blocks = bytes.start / BLOCK..bytes.end.div_ceil(BLOCK);
    for range in data.within(blocks) {
        let (start, end) = ((range.start * BLOCK).max(at), (range.end * BLOCK).min(bytes.end));
        if start > at {
            extents.push(Extent { len: start - at, hole: true });
        }
        extents.push(Extent { len: end - start, hole: false });
        at = end;
    }
    if at < bytes.end {
        extents.push(Extent { len: bytes.end - at, hole: true });
    }
    extents.truncate(max.max(1));
    extents
}
