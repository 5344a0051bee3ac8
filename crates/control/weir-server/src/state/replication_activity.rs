//! Progress and last error of each replication.
//!
//! The modules in `replication` perform the runs; `saved_state` has the state of a replication that
//! survives a restart.
//!
//! Invariant: a replication has at most one entry in [`Activities`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use weir_api::ApiError;
use weir_api::types::ReplicationState;

/// Current state of a replication in memory. A restart of the server resets this state.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) task: Option<JoinHandle<()>>,
    pub(crate) state: Option<ReplicationState>,
    pub(crate) sent_bytes: u64,
    pub(crate) estimate_bytes: u64,
    /// The request that the other server has not answered yet, with the time at which it was sent.
    pub(crate) waits_for: Option<(&'static str, u64)>,
    /// Error of the last replication run, with its remedy.
    pub(crate) error: Option<ApiError>,
    /// Guid of the snapshot that the last replication run could not read.
    pub(crate) unreadable: Option<String>,
    /// Guids of snapshots that were not sent because a different snapshot of the other server has
    /// their name. Each such snapshot is reported once.
    pub(crate) left_out: BTreeSet<String>,
    pub(crate) failures: u32,
    pub(crate) retry_at: Option<Instant>,
    /// True if a caller has requested a replication run that has not started yet; `verify_now` is
    /// the same for a comparison of the data.
    pub(crate) run_now: bool,
    pub(crate) verify_now: bool,
}

impl Activity {
    pub(crate) fn is_running(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

/// The activities of all replications, by the numbers of their pool and dataset.
pub(crate) type Activities = Mutex<BTreeMap<(u64, u64), Activity>>;
