//! Runs operations of an engine concurrently with the engine's background loop, on one thread.
//!
//! Invariant: an operation that never ends panics.

use std::cell::RefCell;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use weir_dataset::{DatasetError, Engine};

/// Number of polls of a future after which its operation counts as endless. The disks are in
/// memory, so an operation needs far fewer polls.
const POLLS_MAX: u32 = 100_000;

/// Polls a future until it completes; panics if it needs more than [`POLLS_MAX`] polls.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
    panic!("a call on memory disks never ends");
}

type Run = Pin<Box<dyn Future<Output = Result<(), DatasetError>>>>;

/// An engine with its background loop. [`drive`] runs the loop while an operation of the engine
/// runs; the loop then pauses until the next operation.
pub(crate) struct Bench {
    engine: Arc<Engine>,
    /// The background loop; `None` after it has ended.
    run: RefCell<Option<Run>>,
}

impl Deref for Bench {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl Bench {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        let own = Arc::clone(&engine);
        let run = async move { own.run(|_| std::future::pending::<()>()).await };
        Self { engine, run: RefCell::new(Some(Box::pin(run))) }
    }
}

/// Runs an operation of the engine (`call`) concurrently with the background loop; `None` if the
/// loop ends first because the pool is suspended.
pub(crate) fn drive<T>(bench: &Bench, call: impl Future<Output = T>) -> Option<T> {
    let mut run = bench.run.borrow_mut();
    let mut call = std::pin::pin!(call);
    now(std::future::poll_fn(|context| {
        if let Poll::Ready(done) = call.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        let Some(own) = run.as_mut() else { return Poll::Pending };
        if own.as_mut().poll(context).is_ready() {
            *run = None;
            // The loop has ended, so an operation that waits for a commit now gets an error.
            return match call.as_mut().poll(context) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => Poll::Ready(None),
            };
        }
        Poll::Pending
    }))
}
