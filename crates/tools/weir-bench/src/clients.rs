//! Several clients that generate load concurrently: an agent on each host, and one coordinator.
//!
//! `load` generates the load, `run` has the phases of a run, and the binary has the command line.
//! docs/bench.md, "Several clients", explains the decisions; `wire::Order` has the order of
//! messages.
//!
//! Invariants:
//! - the coordinator merges the latency distributions of the clients, never their percentiles; a
//!   cell that lost a client is invalid;
//! - messages are bounded in size and validated before use, and every wait for a message has a time
//!   limit;
//! - no message, error or log contains a secret.

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

/// Default TCP port of agents.
pub const PORT: u16 = 10_910;

/// Time without a message after which an agent or coordinator counts as lost.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Reason why a measurement with several clients failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The cell needs more agents than the user named.
    #[error("it needs {needed} clients, and there {}", is_or_are(*.there))]
    TooFew {
        /// Number of clients that the cell needs.
        needed: u32,
        /// Number of agents that the user named.
        there: u32,
    },
    /// The coordinator cannot connect to the agent.
    #[error("client {client} is unreachable: {source}")]
    Connect {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Error that the operating system returned.
        source: std::io::Error,
    },
    /// The agent runs another version of the program.
    #[error(
        "client {client} runs {theirs}, the coordinator runs {ours}; use the same version on all \
         hosts"
    )]
    OtherVersion {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Program and protocol version of the agent.
        theirs: String,
        /// Program and protocol version of the coordinator, which is this process.
        ours: String,
    },
    /// The secrets of agent and coordinator differ, or only one of them has a secret.
    #[error("client {client}: {why}")]
    Secret {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Text that states how the secrets of the two sides differ.
        why: String,
    },
    /// The agent refused this coordinator.
    #[error("client {client} refuses: {why}")]
    Refused {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Reason that the agent gave.
        why: String,
    },
    /// The agent could not execute the task.
    #[error("client {client}: {why}")]
    Failed {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Reason that the agent gave.
        why: String,
    },
    /// The connection broke, timed out, or delivered an invalid message.
    #[error("connection to client {client} was lost: {why}")]
    Lost {
        /// Address of the agent, as the user wrote it.
        client: String,
        /// Description of the connection error.
        why: String,
    },
    /// The user stopped the run, or another client of the same run failed.
    #[error("the run was cancelled")]
    CalledOff,
    /// The coordinator could not flush the target before the clients open it. Without this flush,
    /// the clients might not see the earlier writes.
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
