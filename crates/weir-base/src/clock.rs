//! Time as a value that is handed in, so that the simulator runs the engine in virtual time.
//!
//! Not here: timers; whoever drives the engine (server or simulator) owns those.
//!
//! Invariant: no other crate of the engine asks the system for the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A source of time.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary fixed point; never goes back.
    fn monotonic(&self) -> Duration;
    /// Milliseconds since 1970-01-01 UTC; may jump.
    fn unix_ms(&self) -> u64;
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
