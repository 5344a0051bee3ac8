//! Timer interface between a driver (server or simulator) and the engine's long tasks.
//!
//! Clocks are in weir-base.
//!
//! Invariant: the type is the same for every driver, so that Rust compiles the tasks once, in this
//! crate.

use std::time::Duration;

use futures_util::future::LocalBoxFuture;

/// Starts a wait of this duration.
pub(crate) type Timer<'a> = dyn Fn(Duration) -> LocalBoxFuture<'a, ()> + 'a;

/// Boxes a driver's timer and erases its type.
pub(crate) fn boxed_timer<'a, S: Future<Output = ()> + 'a>(
    sleep: impl Fn(Duration) -> S + 'a,
) -> Box<Timer<'a>> {
    Box::new(move |time| Box::pin(sleep(time)))
}
