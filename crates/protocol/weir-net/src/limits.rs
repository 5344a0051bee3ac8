//! Limits of the servers of all block protocols, each with its reason.
//!
//! The limits of one protocol are in its crate, the limits of the engine in `weir-base`.
//!
//! Invariant: no limit depends on client input.

use std::time::Duration;

/// Receive buffer of a busy connection: 60 writes of 4 KiB. Also the default buffer of a unix
/// socket.
pub const INPUT_BYTES: usize = 256 << 10;

/// Receive buffer of an idle or slow connection: three writes of 4 KiB. The buffers of a thousand
/// idle connections take 16 MiB.
pub const INPUT_BYTES_MIN: usize = 16 << 10;

/// A buffer above this size is freed once it is empty, so that an idle connection holds little
/// memory.
pub const KEEP_BYTES_MAX: usize = 4 << 20;

/// Listen backlog of a socket. A short backlog suffices: the acceptor only accepts connections and
/// passes them to workers.
pub const ACCEPT_QUEUE: i32 = 128;

/// Maximum number of connections of one server. At this limit, a new connection evicts an idle
/// connection (`connection_table`), or is closed if no connection is idle. Each connection holds a
/// file descriptor; services usually have a limit of 1024 descriptors or more.
pub const CONNECTIONS_MAX: usize = 1024;

/// Maximum number of connections of one server from one address or one local user: three quarters
/// of all, so that the clients of one machine never lock out all other clients. A protocol may have
/// a lower limit (`Protocol::PEER_CONNECTIONS_MAX`).
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// Time after which a new connection can evict a client that negotiated an export but sent no
/// request. All known clients send a read request right after the handshake.
pub const UNUSED_LIMIT: Duration = Duration::from_secs(1);

/// Time without a request after which a new connection can evict the connection of a client, if the
/// connection limit is reached. A mounted file system that is in use sends a request every few
/// seconds; an idle client reconnects.
pub const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Idle time before the first TCP keepalive probe. The connections of a dead client machine end
/// after [`KEEPALIVE_IDLE`] and [`KEEPALIVE_PROBES`] unanswered probes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

/// Time between two TCP keepalive probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Number of unanswered TCP keepalive probes after which the connection is dropped.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Interval at which the server decides whether sessions move between workers; one such interval is
/// a span. A span is long enough that a decision costs little and that it covers many scheduler
/// time slices, and short enough for a benchmark of a few seconds.
pub const BALANCE_SPAN: Duration = Duration::from_millis(250);

/// Maximum time for which a session that is about to move accepts no new requests while it finishes
/// its running requests.
pub const REST_LIMIT: Duration = Duration::from_millis(20);

/// Time for which a worker keeps a disconnect call, so that the call also ends sessions that were
/// moving between workers when the call was made. A move takes much less time.
pub const DISCONNECTS_KEPT: Duration = Duration::from_mins(1);

/// Maximum number of disconnect calls that a worker keeps for one export or target name, each with
/// another list of clients that stay connected. A further call for this name ends all moving
/// sessions, also of clients on its list.
pub const DISCONNECTS_OF_NAME_MAX: usize = 16;

/// Time after the start of a shutdown at which the server drops clients that have not read their
/// replies.
pub const DRAIN_LIMIT: Duration = Duration::from_secs(5);

/// Time after which the server drops a client that reads no byte, because such a client holds
/// memory that other connections wait for. TCP waits equally long for a peer that does not
/// acknowledge data.
pub const SEND_STALL_LIMIT: Duration = Duration::from_mins(1);

/// Interval in which a client must transfer a part ([`STALL_FRACTION`]) of the bytes that its
/// connection holds while other connections wait for memory; otherwise its connection is evicted.
/// The interval is long enough for a client machine that swaps or migrates, and so short that the
/// clients of the waiting connections do not time out (30 s).
pub const STALL_CHECK: Duration = Duration::from_secs(5);

/// In each [`STALL_CHECK`], a client must transfer the bytes that its connection holds, divided by
/// this number. At this rate a client transfers all of these bytes within 80 s.
pub const STALL_FRACTION: usize = 16;

/// Interval at which a connection that waits for memory looks for stalled clients
/// ([`STALL_CHECK`]).
pub const STALL_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Size of one receive of encrypted bytes: a TLS record (RFC 8446 §5.1). The receive buffers of a
/// thousand idle connections take 16 MiB.
pub const TLS_RECEIVE_BYTES: usize = 16 << 10;

/// Maximum number of plaintext bytes encrypted for one send: one TLS record (RFC 8446 §5.1).
pub const TLS_SEND_BYTES: usize = 16 << 10;

/// Bytes that TLS holds for one connection: one receive, the beginning of a TLS record, one send.
pub const TLS_BYTES: usize = 2 * TLS_RECEIVE_BYTES + TLS_SEND_BYTES;

/// Maximum number of concurrent TLS handshakes. Each handshake may hold a message of 64 KiB (a
/// certificate with its chain), a receive and the session state: 8 MiB for all handshakes together.
pub const HANDSHAKES_MAX: usize = 64;

/// Maximum number of concurrent TLS handshakes of one address or local user: three quarters of
/// [`HANDSHAKES_MAX`].
pub const PEER_HANDSHAKES_MAX: usize = HANDSHAKES_MAX / 4 * 3;

/// Maximum time for which a client keeps a permit of the fair queue. A TLS handshake takes two
/// round trips and some milliseconds of CPU time. If a peer holds no permit, the first of its
/// waiting clients gets a permit within this time.
pub const TURN_LIMIT: Duration = Duration::from_secs(5);

/// Maximum time to wait until the client reads the close_notify of TLS.
pub const TLS_END_LIMIT: Duration = Duration::from_secs(1);

/// Maximum duration of busy polling for the request that follows a reply: the cost of a wake-up on
/// a slow machine. So polling for a slow client at most doubles the cost of the wait. Hypervisors
/// poll equally long.
pub const BUSY_POLL_MAX: Duration = Duration::from_micros(100);

/// Number of waits in one period of busy polling. The first [`BUSY_POLL_TRIALS`] waits of each
/// period try the mode that was slower: sleeping, or polling.
pub const BUSY_POLL_PERIOD: u32 = 2048;

/// Number of trial waits in each period: enough samples for an average, and so few that using the
/// slower mode costs little.
pub const BUSY_POLL_TRIALS: u32 = 16;

/// Send buffer size that the server requests for a unix socket, because the kernel does not grow
/// this buffer automatically. A larger buffer means that the reply to a read of 1 MiB takes fewer
/// sends (the kernel allows 416 KiB unless configured otherwise).
pub const UNIX_SEND_BUFFER_BYTES: usize = 1 << 20;
