//! Where written bytes go and how the cleaner brings space back.
//!
//! Not here: how full the pool is (`pool`), rates between two looks (`weir pool iostat`).
//!
//! Invariant: counts only grow until the pool is opened anew.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Bytes written to segments since the pool was opened: one copy, without parity, with padding. The
/// intent log is not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SegmentIo {
    /// Blocks of volumes, as stored.
    pub data_bytes: u64,
    /// Tree nodes of volumes.
    pub node_bytes: u64,
    /// Segment table, dataset directory, remap tables, bootstrap table.
    pub root_bytes: u64,
    /// What the cleaner moved.
    pub cleaner_bytes: u64,
}

/// Bytes read from disks since the pool was opened to follow pointers, with what lay between
/// neighbours. What scrubs, resilvers and tables of segments read is not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PointerIo {
    /// Blocks of volumes, as stored.
    pub data_bytes: u64,
    /// Tree nodes, as stored.
    pub node_bytes: u64,
}

/// How the cleaner brings back the space of overwritten and trimmed blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CleanerStatus {
    /// Whether it cleaned anything lately.
    pub working: bool,
    /// What lately is; at most ten seconds.
    pub lately_ms: u64,
    /// Segments it cleaned lately.
    pub lately_segments: u64,
    /// Bytes of the blocks it moved out of them, one copy.
    pub lately_moved_bytes: u64,
    /// Segments it cleaned since the pool was opened.
    pub cleaned_segments: u64,
    /// Bytes of the blocks it moved out of them, one copy.
    pub moved_bytes: u64,
    /// Segments that can be written now.
    pub free_segments: u64,
    /// Dead and cleaned ones that come back within a few transaction groups.
    pub pending_segments: u64,
    /// All segments.
    pub segments: u64,
    /// With fewer free and pending segments than this it cleans mostly dead ones.
    pub clean_below_segments: u64,
    /// As `clean_below_segments`, while clients are idle.
    pub clean_idle_below_segments: u64,
    /// With fewer than this it cleans whatever gains anything: live data never takes these.
    pub reserve_segments: u64,
    /// With no more free segments than this, writes wait for it.
    pub writers_wait_segments: u64,
    /// RAM of the tables that lead to moved blocks.
    pub remap_bytes: u64,
}
