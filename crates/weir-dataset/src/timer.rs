//! The timer that a driver (server or simulator) hands to the engine's long tasks.
//!
//! Not here: clocks (weir-base).
//!
//! Invariant: its type is the same for every driver, so that the tasks are compiled once, in this
//! crate.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;

/// Starts a wait of the given time.
pub(crate) type Timer<'a> = dyn Fn(Duration) -> LocalBoxFuture<'a, ()> + 'a;

/// Erases the type of a driver's timer.
pub(crate) fn boxed_timer<'a, S: Future<Output = ()> + 'a>(
    sleep: impl Fn(Duration) -> S + 'a,
) -> Box<Timer<'a>> {
    Box::new(move |time| Box::pin(sleep(time)))
}
