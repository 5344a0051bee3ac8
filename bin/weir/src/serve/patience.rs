//! How long a management call waits for disks that complete nothing.
//!
//! Not here: the calls and their record (recorder).
//!
//! Invariant: a caller waits longer than [`PATIENCE`] only while disks complete I/O for the call.

use std::time::{Duration, Instant};

use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_base::limits::DISK_SILENT;

use super::activity::Activity;
use super::control::Manager;

/// From here on a caller is told if disks do not answer; leaves room within five seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(4);

/// How long a call has waited without a sign of its disks.
pub(super) struct Patience {
    start: Instant,
    progress: u64,
    progress_at: Instant,
}

impl Patience {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { start: now, progress: 0, progress_at: now }
    }

    /// Why there is nothing to wait for any more, if so.
    pub(super) fn lost(
        &mut self,
        manager: &Manager,
        pool: &str,
        activity: &Activity,
    ) -> Option<ApiError> {
        let progress = activity.progress();
        if progress != self.progress {
            (self.progress, self.progress_at) = (progress, Instant::now());
        }
        if self.start.elapsed() < PATIENCE {
            return None;
        }
        let goes_on = format!("the call goes on; 'weir pool history {pool}' tells how it ends");
        if let Some(silent) = manager.silent_disks(pool) {
            if silent.is_empty() {
                return None;
            }
            let message = format!("pool {pool} does not answer: {}; {goes_on}", silent.join(", "));
            return Some(ApiError::new(ErrorKind::Unavailable, message).with_action(format!(
                "check the disks; 'weir pool export --force {pool}' lets go of the pool"
            )));
        }
        let silent = self.progress_at.elapsed();
        (silent >= DISK_SILENT).then(|| {
            let seconds = silent.as_secs();
            let message = format!("the disks have not answered for {seconds} s; {goes_on}");
            ApiError::new(ErrorKind::Unavailable, message).with_action("check the disks")
        })
    }
}
