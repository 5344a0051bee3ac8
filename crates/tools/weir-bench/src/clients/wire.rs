//! Messages between the coordinator and an agent.
//!
//! `session` and `coordinator` have the order of the messages, `link` their framing and time
//! limits.
//!
//! Invariants: every version can read the [`Hello`] of every other version, so that an error about
//! different versions can name both; all other messages may change with each version.

use serde::{Deserialize, Serialize};

use crate::content::RunId;
use crate::result::CellRun;
use crate::spec::{ContentSpec, DatasetSpec, Durability, LoadSpec, StreamSpec};

/// Protocol version; incremented whenever a message or the contents of blocks change.
pub(super) const PROTOCOL: u32 = 3;
/// Name and version of this program.
pub(super) const PROGRAM: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

/// Random number that is used only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nonce(pub(super) [u8; 32]);

/// First message of each side. Unknown fields from later versions are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// Protocol version of this side ([`PROTOCOL`]).
    pub(super) protocol: u32,
    /// Name and version of this side's program ([`PROGRAM`]).
    pub(super) program: String,
    /// Nonce of this connection.
    pub(super) nonce: Nonce,
    /// True if the user gave this side a secret.
    pub(super) has_secret: bool,
}

/// Second message of each side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Proven {
    /// The side is accepted. Contains the proof, if there is a secret, and the host name.
    Yes { proof: Option<String>, host: String },
    /// The side is refused. Contains the reason.
    Refused { why: String },
}

/// Messages that the coordinator sends after the handshake. The dialogue of a run:
///
/// ```text
/// coordinator                         agent
/// Hello  ------------------------->            versions; with a secret, nonces to prove it
///        <-------------------------  Hello
/// Proof  ------------------------->
///        <-------------------------  Proof
/// Prepare, block states ---------->            opens the target, verifies some blocks, opens lanes
///        <-------------------------  Ready     barrier: no client starts before all are ready
/// Ping   ------------------------->            64 times, to measure the clock offset
///        <-------------------------  Pong
/// Start  ------------------------->            at a time of the agent's clock
///        <------------------------->  Alive, GoOn, four times a second
///        <-------------------------  Done, block states, End
/// ```
///
/// A connection serves one run of one cell, so an agent may be restarted between two runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Task to execute. If the generations of blocks are tracked, messages with block states
    /// follow.
    Prepare(Box<Task>),
    /// States of blocks before the measurement.
    Blocks(Piece),
    /// Asks for the time on the agent's clock.
    Ping,
    /// Starts the load at a given time of the agent's clock.
    Start { at_ns: u64 },
    /// Answer to [`Answer::Alive`]: continue.
    GoOn,
    /// Answer to [`Answer::Alive`]: stop.
    Stop,
}

/// Messages that an agent sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Heartbeat during long work.
    Alive,
    /// The lanes of all workers are open.
    Ready { cores: u32 },
    /// Answer to a ping: the times of its receipt and of this answer, on the agent's clock.
    Pong { received_ns: u64, sent_ns: u64 },
    /// Results of the measurement.
    Done(Box<Measured>),
    /// States of blocks after the measurement.
    Blocks(Piece),
    /// End of the session, after all results.
    End,
    /// The task failed.
    Failed { why: String },
}

/// Task of one client: the load that the client generates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Address of the target, as it is on the coordinator's command line.
    pub(super) target: String,
    pub(super) dataset: DatasetSpec,
    pub(super) content: ContentSpec,
    /// Id of the run that writes the blocks.
    pub(super) run: RunId,
    /// Size of a stamped block.
    pub(super) block_bytes: u32,
    pub(super) durability: Durability,
    pub(super) streams: Vec<StreamSpec>,
    pub(super) load: LoadSpec,
    pub(super) warmup_ms: u64,
    pub(super) duration_ms: u64,
    /// Number of this client (`number`), and number of clients (`of`).
    pub(super) number: u32,
    pub(super) of: u32,
    /// True if the generations of blocks are tracked.
    pub(super) is_known: bool,
    /// True if the client compares every byte of every read.
    pub(super) verify_full: bool,
}

impl Task {
    /// True if the task writes to the target.
    pub(super) fn writes(&self) -> bool {
        self.streams.iter().any(|stream| stream.read_pct < 100.0)
    }
}

/// Results that one client measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Figures that the client measured.
    pub(super) run: CellRun,
    /// Time at which the first worker started, on the agent's clock.
    pub(super) began_ns: u64,
}

/// Message with the states of consecutive blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Run-length encoding of the states: pairs of a state and the number of blocks in this state.
    pub(super) runs: Vec<(u32, u32)>,
    /// True if this message is the last one with block states.
    pub(super) is_last: bool,
}
