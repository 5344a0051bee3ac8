//! The system clock with the timers of the I/O runtime.
//!
//! The clock with virtual time, for simulations, is in weir-sim.
//!
//! Invariant: code that sleeps on this clock runs on a thread with an I/O runtime.

use std::time::Duration;

use weir_base::clock::Sleep;
use weir_base::{Clock, SystemClock};

/// Clock for an engine that runs on the server's I/O runtimes.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(SystemClock);

impl Clock for ServerClock {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(compio::time::sleep(duration))
    }

    fn has_timers(&self) -> bool {
        true
    }
}
