//! Limits of queues, buffers and names, each with its reason.
//!
//! Limits of the on-disk format are in weir-format, limits of a protocol in the protocol's crate.
//!
//! Invariant: the name of a constant includes its unit, and its comment gives the reason.

use std::time::Duration;

/// Largest volume: 16 TiB. A tree of five levels with 128 pointers in each node holds eight times
/// as many 4 KiB blocks as this volume has.
pub const VOLUME_BYTES_MAX: u64 = 16 << 40;

/// Maximum length of one component of a pool or volume name. NBD's 4 KiB export names and the
/// 255-byte file names of filesystems have space for such components.
pub const NAME_BYTES_MAX: usize = 200;

/// If a volume has more queued log data than this, a flush commits the txg instead of logging the
/// data: logging would write the data twice without a gain (docs/design/commit.md, case 10).
pub const LOG_QUEUED_BYTES_MAX: u64 = 16 << 20;

/// Maximum size of the queued log data of one object in a dataset with many objects. The reason is
/// the same as for [`LOG_QUEUED_BYTES_MAX`].
pub const OBJECT_QUEUED_BYTES_MAX: u64 = 16 << 20;

/// Maximum size of the queued namespace changes of a dataset. Each sync logs all of these changes
/// in one log batch, so the batch size limits them.
pub const NAMESPACE_QUEUED_BYTES_MAX: u64 = LOG_BATCH_BYTES_MAX as u64;

/// Maximum size of all queued log data of a dataset with many objects. If the queued data exceeds
/// this size, the object with the most data waits for a commit.
pub const OBJECTS_QUEUED_BYTES_MAX: u64 = 64 << 20;

/// Minimum of the limit for the queued log data of all datasets of a pool: two log batches. Without
/// this minimum, a pool with little memory would commit for each flush.
pub const LOG_TOTAL_BYTES_MIN: u64 = 2 * LOG_BATCH_BYTES_MAX as u64;

/// Largest write that is atomic at any offset: a crash leaves either all of the write or none of
/// it. It is as long as the largest record. Together with the two records that it may change in
/// part, such a write fits into the space reserved for volumes with a reservation, and into the log
/// of a small pool.
pub const ATOMIC_WRITE_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of an intent log batch. It limits the time for which one flush occupies the log
/// device.
pub const LOG_BATCH_BYTES_MAX: usize = 4 << 20;

/// Maximum time that a dirty block waits until the commit of its txg begins
/// (docs/design/commit.md).
pub const TXG_INTERVAL: Duration = Duration::from_secs(5);

/// Size of one device write of a write head: large enough to make the cost for each I/O negligible,
/// and small enough that several writes can overlap.
pub const STREAM_WRITE_BYTES: usize = 1 << 20;

/// Maximum number of device writes in flight during the write-out of a txg. This limits the buffers
/// of the write-out to 16 MiB.
pub const STREAM_WRITES_IN_FLIGHT: usize = 16;

/// Time after a write to the intent log during which clients probably wait for the log again.
pub const LOG_IS_BUSY: Duration = Duration::from_millis(100);

/// Maximum number of device writes in flight for each vdev during the write-out of a txg while the
/// intent log is busy. A disk performs writes in about the order of their arrival, so each of these
/// writes can delay a flush by the time that the disk needs for it.
pub const WRITES_BESIDE_LOG: usize = 1;

/// Maximum number of tree nodes that one write-out or range read reads concurrently.
pub const NODE_READS_IN_FLIGHT: usize = 64;

/// Number of commits after which new data may overwrite a freed physical segment, so that the last
/// four uberblocks stay usable (invariant I3; "Freed space" in docs/design/commit.md).
pub const REUSE_AFTER_TXGS: u64 = 3;

/// Minimum of `--memory`: enough for fixed buffers, one busy connection and caches of a useful
/// size.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Maximum number of volumes, snapshots and bookmarks of one pool. At about 1 KiB of RAM for each
/// directory entry, they take 128 MiB of RAM.
pub const DATASETS_MAX: usize = 131_072;

/// Maximum number of holes of a volume that one open txg stores as ranges. This limits the RAM for
/// the tree of ranges. With half this number of holes, the volume requests a commit. A TRIM of a
/// volume that already has this many holes waits for the commit.
pub const HOLE_RANGES_MAX: usize = 65_536;

/// Maximum like [`HOLE_RANGES_MAX`], but for all volumes of a pool together.
pub const HOLE_RANGES_POOL_MAX: usize = 4 * HOLE_RANGES_MAX;

/// Maximum number of blocks that block clones may reference in one txg: 4 GiB of data. The pointers
/// to these blocks use 32 MiB of RAM, and 16 MiB more while the pool looks up one piece
/// ([`CLONE_PIECE_BLOCKS`]). A commit writes the nodes with these pointers in well under a second.
pub const CLONE_BLOCKS_MAX: usize = 1 << 20;

/// Maximum number of records that one record copy makes references. It holds the lock of the
/// committer while it reads the nodes with the pointers of these records, at most six leaves.
pub const COPY_RECORDS_MAX: u64 = 512;

/// Number of blocks in one piece of a block clone: 1 GiB of data.
pub const CLONE_PIECE_BLOCKS: u64 = 1 << 18;

/// Time without a completed operation after which a disk with operations in flight counts as
/// unresponsive. A spinning disk with a full queue completes an operation in a twentieth of this
/// time. The time is short enough to return an error to a caller that waits 5 s.
pub const DISK_UNRESPONSIVE: Duration = Duration::from_secs(2);

/// Time for which an import waits for the labels of a disk that the pool does not need. Even a busy
/// disk returns its labels earlier. The wait is short, because a disk that responds later is added
/// automatically, and a resilver copies only the writes that this disk missed.
pub const LABELS_WAIT: Duration = Duration::from_secs(5);

/// Maximum number of disks whose labels an import reads concurrently; each disk needs 2 MiB of
/// buffers.
pub const LABELS_AT_ONCE: usize = 32;

/// Time without a completed operation after which an import stops I/O to a leg, if the leg's vdev
/// has enough other legs. The time is shorter than in an open pool, because no client is connected
/// yet.
pub const OPEN_UNRESPONSIVE: Duration = Duration::from_secs(5);

/// Pauses of an import before it reads an unreadable part of the pool metadata again. The sum of
/// the pauses exceeds the time of a bus reset or a path failover, and is short enough for a user
/// who waits.
pub const IMPORT_READ_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// Interval at which an open pool reads its metadata trees from disk to find unreadable nodes. One
/// pass reads a few MiB for each TiB of data. Both copies of a node rarely become unreadable within
/// one interval.
pub const OWN_TREES_INTERVAL: Duration = Duration::from_mins(5);

/// Heartbeat interval: the server that has a pool open rewrites its owner slot (the part of the
/// label that names the server) on every disk at this interval, even if the pool is idle. A
/// heartbeat writes 8 KiB to each disk. The interval is short, so that [`OWNER_WATCH`] can be
/// short.
pub const OWNER_HEARTBEAT: Duration = Duration::from_secs(2);

/// Time for which a server watches the owner slots of a pool that was not closed: five heartbeats.
/// An owner whose disk or CPU is busy for a few seconds therefore does not count as dead.
pub const OWNER_WATCH: Duration = Duration::from_secs(10);

/// Interval between two reads of the owner slots during [`OWNER_WATCH`] and [`TAKEOVER_WAIT`]. It
/// is shorter than a heartbeat interval, so that one heartbeat is enough to detect a live owner.
pub const OWNER_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time that a forced import waits after it wrote its claim (its own identity) to the owner slots,
/// before it reads the labels again: two heartbeats, in which the previous owner finds the claim
/// and stops.
pub const TAKEOVER_WAIT: Duration = Duration::from_secs(4);

/// If a server's last read of the owner slot is older than this, the server must read the slot
/// again before its next write. The time is shorter than [`TAKEOVER_WAIT`]. It is longer than
/// [`OWNER_HEARTBEAT`], so that a server that was not paused reads the slot only with its
/// heartbeats.
pub const OWNER_READ_AGE_MAX: Duration = Duration::from_secs(3);

/// Maximum number of consecutive forced takeovers from owners that do not stop. The second takeover
/// is for an owner that rewrote its slot while the first takeover wrote the claim. Without a limit,
/// two servers would compete endlessly.
pub const TAKEOVERS_MAX: usize = 3;

/// Minimum hedge delay: a read waits at least this long for its leg before the pool sends the read
/// to the next leg as well. The delay is longer than a seek, and short compared with the timeout of
/// a client's filesystem.
pub const HEDGE_MIN: Duration = Duration::from_millis(20);

/// Maximum hedge delay, which applies to slow legs.
pub const HEDGE_MAX: Duration = Duration::from_millis(500);

/// Hedge delay as a multiple of the leg's usual read time, limited to [`HEDGE_MIN`] and
/// [`HEDGE_MAX`]. With a fixed delay, every request to a slow kind of disk would cause two reads.
pub const HEDGE_FACTOR: u32 = 16;

/// Time for which reads try a leg last, after another leg served a read because this leg was slow.
/// The time doubles each time another leg serves a read for the same reason.
pub const AVOID_MIN: Duration = Duration::from_secs(1);

/// Maximum time for which reads try a leg last. After this time, a read tries the leg first again.
pub const AVOID_MAX: Duration = Duration::from_secs(16);

/// A disk counts as slow if the mean time of its operations is at least this multiple of the usual
/// time on the pool's other disks, and also exceeds [`SLOW_MIN`].
pub const SLOW_FACTOR: u64 = 8;

/// A disk never counts as slow if the mean time of its operations is below this value, because
/// clients do not notice such times.
pub const SLOW_MIN: Duration = Duration::from_millis(50);

/// Maximum number of combinations of damaged disks that a read tries for one block of a raidz vdev.
/// The number is enough for every combination that the redundancy can repair, if the block is in
/// one strip, or in two strips on a vdev of up to 17 disks. One attempt takes microseconds, so an
/// unrecoverable block costs at most a second.
pub const RECONSTRUCTIONS_MAX: usize = 16_384;

/// Maximum number of bytes that a scan reads concurrently from all legs while no client uses the
/// pool: three ranges of 1 MiB on each leg of a common raidz vdev, more on a mirror.
pub const SCAN_BYTES_IN_FLIGHT: usize = 32 << 20;

/// Maximum number of runs (adjacent blocks) that a scan reads concurrently while no client uses the
/// pool. In a segment with few live blocks the runs are short, and a disk completes many concurrent
/// short reads as fast as a few.
pub const SCAN_RUNS_IN_FLIGHT: usize = 64;

/// Number of segments that a scan processes concurrently. While one segment waits for its last
/// reads or for its lists of live blocks, the other segments keep disks and CPU busy. All these
/// segments share [`SCAN_BYTES_IN_FLIGHT`].
pub const SCAN_SEGMENTS_AT_ONCE: usize = 3;

/// Number of segments whose live blocks the cleaner looks up in advance, while it reads another
/// segment. The list of one segment's live blocks takes a few MiB of RAM at most.
pub const SEGMENTS_READ_AHEAD: usize = 2;

/// Maximum number of bytes that the cleaner reads concurrently.
pub const CLEAN_BYTES_IN_FLIGHT: usize = 8 << 20;

/// Number of blocks in one scan step while clients use the pool: 256 KiB, so that a client waits
/// for at most one short read of the scan.
pub const SCAN_BLOCKS_BUSY: usize = 64;

/// Pause after each step of a scan while clients use the pool, as a multiple of the step's
/// duration: clients have four fifths of the disk time.
pub const SCAN_BUSY_PAUSES: u32 = 4;

/// Number of consecutive failed resilvers after which the pool waits for the administrator. Without
/// this limit, the pool would endlessly resilver a disk that accepts writes and loses them.
pub const SCAN_ATTEMPTS_MAX: u32 = 3;

/// Maximum number of ranges in a pool's list of permanent errors: more than a user reads, and 48
/// KiB on disk. Weir only counts further damage.
pub const DAMAGED_RANGES_MAX: usize = 1024;

/// Maximum number of bad blocks of one disk that the pool remembers in RAM, so that each bad block
/// counts as one checksum error, however often it is read. The remembered block numbers use at most
/// 64 KiB of RAM.
pub const BROKEN_BLOCKS_MAX: usize = 4096;

/// Maximum number of pool metadata parts in the list of permanent errors.
pub const DAMAGED_PARTS_MAX: usize = 128;

/// Maximum number of damaged shared blocks that one scrub records before it searches for the
/// pointers to these blocks. The addresses of these blocks use 128 KiB of RAM.
pub const DAMAGED_SHARED_MAX: usize = 16_384;

/// Maximum number of snapshots that one permanent error names; Weir only counts further snapshots.
pub const DAMAGED_SNAPSHOTS_NAMED_MAX: usize = 16;

/// Maximum number of records of one damaged range that the pool looks up in other versions and
/// clones of the volume: eight times the blocks of the largest segment, which takes well under a
/// second. The pool lists the rest of the range only for the version in which a read found the
/// damage.
pub const SETTLED_RECORDS_MAX: usize = 65_536;
