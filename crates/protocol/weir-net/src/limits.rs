//! Limits of the servers of all block protocols, each with its reason.
//!
//! Limits of one protocol are in its crate, limits of the engine in `weir-base`.
//!
//! Invariant: no limit depends on client input.

use std::time::Duration;

/// Receive buffer of a busy connection: 60 writes of 4 KiB, or the default buffer of a unix socket.
pub const INPUT_BYTES: usize = 256 << 10;

/// Receive buffer of an idle or slow connection: three writes of 4 KiB. A thousand idle connections
/// hold 16 MiB.
pub const INPUT_BYTES_MIN: usize = 16 << 10;

/// A larger buffer is freed once it is empty, so that an idle connection holds little memory.
pub const KEEP_BYTES_MAX: usize = 4 << 20;

/// Listen backlog of a socket. It can be short, because the acceptor only passes connections on.
pub const ACCEPT_QUEUE: i32 = 128;

/// Maximum number of connections of one server. At the limit, a new connection evicts an idle one
/// (`connection_table`) or is closed. Each connection holds a file descriptor; services usually
/// have a limit of 1024 descriptors or more.
pub const CONNECTIONS_MAX: usize = 1024;

/// Maximum number of connections of one server from one address or one local user: three quarters,
/// so that the clients of one machine never lock out all others.
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// Time after which a client that negotiated an export but sent no request can be evicted. All
/// known clients send a read right after the handshake.
pub const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// At the connection limit, a new connection can evict a client without a request for this time. A
/// mounted file system sends a request every few seconds while in use; an idle client reconnects.
pub const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Idle time before the first TCP keepalive probe. Connections of a dead client machine end within
/// [`KEEPALIVE_IDLE`] + 3 probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between keepalive probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Unanswered probes before the connection is dropped.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Interval between two balancing decisions. It is long enough that a decision costs nothing and
/// that a span covers many scheduler time slices, and short enough for a benchmark of seconds.
pub const BALANCE_SPAN: Duration = Duration::from_millis(250);

/// Maximum time for which a session that is about to move accepts no requests while it drains.
pub const REST_LIMIT: Duration = Duration::from_millis(20);

/// Time for which a worker keeps a disconnect call, so that it also ends sessions that were moving
/// between workers at the time of the call: much longer than a move takes.
pub const DISCONNECTS_KEPT: Duration = Duration::from_mins(1);

/// Maximum number of disconnect calls with different lists of clients that a worker keeps for one
/// name. Further calls end all moving sessions of the name.
pub const DISCONNECTS_OF_NAME_MAX: usize = 16;

/// Time after which a shutdown drops clients that do not read their replies.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Time after which a client that reads no byte is dropped, because it holds memory for which
/// others wait. TCP waits equally long for a peer that does not acknowledge.
pub const SEND_STALL_LIMIT: Duration = Duration::from_mins(1);

/// Interval in which a client that holds memory must send or receive a part of it
/// ([`STALL_FRACTION`]) while other connections wait for memory; otherwise its connection is
/// evicted. It is long enough for a client machine that swaps or migrates, and so short that
/// waiting clients do not time out (30 s).
pub const STALL_CHECK: Duration = Duration::from_secs(5);

/// Part of its memory (a divisor) that a client must transfer in each [`STALL_CHECK`]. At that rate
/// it transfers all of it within 80 s.
pub const STALL_FRACTION: usize = 16;

/// Interval at which a connection that waits for memory checks for stalled clients
/// ([`STALL_CHECK`]).
pub const STALL_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Size of one receive of encrypted bytes: a TLS record (RFC 8446 §5.1). A thousand idle
/// connections hold 16 MiB.
pub const TLS_RECEIVE_BYTES: usize = 16 << 10;

/// Maximum number of plaintext bytes encrypted for one send: one TLS record (RFC 8446 §5.1).
pub const TLS_SEND_BYTES: usize = 16 << 10;

/// Bytes that TLS holds for one connection: one receive, the beginning of a record, one send.
pub const TLS_BYTES: usize = 2 * TLS_RECEIVE_BYTES + TLS_SEND_BYTES;

/// Concurrent TLS handshakes. Each may hold a message of 64 KiB (a certificate with its chain), a
/// receive and the session state: 8 MiB in total.
pub const TURNS_MAX: usize = 64;

/// Concurrent TLS handshakes of one address or local user: three quarters, as for connections.
pub const PEER_TURNS_MAX: usize = TURNS_MAX / 4 * 3;

/// Maximum duration of a permit of the fair queue. A handshake takes two round trips and some
/// milliseconds of CPU time. If a peer has no permit, the first of its waiting clients gets one
/// within this time.
pub const TURN_LIMIT: Duration = Duration::from_secs(5);

/// Maximum wait for the client to read the TLS close_notify.
pub const TLS_END_LIMIT: Duration = Duration::from_secs(1);

/// Maximum busy poll for the request after a reply. It equals the wake-up cost on a slow machine,
/// so that polling at most doubles the cost of a wait for a slow client. Hypervisors poll equally
/// long.
pub const LINGER_MAX: Duration = Duration::from_micros(100);

/// Number of waits in one period of busy polling. The first [`LINGER_TRIALS`] waits of each period
/// use the slower mode as a trial: sleeping instead of polling, or the reverse.
pub const LINGER_TURNS: u32 = 2048;

/// Number of trial waits in each period: enough samples for an average, and so few that a slower
/// mode costs little.
pub const LINGER_TRIALS: u32 = 16;

/// Send buffer size to request for a unix socket, which the kernel does not grow automatically.
/// With it, a client's read of 1 MiB takes fewer sends (the kernel allows 416 KiB unless configured
/// otherwise).
pub const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;
