//! Virtual clock.
//!
//! The executor advances the clock and implements timers.
//!
//! Invariant: only the executor advances monotonic time, which never goes back.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use weir_base::Clock;

/// Wall time at the start of every world: 2026-01-01 00:00 UTC, so that printed times look
/// plausible.
const START_UNIX_MS: i64 = 1_767_225_600_000;

/// Clock of the engine.
#[derive(Debug)]
pub struct SimClock {
    monotonic_ns: AtomicU64,
    wall_offset_ms: AtomicI64,
}

impl SimClock {
    pub(crate) fn new() -> Self {
        Self { monotonic_ns: AtomicU64::new(0), wall_offset_ms: AtomicI64::new(START_UNIX_MS) }
    }

    pub(crate) fn advance_to(&self, at: Duration) {
        self.monotonic_ns.fetch_max(nanos(at), Ordering::Relaxed);
    }

    /// Makes the wall clock jump, as if an administrator or NTP had set it; monotonic time is
    /// unaffected.
    pub fn jump_wall(&self, by_ms: i64) {
        self.wall_offset_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.monotonic_ns.load(Ordering::Relaxed))
    }

    fn unix_ms(&self) -> u64 {
        let offset = self.wall_offset_ms.load(Ordering::Relaxed);
        (self.monotonic().as_millis() as u64).saturating_add_signed(offset)
    }
}

/// Converts a time to nanoseconds. 64 bits hold 584 years; longer times saturate.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wall_clock_jumps() {
        let clock = SimClock::new();
        clock.advance_to(Duration::from_secs(10));
        clock.advance_to(Duration::from_secs(3));
        assert_eq!(clock.monotonic(), Duration::from_secs(10));
        let before = clock.unix_ms();
        clock.jump_wall(-5000);
        assert_eq!(clock.unix_ms(), before - 5000);
        assert_eq!(clock.monotonic(), Duration::from_secs(10));
    }
}
