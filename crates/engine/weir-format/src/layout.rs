//! Disk layout: offsets of the areas of a disk, and the limits of a pool's sizes.
//!
//! The structures in these areas are in the other modules.
//!
//! Invariants: every area starts on a 4 KiB boundary; both labels lie outside the segment area.
//!
//! ```text
//! 0          64K        128K        512K             1M           1M+log         len-1M    len
//! | config 1 | config 2 | owner, 0s | uberblock ring | intent log | segments ... | label B |
//! '-------------------- label A ---------------------'
//! ```
//! Label B has the same inner layout as label A.

/// Alignment of blocks inside a segment.
pub const PACK_BYTES: usize = 64;
/// Length of one label.
pub const LABEL_BYTES: u64 = 1 << 20;
/// Length of one config copy; a label starts with two copies.
pub const CONFIG_BYTES: usize = 64 << 10;
/// Offset of the owner slot in a label.
pub const OWNER_OFFSET: u64 = 128 << 10;
/// Offset of the uberblock ring in a label.
pub const RING_OFFSET: u64 = 512 << 10;
/// Number of slots in the ring. The uberblock of txg N is in slot N mod this number.
pub const RING_SLOTS: u64 = 128;
/// Length of one slot. The checksum of a slot detects a torn write, so no write needs to be atomic.
pub const SLOT_BYTES: usize = 4096;

/// Largest segment size. The pointer's 19-bit offset in 64-byte units limits this size.
pub const SEGMENT_BYTES_MAX: u64 = 32 << 20;
/// Smallest segment size.
pub const SEGMENT_BYTES_MIN: u64 = 256 << 10;
/// Preferred minimum number of segments in a pool, so that open segments are a small part of the
/// pool.
pub const SEGMENTS_WANTED: u64 = 256;
/// Default strip size. A strip is the part of a row on one leg.
pub const STRIP_BYTES: u32 = 64 << 10;
/// Smallest strip size, and the alignment of every strip: one direct I/O block.
pub const STRIP_BYTES_MIN: u32 = 4096;
/// Preferred minimum number of rows in a segment. The last row of each txg is padded, so with few
/// rows a segment could be mostly padding.
pub const ROWS_WANTED: u64 = 8;
/// Maximum number of legs of a mirror.
pub const MIRROR_LEGS_MAX: usize = 4;
/// Maximum number of legs of a raidz vdev. With at most this many legs, a row stays below 2 MiB, so
/// that [`ROWS_WANTED`] rows fit into a segment, and a reader can find the damaged legs by trying
/// all combinations.
pub const RAIDZ_LEGS_MAX: usize = 32;
/// Maximum number of disks in a pool: the uberblock has space for the state of this many disks.
pub const DISKS_MAX: usize = 256;
/// Size of the smallest disk: two labels, a log, and enough segments for the cleaner to work with.
pub const DISK_BYTES_MIN: u64 = 64 << 20;
/// The size of the intent log region is the disk size divided by this number, within the limits
/// below.
pub const LOG_SHARE: u64 = 64;
/// Size of the smallest intent log region.
pub const LOG_BYTES_MIN: u64 = 8 << 20;
/// Size of the largest intent log region.
pub const LOG_BYTES_MAX: u64 = 256 << 20;
/// Version of all formats in this crate. 1: first. 2: segment summaries and remap tables, raidz. 3:
/// roles of vdevs, list of import epochs. 4: checksums of summaries in the references to them. 5:
/// snapshots and clones, birth txgs in summaries. 6: references to blocks and tables that count
/// them, inherited properties, volumes that are being received. 7: records of several blocks. 8:
/// stamps in the sectors of the intent log. 9: a body per kind and numbered properties in the
/// records of datasets, feature flags in the label.
pub const FORMAT_VERSION: u32 = 9;
/// Oldest version that this crate decodes. The first commit in a pool of this version raises the
/// pool to [`FORMAT_VERSION`].
pub const OLDEST_VERSION: u32 = 8;

/// Byte offset of the segment area on a disk.
pub const fn segments_offset(log_bytes: u64) -> u64 {
    LABEL_BYTES + log_bytes
}

/// Byte offsets of both labels on a disk whose used length is `disk_bytes`.
pub const fn label_offsets(disk_bytes: u64) -> [u64; 2] {
    [0, disk_bytes - LABEL_BYTES]
}
