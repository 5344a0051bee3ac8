//! Where things are on a disk, and the sizes a pool may choose.
//!
//! Not here: the content of any structure.
//!
//! Invariants: every area starts on a 4 KiB boundary; both labels lie outside the segment area.
//!
//! ```text
//! 0          64K        128K        512K             1M           1M+log         len-1M    len
//! | config 1 | config 2 | owner, 0s | uberblock ring | intent log | segments ... | label B |
//! '-------------------- label A ---------------------'
//! ```
//! Label B has the same inner layout as label A.

/// Unit that blocks are packed at.
pub const PACK_BYTES: usize = 64;
/// Length of one label.
pub const LABEL_BYTES: u64 = 1 << 20;
/// Length of one config copy; two stand at the start of a label.
pub const CONFIG_BYTES: usize = 64 << 10;
/// Start of the owner slot inside a label.
pub const OWNER_OFFSET: u64 = 128 << 10;
/// Start of the uberblock ring inside a label.
pub const RING_OFFSET: u64 = 512 << 10;
/// Slots in the ring; txg N goes to slot N mod this.
pub const RING_SLOTS: u64 = 128;
/// Length of one slot: nothing relies on an atomic write of more than the checksum covers.
pub const SLOT_BYTES: usize = 4096;

/// Largest segment; what the pointer's 19-bit offset in 64-byte units reaches.
pub const SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// Smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// Segments a pool should have at least, so that open ones are a small part of it.
pub const SEGMENTS_WANTED: u64 = 256;
/// Default strip, the part of a row on one leg (design 1.2).
pub const STRIP_BYTES: u32 = 64 << 10;
/// Smallest strip, and the alignment of every strip: one direct I/O block.
pub const STRIP_BYTES_MIN: u32 = 4096;
/// Rows a segment should have at least: the last one of a txg is padded, and a segment must not be
/// mostly padding.
pub const ROWS_WANTED: u64 = 8;
/// Most legs of a mirror.
pub const MIRROR_LEGS_MAX: usize = 4;
/// Most legs of a raidz vdev: rows stay under 2 MiB, so that [`ROWS_WANTED`] fit into a segment,
/// and whichever legs are damaged can be found by trying.
pub const RAIDZ_LEGS_MAX: usize = 32;
/// Most disks of a pool: the uberblock has room for the state of so many.
pub const DISKS_MAX: usize = 256;
/// Smallest disk: two labels, a log and enough segments to turn over.
pub const DISK_BYTES_MIN: u64 = 64 << 20;
/// Part of a disk given to its intent log region, as a divisor.
pub const LOG_SHARE: u64 = 64;
/// Smallest and largest intent log region.
pub const LOG_BYTES_MIN: u64 = 8 << 20;
/// See [`LOG_BYTES_MIN`].
pub const LOG_BYTES_MAX: u64 = 256 << 20;
/// Version of everything in this crate. 1: first. 2: segment summaries and remap tables, raidz. 3:
/// roles of vdevs, lineage. 4: checksums of summaries where they are named. 5: snapshots and
/// clones, births in summaries. 6: references to blocks and tables that count them, properties that
/// are inherited, volumes that are being received into. 7: records of several blocks. 8: stamps in
/// the sectors of the intent log.
pub const FORMAT_VERSION: u32 = 8;

/// Start of the segment area.
pub const fn segments_offset(log_bytes: u64) -> u64 {
    LABEL_BYTES + log_bytes
}

/// Starts of both labels on a disk whose used length is `disk_bytes`.
pub const fn label_offsets(disk_bytes: u64) -> [u64; 2] {
    [0, disk_bytes - LABEL_BYTES]
}
