//! Several clients that generate load concurrently: an agent on each host, and one coordinator.
//!
//! ```text
//! coordinator                         agent
//! Hello  ------------------------->            versions; with a secret, nonces to prove it
//!        <-------------------------  Hello
//! Proof  ------------------------->
//!        <-------------------------  Proof
//! Prepare, block states ---------->            opens the target, checks samples, opens lanes
//!        <-------------------------  Ready     barrier: no client starts before all are ready
//! Ping   ------------------------->            64 times, to measure the clock offset
//!        <-------------------------  Pong
//! Start  ------------------------->            at a time of the agent's clock
//!        <------------------------->  Alive, GoOn, four times a second
//!        <-------------------------  Done, block states, End
//! ```
//! Not here: offering load (load), the phases of a run (run), the command line (the binary).
//!
//! Decisions:
//! - A connection serves one run of one cell, so an agent can be restarted between runs.
//! - Each client has its own part of the dataset, and only it writes there during a measurement. It
//!   receives the generation of each block and returns the states after its writes, so every read
//!   and the final verification know the expected contents and never mistake another client's write
//!   for corruption. The parts cover the dataset.
//! - The part of a lost client has blocks of unknown generation: any is accepted until the block is
//!   written again.
//! - The coordinator's process runs the cells with one client, the fill, preconditioning and
//!   verification. The rate of a search is the sum over all clients.
//! - An agent refuses a target that lacks the data of the coordinator's fill: a file of the same
//!   name on another host is different storage.
//!
//! Invariants:
//! - distributions of clients are merged, percentiles never; a cell with a lost client is invalid;
//! - messages are bounded in size and validated before use, and every wait for the other side has a
//!   limit;
//! - a secret appears in no message, error or log. It authenticates the two sides but encrypts
//!   nothing, so agents belong in a network where no host can modify packets.

pub mod agent;
mod blocks;
mod check;
mod client;
mod coordinator;
mod greeting;
mod link;
mod merge;
mod secret;
mod session;
mod wire;

use std::time::Duration;

pub(crate) use coordinator::SharedOffer;
pub use coordinator::{AgentInfo, Clients};
pub use secret::{Secret, SecretTooShort};

/// Default port of agents.
pub const PORT: u16 = 10_910;

/// A peer that sends nothing for this long counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Reason why a measurement with several clients failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The cell needs more agents than were given.
    #[error("it needs {needed} clients, and there {}", is_or_are(*.there))]
    TooFew {
        /// Number of clients of the cell.
        needed: u32,
        /// Number of agents given.
        there: u32,
    },
    /// The agent cannot be reached.
    #[error("client {client} is unreachable: {source}")]
    Connect {
        /// Agent's address as given by the user.
        client: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The agent runs another version.
    #[error(
        "client {client} runs {theirs}, the coordinator runs {ours}; use the same version on all \
         hosts"
    )]
    OtherVersion {
        /// Agent's address as given by the user.
        client: String,
        /// Program and protocol of the agent.
        theirs: String,
        /// Program and protocol of the coordinator, which is this process.
        ours: String,
    },
    /// The secrets of agent and coordinator differ, or only one of them has a secret.
    #[error("client {client}: {why}")]
    Secret {
        /// Agent's address as given by the user.
        client: String,
        /// Description of the mismatch.
        why: String,
    },
    /// The agent refuses this coordinator.
    #[error("client {client} refuses: {why}")]
    Refused {
        /// Agent's address as given by the user.
        client: String,
        /// Reason that the agent gave.
        why: String,
    },
    /// The agent cannot execute the task.
    #[error("client {client}: {why}")]
    Failed {
        /// Agent's address as given by the user.
        client: String,
        /// Reason that the agent gave.
        why: String,
    },
    /// The connection broke, timed out, or delivered an invalid message.
    #[error("connection to client {client} was lost: {why}")]
    Lost {
        /// Agent's address as given by the user.
        client: String,
        /// Description of the connection error.
        why: String,
    },
    /// The user stopped the run, or another client failed.
    #[error("the run was cancelled")]
    CalledOff,
    /// The target cannot be flushed before the clients read from it.
    #[error(transparent)]
    Target(#[from] crate::target::TargetError),
}

fn is_or_are(count: u32) -> String {
    match count {
        0 => "is only this process".to_owned(),
        1 => "is one agent".to_owned(),
        _ => format!("are {count} agents"),
    }
}

#[cfg(test)]
mod tests;
