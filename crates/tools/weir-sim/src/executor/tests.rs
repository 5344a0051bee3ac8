//! Tests of the executor without disks.
//!
//! The tests run without the engine.
//!
//! Invariant: tests with random outcomes use many seeds, and each test can fail.

use std::sync::atomic::AtomicU32;

use tokio::sync::{Notify, oneshot};

use super::*;

/// A source of events that has none.
struct Quiet;

impl Events for Quiet {
    fn submit(&self, _now: Duration) -> Result<(), SimError> {
        Ok(())
    }

    fn next_due(&self) -> Option<Duration> {
        None
    }

    fn fire(&self, _now: Duration) -> Result<(), SimError> {
        Ok(())
    }
}

fn executor(seed: u64) -> Executor {
    Executor::new(Rng::new(seed))
}

/// Runs three tasks of three steps each; returns the order of their steps.
fn order(seed: u64) -> Vec<u32> {
    let executor = executor(seed);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (seen, handle) = (Rc::clone(&seen), executor.clone());
            executor.spawn(format!("task {n}"), async move {
                for _ in 0..3 {
                    seen.borrow_mut().push(n);
                    handle.yield_now().await;
                }
            })
        })
        .collect();
    let all = futures_util::future::join_all(tasks);
    executor.run(&Quiet, all).unwrap();
    seen.take()
}

#[test]
fn seed_replays_its_order_and_seeds_differ() {
    assert_eq!(order(1), order(1));
    let mut orders: Vec<_> = (0..200).map(order).collect();
    orders.sort();
    orders.dedup();
    assert!(orders.len() > 150, "{} different orders", orders.len());
}

#[test]
fn timers_fire_in_order_and_jump_the_clock() {
    let executor = executor(2);
    let times = executor.run(&Quiet, async {
        let mut times = Vec::new();
        let late = executor.sleep(Duration::from_hours(1));
        let early = executor.sleep(Duration::from_secs(5));
        early.await;
        times.push(executor.now().as_secs());
        late.await;
        times.push(executor.now().as_secs());
        times
    });
    assert_eq!(times.unwrap(), [5, 3600]);
}

#[test]
fn dropped_sleep_does_not_advance_time() {
    let executor = executor(3);
    let result = executor.run(&Quiet, async {
        let mut sleep = Box::pin(executor.sleep(Duration::from_secs(100)));
        assert!(futures_util::poll!(&mut sleep).is_pending());
        drop(sleep);
        std::future::pending::<()>().await;
    });
    let Err(SimError::Deadlock { at, .. }) = result else { panic!("{result:?}") };
    assert!(at < Duration::from_secs(1), "{at:?}");
}

#[test]
fn deadlock_error_names_the_waiting_tasks() {
    let executor = executor(4);
    let never = Arc::new(Notify::new());
    let waiter = Arc::clone(&never);
    drop(executor.spawn("log writer", async move { waiter.notified().await }));
    let (_sender, receiver) = oneshot::channel::<()>();
    let error = executor.run(&Quiet, receiver).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("deadlock") && text.contains("main, log writer"), "{text}");
}

#[test]
fn endless_timers_and_endless_polls_end_with_an_error() {
    let executor = executor(5);
    let handle = executor.clone();
    drop(executor.spawn("ticker", async move {
        loop {
            handle.sleep(Duration::from_secs(5)).await;
        }
    }));
    let error = executor.run(&Quiet, std::future::pending::<()>()).unwrap_err();
    assert!(matches!(error, SimError::TooLong { .. }), "{error}");

    let polls_max = executor.polls() + 1000;
    executor.set_limits(Limits { polls_max, time_max: Duration::MAX });
    let spin = async {
        loop {
            executor.yield_now().await;
        }
    };
    let error = executor.run(&Quiet, spin).map(|(): ()| ()).unwrap_err();
    assert!(matches!(error, SimError::TooManyPolls { .. }), "{error}");
}

#[test]
fn tasks_wake_each_other_with_ordinary_wakers() {
    let executor = executor(6);
    let bell = Arc::new(Notify::new());
    let heard = Arc::new(AtomicU32::new(0));
    let (bell_too, heard_too) = (Arc::clone(&bell), Arc::clone(&heard));
    let listener = executor.spawn("listener", async move {
        for _ in 0..10 {
            bell_too.notified().await;
            heard_too.fetch_add(1, Ordering::Relaxed);
        }
        "done"
    });
    let ringer = async {
        for n in 0..10 {
            while heard.load(Ordering::Relaxed) < n {
                executor.yield_now().await;
            }
            bell.notify_one();
        }
        listener.await
    };
    assert_eq!(executor.run(&Quiet, ringer).unwrap(), "done");
}

#[test]
fn crash_drops_every_task() {
    let executor = executor(7);
    let held = Rc::new(());
    for n in 0..3 {
        let (held, handle) = (Rc::clone(&held), executor.clone());
        drop(executor.spawn(format!("holder {n}"), async move {
            handle.sleep(Duration::from_secs(1)).await;
            drop(held);
        }));
    }
    executor.run(&Quiet, executor.yield_now()).unwrap();
    assert_eq!(Rc::strong_count(&held), 4);
    executor.crash();
    assert_eq!(Rc::strong_count(&held), 1);
    assert_eq!(Rc::strong_count(&executor.inner), 1);
}
