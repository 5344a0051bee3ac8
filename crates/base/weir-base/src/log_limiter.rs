//! Rate limiter for log lines whose number depends on clients.
//!
//! The callers write the log lines.
//!
//! Invariant: in each interval, one line of each kind passes; the limiter returns how many lines of
//! this kind it suppressed before.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Interval for log lines about requests, and about connections that open or close.
pub const LINES_INTERVAL: Duration = Duration::from_mins(1);

/// Log rate limiter; see the module documentation. `K` is the type that identifies the kind of a
/// line; there are few kinds.
pub struct LogLimiter<K> {
    interval: Duration,
    kinds: Mutex<Vec<Kind<K>>>,
}

struct Kind<K> {
    key: K,
    since: Instant,
    left_out: u64,
}

impl<K: Eq> LogLimiter<K> {
    /// Creates a limiter that passes one line of each kind in every `interval`.
    pub const fn new(interval: Duration) -> Self {
        Self { interval, kinds: Mutex::new(Vec::new()) }
    }

    /// If a line of this kind may be logged, returns the number of suppressed lines; otherwise
    /// `None`.
    pub fn pass(&self, key: K) -> Option<u64> {
        let mut kinds = self.kinds.lock();
        let Some(kind) = kinds.iter_mut().find(|kind| kind.key == key) else {
            kinds.push(Kind { key, since: Instant::now(), left_out: 0 });
            return Some(0);
        };
        if kind.since.elapsed() < self.interval {
            kind.left_out += 1;
            return None;
        }
        kind.since = Instant::now();
        Some(std::mem::take(&mut kind.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_passes_once_per_interval_with_a_count() {
        let log_limiter = LogLimiter::new(Duration::from_millis(50));
        let passed: Vec<_> = (0..5).map(|_| log_limiter.pass("a")).collect();
        assert_eq!(passed, [Some(0), None, None, None, None]);
        assert_eq!(log_limiter.pass("b"), Some(0));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!([log_limiter.pass("a"), log_limiter.pass("a")], [Some(4), None]);
    }
}
