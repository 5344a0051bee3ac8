//! Checksum error counter of a disk.
//!
//! Clients retry, and a bad node is read again for each record below it, so a count of failed reads
//! says nothing about the disk. Each bad block counts once, until it is repaired or a scrub begins.
//!
//! Invariant: the counter tracks at most [`BROKEN_BLOCKS_MAX`] bad blocks. If it tracks that many,
//! every failed read of any other block counts.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use weir_base::limits::BROKEN_BLOCKS_MAX;

/// Checksum errors of one disk.
#[derive(Debug, Default)]
pub(crate) struct ChecksumErrors {
    total: AtomicU64,
    /// Offsets on the disk of the bad blocks already counted, in bytes.
    counted: Mutex<BTreeSet<u64>>,
}

impl ChecksumErrors {
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Counts a bad block that begins at byte `at` of the disk, unless the block was counted
    /// before.
    pub(crate) fn count(&self, at: u64) {
        let mut counted = self.counted.lock();
        let has_room = counted.len() < BROKEN_BLOCKS_MAX;
        let is_new = if has_room { counted.insert(at) } else { !counted.contains(&at) };
        drop(counted);
        self.total.fetch_add(u64::from(is_new), Ordering::Relaxed);
    }

    /// Records a write to these bytes of the disk. A block that begins in them counts again if it
    /// fails its checksum again.
    pub(crate) fn forget(&self, bytes: &Range<u64>) {
        if self.total() == 0 {
            return;
        }
        let mut counted = self.counted.lock();
        while let Some(at) = counted.range(bytes.clone()).next().copied() {
            counted.remove(&at);
        }
    }

    /// Counts each bad block again when it is next read. Called when a scrub begins.
    pub(crate) fn restart_count(&self) {
        self.counted.lock().clear();
    }

    pub(crate) fn clear(&self) {
        self.restart_count();
        self.total.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_block_counts_once_until_a_repair_or_a_scrub() {
        let errors = ChecksumErrors::default();
        (0..3).for_each(|_| errors.count(4096));
        assert_eq!(errors.total(), 1);
        errors.forget(&(0..4096));
        errors.count(4096);
        assert_eq!(errors.total(), 1, "its neighbour was repaired");
        errors.forget(&(4096..8192));
        errors.count(4096);
        assert_eq!(errors.total(), 2);
        errors.restart_count();
        errors.count(4096);
        assert_eq!(errors.total(), 3);
        errors.clear();
        assert_eq!(errors.total(), 0);
    }

    #[test]
    fn blocks_beyond_the_tracked_maximum_count_each_time() {
        let errors = ChecksumErrors::default();
        let full = BROKEN_BLOCKS_MAX as u64;
        (0..=full).chain(0..=full).for_each(|block| errors.count(block * 512));
        assert_eq!(errors.total(), full + 2);
    }
}
