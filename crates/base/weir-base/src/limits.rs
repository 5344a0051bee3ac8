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

/// Largest write that is one change wherever it begins and ends: a crash leaves all or none of it.
/// As long as the largest record; with all of the two records of which it may change a part it fits
/// into what is kept back for volumes with a reservation, and into a small pool's log.
pub const ATOMIC_WRITE_BYTES_MAX: u64 = 1 << 20;

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

/// Volumes, snapshots and bookmarks of a pool: 128 MiB of RAM at about 1 KiB for each record.
pub const DATASETS_MAX: usize = 131_072;

/// Holes that one open txg keeps as ranges of a volume; bounds their tree in RAM. A commit is asked
/// for at half of them, and a TRIM that finds so many waits for it.
pub const HOLE_RANGES_MAX: usize = 65_536;

/// As [`HOLE_RANGES_MAX`], of all volumes of a pool.
pub const HOLE_RANGES_POOL_MAX: usize = 4 * HOLE_RANGES_MAX;

/// Blocks that range clones may refer to with one txg: 4 GiB, whose pointers take 32 MiB of RAM,
/// and half as much more while those of a piece are looked up; a commit writes their nodes in well
/// under a second.
pub const CLONE_BLOCKS_MAX: usize = 1 << 20;

/// Blocks of one piece of a range clone: 1 GiB.
pub const CLONE_PIECE_BLOCKS: u64 = 1 << 18;

/// A disk that has operations in flight and completed none for this long does not answer: twenty
/// times what a spinning disk takes under a full queue, and soon enough to tell a caller who waits
/// five seconds.
pub const DISK_SILENT: Duration = Duration::from_secs(2);

/// An opening pool waits this long for the labels of a disk that it can do without: longer than a
/// busy disk takes, and short, because a disk that answers later joins by itself and a resilver
/// copies only what it missed.
pub const LABELS_WAIT: Duration = Duration::from_secs(5);

/// Disks whose labels are read at the same time: 2 MiB of buffers each.
pub const LABELS_AT_ONCE: usize = 32;

/// While a pool is being opened, a leg that completes nothing for this long is let go of where its
/// vdev can do without it. Nothing is served yet, so the wait is shorter than that of an open pool.
pub const OPEN_SILENT: Duration = Duration::from_secs(5);

/// An import that cannot read a part of the pool's own structures reads it again after each of
/// these pauses: a bus reset or a path failover is over by then, and a person still waits.
pub const IMPORT_READ_PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1600)];

/// An open pool reads its own trees from disk this often: a few MiB for each TiB, and rare enough
/// that two copies seldom become unreadable between two looks.
pub const OWN_TREES_INTERVAL: Duration = Duration::from_mins(5);

/// The server that has a pool open rewrites its owner slot on every disk this often, also while the
/// pool is idle: 8 KiB per disk, and often enough that [`OWNER_WATCH`] stays short.
pub const OWNER_BEAT: Duration = Duration::from_secs(2);

/// A server watches the owner slots of a pool that was not closed for this long: five beats, so
/// that an owner whose disk or processor is busy for some seconds is not taken for dead.
pub const OWNER_WATCH: Duration = Duration::from_secs(10);

/// Time between two reads of the slots meanwhile: a live owner is met after one beat.
pub const OWNER_LOOK: Duration = Duration::from_millis(500);

/// A server that takes a pool by force waits this long between its claim in the owner slot and the
/// first read: two beats, in which the owner before finds the claim and stops.
pub const TAKEOVER_WAIT: Duration = Duration::from_secs(4);

/// A server that did not read its owner slot for this long reads it before it writes again: shorter
/// than [`TAKEOVER_WAIT`] and longer than [`OWNER_BEAT`], so a server that was not paused reads it
/// with its beats alone.
pub const OWNER_LOOK_MAX: Duration = Duration::from_secs(3);

/// Times in a row that a pool is taken by force from owners that do not stop: a second one for an
/// owner that rewrote its slot at the same moment; after that two servers would fight for ever.
pub const TAKEOVERS_MAX: usize = 3;

/// A read waits at least this long for its leg before the next leg is asked too: longer than a
/// seek, short beside what a client's file system waits.
pub const HEDGE_MIN: Duration = Duration::from_millis(20);

/// ... and at most this long, however slow the leg is known to be.
pub const HEDGE_MAX: Duration = Duration::from_millis(500);

/// ... and between the two, this many times the leg's usual time, so that a slow kind of disk is
/// not asked twice for every read.
pub const HEDGE_FACTOR: u32 = 16;

/// A leg that a read went around is asked last for this long, doubled each time it happens again.
pub const AVOID_MIN: Duration = Duration::from_secs(1);

/// Longest time for which a leg is asked last; then one read tries it again.
pub const AVOID_MAX: Duration = Duration::from_secs(16);

/// A disk is slow from this many times the usual time of the pool's other disks on ...
pub const SLOW_FACTOR: u64 = 8;

/// ... and from this mean time on: below it nobody notices.
pub const SLOW_MIN: Duration = Duration::from_millis(50);

/// Combinations of damaged disks tried for one block of a raidz vdev: covers any damage up to the
/// redundancy of a block in one strip, and of one in two strips on vdevs of up to 17 disks; an
/// attempt takes microseconds, so a block that cannot be saved costs a second at most.
pub const RECONSTRUCTIONS_MAX: usize = 16_384;

/// Bytes of all legs that a scan reads at the same time while no client uses the pool: three
/// stretches of a mebibyte of each leg on the usual raidz, more on mirrors.
pub const SCAN_BYTES_IN_FLIGHT: usize = 32 << 20;

/// ... in at most this many runs of blocks: where little lives of a segment they are short, and a
/// disk answers many as quickly as few.
pub const SCAN_RUNS_IN_FLIGHT: usize = 64;

/// Segments that a scan looks at together: while one waits for its last reads, or for the lists of
/// what lives in it, others keep disks and processor busy. It shares the bytes above among them.
pub const SCAN_SEGMENTS_AT_ONCE: usize = 3;

/// Segments in which the cleaner looks for what lives while it reads the one before: a few MiB of
/// block lists each at most.
pub const SEGMENTS_LOOKED_AHEAD: usize = 2;

/// Bytes that the cleaner reads at the same time.
pub const CLEAN_BYTES_IN_FLIGHT: usize = 8 << 20;

/// Blocks that one step of a scan takes on while clients use the pool: 256 KiB, so that a client
/// waits behind one short read.
pub const SCAN_BLOCKS_BUSY: usize = 64;

/// A busy pool's scan pauses for this many times as long as its step took: clients keep four fifths
/// of the disks' time.
pub const SCAN_BUSY_PAUSES: u32 = 4;

/// Resilvers in a row that may fail before the next waits for a person: a disk that takes writes
/// and does not keep them would be copied to for ever.
pub const SCAN_ATTEMPTS_MAX: u32 = 3;

/// Ranges of volumes on a pool's list of damage: more than a person reads, 48 KiB on disk. Damage
/// beyond it is counted.
pub const DAMAGED_RANGES_MAX: usize = 1024;

/// Broken blocks of one disk that count as one checksum error each, however often they are read:
/// 64 KiB of RAM at most.
pub const BROKEN_BLOCKS_MAX: usize = 4096;

/// Parts of the pool's own structures on that list.
pub const DAMAGED_PARTS_MAX: usize = 128;

/// Damaged blocks with several references that one scrub remembers until it looks for the pointers
/// to them: 128 KiB of RAM.
pub const DAMAGED_SHARED_MAX: usize = 16_384;

/// Snapshots that a range on the list of damage names; more are counted.
pub const DAMAGED_SNAPSHOTS_NAMED_MAX: usize = 16;

/// Records of one damaged range that are looked up in other versions and clones: the range of a
/// whole lost segment of blocks eight times over, in well under a second. What is behind is shown
/// for the version that was read alone.
pub const SETTLED_RECORDS_MAX: usize = 65_536;
