//! Limits of the management interface, with their reasons.
//!
//! Limits of the engine and of names are in weir-base.
//!
//! Invariant: each constant has its unit in its name or type and its reason next to it.

use std::time::Duration;

/// Maximum request body: enough for a pool of thousands of disks, too small to exhaust memory.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Maximum response that a client reads: enough for thousands of volumes.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// The server closes a connection without a complete request header after this time, also if idle.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time to receive a request body; bodies are small and clients are near.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections of a listener; a new one evicts a connection that sends nothing. A
/// flood on TCP leaves the unix socket free.
pub const CONNECTIONS_MAX: usize = 64;

/// ... of one address or one local user: three quarters, so that other clients always get in.
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// ... plus these for root and the user of the server on a unix socket, so that an administrator
/// always gets in.
pub const ROOT_SLOTS: usize = 16;

/// Maximum number of connections of a listener that wait for a slot; the server reads nothing of
/// their requests. It answers further ones with 503 and `Retry-After`. Each holds a descriptor and
/// some KiB.
pub const WAITING_MAX: usize = 256;

/// ... of one address or one local user: three quarters, as for connections.
pub const PEER_WAITING_MAX: usize = WAITING_MAX / 4 * 3;

/// Length of the kernel's accept queue: twice as many connections as have or wait for a slot, for a
/// burst while the server is busy. The kernel may allow fewer (`net.core.somaxconn`).
pub const ACCEPT_QUEUE: i32 = 672;

/// A connection that waited this long for a slot gets a 503: well below the time that a client
/// waits for a response.
pub const SLOT_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent 503 responses to connections without a slot; the server closes
/// further connections without a response.
pub const REFUSALS_MAX: usize = 64;

/// Time limit of each such response, including the TLS handshake.
pub const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Value of `Retry-After`: slots become free within a second unless calls wait for disks.
pub const RETRY_AFTER_SECONDS: u64 = 1;

/// While other connections need slots, a connection without a complete request header can be
/// evicted after this time: longer than an active client needs to send a request. With an
/// incomplete body, after four times as long.
pub const GRACE: Duration = Duration::from_millis(250);

/// While other connections need slots, a connection whose client reads nothing of its response can
/// be evicted after this time.
pub const ANSWER_GIVES_WAY: Duration = Duration::from_secs(5);

/// The server closes a connection whose client reads less than [`STALL_BYTES`] of its response in
/// this time.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// ... for a sent stream: its reader may pause for a while, for example on a full pipe.
pub const STREAM_STALL_LIMIT: Duration = Duration::from_mins(2);

/// See [`STALL_LIMIT`]. A client that reads one byte per second makes no progress.
pub const STALL_BYTES: usize = 16 << 10;

/// Size of a connection's receive buffer, and so of the longest request header. Usual headers have
/// less than 1 KiB.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Maximum concurrent calls of one token or user, from all its addresses: a quarter of the total.
/// Further calls wait. Root and the user of the server have no such limit.
pub const TOKEN_CALLS_MAX: usize = 16;

/// If this many calls of tokens run, a token with a running call gets no further one. The rest, up
/// to [`CALLS_MAX`], is reserved for tokens without a running call.
pub const SHARED_CALLS_MAX: usize = 48;

/// Maximum concurrent calls of all tokens, over all listeners.
pub const CALLS_MAX: usize = 64;

/// A call that waited this long for its permit gets a 503 and does not run.
pub const CALL_WAIT: Duration = Duration::from_secs(10);

/// Maximum concurrent long polls for events of one token or user; further ones wait [`EVENT_PAUSE`]
/// only.
pub const EVENT_WAITS_OF_ONE_MAX: usize = 8;

/// Maximum number of snapshots and ranges in one call: as many as a large pool has volumes. Each is
/// compared with all others.
pub const SNAPSHOT_NAMES_MAX: usize = 4096;

/// Maximum number of paths in one search for pools: each is a directory to read, or a disk.
pub const SEARCH_MAX: usize = 64;

/// Maximum number of list entries in one response; `after` requests the next ones.
pub const PAGE_ENTRIES_MAX: usize = 1000;

/// ... for another server of an earlier version, which does not support pages.
pub const PEER_ENTRIES_MAX: usize = 16_384;

/// A page ends with the entry that reaches this many bytes of JSON: a thousand usual entries fit.
pub const PAGE_BYTES: usize = 256 << 10;

/// Responses up to this size need no memory from [`ANSWERS_BYTES`]: all except long lists.
pub const SMALL_ANSWER_BYTES: usize = 16 << 10;

/// Maximum memory of unsent responses to all callers except root, over all listeners.
pub const ANSWERS_BYTES: usize = 8 << 20;

/// ... to root and the user of the server, on unix sockets.
pub const ROOT_ANSWERS_BYTES: usize = 4 << 20;

/// ... to one token or one user: eight long pages.
pub const ANSWERS_OF_ONE_BYTES: usize = 2 << 20;

/// Bodies above this size need one of [`LARGE_BODIES_MAX`] permits: any call fits in 64 KiB, except
/// a part of a stream or a pool of hundreds of disks.
pub const SMALL_BODY_BYTES: usize = 64 << 10;

/// Maximum number of larger bodies in memory, over all listeners: this many each of admins, other
/// callers and peers, 24 MiB in total. As many as streams at once.
pub const LARGE_BODIES_MAX: usize = 8;

/// ... of peers at one address: one for each stream that it may send at once, and one in reserve.
pub const LARGE_BODIES_OF_ONE_PEER_MAX: usize = 4;

/// Maximum concurrent long polls for events, each of which holds a connection; further ones wait
/// [`EVENT_PAUSE`] only.
pub const EVENT_WAITS_MAX: usize = 32;

/// See [`EVENT_WAITS_MAX`]: a client that follows events polls again after each response.
pub const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Maximum connections of authenticated peers: one for each replication.
pub const PEERS_MAX: usize = 32;

/// ... of one address: enough for a server with many replications, and the rest for other servers.
pub const PEER_SHARE_MAX: usize = 16;

/// Maximum connections of unauthenticated peers. They are separate from authenticated ones, so that
/// they delay no replication. Each ends within [`HEADER_TIMEOUT`] for TLS and as much for its first
/// request, at its first refusal, or when a new connection evicts it.
pub const PEER_UNAUTHENTICATED_MAX: usize = 32;

/// ... of one address.
pub const PEER_UNAUTHENTICATED_OF_ONE_MAX: usize = 8;

/// Minimum interval between log lines about unauthenticated peers; the server counts the others.
pub const UNAUTHENTICATED_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Time that a stopping server gives running calls to finish.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Default time that a client waits for a response; the longest calls (create, import) take
/// seconds.
pub const CLIENT_TIMEOUT: Duration = Duration::from_mins(1);

/// Time that a client keeps an idle connection for its next call: well below [`HEADER_TIMEOUT`], so
/// that the server does not close the connection during a call.
pub const CONNECTION_KEPT: Duration = Duration::from_secs(5);

/// If a download receives nothing for this long, the client polls the server for its progress.
pub const SEND_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time of a long poll for events: below any client's timeout, and short enough that a
/// stopping server need not interrupt it.
pub const EVENT_WAIT_MAX: Duration = Duration::from_secs(4);

/// Delay of the first wrong token of a sender; each further one doubles it ...
pub const GUESS_DELAY_MIN: Duration = Duration::from_millis(250);

/// ... up to this: below the time that a client waits for a response.
pub const GUESS_DELAY_MAX: Duration = Duration::from_secs(8);

/// The delay of a sender restarts at the minimum this long after its last wrong token.
pub const GUESS_FORGOTTEN: Duration = Duration::from_mins(15);

/// Maximum characters of the path of a denied call in its event.
pub const NOTED_PATH_CHARS_MAX: usize = 200;

/// Maximum number of senders of wrong tokens in memory, about 100 KiB; a new one replaces the
/// oldest.
pub const GUESSERS_MAX: usize = 1024;

/// Maximum number of wrong tokens whose delay runs at once, of all senders: few of
/// [`CONNECTIONS_MAX`]. Beyond it, the response is immediate. 256 random bits cannot be guessed at
/// any rate; the delay limits log output.
pub const GUESSES_WAITING_MAX: usize = 8;
