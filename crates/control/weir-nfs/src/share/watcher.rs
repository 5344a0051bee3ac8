//! Watcher of the changes that clients make in a filesystem.
//!
//! A mount of the same filesystem has caches in the Linux kernel. The server connects the mount
//! with the shares: the watcher drops changed names, attributes and data from these caches.
//!
//! Invariant: a procedure waits for the watcher between a change and its reply, so that a program
//! on the mount sees each change that the server acknowledged.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use parking_lot::RwLock;
use weir_fs::Changed;

/// Watches the changes of a filesystem.
pub trait Watcher: Send + Sync {
    /// Handles a change. The reply of the call waits for the end of the future, so the future must
    /// end within a limited time. It runs on a thread of weir-net, which it must not block.
    fn changed(&self, changed: Changed) -> LocalBoxFuture<'static, ()>;
}

/// The watcher of a filesystem, if there is one. Mounts come and go while shares exist, so the
/// watcher can be replaced at any time.
#[derive(Default)]
pub struct WatcherSlot(RwLock<Option<Arc<dyn Watcher>>>);

impl WatcherSlot {
    /// Replaces the watcher. Calls that already wait for the old watcher still wait for it. A
    /// mount must have its watcher before the kernel can cache anything.
    pub fn set(&self, watcher: Option<Arc<dyn Watcher>>) {
        *self.0.write() = watcher;
    }

    /// The watcher.
    pub(crate) fn get(&self) -> Option<Arc<dyn Watcher>> {
        self.0.read().clone()
    }
}
