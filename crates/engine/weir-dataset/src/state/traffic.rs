//! Counters of client requests to the volumes of a pool.
//!
//! Disk I/O counters are in weir-device.
//!
//! Invariant: a protocol server counts each request once, when it completes successfully.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use weir_device::RecentTimes;

/// One of this many reads and writes is timed, so that the clock costs little for each request.
const SAMPLED: u64 = 16;

/// Client requests since the pool was imported.
#[derive(Debug, Default)]
pub struct Traffic {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    /// Times of a sample of the requests, in the order of [`Kind`].
    times: [RecentTimes; 3],
    start: Start,
}

/// Time at which the counters were created. The times of requests are relative to this time.
#[derive(Debug)]
struct Start(Instant);

impl Default for Start {
    fn default() -> Self {
        Self(Instant::now())
    }
}

/// Kind of a client request.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
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
    /// 99th percentile of the time of recent requests, in the order of [`Kind`]; `None` without a
    /// recent request.
    pub p99_us: [Option<u64>; 3],
}

impl Traffic {
    /// Returns the time if this request is timed: each flush, and one of 16 reads and writes.
    pub fn begin(&self, kind: Kind) -> Option<Instant> {
        let counter = match kind {
            Kind::Read => &self.reads,
            Kind::Write => &self.writes,
            Kind::Flush => return Some(Instant::now()),
        };
        (counter.load(Ordering::Relaxed) % SAMPLED == 0).then(Instant::now)
    }

    /// Records the time of a request that is in the sample.
    pub fn end(&self, kind: Kind, begun: Option<Instant>) {
        let Some(begun) = begun else { return };
        let took = begun.elapsed();
        let now = begun.saturating_duration_since(self.start.0) + took;
        self.times[kind as usize].record(now.as_micros() as u64, took.as_micros() as u64);
    }

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
        let now_us = self.start.0.elapsed().as_micros() as u64;
        TrafficCounts {
            reads: now(&self.reads),
            read_bytes: now(&self.read_bytes),
            writes: now(&self.writes),
            written_bytes: now(&self.written_bytes),
            flushes: now(&self.flushes),
            p99_us: self.times.each_ref().map(|times| times.p99_us(now_us)),
        }
    }
}
