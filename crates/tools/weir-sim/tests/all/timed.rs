//! Engine options with virtual time and timers.
//!
//! The tests are in other files.
//!
//! Invariant: a thread has one world at a time, whose executor runs the timers.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use weir_base::Clock;
use weir_base::clock::Sleep;
use weir_dataset::EngineOptions;
use weir_pool::PlantedBug;
use weir_sim::{Executor, SimClock, SimWorld};

thread_local! {
    /// Executor of this thread's world. A [`TimedClock`] cannot hold the executor, because a clock
    /// may move to another thread, but an executor with its timers may not.
    static EXECUTOR: RefCell<Option<Executor>> = const { RefCell::new(None) };
}

/// The world's virtual clock, with timers of its executor.
struct TimedClock(Arc<SimClock>);

impl Clock for TimedClock {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let executor = EXECUTOR.with_borrow(Clone::clone).expect("options were made");
        Box::pin(async move { executor.sleep(duration).await })
    }
}

/// Options of an engine in this world.
pub(crate) fn options(world: &SimWorld, bug: PlantedBug) -> EngineOptions {
    EXECUTOR.set(Some(world.executor().clone()));
    let clock = Arc::new(TimedClock(world.executor().clock()));
    EngineOptions { memory_bytes: 4 << 20, clock, bug }
}
