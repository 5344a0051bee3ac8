//! The server: pools, their exports and targets, schedules, replication, and the management calls.
//!
//! Not here: the command line of `weir serve` (bin/weir), storage and protocols (their crates).
//!
//! Invariants:
//! - options that arrive in [`run`] are complete and checked;
//! - every listener is bound before a disk is touched, so a taken port changes nothing;
//! - one server per state directory and one server per disk, kept by locks the kernel drops with
//!   the process;
//! - at the end clients are answered first, then pools are committed; disks that do not answer do
//!   not hold it up.

mod verbs;

// Rooms, lowest first: state comes before operations.
mod answer;
mod record;
mod access;
mod disks;
mod state;
mod exports;
mod targets;
mod volumes;
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
