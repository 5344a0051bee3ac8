//! A wake-up between two tasks of one thread.
//!
//! Not here: wake-ups between threads.
//!
//! Invariants: one task waits, any may notify; a notification with nobody waiting is kept, two
//! are one.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// See the file's head.
#[derive(Default)]
pub struct Signal {
    set: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Signal {
    /// Lets the present or the next wait return.
    pub fn notify(&self) {
        self.set.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Whether the next wait would return at once.
    pub const fn is_set(&self) -> bool {
        self.set.get()
    }

    /// Returns once notified.
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
