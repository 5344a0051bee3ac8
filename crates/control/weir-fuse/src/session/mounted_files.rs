//! Management calls on the open filesystem of a mount.
//!
//! Invariant: an operation runs on the worker thread of the mount, as the kernel's requests do.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use tokio::sync::oneshot;
use weir_fs::Filesystem;

use crate::session::gate::Gate;

/// The open filesystem of a mount.
#[derive(Clone)]
pub struct MountedFiles {
    gate: Arc<Gate>,
}

impl MountedFiles {
    pub(crate) fn new(gate: Arc<Gate>) -> Self {
        Self { gate }
    }

    /// Runs an operation and returns its result; `None` if the mount ends before the operation.
    pub async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Filesystem) -> LocalBoxFuture<'_, T> + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        self.gate
            .send_later(Box::new(move |served| {
                Box::pin(async move {
                    // Ignore a failure: the caller may no longer wait for the result.
                    drop(sender.send(operation(&served.files).await));
                })
            }))
            .await;
        receiver.await.ok()
    }
}
