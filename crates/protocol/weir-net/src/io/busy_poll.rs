//! Waiting awake for a quick client.
//!
//! Not here: what is waited for.
//!
//! Sleeping and waking can cost more than a client needs to answer (the reason for which
//! hypervisors poll before they halt), or next to nothing, where the system runs both in turns on
//! one core. Which it is cannot be known, so both are tried now and again, and the better is kept;
//! awake must be clearly better, for it costs CPU.
//!
//! Invariant: a wait awake gives way to every other task of the thread and to the ring, and goes
//! to sleep after [`LINGER_MAX`].

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::limits::{LINGER_MAX, LINGER_TRIALS, LINGER_TURNS};

/// How to wait for one kind of event.
#[derive(Default)]
pub struct Linger {
    turns: Cell<u32>,
    asleep: Cell<Turnaround>,
    awake: Cell<Turnaround>,
    /// When the wait began, and whether it was awake.
    waiting: Cell<Option<(Instant, bool)>>,
}

/// How long a wait took: a running average.
#[derive(Clone, Copy, Default)]
struct Turnaround(Duration);

impl Turnaround {
    /// A client that thinks for long says nothing about waking up.
    const MAX: Duration = Duration::from_millis(1);

    fn add(self, took: Duration) -> Self {
        let took = took.min(Self::MAX);
        Self(if self.0.is_zero() { took } else { (7 * self.0 + took) / 8 })
    }
}

impl Linger {
    /// A wait begins; true if it should be awake.
    fn begin(&self) -> bool {
        let turn = self.turns.replace(self.turns.get().wrapping_add(1));
        let trial = turn % LINGER_TURNS < LINGER_TRIALS;
        let better_awake = 4 * self.awake.get().0 < 3 * self.asleep.get().0;
        let awake = better_awake != trial;
        self.waiting.set(Some((Instant::now(), awake)));
        awake
    }

    /// What was waited for has come; nothing happens where nobody waited.
    pub fn end(&self) {
        if let Some((start, awake)) = self.waiting.take() {
            let average = if awake { &self.awake } else { &self.asleep };
            average.set(average.get().add(start.elapsed()));
        }
    }

    /// Waits for `event`, the wait's end included.
    pub async fn wait<T>(&self, event: impl Future<Output = T>) -> T {
        let mut event = pin!(event);
        let awake = self.begin();
        let start = Instant::now();
        let result = poll_fn(|context| {
            let polled = event.as_mut().poll(context);
            if polled.is_pending() && awake && start.elapsed() < LINGER_MAX {
                context.waker().wake_by_ref();
            }
            polled
        })
        .await;
        self.end();
        result
    }

    /// Spends the first part of a wait, whose end [`Linger::end`] tells, while it is `quiet`:
    /// awake, or not at all.
    pub async fn while_quiet(&self, quiet: impl Fn() -> bool) {
        let awake = self.begin();
        let start = Instant::now();
        poll_fn(|context| {
            if !awake || !quiet() || start.elapsed() >= LINGER_MAX {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

/// Lets the other tasks of the thread run that are ready.
pub async fn give_way() {
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

    /// Turns spent awake of the last `LINGER_TURNS`, with a client that takes as long as given.
    fn awake_turns(awake_us: u64, asleep_us: u64) -> usize {
        weir_device::new_runtime().unwrap().block_on(async {
            let linger = Linger::default();
            let mut awake_turns = Vec::new();
            for _ in 0..2 * LINGER_TURNS {
                linger.while_quiet(|| false).await;
                let awake = linger.waiting.get().is_some_and(|(_, awake)| awake);
                let took = Duration::from_micros(if awake { awake_us } else { asleep_us });
                linger.waiting.set(Instant::now().checked_sub(took).map(|start| (start, awake)));
                linger.end();
                awake_turns.push(awake);
            }
            awake_turns.iter().skip(LINGER_TURNS as usize).filter(|awake| **awake).count()
        })
    }

    #[test]
    fn it_waits_awake_where_that_is_clearly_quicker() {
        let trials = LINGER_TRIALS as usize;
        assert_eq!(awake_turns(2000, 5000), trials, "a client that takes its time");
        assert_eq!(awake_turns(450, 500), trials, "not worth the CPU");
        assert_eq!(awake_turns(100, 500), LINGER_TURNS as usize - trials);
    }

    #[test]
    fn a_wait_lets_other_tasks_run_and_ends() {
        weir_device::new_runtime().unwrap().block_on(async {
            let ran = std::rc::Rc::new(Cell::new(false));
            let flag = std::rc::Rc::clone(&ran);
            compio::runtime::spawn(async move { flag.set(true) }).detach();
            let linger = Linger::default();
            linger.while_quiet(|| !ran.get()).await;
            assert!(ran.get(), "the first turn is a trial awake");
            linger.while_quiet(|| true).await;
        });
    }
}
