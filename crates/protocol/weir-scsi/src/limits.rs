//! Limits of the SCSI target, each with its reason.
//!
//! The transport crate and weir-base have their own limits.
//!
//! Invariant: these limits bound the memory of a command, whatever an initiator sends.

use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;

/// Maximum transfer length of one READ or WRITE, equal to NBD's limit. Initiators that ignore the
/// Block Limits VPD page request up to 65,536 blocks of 512 bytes, which have this length.
pub const TRANSFER_BYTES_MAX: u64 = 32 << 20;

/// Optimal transfer length of READ and WRITE: the length of one burst of a transport, and of the
/// largest record.
pub const OPTIMAL_BYTES: u64 = 1 << 20;

/// Maximum number of blocks of one COMPARE AND WRITE; the CDB field is one byte.
pub const COMPARE_BLOCKS_MAX: u8 = 255;

/// A COMPARE AND WRITE of 255 blocks of 4096 bytes is still one atomic change: after a crash, the
/// unit has all of the change or none of it.
const _: () = assert!(COMPARE_BLOCKS_MAX as u64 * 4096 <= ATOMIC_WRITE_BYTES_MAX);

/// Maximum length of one WRITE SAME: long enough to reclaim space quickly, short enough that an
/// aborted command ends soon.
pub const WRITE_SAME_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of blocks of one UNMAP, over all its descriptors.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;

/// Maximum number of descriptors of one UNMAP, so that its parameter list is below 5 KiB.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;

/// Maximum number of descriptors in the response to one GET LBA STATUS: 4 KiB.
pub const STATUS_DESCRIPTORS_MAX: u64 = 256;

/// Buffer size of VERIFY, and of copies that cannot clone blocks.
pub const PIECE_BYTES: u64 = 1 << 20;

/// Maximum number of CSCD descriptors (copy source and copy destination) of one EXTENDED COPY.
pub const COPY_TARGETS_MAX: u16 = 8;

/// Maximum number of segment descriptors of one EXTENDED COPY.
pub const COPY_SEGMENTS_MAX: u16 = 32;

/// Maximum length of all descriptor lists of one EXTENDED COPY together.
pub const COPY_LIST_BYTES_MAX: u32 = 4096;

/// Maximum length of one EXTENDED COPY segment: the 16-bit block count times 4096-byte blocks.
pub const COPY_SEGMENT_BYTES_MAX: u32 = 256 << 20;

/// Maximum number of copy results that one I_T_L nexus can query. A new copy result replaces the
/// oldest. The ROD token of a result and its ranges take 2 KiB.
pub const COPY_RESULTS_MAX: usize = 64;

/// Maximum number of concurrent EXTENDED COPY and WRITE USING TOKEN commands of one I_T_L nexus.
/// Each running command has a buffer of [`PIECE_BYTES`].
pub const COPIES_RUNNING_MAX: u8 = 16;

/// Maximum number of ROD tokens that one logical unit keeps; the tokens and their ranges take half
/// a MiB. An initiator that copies files creates about a hundred tokens a minute.
pub const TOKENS_MAX: usize = 256;

/// Maximum number of ranges of one token, and of one WRITE USING TOKEN: a parameter list of 1.5
/// KiB.
pub const TOKEN_RANGES_MAX: u16 = 64;

/// Maximum number of bytes that one token represents, and that one WRITE USING TOKEN writes.
/// Writers to the token's ranges wait while a command uses the token: about a second if the storage
/// cannot clone the data.
pub const TOKEN_DATA_BYTES_MAX: u64 = 1 << 30;

/// Bytes that WRITE USING TOKEN writes between two checks whether it was aborted. The transfer
/// count of an aborted command is a multiple of this size.
pub const TOKEN_STEP_BYTES: u64 = 64 << 20;

/// Default inactivity timeout of a token, in seconds, if the initiator requests none. Each use of
/// the token restarts the timeout.
pub const TOKEN_TIMEOUT_SECONDS: u32 = 60;
/// Maximum inactivity timeout of a token, in seconds.
pub const TOKEN_TIMEOUT_SECONDS_MAX: u32 = 600;

/// Maximum number of registrations of one logical unit. No practical cluster has more initiators.
pub const REGISTRATIONS_MAX: usize = 1024;

/// Maximum length of the parameter list of MODE SELECT and PERSISTENT RESERVE OUT.
pub const PARAMETER_BYTES_MAX: usize = 64 << 10;

/// Highest logical unit number of flat space addressing (SAM-5 4.7.7.3).
pub const LUN_MAX: u16 = 16383;

/// Bytes of writes after which a unit compares the available space with its soft threshold again.
pub const THRESHOLD_INTERVAL_BYTES: u64 = 16 << 20;
