//! Limits of the initiator, each with its reason.
//!
//! weir-iscsi-wire has the limits of login and text negotiation.
//!
//! Invariant: whatever a target sends, a connection holds at most [`RECEIVE_BYTES`] and one data
//! segment of input, and [`OUTPUT_BYTES_MAX`] of output that the target does not read.

use std::time::Duration;

/// Time limit for connecting and logging in, including redirections. A reachable target needs
/// milliseconds.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of one command: the time for which operating systems wait for a disk.
pub const COMMAND_LIMIT: Duration = Duration::from_secs(30);

/// Time limit of a logout. The initiator closes the connection after this time in any case.
pub const LOGOUT_LIMIT: Duration = Duration::from_secs(2);

/// Maximum data segment that the initiator accepts. Linux declares the same value, so targets are
/// tested with it.
pub const RECEIVE_DATA_BYTES_MAX: usize = 256 << 10;

/// Offered MaxBurstLength: a write of the largest usual size takes one round trip.
pub const MAX_BURST_BYTES: u32 = 1 << 20;

/// Offered FirstBurstLength: the maximum unsolicited data of one command.
pub const FIRST_BURST_BYTES: u32 = 256 << 10;

/// Offered MaxOutstandingR2T: large enough that the next R2T arrives while the initiator sends the
/// data of the preceding one.
pub const OUTSTANDING_R2T_MAX: u32 = 4;

/// Size of the receive buffer for responses and small data. Large data is received directly into
/// the caller's buffer.
pub const RECEIVE_BYTES: usize = 64 << 10;

/// Maximum header length, including additional header segments and a digest. The parser needs a
/// whole header at once.
pub const HEAD_BYTES_MAX: usize = 48 + 4 * 255 + 4;

const _: () = assert!(RECEIVE_BYTES >= 2 * HEAD_BYTES_MAX, "a header fits behind another's end");

/// If at least this many bytes of a read's data are missing, the connection receives them directly
/// into the caller's buffer. Copying fewer bytes from the input buffer costs less than a system
/// call.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;

/// Maximum number of queued header bytes. The headers of [`TASKS_MAX`] commands need less. Only a
/// target that sends many requests and reads no responses exceeds the limit.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;

/// Maximum number of commands of one connection. The lower half of a task tag is the slot number,
/// and the highest slot number marks requests that are not commands.
pub const TASKS_MAX: usize = 0xffff;

/// Maximum length of a discovery response: enough for 10,000 targets.
pub const DISCOVERY_BYTES_MAX: usize = 1 << 20;

/// Maximum number of redirections that one login follows.
pub const REDIRECTIONS_MAX: u32 = 4;

/// Maximum number of tries of a command that the target asks the initiator to retry. A new session
/// starts with only a handful of unit attentions.
pub const TRIES_MAX: u32 = 10;

/// Delay before the first retry of a command to a busy target. The delay doubles with each retry.
pub const BUSY_WAIT: Duration = Duration::from_millis(5);

/// Maximum length of a secret (RFC 7143 12.1.3).
pub const SECRET_BYTES_MAX: usize = 255;

/// Minimum length of a secret: brute force can find shorter secrets (RFC 7143 9.2.1 asks for 96
/// bits).
pub const SECRET_BYTES_MIN: usize = 12;
