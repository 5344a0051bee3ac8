//! Limits of the management interface, with their reasons.
//!
//! Limits of the engine and of names are in weir-base.
//!
//! Invariant: each constant has a unit in its name or type, and its reason in its comment.

use std::time::Duration;

/// Maximum request body: enough for a pool of thousands of disks, too small to exhaust memory.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Maximum response that a client reads: enough for thousands of volumes.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Time after which the server closes a connection that has not sent a complete request header. The
/// limit also applies to idle connections.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time to receive a request body. Bodies are small, and clients are usually in the same
/// network.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of connections of a listener. At the maximum, a new connection evicts an idle
/// one. Each listener has its own slots, so a flood of connections over TCP leaves slots free on
/// the unix socket.
pub const CONNECTIONS_MAX: usize = 64;

/// Maximum number of connections of one address or one local user on a listener: three quarters of
/// all slots, so that other clients also get a connection.
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// Number of additional connections for root and the user of the server on a unix socket, so that
/// an administrator always gets a connection.
pub const ROOT_SLOTS: usize = 16;

/// Maximum number of connections of a listener that wait for a slot, including connections that
/// have waited for [`SLOT_WAIT`] and are being answered with 503. The server reads nothing of their
/// requests, and answers further connections with 503 and `Retry-After`. Each waiting connection
/// holds a descriptor and some KiB.
pub const WAITING_MAX: usize = 256;

/// Maximum number of waiting connections of one address or one local user: three quarters of the
/// queue, as for connections with a slot.
pub const PEER_WAITING_MAX: usize = WAITING_MAX / 4 * 3;

/// Length of the kernel's accept queue: twice the number of connections that have a slot or wait
/// for one, for a burst while the server is busy. The kernel may allow fewer
/// (`net.core.somaxconn`).
pub const ACCEPT_QUEUE: i32 = 672;

/// Time after which a connection that waits for a slot gets a 503: well below the time that a
/// client waits for a response.
pub const SLOT_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of concurrent 503 responses to connections for which the queue is full; the
/// server closes further connections without a response.
pub const REFUSALS_MAX: usize = 64;

/// Time limit of each 503 response to a connection without a slot, including the TLS handshake.
pub const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Value of `Retry-After`: slots become free within a second unless calls wait for disks.
pub const RETRY_AFTER_SECONDS: u64 = 1;

/// Time after which a connection without a complete request header can be evicted while other
/// connections need a slot: longer than an active client needs to send a header. A connection with
/// an incomplete body can be evicted after four times as long.
pub const GRACE: Duration = Duration::from_millis(250);

/// Time after which a connection whose client reads nothing of its response can be evicted while
/// other connections need a slot.
pub const ANSWER_GIVES_WAY: Duration = Duration::from_secs(5);

/// Time in which a client must read [`STALL_BYTES`] of its response. Otherwise the server closes
/// the connection.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// Time in which the client of a sent stream must read [`STALL_BYTES`]. This time is longer than
/// [`STALL_LIMIT`], because the client may pause, for example while its output pipe is full.
pub const STREAM_STALL_LIMIT: Duration = Duration::from_mins(2);

/// Number of bytes that a client must read within [`STALL_LIMIT`]. A client that reads one byte per
/// second reads too few.
pub const STALL_BYTES: usize = 16 << 10;

/// Size of a connection's receive buffer, which limits the length of a request header. Usual
/// headers have less than 1 KiB.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Maximum concurrent calls of one token or user, from all its addresses: a quarter of all calls.
/// Further calls of the token wait. Root and the user of the server have no such limit.
pub const TOKEN_CALLS_MAX: usize = 16;

/// Number of running calls of all tokens above which a token that has a running call gets no
/// further permit. The remaining permits, up to [`CALLS_MAX`], are for tokens without a running
/// call.
pub const SHARED_CALLS_MAX: usize = 48;

/// Maximum concurrent calls of all tokens together, over all listeners.
pub const CALLS_MAX: usize = 64;

/// Time after which a call that waits for its permit gets a 503 and does not run.
pub const CALL_WAIT: Duration = Duration::from_secs(10);

/// Maximum concurrent long polls for events of one token or user. Further polls return after
/// [`EVENT_PAUSE`].
pub const EVENT_WAITS_OF_ONE_MAX: usize = 8;

/// Maximum number of snapshots and ranges in one call: as many as a large pool has volumes. The
/// server compares each entry with all others.
pub const SNAPSHOT_NAMES_MAX: usize = 4096;

/// Maximum number of paths in one search for pools. Each path is a directory to read, or a disk.
pub const SEARCH_MAX: usize = 64;

/// Maximum number of list entries in one response. The caller gets the next entries with `after`.
pub const PAGE_ENTRIES_MAX: usize = 1000;

/// Maximum number of list entries in one response to another server of an earlier version, which
/// cannot request further pages.
pub const PEER_ENTRIES_MAX: usize = 16_384;

/// Length of JSON in bytes at which a page of a list ends; the entry that reaches this length is
/// the last entry of the page. A thousand usual entries fit.
pub const PAGE_BYTES: usize = 256 << 10;

/// Responses up to this size are not charged to [`ANSWERS_BYTES`]: all responses except long lists.
pub const SMALL_ANSWER_BYTES: usize = 16 << 10;

/// Maximum memory of unsent responses to all callers except root, together, over all listeners.
pub const ANSWERS_BYTES: usize = 8 << 20;

/// Maximum memory of unsent responses to root and the user of the server, on unix sockets.
pub const ROOT_ANSWERS_BYTES: usize = 4 << 20;

/// Maximum memory of unsent responses to one token or one user: eight pages of full length.
pub const ANSWERS_OF_ONE_BYTES: usize = 2 << 20;

/// Length above which a request body needs one of [`LARGE_BODIES_MAX`] permits. The body of any
/// call fits in 64 KiB, except a part of a stream or a new pool with hundreds of disks.
pub const SMALL_BODY_BYTES: usize = 64 << 10;

/// Maximum number of bodies above [`SMALL_BODY_BYTES`] in memory, over all listeners. Admins, other
/// callers and peers each have this limit: 24 MiB in total. The server also receives at most this
/// many streams at the same time.
pub const LARGE_BODIES_MAX: usize = 8;

/// Maximum number of large bodies of peers at one address in memory: one for each stream that the
/// peer may send at once, and one in reserve.
pub const LARGE_BODIES_OF_ONE_PEER_MAX: usize = 4;

/// Maximum concurrent long polls for events of all callers; each holds a connection. Further polls
/// return after [`EVENT_PAUSE`].
pub const EVENT_WAITS_MAX: usize = 32;

/// Time after which a poll for events above [`EVENT_WAITS_MAX`] returns. A client that follows
/// events polls again after each response.
pub const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Maximum connections of authenticated peers: one for each replication.
pub const PEERS_MAX: usize = 32;

/// Maximum connections of authenticated peers at one address: enough for a server with many
/// replications. The remaining connections are for other servers.
pub const PEER_SHARE_MAX: usize = 16;

/// Maximum connections of unauthenticated peers. Unauthenticated peers have separate slots, so that
/// they delay no replication. Such a connection ends at its first refused request, when a new
/// connection evicts it, or if its TLS handshake or its first request takes longer than
/// [`HEADER_TIMEOUT`].
pub const PEER_UNAUTHENTICATED_MAX: usize = 32;

/// Maximum connections of unauthenticated peers at one address.
pub const PEER_UNAUTHENTICATED_OF_ONE_MAX: usize = 8;

/// Minimum interval between log lines about unauthenticated peers. The next line has the number of
/// peers since the previous one.
pub const UNAUTHENTICATED_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Time that a stopping server gives running calls to finish.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Default time that a client waits for a response. The longest calls (create and import of a pool)
/// take seconds.
pub const CLIENT_TIMEOUT: Duration = Duration::from_mins(1);

/// Time that a client keeps an idle connection for its next call: well below [`HEADER_TIMEOUT`], so
/// that the server does not close the connection during a call.
pub const CONNECTION_KEPT: Duration = Duration::from_secs(5);

/// Time without data after which a client that downloads a stream asks the server for its progress.
pub const SEND_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum time of a long poll for events: below any client's timeout, and short enough that a
/// stopping server need not interrupt it.
pub const EVENT_WAIT_MAX: Duration = Duration::from_secs(4);

/// Delay of the response to the first wrong token from an address or user. Each further wrong token
/// doubles the delay, up to [`THROTTLE_DELAY_MAX`].
pub const THROTTLE_DELAY_MIN: Duration = Duration::from_millis(250);

/// Maximum delay of the response to a wrong token: less than the time that clients wait for a
/// response.
pub const THROTTLE_DELAY_MAX: Duration = Duration::from_secs(8);

/// If a sender sends no wrong token for this time, the delay of its responses starts at the minimum
/// again.
pub const THROTTLE_RESET: Duration = Duration::from_mins(15);

/// Maximum length of the path of a denied call in an event; longer paths are cut.
pub const NOTED_PATH_CHARS_MAX: usize = 200;

/// Maximum number of senders of wrong tokens that the server keeps in memory, about 100 KiB. A new
/// sender replaces the oldest.
pub const THROTTLE_ENTRIES_MAX: usize = 1024;

/// Maximum number of delayed responses to wrong tokens at the same time, of all senders together: a
/// small part of [`CONNECTIONS_MAX`]. Further responses are not delayed. A response without a delay
/// is safe, because the 256 random bits of a token cannot be guessed; the delay only limits log
/// output.
pub const THROTTLED_MAX: usize = 8;
