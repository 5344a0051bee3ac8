//! I/O counters and latencies of disks, and I/O counters of clients.
//!
//! `weir pool iostat` computes rates from the counters of two calls.
//!
//! Invariant: counters never decrease until the next import of the pool.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters and latencies of one kind of disk operation, since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpIo {
    /// Number of completed operations, including failed ones.
    pub count: u64,
    /// Bytes read or written by these operations.
    pub bytes: u64,
    /// Number of operations that failed.
    pub errors: u64,
    /// Sum of the latencies of all operations.
    pub total_us: u64,
    /// Mean latency of recent operations; newer operations have more weight.
    pub recent_us: u64,
    /// Median latency, within 6 %.
    pub p50_us: u64,
    /// 99th percentile of the latency, within 6 %.
    pub p99_us: u64,
    /// 99th percentile of the latency in the last 30 to 60 s, within 6 %; absent without an
    /// operation in that time.
    #[serde(default)]
    pub recent_p99_us: Option<u64>,
    /// Maximum latency.
    pub max_us: u64,
}

/// I/O of one disk since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskIo {
    /// Counters and latencies of reads.
    pub read: OpIo,
    /// Counters and latencies of writes into the disk's cache.
    pub write: OpIo,
    /// Counters and latencies of writes that were durable when they returned.
    pub sync_write: OpIo,
    /// Counters and latencies of flushes of the disk's cache.
    pub flush: OpIo,
    /// Number of operations in flight.
    pub in_flight: u64,
    /// Time since the disk last completed an operation; absent unless operations are in flight.
    pub silent_ms: Option<u64>,
    /// Number of reads that completed without this disk, because it was slow.
    pub bypassed: u64,
}

/// I/O of clients on the volumes of a pool since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientIo {
    /// Number of reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Number of writes, without TRIM and zeroing.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Number of flushes.
    pub flushes: u64,
    /// 99th percentile of the time that the server took for reads in the last 30 to 60 s, from a
    /// sample of the requests, within 6 %; absent without a request.
    #[serde(default)]
    pub read_p99_us: Option<u64>,
    /// Same as `read_p99_us`, for writes.
    #[serde(default)]
    pub write_p99_us: Option<u64>,
    /// Same as `read_p99_us`, for flushes.
    #[serde(default)]
    pub flush_p99_us: Option<u64>,
}
