//! Retries reads of metadata that failed during an import.
//!
//! Not here: the reads themselves.
//!
//! Invariant: the number of retries is bounded, and with a clock without timers a retry does not
//! wait.

use weir_base::Clock;
use weir_base::limits::IMPORT_READ_PAUSES;

/// Retries of one structure during one import.
#[derive(Debug, Default)]
pub struct Reads {
    done: usize,
}

impl Reads {
    /// Waits for the next pause and returns true, or returns false if no retry is left. A failed
    /// read is worth a retry, because the errors of a bus reset or a path failover are temporary.
    pub async fn again(&mut self, clock: &dyn Clock) -> bool {
        let Some(pause) = IMPORT_READ_PAUSES.get(self.done) else { return false };
        self.done += 1;
        if clock.has_timers() {
            clock.sleep(*pause).await;
        }
        true
    }
}
