//! Limits of SCSI, each with its reason.
//!
//! Not here: limits of a transport, of the engine.
//!
//! Invariant: what a command holds in memory is bounded by these, whatever an initiator sends.

use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;

/// Most that one READ or WRITE moves: as much as NBD takes, and 65,536 blocks of 512 bytes, which
/// initiators ask for that do not look at the limits.
pub const TRANSFER_BYTES_MAX: u64 = 32 << 20;

/// What one READ or WRITE moves best: one burst of a transport, and a largest record.
pub const OPTIMAL_BYTES: u64 = 1 << 20;

/// Most blocks of one COMPARE AND WRITE; its field is one byte.
pub const COMPARE_BLOCKS_MAX: u8 = 255;

/// A COMPARE AND WRITE of the largest blocks is one change: a crash leaves all of it or nothing.
const _: () = assert!(COMPARE_BLOCKS_MAX as u64 * 4096 <= ATOMIC_WRITE_BYTES_MAX);

/// Most that one WRITE SAME fills: long enough to give space back quickly, short enough that an
/// aborted one ends soon.
pub const WRITE_SAME_BYTES_MAX: u64 = 256 << 20;

/// Most blocks that one UNMAP takes, all descriptors together.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Most descriptors of one UNMAP: its parameter list then stays below 5 KiB.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Most descriptors of one GET LBA STATUS: a reply of 4 KiB.
pub const STATUS_DESCRIPTORS_MAX: u64 = 256;

/// Buffer of VERIFY and of what copies by pieces.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Copy source and destination descriptors of one EXTENDED COPY.
pub const COPY_TARGETS_MAX: u16 = 8;

/// Segment descriptors of one EXTENDED COPY.
pub const COPY_SEGMENTS_MAX: u16 = 32;

/// Descriptor lists of one EXTENDED COPY together.
pub const COPY_LIST_BYTES_MAX: u32 = 4096;

/// Most that one segment of EXTENDED COPY copies: what 16 bits of 4096-byte blocks can say.
pub const COPY_SEGMENT_BYTES_MAX: u32 = 256 << 20;

/// Outcomes of copies that a nexus can ask for; the oldest is forgotten. A token and its ranges
/// take 2 KiB.
pub const COPY_RESULTS_MAX: usize = 64;

/// EXTENDED COPY and WRITE USING TOKEN under way on one nexus: each holds a piece.
pub const COPIES_RUNNING_MAX: u8 = 16;

/// Tokens of one logical unit that are remembered, with their ranges half a MiB. Initiators that
/// copy files make some hundred a minute.
pub const TOKENS_MAX: usize = 256;

/// Ranges of one token, and of one WRITE USING TOKEN: a parameter list of 1.5 KiB.
pub const TOKEN_RANGES_MAX: u16 = 64;

/// Most that one token stands for, and that one WRITE USING TOKEN writes: writers to what it
/// stands for wait while it is used, a second or so where its data cannot be shared.
pub const TOKEN_DATA_BYTES_MAX: u64 = 1 << 30;

/// What one WRITE USING TOKEN writes before it looks whether it was aborted, and what it counts by.
pub const TOKEN_STEP_BYTES: u64 = 64 << 20;

/// How long a token is kept that is not used, in seconds: where the initiator says nothing, and at
/// most. One that is used again and again is kept.
pub const TOKEN_TIMEOUT_SECONDS: u32 = 60;
/// See [`TOKEN_TIMEOUT_SECONDS`].
pub const TOKEN_TIMEOUT_SECONDS_MAX: u32 = 600;

/// Registrations of one logical unit; more initiators than that do not share one.
pub const REGISTRATIONS_MAX: usize = 1024;

/// Longest parameter list of MODE SELECT and PERSISTENT RESERVE OUT.
pub const PARAMETER_BYTES_MAX: usize = 64 << 10;

/// Highest logical unit number: what flat space addressing can say (SAM-5 4.7.7.3).
pub const LUN_MAX: u16 = 16383;

/// Room is asked for once per this many bytes written, to see whether the soft threshold was
/// reached.
pub const THRESHOLD_INTERVAL_BYTES: u64 = 16 << 20;
