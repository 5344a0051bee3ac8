//! Measures a phase: elapsed time, processor time and the longest operation.
//!
//! `large` and `small` perform the operations of a phase.
//!
//! Invariant: all work between the beginning and the end of a phase counts for the phase, including
//! its flush.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::{Figure, Phase};

/// Measurement of a phase that is running.
pub(super) struct Timing {
    phase: Phase,
    began: Instant,
    cpu_s: f64,
    longest: Duration,
}

impl Timing {
    pub(super) fn begin(phase: Phase) -> Self {
        let longest = Duration::ZERO;
        Self { phase, cpu_s: process_cpu_s(), longest, began: Instant::now() }
    }

    /// Runs and times one operation.
    pub(super) fn operation<T>(&mut self, operation: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = operation();
        self.longest = self.longest.max(began.elapsed());
        done
    }

    /// Includes the longest operation of another thread in the measurement.
    pub(super) fn longest(&mut self, longest: Duration) {
        self.longest = self.longest.max(longest);
    }

    /// Ends the phase. `amount` is the number of KiB or of operations.
    pub(super) fn end(self, amount: f64) -> Figure {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-9);
        Figure {
            phase: self.phase,
            rate: amount / seconds,
            cpu_pct: 100.0 * (process_cpu_s() - self.cpu_s) / seconds,
            latency_us: self.longest.as_secs_f64() * 1e6,
            seconds,
        }
    }
}

/// Processor time that this process has used so far, with a finer resolution than proc(5).
fn process_cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
