//! What coordinator and agent say to each other.
//!
//! Not here: in which order (session, coordinator), frames and time limits (link).
//!
//! Invariants: [`Hello`] stays readable for every version, so that a difference is told by name;
//! the rest is of one version only.

use serde::{Deserialize, Serialize};

use crate::content::RunId;
use crate::result::CellRun;
use crate::spec::{ContentSpec, DatasetSpec, Durability, LoadSpec, StreamSpec};

/// Changes whenever a message changes, or what blocks hold.
pub(super) const PROTOCOL: u32 = 2;
/// Name and version of this program.
pub(super) const PROGRAM: &str = concat!("weir ", env!("CARGO_PKG_VERSION"));

/// A random number that is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Nonce(pub(super) [u8; 32]);

/// The first message of each side; what a later version adds is passed over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`PROTOCOL`].
    pub(super) protocol: u32,
    /// [`PROGRAM`].
    pub(super) program: String,
    /// Of this connection.
    pub(super) nonce: Nonce,
    /// Whether this side was given a secret.
    pub(super) has_secret: bool,
}

/// The second message of each side.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Proven {
    /// With the proof, where there is a secret, and the name of the host.
    Yes { proof: Option<String>, host: String },
    /// Why it goes no further.
    Refused { why: String },
}

/// What the coordinator says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// What is to be done; followed by what is known of blocks, if anything is.
    Prepare(Box<Task>),
    /// What is known of blocks.
    Blocks(Piece),
    /// What time is it?
    Ping,
    /// Begin, at a time of the agent's clock.
    Start { at_ns: u64 },
    /// Answer to [`Answer::Alive`].
    GoOn,
    /// The other answer: end it.
    Stop,
}

/// What the agent says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It works on it.
    Alive,
    /// Everything is open.
    Ready { cores: u32 },
    /// Times of the agent's clock.
    Pong { received_ns: u64, sent_ns: u64 },
    /// It is over.
    Done(Box<Measured>),
    /// What is known of blocks now.
    Blocks(Piece),
    /// That was all.
    End,
    /// It cannot be done.
    Failed { why: String },
}

/// A load for one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// Address as given on the command line.
    pub(super) target: String,
    pub(super) dataset: DatasetSpec,
    pub(super) content: ContentSpec,
    /// The run that writes the blocks.
    pub(super) run: RunId,
    /// Bytes of stamped blocks.
    pub(super) block_bytes: u32,
    pub(super) durability: Durability,
    pub(super) streams: Vec<StreamSpec>,
    pub(super) load: LoadSpec,
    pub(super) warmup_ms: u64,
    pub(super) duration_ms: u64,
    /// Which client this is, of how many.
    pub(super) number: u32,
    pub(super) of: u32,
    /// Whether the generations of blocks are known.
    pub(super) is_known: bool,
    /// Whether every byte of every read is compared.
    pub(super) verify_full: bool,
}

impl Task {
    /// Whether anything is written.
    pub(super) fn writes(&self) -> bool {
        self.streams.iter().any(|stream| stream.read_pct < 100.0)
    }
}

/// What one client did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    /// As it was measured.
    pub(super) run: CellRun,
    /// When the first worker began, by the agent's clock.
    pub(super) began_ns: u64,
}

/// What is known of some blocks that follow each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// States and how many blocks have each, one after the other.
    pub(super) runs: Vec<(u32, u32)>,
    /// Whether it is the last.
    pub(super) is_last: bool,
}
