//! Limits of the iSCSI target, each with its reason.
//!
//! Limits that all block protocols share are in weir-net, limits of the engine in weir-base.
//!
//! Invariants, for any input from initiators:
//! - a connection holds at most [`INPUT_BYTES_MAX`] of input, [`HELD_BYTES_MAX`] of requests ahead
//!   of their CmdSN, [`GATHER_BYTES_MAX`] of solicited write data, [`COMMANDS_MAX`] times
//!   [`FIRST_BURST_BYTES`] of unsolicited write data, and [`REPLY_BYTES_MAX`] (or one largest
//!   response) of responses;
//! - all connections together hold at most their shared budget plus the bytes that [`OWN`] grants
//!   to each connection. A few connections have a large receive buffer, which holds one more
//!   longest PDU.

use std::time::Duration;

use weir_net::Own;
use weir_net::limits::{CONNECTIONS_MAX, INPUT_BYTES};

/// Time limit of a login, unless [`Iscsi::with_login_limit`](crate::Iscsi::with_login_limit) sets
/// another one. A login needs only a few round trips, and unfinished logins must not pile up.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// Maximum time for which a login waits until the session that it reinstates has ended. If the
/// storage does not complete the commands of the old session in this time, the login fails: with
/// two sessions, both could write.
pub const REINSTATEMENT_LIMIT: Duration = Duration::from_secs(5);

/// Size of one Text Response. The server also reads its list of targets in parts of this size; a
/// few hundred targets fit into one part.
pub const TEXT_PART_BYTES: usize = 32 << 10;

/// MaxRecvDataSegmentLength of this target: the data length that Linux sends in one Data-Out. A
/// longer segment would only wait longer in the receive buffer before the target copies it.
pub const RECEIVE_DATA_BYTES_MAX: usize = 256 << 10;

/// MaxRecvDataSegmentLength of this target for a session that got no large receive buffer. An
/// incomplete PDU then holds little memory. The value is twice the default of RFC 7143.
pub const RECEIVE_DATA_BYTES_MIN: usize = 16 << 10;

/// Longest data segment that this target sends, even if the initiator accepts longer segments. It
/// equals the largest transfer.
pub const SEND_DATA_BYTES_MAX: usize = TRANSFER_BYTES_MAX;

/// FirstBurstLength: immediate and unsolicited data of one command. Every command in the window may
/// send this much data, so a connection can hold [`COMMANDS_MAX`] times this value.
pub const FIRST_BURST_BYTES: usize = 64 << 10;

/// MaxBurstLength: data of one sequence, solicited by one R2T or sent up to an F bit. The largest
/// request of common initiators has this length, so that such a request takes one round trip.
pub const MAX_BURST_BYTES: usize = 1 << 20;

/// MaxOutstandingR2T: the initiator gets the next R2T while it still sends the data of the previous
/// R2T.
pub const OUTSTANDING_R2T_MAX: u32 = 4;

/// Longest data of one command: the maximum transfer length of the Block Limits page.
pub const TRANSFER_BYTES_MAX: usize = weir_scsi::limits::TRANSFER_BYTES_MAX as usize;

/// Number of commands in the window of a session (MaxCmdSN). Linux uses 128.
pub const COMMANDS_MAX: u32 = 128;

/// Memory for the solicited write data of a connection: twice the data of the largest command. The
/// data of one command can then arrive while the target writes the data of another. NBD connections
/// have the same limit.
pub const GATHER_BYTES_MAX: usize = 2 * TRANSFER_BYTES_MAX;

/// Memory for PDUs that wait for their CmdSN. On a single connection, only a faulty initiator sends
/// commands out of order, so two longest PDUs are enough.
pub const HELD_BYTES_MAX: usize = 2 * RECEIVE_DATA_BYTES_MAX;

/// Limit of the response bytes that a connection holds unsent or has reserved for running commands.
/// Above the limit, the connection accepts no further request.
pub const REPLY_BYTES_MAX: usize = 2 * TRANSFER_BYTES_MAX;

/// Memory for write data and responses that each connection has without a request to the budget,
/// while the server has few connections: enough for a full window of 4 KiB commands and their
/// response buffers.
pub const OWN_BYTES: usize = 1 << 20;

/// [`OWN_BYTES`] of each connection while the server has many connections: enough for one largest
/// unsolicited burst.
pub const OWN_BYTES_MIN: usize = FIRST_BURST_BYTES;

/// Memory of connections outside the budget: at most 64 MiB in total, even for a thousand
/// connections.
pub const OWN: Own =
    Own { least_bytes: OWN_BYTES_MIN, most_bytes: OWN_BYTES, total_bytes: 64 << 20 };

/// If the collected responses reach this size, the target sends them before it runs the next
/// command: 60 reads of 4 KiB in one send, small enough for the CPU's cache.
pub const SEND_BYTES: usize = 256 << 10;

/// Longest response of a task that the target copies into the buffer of the next send. The target
/// sends a longer response from the buffer of the task.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Shortest read that the target sends directly from cached blocks. For a shorter read, the block
/// handles cost more than a copy.
pub const SHARE_BYTES_MIN: u32 = 64 << 10;

/// Longest read that the target sends directly from cached blocks: blocks and headers of one send
/// stay below the 1024 parts that the system accepts (`IOV_MAX`). The target copies longer reads.
pub const SHARE_BYTES_MAX: u32 = 2 << 20;

/// Memory of the send buffers that a busy connection keeps for reuse: 8 reads of 1 MiB.
pub const POOL_BYTES_MAX: usize = 8 << 20;

/// Longest PDU: basic header, maximum additional header segments (255 words), digests and data.
pub const PDU_BYTES_MAX: usize = 48 + 4 * 255 + 4 + RECEIVE_DATA_BYTES_MAX + 4;

/// Size of the largest receive buffer.
pub const INPUT_BYTES_MAX: usize = PDU_BYTES_MAX + INPUT_BYTES;

/// Time without a complete PDU after which the target sends a NOP-In. If no complete PDU arrives in
/// the same time after the NOP-In, the target drops the connection. Linux sends NOP-Outs every 5 s;
/// on any link used for storage, the longest PDU takes less time than this limit.
pub const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// Maximum number of immediate task management requests that wait for commands to end: more than a
/// working initiator needs, and few enough to bound their memory.
pub const MANAGEMENT_MAX: usize = 16;

/// The target busy polls after a send only if the send answered at most this many commands. An
/// initiator with more commands in flight has further requests queued, so busy polling gains
/// nothing.
pub const BUSY_POLL_COMMANDS_MAX: u64 = 2;

/// Maximum number of sessions of one server. The remaining connections are reserved for logins, so
/// that an initiator over the limit still receives its login status.
pub const SESSIONS_MAX: usize = CONNECTIONS_MAX / 8 * 7;

/// Maximum number of sessions of one initiator with all targets, so that one initiator cannot take
/// all sessions. A host with 64 targets on four paths needs as many sessions. A session with CHAP
/// counts for the name of its initiator. A session without CHAP counts for the address: a name
/// alone proves nothing, and a peer that uses a foreign name takes no session from the owner of the
/// name.
pub const INITIATOR_SESSIONS_MAX: usize = CONNECTIONS_MAX / 4;

/// Maximum number of sessions without CHAP: three quarters. The last quarter of all sessions is
/// reserved for initiators that use CHAP.
pub const UNPROVEN_SESSIONS_MAX: usize = SESSIONS_MAX / 4 * 3;

/// Maximum number of concurrent discovery sessions. Discovery sessions do not count as sessions
/// with targets, because an initiator completes a discovery within milliseconds.
pub const DISCOVERIES_MAX: usize = 64;

/// Maximum number of discovery sessions from one address; a further discovery session ends the
/// oldest one.
pub const PEER_DISCOVERIES_MAX: usize = 16;

/// Longest duration of a discovery session.
pub const DISCOVERY_LIMIT: Duration = Duration::from_secs(30);

/// Delay of the next CHAP response from an address after one wrong response from it. Each further
/// wrong response doubles the delay, up to [`THROTTLE_DELAY_MAX`].
pub const THROTTLE_DELAY_MIN: Duration = Duration::from_millis(100);

/// Maximum delay of the next CHAP response after wrong responses from an address or for an account.
/// An attacker then has one guess in 2 s, in place of a thousand guesses a second.
pub const THROTTLE_DELAY_MAX: Duration = Duration::from_secs(2);

/// Maximum time that a CHAP response waits in the throttle. After that the target refuses the
/// login, well before [`LOGIN_LIMIT`], and the initiator can retry.
pub const THROTTLE_WAIT_MAX: Duration = Duration::from_secs(5);

/// Time without a wrong CHAP response after which an address has no delay any more.
pub const THROTTLE_RESET: Duration = Duration::from_mins(15);

/// Number of entries in the table of addresses with wrong CHAP responses; the table takes 768 KiB.
/// Even a large attack uses fewer addresses than the table has entries, so an initiator seldom
/// shares an entry with an attacker.
pub const ADDRESS_PLACES: usize = 32_768;

/// Number of entries in the table of accounts with wrong CHAP responses; the table takes 96 KiB.
pub const ACCOUNT_PLACES: usize = 4096;

/// Delay that a wrong CHAP response from an address with earlier wrong responses adds for all such
/// addresses: 10 wrong responses a second from all of them together.
pub const DIRTY_INTERVAL: Duration = Duration::from_millis(100);

/// Delay that a wrong CHAP response from an address without earlier wrong responses adds for all
/// such addresses: 50 wrong responses a second in total. Guessers with earlier wrong responses
/// therefore do not delay an initiator that connects for the first time.
pub const CLEAN_INTERVAL: Duration = Duration::from_millis(20);

/// Delay that a wrong CHAP response for an account adds for the same account, at addresses without
/// earlier wrong responses: 4 wrong responses a second.
pub const CLEAN_ACCOUNT_INTERVAL: Duration = Duration::from_millis(250);

/// Delay that a wrong CHAP response for a known account from its known address adds for this
/// account at this address. A guesser at this address has 200 attempts a second, and delays the
/// initiator only by milliseconds.
pub const KNOWN_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of known accounts: pairs of an account and an address from which it logged in. A
/// new pair evicts the oldest. The table takes about 300 KiB.
pub const KNOWN_MAX: usize = 4096;

/// Maximum number of logins that wait in the throttle for one known account at its address.
pub const KNOWN_WAITING_MAX: usize = 64;

/// Maximum number of logins from one address that wait in the throttle. The target refuses further
/// logins at once.
pub const THROTTLED_MAX: usize = 16;

/// Number of PDUs that the reader processes before it yields to the other tasks of its thread:
/// about as many reads of 4 KiB as fill one send.
pub const TURN_PDUS: u32 = 64;
