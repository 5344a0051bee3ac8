//! Repeated reads of an import that could not read a part of the pool's own structures.
//!
//! Not here: the reads themselves.
//!
//! Invariant: the number of reads is bounded, and a clock without timers adds no wait.

use weir_base::Clock;
use weir_base::limits::IMPORT_READ_PAUSES;

/// Reads of one structure during one import.
#[derive(Debug, Default)]
pub struct Reads {
    done: usize,
}

impl Reads {
    /// Whether the import may read once more. Waits before it answers yes: an error of a bus reset
    /// or of a path failover is gone after a while.
    pub async fn again(&mut self, clock: &dyn Clock) -> bool {
        let Some(pause) = IMPORT_READ_PAUSES.get(self.done) else { return false };
        self.done += 1;
        if clock.has_timers() {
            clock.sleep(*pause).await;
        }
        true
    }
}
