//! The typed result of a future whose own output has the same type for all calls.
//!
//! Not here: the futures (recorder, pools).
//!
//! Invariant: the result is taken after its future succeeded, once.

use std::sync::Arc;

use parking_lot::Mutex;

/// Where a call puts its result. The machinery around the call (task, timer, record) then has no
/// type parameter and is compiled once.
pub(super) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Slot<T> {
    /// An empty one.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Puts the result in.
    pub(super) fn fill(&self, result: T) {
        *self.0.lock() = Some(result);
    }

    /// Takes the result out.
    pub(super) fn take(&self) -> T {
        self.0.lock().take().expect("a call that succeeded has filled its slot")
    }
}
