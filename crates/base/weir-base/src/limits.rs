//! Limits of queues, buffers and names, each with its reason.
//!
//! Limits of the on-disk format are in weir-format, limits of a protocol in its crate.
//!
//! Invariant: the name of a constant includes its unit, and its comment gives the reason.

use std::time::Duration;

/// Largest volume: 16 TiB. Five tree levels of 128 pointers hold eight times as many 4 KiB blocks.
pub const VOLUME_BYTES_MAX: u64 = 16 << 40;

/// Maximum length of one component of a pool or volume name. NBD's 4 KiB export names and the
/// 255-byte file names of filesystems have space for such names.
pub const NAME_BYTES_MAX: usize = 200;

/// Queued data of a volume above which a flush commits the txg instead of logging: logging more
/// would write the data twice without a gain (docs/design/commit.md, case 10).
pub const LOG_QUEUED_BYTES_MAX: u64 = 16 << 20;

/// Largest write that is atomic at any offset: a crash leaves either all or none of it. It is as
/// long as the largest record. Together with the two records that it may change in part, it fits
/// into the space reserved for volumes with a reservation, and into the log of a small pool.
pub const ATOMIC_WRITE_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of an intent log batch. It limits the time for which one flush occupies the log.
pub const LOG_BATCH_BYTES_MAX: usize = 4 << 20;

/// Maximum time that a dirty block waits before its txg is committed (docs/design/commit.md).
pub const TXG_INTERVAL: Duration = Duration::from_secs(5);

/// Size of one device write of a write head: large enough to make the cost per I/O negligible,
/// small enough for several to overlap.
pub const STREAM_WRITE_BYTES: usize = 1 << 20;

/// Maximum number of device writes in flight during the write-out of a txg. It limits the buffers
/// to 16 MiB.
pub const STREAM_WRITES_IN_FLIGHT: usize = 16;

/// Maximum number of tree nodes that one write-out or range read reads concurrently.
pub const NODE_READS_IN_FLIGHT: usize = 64;

/// Number of commits after which a freed physical segment may be overwritten, so that the last four
/// uberblocks stay usable (invariant I3; "Freed space" in docs/design/commit.md).
pub const REUSE_AFTER_TXGS: u64 = 3;

/// Minimum of `--memory`: enough for fixed buffers, one busy connection and useful caches.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Maximum number of volumes, snapshots and bookmarks of one pool: 128 MiB of RAM at about 1 KiB
/// for each directory entry.
pub const DATASETS_MAX: usize = 131_072;

/// Maximum number of holes of a volume that one open txg stores as ranges; it limits their tree in
/// RAM. A commit is requested at half this number. A TRIM that finds this many holes waits for the
/// commit.
pub const HOLE_RANGES_MAX: usize = 65_536;

/// Like [`HOLE_RANGES_MAX`], for all volumes of a pool together.
pub const HOLE_RANGES_POOL_MAX: usize = 4 * HOLE_RANGES_MAX;

/// Maximum number of blocks that block clones may reference in one txg: 4 GiB of data. Their
/// pointers use 32 MiB of RAM, and half as much again while a piece is looked up. A commit writes
/// their nodes in well under a second.
pub const CLONE_BLOCKS_MAX: usize = 1 << 20;

/// Number of blocks in one piece of a block clone: 1 GiB of data.
pub const CLONE_PIECE_BLOCKS: u64 = 1 << 18;

/// Time without a completed operation after which a disk with operations in flight counts as
/// unresponsive. A spinning disk with a full queue takes a twentieth of this time. The time is
/// short enough to return an error to a caller that waits 5 s.
pub const DISK_UNRESPONSIVE: Duration = Duration::from_secs(2);

/// Time for which an import waits for the labels of a disk that the pool does not need. A busy disk
/// takes less. The wait is short because a disk that responds later is added automatically, and a
/// resilver copies only the writes that it missed.
pub const LABELS_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of disks whose labels are read concurrently; each needs 2 MiB of buffers.
pub const LABELS_AT_ONCE: usize = 32;

/// Time without a completed operation after which an import stops I/O to a leg, if the leg's vdev
/// has enough other legs. No client is connected yet, so the time is shorter than in an open pool.
pub const OPEN_UNRESPONSIVE: Duration = Duration::from_secs(5);

/// Pauses before an import reads an unreadable part of the pool metadata again. Together they
/// exceed the time of a bus reset or a path failover, and are short enough for a user who waits.
pub const IMPORT_READ_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// Interval at which an open pool reads its metadata trees from disk. One pass reads a few MiB for
/// each TiB. Two copies rarely become unreadable within one interval.
pub const OWN_TREES_INTERVAL: Duration = Duration::from_mins(5);

/// Heartbeat interval: the server that has a pool open rewrites its owner slot on every disk this
/// often, also in an idle pool. A heartbeat writes 8 KiB to each disk. The interval is short, so
/// that [`OWNER_WATCH`] can be short.
pub const OWNER_BEAT: Duration = Duration::from_secs(2);

/// Time for which a server watches the owner slots of a pool that was not closed: five heartbeats,
/// so that an owner whose disk or CPU is busy for some seconds does not count as dead.
pub const OWNER_WATCH: Duration = Duration::from_secs(10);

/// Interval between two reads of the owner slots during [`OWNER_WATCH`] and [`TAKEOVER_WAIT`]. It
/// is shorter than a heartbeat, so that a live owner is detected after one heartbeat.
pub const OWNER_LOOK: Duration = Duration::from_millis(500);

/// Time that a forced import waits after it wrote its claim to the owner slot, before it reads the
/// labels again: two heartbeats, in which the previous owner finds the claim and stops.
pub const TAKEOVER_WAIT: Duration = Duration::from_secs(4);

/// Age of the last owner slot read from which a server must read the slot again before its next
/// write. The time is shorter than [`TAKEOVER_WAIT`]. It is longer than [`OWNER_BEAT`], so that a
/// server that was not paused reads the slot only with its heartbeats.
pub const OWNER_LOOK_MAX: Duration = Duration::from_secs(3);

/// Maximum number of consecutive forced takeovers from owners that do not stop. A second takeover
/// handles an owner that rewrote its slot at the same moment; without a limit two servers would
/// compete endlessly.
pub const TAKEOVERS_MAX: usize = 3;

/// Minimum hedge delay: a read waits at least this long for its leg before the pool also sends it
/// to the next leg. It is longer than a seek and short compared with the timeout of a client's
/// filesystem.
pub const HEDGE_MIN: Duration = Duration::from_millis(20);

/// Maximum hedge delay, for slow legs.
pub const HEDGE_MAX: Duration = Duration::from_millis(500);

/// Hedge delay as a multiple of the leg's usual read time, clamped to [`HEDGE_MIN`] and
/// [`HEDGE_MAX`]. With a fixed delay, a slow kind of disk would cause two reads for each request.
pub const HEDGE_FACTOR: u32 = 16;

/// Time for which reads try a leg last after another leg served a read because this one was slow.
/// The time doubles with each further such read.
pub const AVOID_MIN: Duration = Duration::from_secs(1);

/// Maximum time for which reads try a leg last. When it is over, a read tries the leg again.
pub const AVOID_MAX: Duration = Duration::from_secs(16);

/// Multiple of the usual time of the pool's other disks from which a disk's mean time counts as
/// slow, if it also exceeds [`SLOW_MIN`].
pub const SLOW_FACTOR: u64 = 8;

/// Minimum mean time of a disk that counts as slow. Clients do not notice shorter times.
pub const SLOW_MIN: Duration = Duration::from_millis(50);

/// Maximum number of combinations of damaged disks that a read tries for one block of a raidz vdev.
/// It covers all damage up to the redundancy for a block in one strip, and for a block in two
/// strips on vdevs of up to 17 disks. An attempt takes microseconds, so an unrecoverable block
/// takes at most a second.
pub const RECONSTRUCTIONS_MAX: usize = 16_384;

/// Maximum number of bytes that a scan reads concurrently from all legs while no client uses the
/// pool: three ranges of 1 MiB on each leg of a common raidz, more on mirrors.
pub const SCAN_BYTES_IN_FLIGHT: usize = 32 << 20;

/// Maximum number of runs of blocks that a scan reads concurrently while no client uses the pool.
/// In a segment with few live blocks the runs are short, and a disk completes many short reads as
/// fast as few.
pub const SCAN_RUNS_IN_FLIGHT: usize = 64;

/// Number of segments that a scan processes concurrently. While one waits for its last reads or for
/// its lists of live blocks, the others keep disks and CPU busy. They share
/// [`SCAN_BYTES_IN_FLIGHT`].
pub const SCAN_SEGMENTS_AT_ONCE: usize = 3;

/// Number of segments in which the cleaner looks up live blocks while it reads the segment before
/// them. The block list of each takes a few MiB at most.
pub const SEGMENTS_LOOKED_AHEAD: usize = 2;

/// Maximum number of bytes that the cleaner reads concurrently.
pub const CLEAN_BYTES_IN_FLIGHT: usize = 8 << 20;

/// Number of blocks in one scan step while clients use the pool: 256 KiB, so that a client waits
/// for one short read at most.
pub const SCAN_BLOCKS_BUSY: usize = 64;

/// Pause after each step of a scan in a busy pool, as a multiple of the step's duration, so that
/// clients have four fifths of the disk time.
pub const SCAN_BUSY_PAUSES: u32 = 4;

/// Number of consecutive failed resilvers after which the pool waits for the administrator. Without
/// this limit a disk that accepts writes and loses them would be resilvered endlessly.
pub const SCAN_ATTEMPTS_MAX: u32 = 3;

/// Maximum number of ranges in a pool's damage list: more than a user reads, and 48 KiB on disk.
/// Further damage is only counted.
pub const DAMAGED_RANGES_MAX: usize = 1024;

/// Maximum number of bad blocks of one disk that are remembered, so that each counts as one
/// checksum error however often it is read; they use at most 64 KiB of RAM.
pub const BROKEN_BLOCKS_MAX: usize = 4096;

/// Maximum number of pool metadata parts in the damage list.
pub const DAMAGED_PARTS_MAX: usize = 128;

/// Maximum number of damaged shared blocks that one scrub records before it searches for the
/// pointers to them; they use 128 KiB of RAM.
pub const DAMAGED_SHARED_MAX: usize = 16_384;

/// Maximum number of snapshots that an entry of the damage list names; further ones are only
/// counted.
pub const DAMAGED_SNAPSHOTS_NAMED_MAX: usize = 16;

/// Maximum number of records of one damaged range that the pool looks up in other versions and
/// clones: eight times the blocks of the largest segment, in well under a second. The rest of the
/// range is shown only for the version that was read.
pub const SETTLED_RECORDS_MAX: usize = 65_536;
