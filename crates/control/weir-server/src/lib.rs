//! The server: pools, their exports and targets, schedules, replication, and the management calls.
//!
//! The command line of `weir serve` is in bin/weir; storage and protocols have their own crates.
//!
//! Invariant: the options that [`run`] receives are complete and checked. `start/run.rs` describes
//! the order in which the server starts and stops its parts.

mod verbs;

// Modules, lowest layer first: the server's state comes before the calls that change it.
mod answer;
mod record;
mod access;
mod disks;
mod state;
mod exports;
mod targets;
mod volumes;
mod filesystems;
mod shares;
mod snapshots;
mod transfers;
mod schedules;
mod pools;
mod replication;
mod monitor;
mod start;

pub use crate::answer::errors::api_error;
pub use crate::answer::names::guid;
pub use crate::start::options::{NbdClients, PeerOptions, ServeOptions};
pub use access::activity::Activity;
pub use answer::{metadata_loss, pool_status};
pub use disks::{memory, open_disks};
pub use start::process;
pub use start::run::run;
pub use verbs::VERBS;
