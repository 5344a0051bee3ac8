//! What disks did and how long it took; what clients asked for.
//!
//! Not here: rates, which take two looks (`weir pool iostat`).
//!
//! Invariant: counts only grow until the pool is opened anew.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One kind of operation of a disk since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OpIo {
    /// Operations completed, failed ones included.
    pub count: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Sum of their times.
    pub total_us: u64,
    /// Mean time of late, newer operations weighing more.
    pub recent_us: u64,
    /// Half of them took no longer, within 6 %.
    pub p50_us: u64,
    /// 99 of 100 took no longer, within 6 %.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// What one disk did since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DiskIo {
    /// Reads.
    pub read: OpIo,
    /// Writes into the disk's cache.
    pub write: OpIo,
    /// Writes that were durable when they returned.
    pub sync_write: OpIo,
    /// Flushes of the disk's cache.
    pub flush: OpIo,
    /// Operations under way.
    pub in_flight: u64,
    /// For how long none was completed, though some are under way.
    pub silent_ms: Option<u64>,
    /// Reads for which another disk was asked too, because this one took too long.
    pub bypassed: u64,
}

/// What clients asked of a pool's volumes since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClientIo {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes; TRIM and zeroing do not count.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}
