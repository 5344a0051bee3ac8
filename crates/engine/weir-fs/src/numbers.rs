//! Allocation of inode numbers.
//!
//! A bitmap object has a bit for each number in use. Inodes of one directory get numbers near each
//! other, so that listing a directory with attributes reads few blocks.
//!
//! Invariant: a number that became unused in a txg is not used again in the same txg, so that
//! number and creation txg name an inode for ever.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet, VecDeque};

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize, Txg};
use weir_format::{OBJECTS_MAX, TreeRoot};

use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::layout::{BITMAP, FIRST, NUMBERS_PER_BLOCK, mark_number};

/// Numbers in a run: a directory takes whole runs, and a block of slots belongs to one run.
const RUN: u64 = 64;

/// State of the allocation. Its lock is held until the engine has the change of the bitmap.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Blocks of the bitmap that were read.
    blocks: BTreeMap<u64, Box<[u8; BLOCK_BYTES]>>,
    /// First number of the newest run.
    newest_run: u64,
    /// Number of used numbers, once it was counted.
    used: Option<u64>,
    /// Numbers that became unused, each with the first txg in which it may be used again.
    freed: VecDeque<(Txg, ObjectId)>,
    /// The numbers in `freed`.
    resting: HashSet<ObjectId>,
}

impl Numbers {
    async fn load(
        &mut self,
        index: u64,
        reads: Reads<'_>,
    ) -> Result<&mut [u8; BLOCK_BYTES], FsError> {
        match self.blocks.entry(index) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let read = reads.record(BITMAP, RecordSize::BLOCK, index).await?;
                let block = match read.as_deref() {
                    Some([block]) => Box::new(**block),
                    _ => Box::new([0; BLOCK_BYTES]),
                };
                Ok(place.insert(block))
            }
        }
    }

    /// Forgets the numbers that may be used again from this txg on.
    fn end_rests(&mut self, now: Txg) {
        while let Some((from, number)) = self.freed.front().copied()
            && from <= now
        {
            self.freed.pop_front();
            self.resting.remove(&number);
        }
    }

    /// Finds an unused number. `now`: the open txg, read under the lock. `hint`: preferred number;
    /// 0 for the first number of an unused run.
    pub(crate) async fn find(
        &mut self,
        hint: u64,
        now: Txg,
        reads: Reads<'_>,
    ) -> Result<ObjectId, FsError> {
        self.end_rests(now);
        if hint > 0 {
            let run_end = (hint / RUN + 1) * RUN;
            if let Some(number) = self.find_in(hint..run_end, false, reads).await? {
                return Ok(number);
            }
        }
        // Without a free number near the hint, use the first run without a used number.
        let start = self.newest_run.max(RUN);
        for from in [start, RUN] {
            if let Some(number) = self.find_in(from..OBJECTS_MAX, true, reads).await? {
                self.newest_run = number.0;
                return Ok(number);
            }
        }
        let any = self.find_in(FIRST.0..OBJECTS_MAX, false, reads).await?;
        any.ok_or(FsError::Full("all inode numbers are used"))
    }

    /// Finds an unused number in a range. `whole_run`: only the first number of an unused run.
    async fn find_in(
        &mut self,
        range: std::ops::Range<u64>,
        whole_run: bool,
        reads: Reads<'_>,
    ) -> Result<Option<ObjectId>, FsError> {
        let mut number = range.start;
        while number < range.end {
            let index = number / NUMBERS_PER_BLOCK;
            let block_start = index * NUMBERS_PER_BLOCK;
            let block = self.load(index, reads).await?;
            let word = ((number - block_start) / RUN) as usize;
            let bytes = block.get(word * 8..word * 8 + 8).and_then(|bytes| bytes.try_into().ok());
            let used = u64::from_le_bytes(bytes.expect("a word of the block"));
            let run = block_start + word as u64 * RUN;
            let mut free = !used & (u64::MAX << (number - run));
            if whole_run && used != 0 {
                free = 0;
            }
            for bit in (0..RUN).filter(|bit| free >> bit & 1 == 1) {
                let found = ObjectId(run + bit);
                if !self.resting.contains(&found) && found.0 < range.end {
                    return Ok(Some(found));
                }
            }
            number = run + RUN;
        }
        Ok(None)
    }

    /// Records changes of the bitmap that the engine has: numbers that became used (true) or
    /// unused. `now`: the open txg.
    pub(crate) fn note(&mut self, changes: &[(ObjectId, bool)], now: Txg) {
        self.end_rests(now);
        // The txg in which a number became unused is committed by then. Otherwise a crash could
        // lose the change that freed an object of attributes, and keep a later change of names
        // that uses the number.
        let reusable_from = now.next().next();
        for (number, is_used) in changes.iter().copied() {
            if let Some(block) = self.blocks.get_mut(&(number.0 / NUMBERS_PER_BLOCK)) {
                mark_number(block, number, is_used);
            }
            if let Some(used) = &mut self.used {
                *used = used.saturating_add_signed(if is_used { 1 } else { -1 });
            }
            if !is_used {
                self.freed.push_back((reusable_from, number));
                self.resting.insert(number);
            }
        }
    }

    /// Number of used numbers, including internal objects. The first call reads the whole bitmap.
    pub(crate) async fn count(&mut self, reads: Reads<'_>) -> Result<u64, FsError> {
        if let Some(used) = self.used {
            return Ok(used);
        }
        let (mut used, mut next) = (0, Some(0));
        while let Some(start) = next {
            let size = RecordSize::BLOCK;
            let part = reads.data_records(BITMAP, size, start..TreeRoot::BLOCKS_MAX).await?;
            for index in part.records {
                let block = reads.record(BITMAP, size, index).await?;
                let bytes = block.iter().flatten().flat_map(|block| block.iter());
                used += bytes.map(|byte| u64::from(byte.count_ones())).sum::<u64>();
            }
            next = part.next;
        }
        self.used = Some(used);
        Ok(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_committed_removals_leave_the_memory() {
        let mut numbers = Numbers::default();
        for number in 0..1000 {
            numbers.note(&[(ObjectId(FIRST.0 + number), false)], Txg(5 + number / 100));
        }
        assert_eq!(numbers.resting.len(), 200, "the removals of the last two txgs");
        assert_eq!(numbers.freed.len(), numbers.resting.len());
    }
}
