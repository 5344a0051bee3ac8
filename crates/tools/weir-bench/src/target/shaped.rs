//! Synthetic targets that measure the generator: targets with a fixed latency, with stalls, or with
//! a fixed rate.
//!
//! Invariant: no data is stored; an operation completes at its due time, whether or not a worker
//! waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::buffers::Buffers;
use super::error::TargetError;
use super::lane::{Done, Lane, Op, Target, Wait};
use crate::result::TargetInfo;

/// Time before a completion at which the lane stops sleeping and polls the clock instead, because a
/// sleep is inexact.
const SLEEP_SLACK: Duration = Duration::from_micros(120);

/// Function that returns the due time of an operation that is submitted at the given time.
type DueAt = dyn Fn(Instant) -> Instant + Send + Sync;

/// A synthetic target without data.
pub struct Shaped {
    info: TargetInfo,
    due_at: Arc<DueAt>,
}

impl Shaped {
    /// Creates a target. `due_at` returns the due time of an operation that is submitted at the
    /// given time; several workers may call `due_at` concurrently.
    pub fn new(name: &str, due_at: impl Fn(Instant) -> Instant + Send + Sync + 'static) -> Self {
        let info = TargetInfo {
            address: format!("selftest: {name}"),
            kind: "selftest".to_owned(),
            bytes: u64::MAX / 2,
            block_bytes: 512,
            driver: "none".to_owned(),
            ..TargetInfo::default()
        };
        Self { info, due_at: Arc::new(due_at) }
    }

    /// Creates a target on which every operation takes `latency`, at any queue depth.
    pub fn latency(latency: Duration) -> Self {
        Self::new("known latency", move |now| now + latency)
    }

    /// Creates a target on which every operation takes `latency`, except that no operation
    /// completes in the first `frozen` of every `period`.
    pub fn stalls(latency: Duration, period: Duration, frozen: Duration) -> Self {
        let start = Instant::now();
        Self::new("stalls", move |now| {
            let due = now + latency;
            let into = Duration::from_nanos(
                (due.duration_since(start).as_nanos() % period.as_nanos()) as u64,
            );
            due + frozen.saturating_sub(into)
        })
    }

    /// Creates a target that completes `rate` operations per second, one after another.
    pub fn rate(rate: f64) -> Self {
        let (each, free_at) = (Duration::from_secs_f64(1.0 / rate), Mutex::new(Instant::now()));
        Self::new("set rate", move |now| {
            let mut free_at = free_at.lock();
            *free_at = (*free_at).max(now) + each;
            *free_at
        })
    }
}

impl Target for Shaped {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        let buffers = Buffers::new(slots, buffer_bytes);
        let due_at = Arc::clone(&self.due_at);
        Ok(Box::new(ShapedLane { buffers, due_at, under_way: BinaryHeap::new() }))
    }
}

struct ShapedLane {
    buffers: Buffers,
    due_at: Arc<DueAt>,
    under_way: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Lane for ShapedLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.buffers.of(slot)
    }

    fn submit(&mut self, slot: usize, _: &Op) -> Result<(), TargetError> {
        self.under_way.push(Reverse(((self.due_at)(Instant::now()), slot)));
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let first = self.under_way.peek().map(|Reverse((due, _))| *due);
        let until = match (wait, first) {
            (Wait::No, _) => Instant::now(),
            (Wait::One, None) => return Ok(()),
            (Wait::One, Some(due)) => due,
            (Wait::Until(until), due) => due.map_or(until, |due| due.min(until)),
        };
        let left = until.saturating_duration_since(Instant::now());
        std::thread::sleep(left.saturating_sub(SLEEP_SLACK));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let at = Instant::now();
        while let Some(Reverse((due, slot))) = self.under_way.peek().copied() {
            if due > at {
                break;
            }
            self.under_way.pop();
            done.push(Done { slot, result: Ok(()), at });
        }
        Ok(())
    }
}
