//! Limits of the management interface, with their reasons.
//!
//! Not here: limits of the engine and of names (weir-base).
//!
//! Invariant: a constant carries its unit in its name or type and its why beside it.

use std::time::Duration;

/// Largest request body: a pool of thousands of disks fits; a mistake or an attack does not.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Largest answer a client takes in: thousands of volumes fit.
pub const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection that sends no whole request header for this long is closed, idle ones included.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// A request body must be complete within this; bodies are small and the client is near.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at once per listener; a new one takes the place of one that sends nothing. A flood
/// on TCP leaves the unix socket free.
pub const CONNECTIONS_MAX: usize = 64;

/// ... of them, from one address or one local user: three quarters, so that others always get in.
pub const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 4 * 3;

/// ... and on top of them, on a unix socket, for root and the user of the server, so that an
/// administrator always gets in.
pub const ROOT_SLOTS: usize = 16;

/// Connections of one listener that wait for a slot; nothing is read of their requests. Further
/// ones are answered 503 with `Retry-After`. Each holds a descriptor and some KiB.
pub const WAITING_MAX: usize = 256;

/// ... of one address or one local user: three quarters, as of connections.
pub const PEER_WAITING_MAX: usize = WAITING_MAX / 4 * 3;

/// Connections that the system keeps until they are accepted: twice as many as have or wait for a
/// slot, for a burst while the server is busy. The system may allow fewer (`net.core.somaxconn`).
pub const ACCEPT_QUEUE: i32 = 672;

/// A connection that found no slot for this long is answered 503: well below the time that a client
/// waits for an answer.
pub const SLOT_WAIT: Duration = Duration::from_secs(10);

/// Answers of 503 to connections without a slot that are on their way at once; further connections
/// are closed without one.
pub const REFUSALS_MAX: usize = 64;

/// ... each within this, the handshake of TLS included.
pub const REFUSAL_LIMIT: Duration = Duration::from_secs(2);

/// Value of `Retry-After`: slots become free within a second unless calls wait for disks.
pub const RETRY_AFTER_SECONDS: u64 = 1;

/// A connection keeps its slot this long without a whole request header when others need it: more
/// than a request takes from a client that has begun to send. A body has four times as long.
pub const GRACE: Duration = Duration::from_millis(250);

/// A connection whose client takes nothing of its answer for this long gives way when others need
/// its slot.
pub const ANSWER_GIVES_WAY: Duration = Duration::from_secs(5);

/// A connection whose client takes less than [`STALL_BYTES`] of its answer in this time is ended.
pub const STALL_LIMIT: Duration = Duration::from_secs(30);

/// ... of a sent stream: its reader may pause for a while, such as a full pipe.
pub const STREAM_STALL_LIMIT: Duration = Duration::from_mins(2);

/// See [`STALL_LIMIT`]. A client that takes a byte a second makes no progress.
pub const STALL_BYTES: usize = 16 << 10;

/// Bytes of a connection's receive buffer, the longest request header. The usual headers have less
/// than 1 KiB.
pub const HEADER_BYTES_MAX: usize = 64 << 10;

/// Calls of one token or user at once, from all its addresses: a quarter of what all have. More
/// wait before they run. Root and the user of the server have no such limit.
pub const TOKEN_CALLS_MAX: usize = 16;

/// Calls of tokens at once that leave no room for another call of a token that has one already. The
/// rest, up to [`CALLS_MAX`], is for tokens that have none.
pub const SHARED_CALLS_MAX: usize = 48;

/// Calls of all tokens at once, over all listeners.
pub const CALLS_MAX: usize = 64;

/// A call that waited this long for its turn is answered 503 and does not run.
pub const CALL_WAIT: Duration = Duration::from_secs(10);

/// Long waits for events of one token, or of one user, at once; more wait for [`EVENT_PAUSE`] only.
pub const EVENT_WAITS_OF_ONE_MAX: usize = 8;

/// Snapshots and ranges of them that one call names: as many as a large pool has volumes. Each is
/// compared with the others.
pub const SNAPSHOT_NAMES_MAX: usize = 4096;

/// Paths that one search for pools names: each is a directory that is read, or a disk.
pub const SEARCH_MAX: usize = 64;

/// Entries of a list in one answer; the next ones are asked for by `after`.
pub const PAGE_ENTRIES_MAX: usize = 1000;

/// ... for another server of an earlier version, which knows no pages.
pub const PEER_ENTRIES_MAX: usize = 16_384;

/// A page ends with the entry that reaches this many bytes of JSON: a thousand usual ones fit.
pub const PAGE_BYTES: usize = 256 << 10;

/// Answers up to this size need no memory from [`ANSWERS_BYTES`]: all but long lists.
pub const SMALL_ANSWER_BYTES: usize = 16 << 10;

/// Answers in memory that clients have not taken, of all callers but root, over all listeners.
pub const ANSWERS_BYTES: usize = 8 << 20;

/// ... of root and the user of the server, on unix sockets.
pub const ROOT_ANSWERS_BYTES: usize = 4 << 20;

/// ... of one token or one user: eight long pages.
pub const ANSWERS_OF_ONE_BYTES: usize = 2 << 20;

/// Bodies longer than this need one of [`LARGE_BODIES_MAX`] permits: 64 KiB hold any call but a
/// part of a stream, or a pool of hundreds of disks.
pub const SMALL_BODY_BYTES: usize = 64 << 10;

/// Longer bodies in memory at once, over all listeners: so many of admins, of other callers, and of
/// peers, 24 MiB in all. As many as there may be streams.
pub const LARGE_BODIES_MAX: usize = 8;

/// ... of peers, from one address: one for each stream that it may send at once, and one to spare.
pub const LARGE_BODIES_OF_ONE_PEER_MAX: usize = 4;

/// Calls that wait for events for long at once, each of which holds a connection; more wait for
/// [`EVENT_PAUSE`] only.
pub const EVENT_WAITS_MAX: usize = 32;

/// See [`EVENT_WAITS_MAX`]: a follower asks again as soon as it is answered.
pub const EVENT_PAUSE: Duration = Duration::from_millis(500);

/// Connections of other servers that proved the secret at once: each replication has one.
pub const PEERS_MAX: usize = 32;

/// ... of one address: a server with many replications has as many, and leaves some to others.
pub const PEER_SHARE_MAX: usize = 16;

/// Connections that have not proved the secret of peers yet. They are apart from those that have,
/// so that strangers delay no replication; each ends within [`HEADER_TIMEOUT`] for TLS and as much
/// for its first request, or with its first refusal, or when a new one takes its place.
pub const PEER_STRANGERS_MAX: usize = 32;

/// ... of one address.
pub const PEER_STRANGERS_OF_ONE_MAX: usize = 8;

/// The log tells of strangers on the port for peers so often at most; the rest are counted.
pub const STRANGERS_TOLD_INTERVAL: Duration = Duration::from_secs(10);

/// How long a stopping server lets calls finish.
pub const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a client waits for an answer unless told otherwise; the longest calls (create,
/// import) take seconds.
pub const CLIENT_TIMEOUT: Duration = Duration::from_mins(1);

/// A client keeps a connection for its next call this long: well below [`HEADER_TIMEOUT`], so that
/// a call never meets a server that closes just then.
pub const CONNECTION_KEPT: Duration = Duration::from_secs(5);

/// When nothing of a stream came for this long, its taker asks the server whether it lives.
pub const SEND_LOOK: Duration = Duration::from_secs(5);

/// Longest time the server holds a call for events: below what any client waits for an answer, and
/// short enough that a stopping server need not cut it off.
pub const EVENT_WAIT_MAX: Duration = Duration::from_secs(4);

/// What the first wrong token of a sender costs; each further one twice as much ...
pub const GUESS_DELAY_MIN: Duration = Duration::from_millis(250);

/// ... up to this: below the time that a client waits for an answer.
pub const GUESS_DELAY_MAX: Duration = Duration::from_secs(8);

/// A sender whose last wrong token is this old begins anew.
pub const GUESS_FORGOTTEN: Duration = Duration::from_mins(15);

/// Characters of the path of a denied call that its event names.
pub const NOTED_PATH_CHARS_MAX: usize = 200;

/// Senders of wrong tokens that are remembered; the oldest makes room. Bounds memory to some 100
/// KiB.
pub const GUESSERS_MAX: usize = 1024;

/// Wrong tokens that wait for their answer at once, of all senders: few of [`CONNECTIONS_MAX`].
/// Beyond, the answer comes at once. 256 random bits cannot be guessed at any speed; the delay
/// keeps the log quiet.
pub const GUESSES_WAITING_MAX: usize = 8;
