//! Writes, zeroes and TRIM that may have to wait, at any alignment.
//!
//! `state::volume` has the calls that never wait; `records` loads partly covered records.
//!
//! A change joins the open txg and the log queue without a release of the volume's lock in between,
//! so it is in one txg and in one log batch: a crash leaves all of the change or nothing.
//!
//! Invariants:
//! - a write of up to [`ATOMIC_WRITE_BYTES_MAX`] is one change, at any alignment;
//! - a longer write is split at record boundaries into such changes, in address order;
//! - a zero or TRIM is one change, at any length.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;
use weir_base::{BLOCK_BYTES, RecordSize};
use weir_block::{Block, BlockMut};
use weir_pool::PlantedBug;

use crate::error::DatasetError;
use crate::objects::dirty::Dirty;
use crate::objects::log_queue::Payload;
use crate::objects::record::PartialChange;
use crate::state::volume::{State, Volume};
use crate::volume::records::Change;

const BLOCK: u64 = BLOCK_BYTES as u64;

const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// Byte range split into a partial block, whole blocks, and a partial block. Each part may be
/// empty. A range within one block is `head`.
struct Parts {
    head: Range<u64>,
    body: Range<u64>,
    tail: Range<u64>,
}

impl Parts {
    fn of(offset: u64, len: u64) -> Self {
        let end = offset + len;
        let start = offset.next_multiple_of(BLOCK).min(end);
        let stop = (end - end % BLOCK).max(start);
        Self { head: offset..start, body: start..stop, tail: stop..end }
    }
}

impl Volume {
    /// Writes bytes at any alignment. Waits while too much data is dirty.
    ///
    /// # Durability
    /// None until a flush. A crash leaves all or nothing of a write of up to
    /// [`ATOMIC_WRITE_BYTES_MAX`]. A longer write is split into parts of at most this length, and a
    /// crash leaves the first parts, or none.
    ///
    /// # Errors
    /// `Full` if the pool has no space. Parts of a write longer than [`ATOMIC_WRITE_BYTES_MAX`] may
    /// then be applied, as after a failed write to a disk.
    #[boxed(?Send)]
    pub async fn write(&self, offset: u64, data: &[u8]) -> Result<(), DatasetError> {
        {
            let state = self.state.lock();
            self.check_change(&state, offset, data.len() as u64)?;
        }
        let (mut at, mut left) = (offset, data);
        while !left.is_empty() {
            let (now, later) = left.split_at(self.together(at, left.len() as u64) as usize);
            if !self.try_write(at, now)? {
                let Parts { head, body, .. } = Parts::of(at, now.len() as u64);
                let (head, rest) = now.split_at((head.end - head.start) as usize);
                let (body, tail) = rest.split_at((body.end - body.start) as usize);
                let body = Block::copies_of(body.as_chunks().0);
                self.write_parts(at, head, body, tail).await?;
            }
            (at, left) = (at + now.len() as u64, later);
        }
        Ok(())
    }

    /// As [`Self::write`], for whole blocks, which are not copied.
    #[boxed(?Send)]
    pub async fn write_blocks(
        &self,
        offset: u64,
        mut blocks: Vec<Block>,
    ) -> Result<(), DatasetError> {
        let mut at = offset;
        while !blocks.is_empty() {
            let len = self.together(at, blocks.len() as u64 * BLOCK);
            let rest = blocks.split_off((len / BLOCK) as usize);
            if !self.try_write_blocks(at, &mut blocks)? {
                self.write_parts(at, &[], blocks, &[]).await?;
            }
            (at, blocks) = (at + len, rest);
        }
        Ok(())
    }

    /// As [`Self::write`], with copies of one block as data. Each byte keeps its offset within the
    /// block.
    pub(crate) async fn fill(
        &self,
        offset: u64,
        len: u64,
        block: &Block,
    ) -> Result<(), DatasetError> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let now = self.together(at, end - at);
            let Parts { head, body, tail } = Parts::of(at, now);
            let place = |at: u64| (at % BLOCK) as usize;
            let head_bytes = &block[place(head.start)..][..(head.end - head.start) as usize];
            let tail_bytes = &block[..(tail.end - tail.start) as usize];
            let count = (body.end - body.start) / BLOCK;
            let mut blocks = vec![Block::clone(block); count as usize];
            let is_whole = head_bytes.is_empty() && tail_bytes.is_empty();
            if !is_whole || !self.try_write_blocks(at, &mut blocks)? {
                self.write_parts(at, head_bytes, blocks, tail_bytes).await?;
            }
            at += now;
        }
        Ok(())
    }

    /// Number of leading bytes of a write that form one change. If the write is too long, the
    /// change ends at the last record boundary that fits, because a split record would be written
    /// twice.
    fn together(&self, offset: u64, len: u64) -> u64 {
        if self.core.pool.bug() == PlantedBug::WritesCut && !offset.is_multiple_of(BLOCK) {
            return len.min(offset.next_multiple_of(BLOCK) - offset);
        }
        together(self.record_size(), offset, len)
    }

    /// Makes one change of whole blocks and the partial blocks before and after them. Loads the
    /// rest of the partial blocks into the open txg. If a block clone is about to replace these
    /// blocks, waits for the clone.
    async fn write_parts(
        &self,
        offset: u64,
        head: &[u8],
        body: Vec<Block>,
        tail: &[u8],
    ) -> Result<(), DatasetError> {
        let body_at = offset + head.len() as u64;
        let tail_at = body_at + body.len() as u64 * BLOCK;
        let len = tail_at + tail.len() as u64 - offset;
        let change = Change::of_bytes(self.record_size(), offset, len, PartialChange::Write);
        let apply = |state: &mut State| {
            let merged = |at: u64, part: &[u8]| {
                let whole = || merge(state, at, part).expect("the record was loaded as data");
                (!part.is_empty()).then(whole)
            };
            let (head, tail) = (merged(offset, head), merged(tail_at, tail));
            let is_whole = head.is_none() && tail.is_none();
            let mut blocks: Vec<Block> =
                if is_whole { body } else { head.into_iter().chain(body).chain(tail).collect() };
            let payload = match blocks.len() {
                1 => Payload::One(blocks.remove(0)),
                _ => Payload::Many(blocks),
            };
            self.insert(state, offset - offset % BLOCK, payload);
        };
        Box::pin(self.change(&change, apply)).await
    }

    /// Makes a range read as zeros and frees its space (TRIM and WRITE ZEROES alike).
    ///
    /// # Durability
    /// None until a flush. A crash leaves all of the change or nothing.
    ///
    /// # Errors
    /// `Full` if not even the reserve has space for the changed nodes.
    #[boxed(?Send)]
    pub async fn zero(&self, offset: u64, len: u64) -> Result<(), DatasetError> {
        {
            let state = self.state.lock();
            self.check_change(&state, offset, len)?;
        }
        if len == 0 || self.try_zero(offset, len)? {
            return Ok(());
        }
        let change = Change::of_bytes(self.record_size(), offset, len, PartialChange::Zero);
        Box::pin(self.change(&change, |state| self.insert_zeros(state, offset, len))).await
    }

    /// Puts zeros at any alignment into the open txg, as one change.
    fn insert_zeros(&self, state: &mut State, offset: u64, len: u64) {
        let Parts { head, body, tail } = Parts::of(offset, len);
        // A block that is a hole needs no change.
        let part = |part: Range<u64>| {
            let zeros = &ZEROS[..(part.end - part.start) as usize];
            let merged = if zeros.is_empty() { None } else { merge(state, part.start, zeros) };
            merged.map(|block| (part.start - part.start % BLOCK, Payload::One(block)))
        };
        let (head, tail) = (part(head), part(tail));
        let body = (!body.is_empty())
            .then(|| (body.start, Payload::Zero { bytes: body.end - body.start }));
        let parts: Vec<_> = [head, body, tail].into_iter().flatten().collect();
        if !parts.is_empty() {
            self.insert_all(state, parts);
        }
    }
}

/// Returns the block at `offset` in the open txg, with `part` copied over its bytes there. `None`:
/// the open txg makes the block a hole.
fn merge(state: &State, offset: u64, part: &[u8]) -> Option<Block> {
    let (block, at) = (offset / BLOCK, (offset % BLOCK) as usize);
    match state.object.open.get(block) {
        Some(Dirty::Data(old)) => {
            let mut new = BlockMut::copy_of(&old);
            new[at..at + part.len()].copy_from_slice(part);
            Some(new.freeze())
        }
        Some(Dirty::Hole) => None,
        None => unreachable!("the rest of block {block} was loaded before"),
    }
}

/// Number of bytes that one change covers; see [`Volume::together`].
fn together(size: RecordSize, offset: u64, len: u64) -> u64 {
    if len <= ATOMIC_WRITE_BYTES_MAX {
        return len;
    }
    let most = offset + ATOMIC_WRITE_BYTES_MAX;
    most - most % size.bytes() as u64 - offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_write_is_split_at_record_boundaries() {
        const MIB: u64 = 1 << 20;
        for size in RecordSize::all() {
            let record = size.bytes() as u64;
            for (offset, len) in [(0, 5 * MIB), (512, 5 * MIB), (MIB - 512, 2 * MIB + 1024)] {
                let (mut at, mut left, mut cuts) = (offset, len, Vec::new());
                while left > 0 {
                    let now = together(size, at, left);
                    assert!((1..=ATOMIC_WRITE_BYTES_MAX).contains(&now), "{size} {offset} {now}");
                    (at, left) = (at + now, left - now);
                    cuts.push(at);
                }
                assert_eq!(cuts.pop(), Some(offset + len));
                assert!(cuts.iter().all(|cut| cut.is_multiple_of(record)), "{size} {cuts:?}");
            }
            assert_eq!(together(size, 512, MIB), MIB, "what may be one change is not cut");
        }
    }

    #[test]
    fn range_splits_into_partial_whole_and_partial_blocks() {
        let parts = |offset, len| {
            let Parts { head, body, tail } = Parts::of(offset, len);
            [head, body, tail]
        };
        assert_eq!(parts(0, 4096), [0..0, 0..4096, 4096..4096]);
        assert_eq!(parts(512, 512), [512..1024, 1024..1024, 1024..1024]);
        assert_eq!(parts(512, 8192), [512..4096, 4096..8192, 8192..8704]);
        assert_eq!(parts(3584, 1024), [3584..4096, 4096..4096, 4096..4608]);
        assert_eq!(parts(4096, 512), [4096..4096, 4096..4096, 4096..4608]);
    }
}
