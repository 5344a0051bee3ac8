//! Limits of SCSI, each with its reason.
//!
//! Not here: limits of a transport, of the engine.
//!
//! Invariant: what a command holds in memory is bounded by these, whatever an initiator sends.

/// Most that one READ or WRITE moves: as much as NBD takes, and 65,536 blocks of 512 bytes, which
/// initiators ask for that do not look at the limits.
pub const TRANSFER_BYTES_MAX: u64 = 32 << 20;

/// What one READ or WRITE moves best: one burst of a transport, and a largest record.
pub const OPTIMAL_BYTES: u64 = 1 << 20;

/// Most blocks of one COMPARE AND WRITE; its field is one byte.
pub const COMPARE_BLOCKS_MAX: u8 = 255;

/// Most that one WRITE SAME fills: long enough to give space back quickly, short enough that an
/// aborted one ends soon.
pub const WRITE_SAME_BYTES_MAX: u64 = 256 << 20;

/// Most blocks that one UNMAP takes, all descriptors together.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Most descriptors of one UNMAP: its parameter list then stays below 5 KiB.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Most descriptors of one GET LBA STATUS: a reply of 4 KiB.
pub const STATUS_DESCRIPTORS_MAX: u64 = 256;

/// Buffer of VERIFY and of the copy loop of EXTENDED COPY.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Copy source and destination descriptors of one EXTENDED COPY.
pub const COPY_TARGETS_MAX: u16 = 8;

/// Segment descriptors of one EXTENDED COPY.
pub const COPY_SEGMENTS_MAX: u16 = 32;

/// Descriptor lists of one EXTENDED COPY together.
pub const COPY_LIST_BYTES_MAX: u32 = 4096;

/// Most that one segment of EXTENDED COPY copies: what 16 bits of 4096-byte blocks can say.
pub const COPY_SEGMENT_BYTES_MAX: u32 = 256 << 20;

/// Outcomes of copies that a nexus can ask for; the oldest is forgotten.
pub const COPY_RESULTS_MAX: usize = 16;

/// EXTENDED COPY under way on one nexus: each holds a piece.
pub const COPIES_RUNNING_MAX: u8 = 16;

/// Registrations of one logical unit; more initiators than that do not share one.
pub const REGISTRATIONS_MAX: usize = 1024;

/// Longest parameter list of MODE SELECT and PERSISTENT RESERVE OUT.
pub const PARAMETER_BYTES_MAX: usize = 64 << 10;

/// Highest logical unit number: what flat space addressing can say (SAM-5 4.7.7.3).
pub const LUN_MAX: u16 = 16383;

/// Room is asked for once per this many bytes written, to see whether the soft threshold was
/// reached.
pub const THRESHOLD_INTERVAL_BYTES: u64 = 16 << 20;
