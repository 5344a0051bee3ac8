//! Rate limit for log lines that clients can cause as often as they like.
//!
//! Not here: the text of the lines.
//!
//! Invariant: one line of each kind passes per interval, with the number of suppressed lines before
//! it.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// See the file's head. `K` is a kind of line; there are few.
pub(crate) struct Sieve<K> {
    interval: Duration,
    kinds: Mutex<HashMap<K, State>>,
}

struct State {
    since: Instant,
    left_out: u64,
}

impl<K: Hash + Eq> Sieve<K> {
    /// Lets one of each kind pass per `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, kinds: Mutex::default() }
    }

    /// Number of suppressed lines of this kind, if the line passes.
    pub(crate) fn pass(&self, kind: K) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(state) = kinds.get_mut(&kind) else {
            kinds.insert(kind, State { since: Instant::now(), left_out: 0 });
            return Some(0);
        };
        if state.since.elapsed() < self.interval {
            state.left_out += 1;
            return None;
        }
        state.since = Instant::now();
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_passes_once_per_interval_with_a_count() {
        let sieve = Sieve::new(Duration::from_millis(50));
        let passed: Vec<_> = (0..5).map(|_| sieve.pass("a")).collect();
        assert_eq!(passed, [Some(0), None, None, None, None]);
        assert_eq!(sieve.pass("b"), Some(0));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!([sieve.pass("a"), sieve.pass("a")], [Some(4), None]);
    }
}
