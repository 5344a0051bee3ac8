//! Limits of the NBD server, each with its reason.
//!
//! Limits of the engine are in weir-base.
//!
//! Invariants, for any input from clients:
//! - a connection holds at most [`INPUT_BYTES_MAX`] of input and [`HELD_BYTES_MAX`] (or one largest
//!   request) of requests and replies;
//! - all connections together hold at most their shared budget, plus [`OWN_BYTES`] for each
//!   connection.

use std::time::Duration;

use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;
use weir_net::limits::INPUT_BYTES;

/// Minimum block size of requests: the sector size that every client can address. No client needs a
/// smaller size.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// Size of the blocks that the server passes to an export without copying their data.
pub const BLOCK_BYTES: u32 = weir_base::BLOCK_BYTES as u32;

/// Longest READ or WRITE: the maximum length that a client may assume if the server states no limit
/// (proto.md, "Block size constraints").
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Longest payload of an invalid write that the server reads and discards before it sends the error
/// reply. A write with an even longer payload ends the connection, because reading the payload
/// costs more than a new connection.
pub const DRAIN_BYTES_MAX: u32 = 64 << 20;

/// Longest data of one option: several times the length of an export name and a few metadata
/// queries.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// Approximate size of the parts in which the server sends a LIST reply. The server builds a part
/// only after the client has received the preceding part. A part ends with the export name that
/// reaches this size. A part and the receive buffer fit into [`OWN_BYTES`].
pub const LIST_PART_BYTES: usize = 8 << 10;

/// Time limit of the handshake, unless
/// [`Nbd::with_handshake_limit`](crate::Nbd::with_handshake_limit) sets another one. A client needs
/// only a few round trips, and unfinished handshakes must not pile up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Size of the largest receive buffer; the server processes a longer message while it arrives.
pub const INPUT_BYTES_MAX: usize = INPUT_BYTES;

/// Memory of each connection outside the shared budget: a receive buffer, one piece of a reply or
/// one reply of the handshake, and some small replies. A thousand connections hold 64 MiB. TLS
/// needs [`weir_net::limits::TLS_BYTES`] more.
pub const OWN_BYTES: usize = 64 << 10;

/// Length of the parts in which the server passes a long write to the export: the longest write
/// that the engine accepts atomically. A write of any length therefore needs only the memory of one
/// part.
pub const PART_BYTES: usize = ATOMIC_WRITE_BYTES_MAX as usize;

/// Size of the pieces in which the server sends the reply to a read if memory is short. The pieces
/// use the connection's own memory ([`OWN_BYTES`]): the read takes longer, but waits for no other
/// client.
pub const PIECE_BYTES: usize = 32 << 10;

/// Memory reserved for a reply without data: the header and the longest error text.
pub const REPLY_BYTES_MAX: usize = 1 << 10;

/// Memory that one extent of a BLOCK_STATUS takes: in the export's result, and in the reply.
pub const EXTENT_BYTES: usize = 24;

/// A connection reports its memory to the budget after a decrease by this size, after growth by a
/// quarter of this size, and when it becomes idle. Small requests in a deep queue then take no lock
/// of the budget.
pub const ACCOUNT_BYTES: usize = 256 << 10;

/// If the collected replies reach this size, the server sends them before it runs the next request.
/// The size holds 60 reads of 4 KiB, and is small enough for the CPU's cache.
pub const SEND_BYTES: usize = 256 << 10;

/// Longest reply of a task that the server copies into the buffer of the next send. The server
/// sends a longer reply from the buffer of the task.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Memory of the read buffers that a busy connection keeps for reuse: 16 reads of 1 MiB. Reused
/// buffers cause no page faults.
pub const POOL_BYTES_MAX: usize = 17 << 20;

/// Maximum number of requests of one connection that wait for I/O: twice the depth of the deepest
/// common client queue (fio and the Linux client use up to 128).
pub const REQUESTS_MAX: usize = 256;

/// Memory for the requests and replies of one connection: twice the size of the largest request, so
/// that the server can send one reply while it reads the next request.
pub const HELD_BYTES_MAX: usize = 64 << 20;

/// Maximum number of extents in one BLOCK_STATUS reply: 32 KiB. The client requests further extents
/// with another command.
pub const EXTENTS_MAX: usize = 4096;

/// If a send answers at most this number of requests, the server busy polls after the send. A
/// client that has more requests in flight keeps a queue, and busy polling gains nothing.
pub const BUSY_POLL_REQUESTS_MAX: u64 = 2;

/// Shortest read that the server sends directly from cached blocks. For a shorter read, a copy
/// costs less than the additional parts of the send.
pub const SHARE_BYTES_MIN: u32 = 64 << 10;

/// Longest read that the server sends directly from cached blocks: a send accepts 1024 parts
/// (UIO_MAXIOV).
pub const SHARE_BYTES_MAX: u32 = 2 << 20;

/// Longest write that the server receives completely before it runs the write. The server takes the
/// payload of a longer write from the receive buffer while it arrives. The client's socket buffers
/// about as much data, so the client continues to send during that time.
pub const WHOLE_WRITE_BYTES_MAX: usize = (128 << 10) - 1;
