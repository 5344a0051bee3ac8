//! Limits of the client side, each with its reason.
//!
//! Not here: limits of the codec (weir-iscsi).
//!
//! Invariant: whatever a target sends, a connection holds at most [`RECEIVE_BYTES`] and one data
//! segment of input, and [`OUTPUT_BYTES_MAX`] of answers that the target does not take.

use std::time::Duration;

/// Connecting and logging in, redirections included: a target that is there needs milliseconds.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// One command: as long as operating systems wait for a disk before they give it up.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// The end of a session in good order; the connection is closed anyway.
pub const LOGOUT_LIMIT: Duration = Duration::from_secs(2);

/// Data segment this side takes: what Linux declares, so that targets are asked for nothing odd.
pub const RECEIVE_DATA_BYTES_MAX: usize = 256 << 10;

/// Data of one sequence that is offered: a largest usual request in one round trip.
pub const MAX_BURST_BYTES: u32 = 1 << 20;

/// Unasked data of one command that is offered.
pub const FIRST_BURST_BYTES: u32 = 256 << 10;

/// R2Ts of one command that may be open, as offered: the next comes while one is served.
pub const OUTSTANDING_R2T_MAX: u32 = 4;

/// Receive buffer: answers and small data are received together, large data goes to its place.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// Longest header: with additional segments and a digest. It is taken as a whole.
pub const HEAD_BYTES_MAX: usize = 48 + 4 * 255 + 4;

const _: () = assert!(RECEIVE_BYTES >= 2 * HEAD_BYTES_MAX, "a header fits behind another's end");

/// Rest of a data segment from which on it is received straight to its place: below, a copy costs
/// less than a call.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;

/// Headers that wait to be sent. Those of all commands fit; only a target that asks much and takes
/// nothing makes more.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Commands of one connection: the lower half of a task tag holds their number, and its last value
/// is for requests that are no commands.
pub const TASKS_MAX: usize = 0xffff;

/// Targets that a discovery tells of, as text: 10,000 of them fit.
pub const DISCOVERY_BYTES_MAX: usize = 1 << 20;

/// Times that a login is sent on to another address.
pub const REDIRECTIONS_MAX: u32 = 4;

/// Times that a command is done again where a target says that this is what to do. A new session
/// has a handful of unit attentions.
pub const TRIES_MAX: u32 = 10;

/// Wait before a command goes to a busy target again; doubled each time.
pub const BUSY_WAIT: Duration = Duration::from_millis(5);

/// Longest secret file: RFC 7143 12.1.3 knows no longer secret.
pub const SECRET_BYTES_MAX: usize = 255;

/// Shorter secrets can be found by trying (RFC 7143 9.2.1 asks for 96 bits).
pub const SECRET_BYTES_MIN: usize = 12;
