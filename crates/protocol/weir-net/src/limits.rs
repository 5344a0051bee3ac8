//! Limits of every block protocol's server, each with its reason.
//!
//! Not here: limits of one protocol (its own crate), of the engine (weir-base).
//!
//! Invariant: none depends on what a client sends.

use std::time::Duration;

/// Receive buffer of a busy connection: 60 writes of 4 KiB, and as much as a default unix socket
/// holds.
pub const INPUT_BYTES: usize = 256 << 10;

/// Receive buffer of a connection that is idle or sends little: three writes of 4 KiB. A thousand
/// idle connections hold 16 MiB.
pub const INPUT_BYTES_MIN: usize = 16 << 10;

/// Buffers larger than this are given back once empty: an idle connection keeps little.
pub const KEEP_BYTES_MAX: usize = 4 << 20;

/// Connections that the system keeps until they are accepted; the acceptor only hands them on.
pub const ACCEPT_QUEUE: i32 = 128;

/// Connections of one server. Beyond it a new one takes the place of one that does nothing
/// (`places`), or is closed. Each holds a descriptor, and the usual limit of those is 1024 or more
/// for a service.
pub const CONNECTIONS_MAX: usize = 1024;

/// Connections of one server from one address or one local user: three quarters, so that the
/// clients of one machine never keep all others out.
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// A client that agreed on an export and has asked for nothing since gives its place up after this
/// long: all known clients read something at once.
pub const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// A client with no request for this long gives its place up to a new connection when all places
/// are taken. A mounted file system asks for something every few seconds while it is used; one that
/// is idle reconnects.
pub const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// A silent TCP peer is probed after this long; client machines that died go away within
/// [`KEEPALIVE_IDLE`] + 3 probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered probes before the connection is dropped.
pub const KEEPALIVE_PROBES: u32 = 3;

/// How often it is looked whether sessions are to move to another worker: rarely enough to cost
/// nothing, and that a span holds many turns of the kernel's scheduler; soon enough for a benchmark
/// of seconds.
pub const BALANCE_SPAN: Duration = Duration::from_millis(250);

/// A session that is to move stops taking requests for so long at most, to come to rest.
pub const REST_LIMIT: Duration = Duration::from_millis(20);

/// Disconnections are remembered for so long, for sessions that were on their way to another worker
/// meanwhile: much longer than that takes.
pub const DISCONNECTS_KEPT: Duration = Duration::from_mins(1);

/// At a stop, clients that do not take their replies are cut off after this long.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// A client that takes no byte of what is sent to it for so long is dropped: it holds memory that
/// others wait for. As long as TCP waits for one that does not acknowledge.
pub const SEND_STALL_LIMIT: Duration = Duration::from_mins(1);

/// While connections wait for memory, a client that holds some must take or send a part of it
/// ([`STALL_FRACTION`]) in each such span, or its connection is ended. Long enough for a client
/// whose machine swaps or migrates; short enough that clients which wait do not time out (30 s).
pub const STALL_CHECK: Duration = Duration::from_secs(5);

/// Part of what it holds that a client must move in each [`STALL_CHECK`], as a divisor: all of it
/// within 80 s.
pub const STALL_FRACTION: usize = 16;

/// A connection that waits for memory looks so often for clients that stall ([`STALL_CHECK`]).
pub const STALL_LOOK: Duration = Duration::from_secs(1);

/// Encrypted bytes received at once: a record of TLS (RFC 8446 §5.1). So a thousand idle
/// connections hold 16 MiB.
pub const TLS_RECEIVE_BYTES: usize = 16 << 10;

/// Limit of the bytes encrypted for one send: one TLS record (RFC 8446 §5.1).
pub const TLS_SEND_BYTES: usize = 16 << 10;

/// Bytes that TLS holds for one connection: a receive, the beginning of a record, a send.
pub const TLS_BYTES: usize = 2 * TLS_RECEIVE_BYTES + TLS_SEND_BYTES;

/// Handshakes of TLS at once. Each may hold a message of 64 KiB (a certificate with its chain), a
/// receive and the state of the session: 8 MiB together.
pub const TURNS_MAX: usize = 64;

/// ... of one address or local user: three quarters, as of connections.
pub const PEER_TURNS_MAX: usize = TURNS_MAX / 4 * 3;

/// Longest turn: a handshake takes two round trips and some milliseconds of a CPU. A client whose
/// peer has no turn waits no longer than this.
pub const TURN_LIMIT: Duration = Duration::from_secs(5);

/// Longest wait for a client to take the TLS close_notify.
pub const TLS_END_LIMIT: Duration = Duration::from_secs(1);

/// Longest busy wait for the request after a reply: what waking up costs on a slow machine, so it
/// at most doubles the cost of a client that does not come (hypervisors wait as long).
pub const LINGER_MAX: Duration = Duration::from_micros(100);

/// In this many waits for a client, the first [`LINGER_TRIALS`] try the other way of waiting.
pub const LINGER_TURNS: u32 = 2048;

/// Enough for an average; few enough that trying the worse way costs little.
pub const LINGER_TRIALS: u32 = 16;

/// Send buffer asked for on a unix socket, where it does not grow by itself: a client's read of
/// 1 MiB then takes fewer turns (the system allows 416 KiB unless told otherwise).
pub const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;
