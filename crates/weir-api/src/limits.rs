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

/// ... and beside them, on a unix socket, for root: whatever others do, an administrator can look
/// and act.
pub const ROOT_SLOTS: usize = 4;

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

/// Senders of wrong tokens that are remembered; the oldest makes room. Bounds memory to some 100
/// KiB.
pub const GUESSERS_MAX: usize = 1024;

/// Wrong tokens that wait for their answer at once, of all senders: few of [`CONNECTIONS_MAX`].
/// Beyond, the answer comes at once. 256 random bits cannot be guessed at any speed; the delay
/// keeps the log quiet.
pub const GUESSES_WAITING_MAX: usize = 8;
