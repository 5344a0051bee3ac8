//! Limits of the client, each with its reason.
//!
//! weir-nfs-wire and weir-oncrpc have the limits of the messages.
//!
//! Invariant: for any reply of a server, a connection holds at most [`RECEIVE_BYTES`] and one
//! record of [`RECORD_BYTES_MAX`] of input.

use std::time::Duration;

/// Time limit for connecting and mounting. A reachable server needs milliseconds; knfsd may wait
/// for its export daemon.
pub const MOUNT_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of one call of [`Client`](crate::Client): the time for which operating systems wait
/// for a disk.
pub const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Time limit for a procedure that the server asks the client to repeat (NFS3ERR_JUKEBOX): a little
/// more than the usual grace period of 90 s after the start of a server.
pub const JUKEBOX_LIMIT: Duration = Duration::from_secs(100);

/// Interval between two calls of such a procedure.
pub const JUKEBOX_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum length of one READ or WRITE: the maximum of the Linux client (NFS_MAX_FILE_IO_SIZE), so
/// servers are tested with it.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;

/// Minimum of the length of READ and WRITE that a server must support. A server with a lower limit
/// needs more calls than a benchmark can send.
pub const TRANSFER_BYTES_MIN: u32 = 512;

/// Maximum length of a file that [`Client`](crate::Client) reads or writes as a whole: the length
/// of READ and WRITE that every server must support.
pub const SMALL_FILE_BYTES_MAX: usize = TRANSFER_BYTES_MIN as usize;

/// Range of the length of a reply to READDIR or READDIRPLUS. The upper bound is enough for 250
/// entries with attributes; larger replies delay the replies behind them.
pub const DIRECTORY_BYTES: (u32, u32) = (4 << 10, 64 << 10);

/// Maximum length of a reply: a read of the maximum length in several fragments, and its headers.
pub const RECORD_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + HEAD_BYTES_MAX;

/// Maximum length of a reply to READ before its data: RPC header with a verifier of 400 bytes,
/// status, attributes, count, end of file and length.
pub const HEAD_BYTES_MAX: usize = 24 + 400 + 4 + 88 + 12;

/// Size of the receive buffer for replies and small data. Large data is received directly into the
/// buffer of the caller.
pub const RECEIVE_BYTES: usize = 64 << 10;

const _: () = assert!(RECEIVE_BYTES >= 2 * HEAD_BYTES_MAX, "a head fits behind another's end");

/// If at least this many bytes of the data of a READ are missing, the connection receives them
/// directly into the buffer of the caller. A copy of fewer bytes costs less than a system call.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;

/// Maximum number of calls in flight on one connection. Linux allows 65,536
/// (RPC_MAX_SLOT_TABLE_LIMIT); the table of calls needs 80 bytes for each.
pub const CALLS_MAX: usize = 1 << 16;

/// Maximum number of shares in an address. Each needs a mount, and a lookup of its files.
pub const SHARES_MAX: u64 = 64;

/// Maximum number of source addresses in a URL: a longer list is a mistake.
pub const SOURCES_MAX: usize = 64;

/// Maximum number of components of the path in an address. Each may need a MNT call.
pub const COMPONENTS_MAX: usize = 64;

/// Maximum number of entries that a listing returns. A server may generate entries without end; the
/// names of this many entries need about 1 GiB.
pub const ENTRIES_MAX: u64 = 1 << 24;

/// Ports from which the Linux client connects (sunrpc.min_resvport and max_resvport). Servers
/// without the option `insecure` accept calls only from ports below 1024.
pub const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;
