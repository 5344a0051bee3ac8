//! A slot for the typed result of a future that has the same output type for all calls.
//!
//! Not here: the futures (weir-api, weir-server).
//!
//! Invariant: the caller takes the result once, after the future succeeded.

use std::sync::Arc;

use parking_lot::Mutex;

/// Container for the result of a call. The code around the call (task, timer, record) then needs no
/// type parameter for the result, so that Rust compiles that code once.
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
    /// Stores the result.
    pub fn fill(&self, result: T) {
        *self.0.lock() = Some(result);
    }

    /// Takes the result.
    ///
    /// # Panics
    /// If the future has not filled the slot.
    pub fn take(&self) -> T {
        self.0.lock().take().expect("a call that succeeded has filled its slot")
    }
}
