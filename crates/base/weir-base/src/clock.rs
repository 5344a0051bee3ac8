//! Time as a value that is handed in, so that the simulator runs the engine in virtual time.
//!
//! Not here: the timers themselves; whoever drives the engine (server or simulator) owns those and
//! hands them in through [`Clock::sleep`].
//!
//! Invariant: no other crate of the engine asks the system for the time.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A wait that is under way; it belongs to the thread that started it.
pub type Sleep = Pin<Box<dyn Future<Output = ()>>>;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since 1970-01-01 UTC; may jump.
    fn unix_ms(&self) -> u64;
    /// Ready after `duration`. A clock without timers never is, so waiting for the disk alone is
    /// what is left: nothing may depend on it for being right, only for being quick.
    fn sleep(&self, _duration: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
    /// Whether a [`Self::sleep`] ends.
    fn has_timers(&self) -> bool {
        false
    }
}

/// The machine's own clock.
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
        // A clock set before 1970 reads as 1970: the value is only printed.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }
}
