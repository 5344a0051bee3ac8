//! Limits of the protocol side, each with its reason.
//!
//! Not here: limits of every block protocol's server (weir-net), of the engine (weir-base).
//!
//! Invariants, whatever initiators send:
//! - a connection holds at most [`INPUT_BYTES_MAX`] of input, [`HELD_BYTES_MAX`] of commands that
//!   came out of order, [`GATHER_BYTES_MAX`] of write data asked for beside [`COMMANDS_MAX`] times
//!   [`FIRST_BURST_BYTES`] of unasked, and [`REPLY_BYTES_MAX`] (or one largest reply) of replies;
//! - all connections hold at most what their budget has, and what [`OWN`] gives to each; the few
//!   that take long PDUs hold one of these beside that.

use std::time::Duration;

use weir_net::Own;
use weir_net::limits::{CONNECTIONS_MAX, INPUT_BYTES};

/// An initiator that has not logged in by then is dropped, unless
/// [`Iscsi::with_login_limit`](crate::Iscsi::with_login_limit) sets another limit: none needs more
/// than a few round trips, and half-open connections must not pile up.
pub const LOGIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a login waits for the session that it takes the place of: storage that has not
/// answered by then keeps the old session alive, and two at once could both write.
pub const REINSTATEMENT_LIMIT: Duration = Duration::from_secs(5);

/// An answer to a text is sent in parts of this size; a list of targets is read a part at a time.
/// Some hundred targets fit into one.
pub const TEXT_PART_BYTES: usize = 32 << 10;

/// Data segment this side takes: what Linux asks for in one Data-Out; a larger one would only
/// wait longer in the receive buffer before it is copied.
pub const RECEIVE_DATA_BYTES_MAX: usize = 256 << 10;

/// Data segment that a session declares where there is no memory for a large receive buffer: one
/// that is sent half holds little. Twice what holds where nothing is declared.
pub const RECEIVE_DATA_BYTES_MIN: usize = 16 << 10;

/// Data segment this side sends, however much the initiator would take: one largest transfer.
pub const SEND_DATA_BYTES_MAX: usize = TRANSFER_BYTES_MAX;

/// Data that an initiator may send with a command or right behind it, unasked: every command in
/// the window may, so this is multiplied with [`COMMANDS_MAX`].
pub const FIRST_BURST_BYTES: usize = 64 << 10;

/// Data of one sequence, asked for by one R2T or sent before an F bit: a common largest request,
/// so that it takes one round trip.
pub const MAX_BURST_BYTES: usize = 1 << 20;

/// R2Ts of one command that may be open: the next is on its way while one is being served.
pub const OUTSTANDING_R2T_MAX: u32 = 4;

/// Data of one command: as logical units say in their Block Limits page.
pub const TRANSFER_BYTES_MAX: usize = weir_scsi::limits::TRANSFER_BYTES_MAX as usize;

/// Commands of one session under way: the window that initiators are told. Linux uses 128.
pub const COMMANDS_MAX: u32 = 128;

/// Write data that is asked for by R2T at one time: two largest commands, so that one comes while
/// one is written, and as much as NBD holds.
pub const GATHER_BYTES_MAX: usize = 2 * TRANSFER_BYTES_MAX;

/// PDUs kept because one before them is missing; with one connection that is the initiator's
/// fault, so there is room for no more than two largest PDUs.
pub const HELD_BYTES_MAX: usize = 2 * RECEIVE_DATA_BYTES_MAX;

/// Replies under way beyond which no further command is run.
pub const REPLY_BYTES_MAX: usize = 2 * TRANSFER_BYTES_MAX;

/// What a connection holds of write data and replies without asking, where there are few: a full
/// window of 4 KiB commands, with the buffers that their answers are sent from.
pub const OWN_BYTES: usize = 1 << 20;

/// ... where there are many: one largest burst that comes unasked.
pub const OWN_BYTES_MIN: usize = FIRST_BURST_BYTES;

/// What connections hold without asking: 64 MiB together, also where there are a thousand.
pub const OWN: Own =
    Own { least_bytes: OWN_BYTES_MIN, most_bytes: OWN_BYTES, total_bytes: 64 << 20 };

/// Replies gathered before the next command waits for a send: 60 reads of 4 KiB in one send, and
/// small enough to stay in the CPU's cache.
pub const SEND_BYTES: usize = 256 << 10;

/// Replies up to this size that come from a task are copied into the next send; larger ones are
/// sent from their own buffer.
pub const COPY_BYTES_MAX: usize = 16 << 10;

/// Reads from this size on are sent from the cache's own blocks, where they are in it: below, the
/// handles cost more than the copy.
pub const SHARE_BYTES_MIN: u32 = 64 << 10;

/// Larger reads are copied: the parts of one send, blocks and headers, stay below what the system
/// takes (1024).
pub const SHARE_BYTES_MAX: u32 = 2 << 20;

/// Buffers of finished sends a busy connection keeps for the next ones: 8 reads of 1 MiB.
pub const POOL_BYTES_MAX: usize = 8 << 20;

/// Largest PDU: header, longest additional headers (255 words), digests and data.
pub const PDU_BYTES_MAX: usize = 48 + 4 * 255 + 4 + RECEIVE_DATA_BYTES_MAX + 4;

/// Receive buffer at most.
pub const INPUT_BYTES_MAX: usize = PDU_BYTES_MAX + INPUT_BYTES;

/// An initiator of which no whole PDU came for so long is asked whether it is there (NOP-In), and
/// is gone if nothing whole comes for as long again. Linux asks from its side every 5 s; a PDU of
/// the largest size takes less on any link that storage is used over.
pub const QUIET_LIMIT: Duration = Duration::from_secs(30);

/// Immediate management requests that wait for commands to end: more than any initiator has
/// reason to have, few enough that an initiator cannot pile them up.
pub const MANAGEMENT_MAX: usize = 16;

/// Commands answered in one send beyond which the initiator has a queue, and need not be waited
/// for.
pub const LINGER_COMMANDS_MAX: u64 = 2;

/// Sessions of one server: some of the connections that a server has are left for logins, so that
/// who is one too many is told so.
pub const SESSIONS_MAX: usize = CONNECTIONS_MAX / 8 * 7;

/// Sessions of one initiator with all targets: it cannot take the place of all others. A host with
/// 64 targets on four paths has as many. Sessions that were proved by CHAP are counted by the
/// initiator's name, others by their address: a name alone proves nothing, and so strangers who use
/// it take nothing from its owner.
pub const INITIATOR_SESSIONS_MAX: usize = CONNECTIONS_MAX / 4;

/// ... of them, those that proved nothing by CHAP: a quarter is left to those that do.
pub const UNPROVEN_SESSIONS_MAX: usize = SESSIONS_MAX / 4 * 3;

/// Discovery sessions at once. They are places of their own, beside those for disks: an initiator
/// that asks for targets is done within milliseconds.
pub const DISCOVERIES_MAX: usize = 64;

/// ... of one address; one more ends the oldest of them.
pub const PEER_DISCOVERIES_MAX: usize = 16;

/// A discovery session is ended after this long, whatever it does.
pub const DISCOVERY_LIMIT: Duration = Duration::from_secs(30);

/// After the first wrong answer to CHAP the next one from the same address waits so long; after
/// each further one twice as long ...
pub const GUESS_DELAY_MIN: Duration = Duration::from_millis(100);

/// ... up to this: one guess in two seconds in place of a thousand in one.
pub const GUESS_DELAY_MAX: Duration = Duration::from_secs(2);

/// A login whose turn does not come within this is refused, well before [`LOGIN_LIMIT`]:
/// initiators try again by themselves.
pub const GUESS_WAIT_MAX: Duration = Duration::from_secs(5);

/// An address that gave no wrong answer for so long begins anew.
pub const GUESS_FORGOTTEN: Duration = Duration::from_mins(15);

/// Places of the table of addresses that gave wrong answers: 768 KiB. More than the addresses of a
/// large attack, so that an initiator seldom shares a place with one.
pub const ADDRESS_PLACES: usize = 32_768;

/// Places of the table of accounts that wrong answers were for: 96 KiB.
pub const ACCOUNT_PLACES: usize = 4096;

/// Time between wrong answers of all addresses that gave one before: 10 a second in all.
pub const DIRTY_INTERVAL: Duration = Duration::from_millis(100);

/// Time between wrong answers of all other addresses: 50 a second in all, so that initiators that
/// come for the first time wait for no guesser.
pub const CLEAN_INTERVAL: Duration = Duration::from_millis(20);

/// Time between wrong answers for one account of addresses without an earlier one: 4 a second.
pub const CLEAN_ACCOUNT_INTERVAL: Duration = Duration::from_millis(250);

/// Time between wrong answers for an account at an address where it was proved: a guesser there
/// makes the initiator wait for moments, and has 200 attempts a second.
pub const KNOWN_INTERVAL: Duration = Duration::from_millis(5);

/// Known accounts: successful logins, each with its address. A new one evicts the oldest. Some 300
/// KiB.
pub const KNOWN_MAX: usize = 4096;

/// Logins of one known account at one address that wait because of wrong answers.
pub const KNOWN_WAITING_MAX: usize = 64;

/// Logins of one address that wait because of wrong answers; more are refused at once.
pub const GUESSES_WAITING_MAX: usize = 16;

/// PDUs that one connection is taken in one turn before others of its thread have theirs: as many
/// reads of 4 KiB as make a send.
pub const TURN_PDUS: u32 = 64;
