//! Messages between coordinator and agent.
//!
//! Not here: their order (session, coordinator), framing and time limits (link).
//!
//! Invariants: [`Hello`] stays readable across versions, so that a mismatch is reported by name;
//! all other messages belong to one version.

use serde::{Deserialize, Serialize};

use crate::content::RunId;
use crate::result::CellRun;
use crate::spec::{ContentSpec, DatasetSpec, Durability, LoadSpec, StreamSpec};

/// Protocol version; incremented whenever a message or the contents of blocks change.
pub(super) const PROTOCOL: u32 = 2;
/// Name and version of this program.
pub(super) const PROGRAM: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

/// A random number for one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nonce(pub(super) [u8; 32]);

/// First message of each side; unknown fields of later versions are ignored.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`PROTOCOL`].
    pub(super) protocol: u32,
    /// [`PROGRAM`].
    pub(super) program: String,
    /// Nonce of this connection.
    pub(super) nonce: Nonce,
    /// Whether this side was given a secret.
    pub(super) has_secret: bool,
}

/// Second message of each side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Proven {
    /// Accepted: the proof if there is a secret, and the host name.
    Yes { proof: Option<String>, host: String },
    /// Refused, with the reason.
    Refused { why: String },
}

/// Messages of the coordinator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Task to execute; if the generations of blocks are tracked, block states follow.
    Prepare(Box<Task>),
    /// States of blocks.
    Blocks(Piece),
    /// Request for the agent's time.
    Ping,
    /// Starts the load at a time of the agent's clock.
    Start { at_ns: u64 },
    /// Answer to [`Answer::Alive`]: continue.
    GoOn,
    /// Answer to [`Answer::Alive`]: stop.
    Stop,
}

/// Messages of the agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Heartbeat during work.
    Alive,
    /// The lanes of all workers are open.
    Ready { cores: u32 },
    /// Answer to a ping: receive and send time on the agent's clock.
    Pong { received_ns: u64, sent_ns: u64 },
    /// Result of the measurement.
    Done(Box<Measured>),
    /// States of blocks after the measurement.
    Blocks(Piece),
    /// End of the session.
    End,
    /// The task failed.
    Failed { why: String },
}

/// Load of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Address of the target as given on the coordinator's command line.
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
    /// Number of this client, and number of clients.
    pub(super) number: u32,
    pub(super) of: u32,
    /// Whether the generations of blocks are tracked.
    pub(super) is_known: bool,
    /// Whether every byte of every read is compared.
    pub(super) verify_full: bool,
}

impl Task {
    /// Whether the task writes.
    pub(super) fn writes(&self) -> bool {
        self.streams.iter().any(|stream| stream.read_pct < 100.0)
    }
}

/// Results of one client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// Measured figures.
    pub(super) run: CellRun,
    /// Start of the first worker, on the agent's clock.
    pub(super) began_ns: u64,
}

/// Message with the states of consecutive blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// Run-length encoding: pairs of a state and the number of blocks with it.
    pub(super) runs: Vec<(u32, u32)>,
    /// Whether this is the last message with block states.
    pub(super) is_last: bool,
}
