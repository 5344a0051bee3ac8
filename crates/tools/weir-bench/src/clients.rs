//! Several clients that offer load at the same time: an agent on each host, one coordinator.
//!
//! ```text
//! coordinator                         agent
//! Hello  ------------------------->            versions and, with a secret, who they are
//!        <-------------------------  Hello
//! Proof  ------------------------->
//!        <-------------------------  Proof
//! Prepare, what is known of blocks ->           opens the target, looks at it, opens lanes
//!        <-------------------------  Ready     the barrier: all are ready before any begins
//! Ping   ------------------------->            64 times: how far its clock is off
//!        <-------------------------  Pong
//! Start  ------------------------->            at a time of its own clock
//!        <------------------------->  Alive, GoOn, four times a second
//!        <-------------------------  Done, what is known of blocks, End
//! ```
//! Not here: offering load (load), the phases of a run (run), the command line (the binary).
//!
//! What was decided:
//! - A connection serves one run of one cell: an agent that was started anew is used for the next.
//! - Each client has a part of the dataset of its own, as if it had a volume of its own: nobody but
//!   it writes there while it measures. It is told which generation each block there has and tells
//!   what it wrote, so every read and the verification at the end know exactly what must be there,
//!   and none of two clients' writes is ever taken for damage. The parts together are the dataset.
//! - A client that is lost leaves a part in which any generation is right until it is written anew.
//! - Cells of one client, the fill, preconditioning and verification are done by the coordinator's
//!   process. The rate of a search is that of all clients together.
//! - An agent refuses a target that does not hold what the coordinator has filled: a file of the
//!   same name on another host is not the same storage.
//!
//! Invariants:
//! - distributions of clients are merged, percentiles never; a cell of which one client was lost is
//!   no cell;
//! - what comes from the other side is bounded in size and checked before use, and nobody waits
//!   for the other side without end;
//! - a secret is in no message, error or log. It says who may give orders; it hides nothing, so
//!   agents belong into a network where nobody changes packets.

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

/// Where agents listen unless told otherwise.
pub const PORT: u16 = 10_910;

/// Whoever says nothing for so long is gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// Why several clients could not measure.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There are fewer than the cell needs.
    #[error("it needs {needed} clients, and there {}", is_or_are(*.there))]
    TooFew {
        /// Clients of the cell.
        needed: u32,
        /// Agents that were given.
        there: u32,
    },
    /// It cannot be reached.
    #[error("client {client}: not reached: {source}")]
    Connect {
        /// As given.
        client: String,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It is another program.
    #[error("client {client} is {theirs}; this is {ours}: use the same version on all")]
    OtherVersion {
        /// As given.
        client: String,
        /// Program and protocol there.
        theirs: String,
        /// Program and protocol here.
        ours: String,
    },
    /// It has another secret, or none.
    #[error("client {client}: {why}")]
    Secret {
        /// As given.
        client: String,
        /// In words.
        why: String,
    },
    /// It does not take this coordinator.
    #[error("client {client} refuses: {why}")]
    Refused {
        /// As given.
        client: String,
        /// Its words.
        why: String,
    },
    /// It cannot do what it was told.
    #[error("client {client}: {why}")]
    Failed {
        /// As given.
        client: String,
        /// Its words.
        why: String,
    },
    /// The connection broke, or says nothing any more, or says nonsense.
    #[error("client {client} was lost: {why}")]
    Lost {
        /// As given.
        client: String,
        /// In words.
        why: String,
    },
    /// The user ended the run, or another client failed.
    #[error("it was called off")]
    CalledOff,
    /// The target cannot be flushed before others read from it.
    #[error(transparent)]
    Target(#[from] crate::target::TargetError),
}

fn is_or_are(count: u32) -> String {
    match count {
        0 => "is none but this process".to_owned(),
        1 => "is one agent".to_owned(),
        _ => format!("are {count} agents"),
    }
}

#[cfg(test)]
mod tests;
