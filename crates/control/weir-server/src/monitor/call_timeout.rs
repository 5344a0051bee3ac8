//! Timeout for the callers of management calls whose disks complete no I/O.
//!
//! `recorder` runs and records the calls.
//!
//! Invariant: a caller waits longer than [`CALL_TIMEOUT`] only while disks complete I/O for the
//! call.

use std::time::{Duration, Instant};

use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_base::limits::DISK_UNRESPONSIVE;

use crate::access::activity::Activity;
use crate::state::server::Manager;

/// Time after which a caller gets an error if disks are unresponsive. The server guarantees a
/// response within 5 s, so 1 s is left to return the error.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Time that a caller has waited, and the time since the disks of its call last completed I/O.
pub(crate) struct CallTimeout {
    start: Instant,
    progress: u64,
    progress_at: Instant,
}

impl CallTimeout {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { start: now, progress: 0, progress_at: now }
    }

    /// Returns the error for the caller if the timeout has expired and disks are unresponsive.
    pub(crate) fn lost(
        &mut self,
        manager: &Manager,
        pool: &str,
        activity: &Activity,
    ) -> Option<ApiError> {
        let progress = activity.progress();
        if progress != self.progress {
            (self.progress, self.progress_at) = (progress, Instant::now());
        }
        if self.start.elapsed() < CALL_TIMEOUT {
            return None;
        }
        let goes_on = format!("the call continues; 'weir pool history {pool}' shows its outcome");
        if let Some(silent) = manager.unresponsive_disks(pool) {
            if silent.is_empty() {
                return None;
            }
            let message = format!("pool {pool} does not answer: {}; {goes_on}", silent.join(", "));
            return Some(ApiError::new(ErrorKind::Unavailable, message).with_action(format!(
                "check the disks; 'weir pool export --force {pool}' closes the pool"
            )));
        }
        let silent = self.progress_at.elapsed();
        (silent >= DISK_UNRESPONSIVE).then(|| {
            let seconds = silent.as_secs();
            let message = format!("the disks have not answered for {seconds} s; {goes_on}");
            ApiError::new(ErrorKind::Unavailable, message).with_action("check the disks")
        })
    }
}
