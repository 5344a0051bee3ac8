//! Every limit of a queue, buffer or name, with its reason.
//!
//! Not here: limits an on-disk format or a protocol fixes (weir-format, the protocol crates).
//!
//! Invariant: a constant carries its unit in its name and its why beside it.

use std::time::Duration;

/// Largest volume: 16 TiB, what five tree levels of 128 hold at 4 KiB blocks with room to spare.
pub const VOLUME_BYTES_MAX: u64 = 16 << 40;

/// Longest pool or volume name component; fits NBD's 4 KiB export name many times over and every
/// file system's 255-byte name limit.
pub const NAME_BYTES_MAX: usize = 200;

/// A flush with more than this queued in one volume commits the txg instead of logging: the data
/// would be written twice for no gain (design 3.2).
pub const LOG_QUEUED_BYTES_MAX: u64 = 16 << 20;

/// Largest single intent log batch; keeps one flush from holding the log for long.
pub const LOG_BATCH_BYTES_MAX: usize = 4 << 20;

/// A dirty block waits at most this long before its txg is committed (design 3).
pub const TXG_INTERVAL: Duration = Duration::from_secs(5);

/// One device write of a stream: large enough that per-I/O cost vanishes, small enough to overlap.
pub const STREAM_WRITE_BYTES: usize = 1 << 20;

/// Stream writes in flight per txg write-out; bounds buffers to 16 MiB.
pub const STREAM_WRITES_IN_FLIGHT: usize = 16;

/// Tree nodes read at the same time by one write-out or range read.
pub const NODE_READS_IN_FLIGHT: usize = 64;

/// Commits after which a freed physical segment may be written again, so that the last three
/// uberblocks stay usable (design 1.5, invariant I3).
pub const REUSE_AFTER_TXGS: u64 = 3;

/// Smallest `--memory`: fixed buffers and one busy connection fit beside useful caches.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Holes one open txg keeps as ranges before it is committed early; bounds their tree in RAM.
pub const HOLE_RANGES_MAX: usize = 65_536;
