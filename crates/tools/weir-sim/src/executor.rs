//! Single-threaded executor: polls ready tasks in a seeded random order, in virtual time.
//!
//! [`crate::SimDisk`] implements the disks; the executor only fires their next event.
//!
//! Invariants:
//! - one seed gives one order: the same program polls the same tasks in the same order at the same
//!   virtual times;
//! - the executor polls a task only after a wake-up or its spawn, so a lost wake-up shows as a
//!   deadlock;
//! - each poll advances time by a small random amount, so that disks and timers overtake busy
//!   tasks; when no task is ready, time jumps to the next event.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use weir_base::Clock;

use crate::clock::SimClock;
use crate::error::SimError;
use crate::rng::Rng;

/// Maximum virtual time of one poll: about the time of a request on a real core, so that a disk
/// sometimes finishes between two polls.
const POLL_NS_MAX: u64 = 4000;

/// Source of events outside tasks: the disks.
pub(crate) trait Events {
    /// Issues the operations that the last poll started.
    ///
    /// # Errors
    /// `Crashed`: the power was cut before the issue.
    fn submit(&self, now: Duration) -> Result<(), SimError>;

    /// Time of the earliest pending event.
    fn next_due(&self) -> Option<Duration>;

    /// Fires the earliest event.
    ///
    /// # Errors
    /// `Crashed`: the power was cut before the event.
    fn fire(&self, now: Duration) -> Result<(), SimError>;
}

/// Limits of a run; a run that exceeds a limit counts as stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of polls of all tasks together.
    pub polls_max: u64,
    /// Maximum virtual time since the creation of the world.
    pub time_max: Duration,
}

impl Default for Limits {
    /// Limits that a run reaches after one or two seconds of real time, or after a day of virtual
    /// time in which only timers fire.
    fn default() -> Self {
        Self { polls_max: 2_000_000, time_max: Duration::from_hours(24) }
    }
}

/// Handle to the executor of a world; clones share it.
#[derive(Clone)]
pub struct Executor {
    inner: Rc<Inner>,
}

struct Inner {
    clock: Arc<SimClock>,
    ready: Arc<Mutex<Vec<u64>>>,
    tasks: RefCell<BTreeMap<u64, Task>>,
    timers: RefCell<BinaryHeap<Reverse<Timer>>>,
    rng: RefCell<Rng>,
    next_id: Cell<u64>,
    polls: Cell<u64>,
    limits: Cell<Limits>,
}

struct Task {
    name: String,
    alarm: Arc<Alarm>,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// Waker: puts its task on the ready list once.
struct Alarm {
    task: u64,
    rung: AtomicBool,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.ready.lock().push(self.task);
        }
    }
}

impl Executor {
    pub(crate) fn new(rng: Rng) -> Self {
        let inner = Inner {
            clock: Arc::new(SimClock::new()),
            ready: Arc::default(),
            tasks: RefCell::default(),
            timers: RefCell::default(),
            rng: RefCell::new(rng),
            next_id: Cell::new(0),
            polls: Cell::new(0),
            limits: Cell::new(Limits::default()),
        };
        Self { inner: Rc::new(inner) }
    }

    /// Returns the virtual clock.
    pub fn clock(&self) -> Arc<SimClock> {
        Arc::clone(&self.inner.clock)
    }

    /// Virtual time since the creation of the world.
    pub fn now(&self) -> Duration {
        self.inner.clock.monotonic()
    }

    /// Number of polls so far.
    pub fn polls(&self) -> u64 {
        self.inner.polls.get()
    }

    /// Changes the limits of a run.
    pub fn set_limits(&self, limits: Limits) {
        self.inner.limits.set(limits);
    }

    /// Starts a task, which continues if the handle is dropped. The name appears in error messages.
    pub fn spawn<T: 'static>(
        &self,
        name: impl Into<String>,
        future: impl Future<Output = T> + 'static,
    ) -> JoinHandle<T> {
        let join = Rc::new(RefCell::new(Join { result: None, waker: None }));
        let ours = Rc::clone(&join);
        let future = Box::pin(async move {
            let result = future.await;
            let mut ours = ours.borrow_mut();
            ours.result = Some(result);
            if let Some(waker) = ours.waker.take() {
                waker.wake();
            }
        });
        let alarm = self.new_alarm();
        alarm.wake_by_ref();
        let task = Task { name: name.into(), alarm: Arc::clone(&alarm), future };
        self.inner.tasks.borrow_mut().insert(alarm.task, task);
        JoinHandle { join }
    }

    /// Waits for virtual time to pass.
    pub fn sleep(&self, time: Duration) -> Sleep {
        self.sleep_until(self.now().saturating_add(time))
    }

    /// Waits until the virtual clock shows `due`.
    pub fn sleep_until(&self, due: Duration) -> Sleep {
        Sleep { executor: Rc::downgrade(&self.inner), due, waker: None }
    }

    /// Yields to other ready tasks.
    pub fn yield_now(&self) -> YieldNow {
        YieldNow { yielded: false }
    }

    /// Drops all tasks and timers, as the end of a process does.
    pub fn crash(&self) {
        // Dropping a task may spawn or wake other tasks, so repeat until no task is left.
        loop {
            let tasks = std::mem::take(&mut *self.inner.tasks.borrow_mut());
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        self.inner.timers.borrow_mut().clear();
        self.inner.ready.lock().clear();
    }

    /// Runs until `main` completes. The executor's other tasks stay and continue in the next run.
    pub(crate) fn run<T>(
        &self,
        events: &dyn Events,
        main: impl Future<Output = T>,
    ) -> Result<T, SimError> {
        let mut main = pin!(main);
        let alarm = self.new_alarm();
        alarm.wake_by_ref();
        let waker = Waker::from(Arc::clone(&alarm));
        loop {
            self.fire_due(events)?;
            let Some(id) = self.pick_ready() else {
                self.jump(events)?;
                continue;
            };
            self.spend_poll()?;
            if id == alarm.task {
                alarm.rung.store(false, Ordering::Release);
                let done = main.as_mut().poll(&mut Context::from_waker(&waker));
                events.submit(self.now())?;
                if let Poll::Ready(result) = done {
                    return Ok(result);
                }
            } else {
                self.poll_task(id);
                events.submit(self.now())?;
            }
        }
    }

    fn new_alarm(&self) -> Arc<Alarm> {
        let task = self.inner.next_id.get();
        self.inner.next_id.set(task + 1);
        let ready = Arc::clone(&self.inner.ready);
        Arc::new(Alarm { task, rung: AtomicBool::new(false), ready })
    }

    fn pick_ready(&self) -> Option<u64> {
        let mut ready = self.inner.ready.lock();
        if ready.is_empty() {
            return None;
        }
        let index = self.inner.rng.borrow_mut().index(ready.len());
        Some(ready.swap_remove(index))
    }

    fn poll_task(&self, id: u64) {
        // Take the task out of the map during its poll, so that the poll may spawn tasks. The task
        // may be missing, because a finished task may still be woken.
        let Some(mut task) = self.inner.tasks.borrow_mut().remove(&id) else { return };
        task.alarm.rung.store(false, Ordering::Release);
        let waker = Waker::from(Arc::clone(&task.alarm));
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.inner.tasks.borrow_mut().insert(id, task);
        }
    }

    /// Fires all due events and timers, earliest first.
    fn fire_due(&self, events: &dyn Events) -> Result<(), SimError> {
        let now = self.now();
        loop {
            let timer = self.next_timer().filter(|due| *due <= now);
            let event = events.next_due().filter(|due| *due <= now);
            match (timer, event) {
                (None, None) => return Ok(()),
                (Some(timer), Some(event)) if event < timer => events.fire(now)?,
                (Some(_), _) => self.fire_timer(),
                (None, Some(_)) => events.fire(now)?,
            }
        }
    }

    /// Advances time to the next event or timer when no task is ready.
    fn jump(&self, events: &dyn Events) -> Result<(), SimError> {
        let next = match (self.next_timer(), events.next_due()) {
            (Some(timer), Some(event)) => timer.min(event),
            (Some(due), None) | (None, Some(due)) => due,
            (None, None) => {
                return Err(SimError::Deadlock { at: self.now(), tasks: self.waiting() });
            }
        };
        self.inner.clock.advance_to(next);
        if next > self.inner.limits.get().time_max {
            return Err(SimError::TooLong { at: next, tasks: self.waiting() });
        }
        Ok(())
    }

    fn spend_poll(&self) -> Result<(), SimError> {
        let polls = self.inner.polls.get() + 1;
        self.inner.polls.set(polls);
        let cost = Duration::from_nanos(self.inner.rng.borrow_mut().below(POLL_NS_MAX));
        let at = self.now() + cost;
        self.inner.clock.advance_to(at);
        if polls > self.inner.limits.get().polls_max {
            return Err(SimError::TooManyPolls { polls, at, tasks: self.waiting() });
        }
        Ok(())
    }

    fn waiting(&self) -> Vec<String> {
        let tasks = self.inner.tasks.borrow();
        std::iter::once("main".to_owned()).chain(tasks.values().map(|t| t.name.clone())).collect()
    }

    /// Time of the earliest timer whose `Sleep` still exists.
    fn next_timer(&self) -> Option<Duration> {
        let mut timers = self.inner.timers.borrow_mut();
        while let Some(Reverse(timer)) = timers.peek() {
            if Rc::strong_count(&timer.waker) > 1 {
                return Some(timer.due);
            }
            timers.pop(); // its `Sleep` was dropped
        }
        None
    }

    fn fire_timer(&self) {
        let timer = self.inner.timers.borrow_mut().pop();
        if let Some(waker) = timer.and_then(|Reverse(timer)| timer.waker.take()) {
            waker.wake();
        }
    }
}

struct Join<T> {
    result: Option<T>,
    waker: Option<Waker>,
}

/// Future of a task's result; never completes after [`Executor::crash`].
pub struct JoinHandle<T> {
    join: Rc<RefCell<Join<T>>>,
}

impl<T> JoinHandle<T> {
    /// True if the task is done and its result was not taken yet.
    pub fn is_finished(&self) -> bool {
        self.join.borrow().result.is_some()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut join = self.join.borrow_mut();
        if let Some(result) = join.result.take() {
            return Poll::Ready(result);
        }
        join.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

type TimerWaker = Rc<Cell<Option<Waker>>>;

/// Timer, ordered by time; timers for the same instant fire in random order.
struct Timer {
    due: Duration,
    tie: u64,
    waker: TimerWaker,
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.tie).cmp(&(other.due, other.tie))
    }
}

/// Future that completes at its due time. The drop of the future cancels the timer.
pub struct Sleep {
    executor: Weak<Inner>,
    due: Duration,
    waker: Option<TimerWaker>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // If the executor was dropped, nothing polls this future any more, so it stays pending.
        let Some(inner) = self.executor.upgrade() else { return Poll::Pending };
        if inner.clock.monotonic() >= self.due {
            return Poll::Ready(());
        }
        let due = self.due;
        let slot = self.waker.get_or_insert_with(|| {
            let waker = TimerWaker::default();
            let tie = inner.rng.borrow_mut().next_u64();
            let timer = Timer { due, tie, waker: Rc::clone(&waker) };
            inner.timers.borrow_mut().push(Reverse(timer));
            waker
        });
        slot.set(Some(cx.waker().clone()));
        Poll::Pending
    }
}

/// Future that is pending once.
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
