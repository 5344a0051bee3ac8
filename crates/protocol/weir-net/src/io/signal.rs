//! Wake-up between two tasks of one thread.
//!
//! Both tasks must run on the same thread: a signal cannot wake another thread.
//!
//! Invariants: only one task waits, and any task may notify; a notification without a waiting task
//! is kept, and two such notifications count as one.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wake-up between two tasks; see the module description.
#[derive(Default)]
pub struct Signal {
    set: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    /// Makes the current wait return, or the next one if no task waits.
    pub fn notify(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// True if the next wait would return immediately.
    pub const fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Waits until [`Signal::notify`] was called.
    pub async fn wait(&self) {
        poll_fn(|context| {
            if self.set.replace(false) {
                return Poll::Ready(());
            }
            self.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
