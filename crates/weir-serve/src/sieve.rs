//! A sieve for log lines that clients can cause as often as they like.
//!
//! Not here: what the lines say.
//!
//! Invariant: no more pass than `max` in any interval, and what was left out is told with the
//! next one that passes.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// See the file's head.
pub(crate) struct Sieve {
    max: u32,
    interval: Duration,
    state: Mutex<State>,
}

struct State {
    since: Instant,
    passed: u32,
    left_out: u64,
}

impl Sieve {
    /// Lets `max` pass per `interval`.
    pub(crate) fn new(max: u32, interval: Duration) -> Self {
        let state = State { since: Instant::now(), passed: 0, left_out: 0 };
        Self { max, interval, state: Mutex::new(state) }
    }

    /// How many were left out before this one, if it passes.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.state.lock();
        if state.since.elapsed() >= self.interval {
            state.since = Instant::now();
            state.passed = 0;
        }
        if state.passed == self.max {
            state.left_out += 1;
            return None;
        }
        state.passed += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_pass_and_the_rest_are_counted() {
        let sieve = Sieve::new(2, Duration::from_millis(50));
        let passed: Vec<_> = (0..5).map(|_| sieve.pass()).collect();
        assert_eq!(passed, [Some(0), Some(0), None, None, None]);
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!([sieve.pass(), sieve.pass()], [Some(3), Some(0)]);
    }
}
