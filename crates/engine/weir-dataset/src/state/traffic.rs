//! Counters of client requests to the volumes of a pool.
//!
//! Disk I/O counters are in weir-device.
//!
//! Invariant: a protocol server counts each request once, when it completes successfully.

use std::sync::atomic::{AtomicU64, Ordering};

/// Client requests since the pool was imported.
#[derive(Debug, Default)]
pub struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

/// Snapshot of the counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes. TRIM and zeroing carry no data and are not counted.
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

    /// Reads the counters.
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
