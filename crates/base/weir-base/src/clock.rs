//! Clock trait: the engine gets the time as a dependency, so that the simulator can run the engine
//! in virtual time.
//!
//! The driver of the engine (server or simulator) owns the timers and provides them through
//! [`Clock::sleep`].
//!
//! Invariant: no other crate of the engine reads the system clock directly.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A running timer. It can be awaited only on the thread that started it.
pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed point in time; never decreases.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since 1970-01-01 UTC; may jump in both directions.
    fn unix_ms(&self) -> u64;
    /// Completes after `duration`. The future of a clock without timers never completes. So callers
    /// may use this function only to react faster; their correctness must not depend on it.
    fn sleep(&self, _duration: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
    /// True if [`Self::sleep`] completes: the clock has timers.
    fn has_timers(&self) -> bool {
        false
    }
}

/// The clock of the operating system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        // A time before 1970 is returned as 1970; Weir only displays this value.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }
}
