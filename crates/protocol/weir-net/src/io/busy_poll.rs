//! Adaptive busy polling for the next request.
//!
//! The caller passes the event to wait for.
//!
//! Sleeping and waking can take longer than a fast client needs to send its next request, so
//! polling is faster. But if client and server share a core, polling is slower. The kernel does not
//! report which case applies, so the first 16 of every 2,048 waits try the mode that was slower so
//! far. A session polls only if polling is over 25 % faster, because polling uses CPU time.
//!
//! Invariant: a polling wait yields to the thread's other tasks and to io_uring completions, and
//! sleeps after [`BUSY_POLL_MAX`].

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::limits::{BUSY_POLL_MAX, BUSY_POLL_PERIOD, BUSY_POLL_TRIALS};

/// Chooses between busy polling and sleeping, for one kind of event.
#[derive(Default)]
pub struct BusyPoll {
    fair_queue: Cell<u32>,
    asleep: Cell<Turnaround>,
    awake: Cell<Turnaround>,
    /// Start of the current wait, and whether this wait polls.
    waiting: Cell<Option<(Instant, bool)>>,
}

/// Duration of a wait, as a moving average.
#[derive(Clone, Copy, Default)]
struct Turnaround(Duration);

impl Turnaround {
    /// Upper bound of a sample. A longer wait means that the client paused; it does not measure the
    /// cost of a wake-up.
    const MAX: Duration = Duration::from_millis(1);

    fn add(self, took: Duration) -> Self {
        let took = took.min(Self::MAX);
        Self(if self.0.is_zero() { took } else { (7 * self.0 + took) / 8 })
    }
}

impl BusyPoll {
    /// Starts a wait. Returns true if the wait should poll.
    fn begin(&self) -> bool {
        let turn = self.fair_queue.replace(self.fair_queue.get().wrapping_add(1));
        let trial = turn % BUSY_POLL_PERIOD < BUSY_POLL_TRIALS;
        let better_awake = 4 * self.awake.get().0 < 3 * self.asleep.get().0;
        let awake = better_awake != trial;
        self.waiting.set(Some((Instant::now(), awake)));
        awake
    }

    /// Ends the current wait, if one has started.
    pub fn end(&self) {
        if let Some((start, awake)) = self.waiting.take() {
            let average = if awake { &self.awake } else { &self.asleep };
            average.set(average.get().add(start.elapsed()));
        }
    }

    /// Waits for `event`. Polls for up to [`BUSY_POLL_MAX`], or sleeps.
    pub async fn wait<T>(&self, event: impl Future<Output = T>) -> T {
        let mut event = pin!(event);
        let awake = self.begin();
        let start = Instant::now();
        let result = poll_fn(|context| {
            let polled = event.as_mut().poll(context);
            if polled.is_pending() && awake && start.elapsed() < BUSY_POLL_MAX {
                context.waker().wake_by_ref();
            }
            polled
        })
        .await;
        self.end();
        result
    }

    /// Polls while `quiet` returns true, for up to [`BUSY_POLL_MAX`]. Returns immediately if this
    /// wait should sleep. The caller then sleeps if necessary, and calls [`BusyPoll::end`].
    pub async fn while_quiet(&self, quiet: impl Fn() -> bool) {
        let awake = self.begin();
        let start = Instant::now();
        poll_fn(|context| {
            if !awake || !quiet() || start.elapsed() >= BUSY_POLL_MAX {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Lets the other ready tasks of the thread run once.
pub async fn yield_now() {
    let mut waited = false;
    poll_fn(|context| {
        if waited {
            return Poll::Ready(());
        }
        waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of polling waits among the last `BUSY_POLL_PERIOD` waits, for waits of the given
    /// durations.
    fn awake_turns(awake_us: u64, asleep_us: u64) -> usize {
        weir_device::new_runtime().unwrap().block_on(async {
            let busy_poll = BusyPoll::default();
            let mut awake_turns = Vec::new();
            for _ in 0..2 * BUSY_POLL_PERIOD {
                busy_poll.while_quiet(|| false).await;
                let awake = busy_poll.waiting.get().is_some_and(|(_, awake)| awake);
                let took = Duration::from_micros(if awake { awake_us } else { asleep_us });
                busy_poll.waiting.set(Instant::now().checked_sub(took).map(|start| (start, awake)));
                busy_poll.end();
                awake_turns.push(awake);
            }
            awake_turns.iter().skip(BUSY_POLL_PERIOD as usize).filter(|awake| **awake).count()
        })
    }

    #[test]
    fn polls_only_where_polling_is_over_25_percent_faster() {
        let trials = BUSY_POLL_TRIALS as usize;
        assert_eq!(awake_turns(2000, 5000), trials, "a client that takes its time");
        assert_eq!(awake_turns(450, 500), trials, "not worth the CPU");
        assert_eq!(awake_turns(100, 500), BUSY_POLL_PERIOD as usize - trials);
    }

    #[test]
    fn polling_yields_to_other_tasks_and_ends() {
        weir_device::new_runtime().unwrap().block_on(async {
            let ran = std::rc::Rc::new(Cell::new(false));
            let flag = std::rc::Rc::clone(&ran);
            compio::runtime::spawn(async move { flag.set(true) }).detach();
            let busy_poll = BusyPoll::default();
            busy_poll.while_quiet(|| !ran.get()).await;
            assert!(ran.get(), "the first turn is a trial awake");
            busy_poll.while_quiet(|| true).await;
        });
    }
}
