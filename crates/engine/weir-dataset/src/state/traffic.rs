//! What clients asked of a pool's volumes, counted.
//!
//! Not here: what the disks did for it (weir-device).
//!
//! Invariant: whoever serves a protocol counts each request once, when it is answered as done.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests of clients since the pool was opened.
#[derive(Debug, Default)]
pub struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes; TRIM and zeroing carry no data and do not count.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Traffic {
    /// Counts one read.
    pub fn read(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one write.
    pub fn wrote(&self, bytes: u64) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts one flush.
    pub fn flushed(&self) {
        self.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub fn counts(&self) -> TrafficCounts {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TrafficCounts {
            reads: now(&self.reads),
            read_bytes: now(&self.read_bytes),
            writes: now(&self.writes),
            written_bytes: now(&self.written_bytes),
            flushes: now(&self.flushes),
        }
    }
}
