//! Verification of the reads of a worker while the load runs.
//!
//! `verify` in the crate's root verifies blocks after a run.
//!
//! Invariant: a read whose blocks have unknown contents is never counted as checked.

use super::super::generations::Expected;
use super::super::{Ground, ReadChecks};
use super::{UnderWay, Worker};
use crate::content::Mismatch;

impl Worker<'_> {
    /// Verifies the data of a read, as far as `read_checks` specifies.
    #[inline]
    pub(super) fn look_at(&mut self, slot: usize, work: &UnderWay) {
        let len = work.choice.len_bytes as usize;
        let coverage = &mut self.tally.coverage;
        coverage.reads += 1;
        coverage.bytes += len as u64;
        let block_bytes = self.ground.content.block_bytes();
        let checked_bytes = self.checked_bytes(work.choice.len_bytes, work.compare);
        let zeros = self.tally.zero_reads;
        let mut is_checked = false;
        for start in (0..checked_bytes).step_by(block_bytes) {
            is_checked |= self.look_at_block(slot, work, start);
        }
        self.tally.coverage.checked_reads += u64::from(is_checked);
        // Count a read that returned zeros only once, however many of its blocks are zeros.
        self.tally.zero_reads = self.tally.zero_reads.min(zeros + 1);
    }

    /// Number of bytes at the start of a read whose blocks are checked; all bytes of the read if
    /// `compare` is set.
    #[inline]
    pub(super) fn checked_bytes(&self, len_bytes: u32, compare: bool) -> usize {
        match self.read_checks {
            ReadChecks::Off => 0,
            ReadChecks::Stamps if !compare => self.scratch.len().min(len_bytes as usize),
            ReadChecks::Stamps | ReadChecks::Full => len_bytes as usize,
        }
    }

    /// Verifies the block that starts at byte `start` of a read. Returns false if the expected
    /// contents of the block are not known.
    fn look_at_block(&mut self, slot: usize, work: &UnderWay, start: usize) -> bool {
        let Ground { content, generations, .. } = *self.ground;
        let (offset, block_bytes) = (work.choice.offset + start as u64, content.block_bytes());
        let oldest = self.oldest[slot].get(start / block_bytes).copied().unwrap_or_default();
        let wanted = match generations.map(|known| known.expected(offset, oldest)) {
            Some(Expected::Unjudged) => return false,
            Some(Expected::Within(wanted)) => Some(wanted),
            Some(Expected::Any) | None => None,
        };
        let buffer = &self.lane.buffer(slot)[..work.choice.len_bytes as usize];
        let block = &buffer[start..(start + block_bytes).min(buffer.len())];
        let found = if work.compare {
            self.tally.coverage.compared_bytes += block.len() as u64;
            content.check(block, offset, wanted, &mut self.scratch)
        } else {
            content.check_stamp(block, offset, wanted).map(drop)
        };
        match found {
            Ok(()) => {}
            Err(Mismatch::Zeros) => self.tally.zero_reads += 1,
            Err(Mismatch::OtherRun) => self.tally.other_run += 1,
            Err(_) => self.tally.corrupt += 1,
        }
        true
    }
}
