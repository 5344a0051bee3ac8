//! Limits of the protocol side, each with its reason.
//!
//! Not here: limits of the engine (weir-base).
//!
//! Invariant: whatever a client sends, a connection holds at most [`INPUT_BYTES_MAX`] of input and
//! [`HELD_BYTES_MAX`] (or one largest request) of requests and replies.

use std::time::Duration;

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

/// A client that has not finished the handshake by then is dropped: no automatic client needs
/// more than a few round trips, and half-open connections must not pile up.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// Receive buffer of a busy connection: 60 writes of 4 KiB, and as much as a default unix socket
/// holds.
pub const INPUT_BYTES: usize = 256 << 10;

/// Receive buffer at most: one largest write, received whole.
pub const INPUT_BYTES_MAX: usize = REQUEST_BYTES_MAX as usize + INPUT_BYTES;

/// Replies gathered before the next request waits for a send: large enough for 60 reads of 4 KiB
/// in one send, small enough to stay in the CPU's cache.
pub const SEND_BYTES: usize = 256 << 10;

/// Replies up to this size that come from a task are copied into the next send; larger ones are
/// sent from their own buffer.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Buffers larger than this are given back once empty: an idle connection keeps little.
pub const KEEP_BYTES_MAX: usize = 4 << 20;

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

/// Connections of one server; beyond it new ones are closed at once. Each holds a descriptor, and
/// the usual limit of those is 1024 or more for a service.
pub const CONNECTIONS_MAX: usize = 1024;

/// A silent TCP peer is probed after this long; client machines that died go away within
/// [`KEEPALIVE_IDLE`] + 3 probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered probes before the connection is dropped.
pub const KEEPALIVE_PROBES: u32 = 3;

/// At a stop, clients that do not take their replies are cut off after this long.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Longest busy wait for the request after a reply: what waking up costs on a slow machine, so it
/// at most doubles the cost of a client that does not come (hypervisors wait as long).
pub const LINGER_MAX: Duration = Duration::from_micros(100);

/// In this many waits for a client, the first [`LINGER_TRIALS`] try the other way of waiting.
pub const LINGER_TURNS: u32 = 2048;

/// Enough for an average; few enough that trying the worse way costs little.
pub const LINGER_TRIALS: u32 = 16;

/// Requests answered in one send beyond which the client has a queue, and need not be waited for.
pub const LINGER_REQUESTS_MAX: u64 = 2;

/// Reads from this size on are sent from the blocks in memory, without a copy; below it a copy is
/// cheaper than a part of its own in the send.
pub const SHARE_BYTES_MIN: u32 = 64 << 10;

/// Reads up to this size may be: a send takes 1024 parts (UIO_MAXIOV).
pub const SHARE_BYTES_MAX: u32 = 2 << 20;

/// Send buffer asked for on a unix socket, where it does not grow by itself: a client's read of
/// 1 MiB then takes fewer turns (the system allows 416 KiB unless told otherwise).
pub const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;

/// Writes of whole blocks from this size on are put into blocks while the rest still arrives: the
/// client's socket holds about as much, and goes on sending meanwhile.
pub const LONG_WRITE_BYTES_MIN: u32 = 128 << 10;
