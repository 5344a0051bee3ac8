//! Limits of the protocol side, each with its reason.
//!
//! Not here: limits of the engine (weir-base).
//!
//! Invariants, whatever clients send:
//! - a connection holds at most [`INPUT_BYTES_MAX`] of input and [`HELD_BYTES_MAX`] (or one largest
//!   request) of requests and replies;
//! - all connections together hold at most what their budget has, and [`OWN_BYTES`] each.

use std::time::Duration;

use weir_base::limits::ATOMIC_WRITE_BYTES_MAX;
use weir_net::limits::INPUT_BYTES;

/// Smallest request: the sector every client can address, and the smallest the protocol has a
/// use for.
pub const BLOCK_BYTES_MIN: u32 = 512;

/// What is handed to an export as a block, without a copy.
pub const BLOCK_BYTES: u32 = weir_base::BLOCK_BYTES as u32;

/// Largest READ or WRITE: what every client may assume a server takes (proto.md, "Block size
/// constraints").
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// A write longer than [`REQUEST_BYTES_MAX`] but not than this is read, thrown away and answered
/// with an error; a longer one ends the connection, because reading it costs more than connecting
/// again.
pub const DRAIN_BYTES_MAX: u32 = 64 << 20;

/// Longest option data: an export name and a handful of metadata queries fit several times.
pub const OPTION_BYTES_MAX: usize = 16 << 10;

/// A LIST is sent in parts of about this size, each built when the client took the one before. A
/// part ends with the name that reaches the size. With the receive buffer it fits into
/// [`OWN_BYTES`].
pub const LIST_PART_BYTES: usize = 8 << 10;

/// A client that has not finished the handshake by then is dropped, unless
/// [`Nbd::with_handshake_limit`](crate::Nbd::with_handshake_limit) sets another limit: no client
/// needs more than a few round trips, and half-open connections must not pile up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Receive buffer at most; longer messages are taken as they come.
pub const INPUT_BYTES_MAX: usize = INPUT_BYTES;

/// Memory of each connection outside the budget, from its first byte on: a receive buffer, one
/// piece of a reply or one answer of the handshake, and some small replies. A thousand connections
/// hold 64 MiB. What TLS holds comes on top ([`weir_net::limits::TLS_BYTES`]).
pub const OWN_BYTES: usize = 64 << 10;

/// Part of a long write that is handed to the export at once: as much as the engine takes in one
/// piece where a write waits. So no write needs more memory than this, however long it is.
pub const PART_BYTES: usize = ATOMIC_WRITE_BYTES_MAX as usize;

/// Where memory is short, a read is answered in pieces of this size, out of what is the
/// connection's own: it takes longer and waits for no other client.
pub const PIECE_BYTES: usize = 32 << 10;

/// Room set aside for a reply without data: header and longest error text.
pub const REPLY_BYTES_MAX: usize = 1 << 10;

/// RAM of one extent while a BLOCK_STATUS is answered: as the export gives it, and in the reply.
pub const EXTENT_BYTES: usize = 24;

/// The budget is told of changes from this size on, and when a connection is idle: so small
/// requests in a deep queue take no lock.
pub const ACCOUNT_BYTES: usize = 256 << 10;

/// Replies gathered before the next request waits for a send: large enough for 60 reads of 4 KiB
/// in one send, small enough to stay in the CPU's cache.
pub const SEND_BYTES: usize = 256 << 10;

/// Replies up to this size that come from a task are copied into the next send; larger ones are
/// sent from their own buffer.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Buffers of finished large reads a busy connection keeps for the next ones: 16 reads of 1 MiB,
/// so that memory is not faulted in anew for each.
pub const POOL_BYTES_MAX: usize = 17 << 20;

/// Requests of one connection that wait for I/O: twice what the deepest common client queue
/// (fio and the Linux client use up to 128) asks for.
pub const REQUESTS_MAX: usize = 256;

/// Bytes of requests and replies one connection holds: two largest requests, so that one can be
/// sent while the next is read.
pub const HELD_BYTES_MAX: usize = 64 << 20;

/// Extents in one BLOCK_STATUS reply: 32 KiB; a client asks again for the rest.
pub const EXTENTS_MAX: usize = 4096;

/// Requests answered in one send beyond which the client has a queue, and need not be waited for.
pub const LINGER_REQUESTS_MAX: u64 = 2;

/// Reads from this size on are sent from the blocks in memory, without a copy; below it a copy is
/// cheaper than a part of its own in the send.
pub const SHARE_BYTES_MIN: u32 = 64 << 10;

/// Reads up to this size may be: a send takes 1024 parts (UIO_MAXIOV).
pub const SHARE_BYTES_MAX: u32 = 2 << 20;

/// Writes longer than this are taken as they arrive, out of the receive buffer: the client's socket
/// holds about as much, and goes on sending meanwhile.
pub const WHOLE_WRITE_BYTES_MAX: usize = (128 << 10) - 1;
