//! Progress and last error of each replication.
//!
//! Not here: the runs (`replication`), state that survives a restart (`saved_state`).
//!
//! Invariant: a replication has at most one activity.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use weir_api::ApiError;
use weir_api::types::ReplicationState;

/// What a replication is doing, as far as it is not remembered.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) task: Option<JoinHandle<()>>,
    pub(crate) state: Option<ReplicationState>,
    pub(crate) sent_bytes: u64,
    pub(crate) estimate_bytes: u64,
    /// What the other server was asked to do and has not answered, and when it was asked.
    pub(crate) waits_for: Option<(&'static str, u64)>,
    /// Why the last run failed, and what to do about it.
    pub(crate) error: Option<ApiError>,
    /// Guid of the snapshot that the last run could not read.
    pub(crate) unreadable: Option<String>,
    /// Guids of snapshots whose name another snapshot of the other server has; told once.
    pub(crate) left_out: BTreeSet<String>,
    pub(crate) failures: u32,
    pub(crate) retry_at: Option<Instant>,
    /// Somebody asked for a run, or a comparison, now.
    pub(crate) run_now: bool,
    pub(crate) verify_now: bool,
}

impl Activity {
    pub(crate) fn is_running(&self) -> bool {
        self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

/// The activity of every replication, by pool and dataset number.
pub(crate) type Activities = Mutex<BTreeMap<(u64, u64), Activity>>;
