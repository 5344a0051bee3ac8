//! Bytes written to and read from segments, and the state of the cleaner.
//!
//! The free space of a pool is in `pool`; `weir pool iostat` computes rates from two calls.
//!
//! Invariant: counters never decrease until the next import of the pool.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Bytes written to segments since the pool was opened. Counts each byte once, whatever the
/// redundancy. Includes padding, but neither parity nor the intent log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentIo {
    /// Blocks of volumes, as stored.
    pub data_bytes: u64,
    /// Tree nodes of volumes.
    pub node_bytes: u64,
    /// Segment table, dataset directory, remap tables, bootstrap table.
    pub root_bytes: u64,
    /// Blocks that the cleaner moved.
    pub cleaner_bytes: u64,
}

/// Bytes read from disks to follow pointers since the pool was opened, including gaps between
/// neighbouring blocks. Scrubs, resilvers and reads of segment tables are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PointerIo {
    /// Blocks of volumes, as stored.
    pub data_bytes: u64,
    /// Tree nodes, as stored.
    pub node_bytes: u64,
}

/// State of the cleaner, which reclaims the space of overwritten and trimmed blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CleanerStatus {
    /// True if the cleaner cleaned any segment in the last `lately_ms`.
    pub working: bool,
    /// Length of the recent period; at most ten seconds.
    pub lately_ms: u64,
    /// Number of segments cleaned in the recent period.
    pub lately_segments: u64,
    /// Bytes of the blocks that the cleaner moved in the recent period. Counts each byte once,
    /// whatever the redundancy.
    pub lately_moved_bytes: u64,
    /// Number of segments cleaned since the pool was opened.
    pub cleaned_segments: u64,
    /// Bytes of the blocks that the cleaner moved since the pool was opened. Counts each byte once,
    /// whatever the redundancy.
    pub moved_bytes: u64,
    /// Number of segments that can be written now.
    pub free_segments: u64,
    /// Number of dead and cleaned segments that become free within a few transaction groups.
    pub pending_segments: u64,
    /// Number of all segments of the pool.
    pub segments: u64,
    /// Number of free and pending segments below which the cleaner cleans mostly dead segments.
    pub clean_below_segments: u64,
    /// Value of `clean_below_segments` that applies while clients are idle.
    pub clean_idle_below_segments: u64,
    /// Number of free and pending segments below which the cleaner cleans every segment that yields
    /// space. The pool's capacity for live data excludes this many segments; client writes may
    /// still use them, down to `writers_wait_segments`.
    pub reserve_segments: u64,
    /// Number of free segments at or below which writes wait for the cleaner.
    pub writers_wait_segments: u64,
    /// RAM of the remap tables, which point to moved blocks.
    pub remap_bytes: u64,
}
