//! Memory of the log queues: each queue adds its bytes to the total of the pool.
//!
//! The budget of dirty data does not cover this memory. If a client overwrites a block several
//! times in one txg, the dirty table has the last version, but the log queue has all versions.
//!
//! Invariants:
//! - the total is the sum of all queues of the pool;
//! - a queue is within its bound if the unused rest of the total is at least as large as the queue.
//!   So a single queue gets half of the total, two queues a third each, and small queues keep their
//!   changes while large queues are dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Queued bytes of all datasets of a pool.
pub(crate) struct LogTotal {
    bytes: AtomicU64,
    max: AtomicU64,
}

impl LogTotal {
    pub(crate) fn new(max: u64) -> Self {
        Self { bytes: AtomicU64::new(0), max: AtomicU64::new(max) }
    }

    /// Sets the maximum. A queue that exceeds its new bound is dropped with its next change.
    pub(crate) fn set_max(&self, bytes: u64) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Bytes of one queue. Dropping this value subtracts the bytes from the total.
pub(crate) struct LogBytes {
    total: Arc<LogTotal>,
    bytes: u64,
}

impl LogBytes {
    pub(crate) fn new(total: &Arc<LogTotal>) -> Self {
        Self { total: Arc::clone(total), bytes: 0 }
    }

    pub(crate) fn get(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.total.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&mut self, bytes: u64) {
        self.bytes = self.bytes.checked_sub(bytes).expect("bytes leave a queue that has them");
        self.total.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn clear(&mut self) {
        self.sub(self.bytes);
    }

    /// True if the queue is within its bound.
    pub(crate) fn fits(&self, max: u64) -> bool {
        self.bytes <= self.bound(max)
    }

    /// Maximum of the bytes of this queue at present: `max`, or the free rest of the total if that
    /// is smaller.
    pub(crate) fn bound(&self, max: u64) -> u64 {
        let total = self.total.bytes.load(Ordering::Relaxed);
        self.total.max.load(Ordering::Relaxed).saturating_sub(total).min(max)
    }
}

impl Drop for LogBytes {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_queues_reach_their_bound_before_small_ones() {
        let total = Arc::new(LogTotal::new(1_000));
        let mut large = LogBytes::new(&total);
        large.add(500);
        assert_eq!(large.bound(10_000), 500, "a single queue gets half");
        let mut small = LogBytes::new(&total);
        small.add(10);
        assert!(!large.fits(10_000));
        assert!(small.fits(10_000) && small.get() < small.bound(10_000));
        assert_eq!(small.bound(100), 100, "the own limit of the queue");
        drop(large);
        assert_eq!(total.bytes(), 10);
        small.clear();
        assert_eq!(total.bytes(), 0);
    }
}
