//! Slot for the result of a call. The result has a type of its own for each call, but the future
//! that runs the call has the same output type for all calls.
//!
//! The futures that fill a slot are in weir-api and weir-server.
//!
//! Invariant: the caller takes the result only once, after the call's future has succeeded.

use std::sync::Arc;

use parking_lot::Mutex;

/// Container for the result of a call. The code around the call (task, timer, history) then has no
/// type parameter for the result, so that the Rust compiler generates this code only once.
pub struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }
}

impl<T> Slot<T> {
    /// Stores the result in the slot.
    pub fn fill(&self, result: T) {
        *self.0.lock() = Some(result);
    }

    /// Takes the result out of the slot.
    ///
    /// # Panics
    /// If the future has not filled the slot.
    pub fn take(&self) -> T {
        self.0.lock().take().expect("a call that succeeded has filled its slot")
    }
}
