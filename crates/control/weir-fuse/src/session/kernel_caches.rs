//! The caches of the Linux kernel above a mount: names, attributes, ACLs and pages of files.
//!
//! Requests of the mount itself keep these caches correct. After a change that did not pass the
//! mount, such as a change by an NFS client, the caller drops the changed things with
//! [`KernelCaches::invalidate`]. The thread of `notifier` sends the notifications: one of them may
//! wait in the kernel as long as a request of the mount runs.
//!
//! Invariants:
//! - a change that is in the queue is never lost: the notifier sends it, even if its caller has
//!   stopped to wait;
//! - no caller waits after the end of the mount.

use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::Instant;

use futures_util::future::select;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use weir_base::LogLimiter;
use weir_fs::Changed;

use crate::limits::{CHANGES_MAX, KERNEL_ANSWER_LIMIT};
use crate::operations::other_changes::OtherChanges;
use crate::operations::served::LOG_INTERVAL;

/// A message to the notifier.
pub(super) enum Message {
    Changed(Order),
    /// The mount ended.
    End,
}

/// A change for the notifier.
pub(super) struct Order {
    pub(super) changed: Changed,
    /// Gets a message, or is dropped, when the kernel has dropped the change.
    pub(super) done: oneshot::Sender<()>,
    /// Place in the queue.
    _place: OwnedSemaphorePermit,
}

/// Handle to the caches of the kernel above one mount.
#[derive(Clone)]
pub struct KernelCaches {
    /// Name of the mount, for the log.
    name: Arc<str>,
    other_changes: OtherChanges,
    queue: blocking::Sender<Message>,
    /// Free places in the queue. Closed at the end of the mount.
    places: Arc<Semaphore>,
    /// True after the end of the mount.
    ended: watch::Receiver<bool>,
    /// Limits the lines in the log about a kernel that does not answer.
    log: Arc<LogLimiter<()>>,
}

/// Ends the queue of a mount when it is dropped.
pub(super) struct EndOfCaches {
    queue: blocking::Sender<Message>,
    places: Arc<Semaphore>,
    ended: watch::Sender<bool>,
}

impl Drop for EndOfCaches {
    fn drop(&mut self) {
        self.places.close();
        // The notifier may wait in the kernel, so its callers do not wait for it.
        self.ended.send_replace(true);
        // Ignore a failure: the notifier has not started, or it panicked.
        drop(self.queue.send(Message::End));
    }
}

impl KernelCaches {
    /// Creates a queue for a mount. Returns the end of the queue for the notifier.
    pub(super) fn new(
        name: &str,
        other_changes: OtherChanges,
    ) -> (Self, EndOfCaches, blocking::Receiver<Message>) {
        let (queue, messages) = blocking::channel();
        let (ending, ended) = watch::channel(false);
        let places = Arc::new(Semaphore::new(CHANGES_MAX));
        let end = EndOfCaches { queue: queue.clone(), places: Arc::clone(&places), ended: ending };
        let log = Arc::new(LogLimiter::new(LOG_INTERVAL));
        (Self { name: name.into(), other_changes, queue, places, ended, log }, end, messages)
    }

    /// Drops the names, attributes and data of a change from the caches of the kernel. The caller
    /// has made the change, and holds no lock that a request of the mount may need. Runs on a
    /// runtime of compio, and never blocks its thread.
    ///
    /// Returns when the kernel has dropped them, or when the mount has ended. If the kernel does
    /// not answer within 5 s, logs a warning and returns, too: programs on the mount may see the
    /// old state until the kernel answers. The kernel then still finishes a request of the same
    /// file or directory, such as a read from a slow disk. A longer wait of the caller would not
    /// help these programs, and would let the caller's client believe that the server is dead. The
    /// notification stays in the queue, so the old state does not outlive the request. While the
    /// queue is full, callers wait for a place without a limit, because without a place the
    /// notification would be lost.
    ///
    /// # Cancel safety
    /// A call that is dropped while it waits for a place in the full queue drops nothing.
    pub async fn invalidate(&self, changed: Changed) {
        let mut ended = self.ended.clone();
        let ended = pin!(ended.wait_for(|has_ended| *has_ended));
        select(pin!(self.queue_and_wait(changed)), ended).await;
    }

    async fn queue_and_wait(&self, changed: Changed) {
        let earliest = self.other_changes.record();
        if Instant::now() < earliest {
            compio::time::sleep_until(earliest).await;
        }
        // No place: the mount has ended.
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return };
        let (done, dropped) = oneshot::channel();
        // Ignore a failure: the mount has ended, and `dropped` is ready.
        self.queue.send(Message::Changed(Order { changed, done, _place: place })).ok();
        if compio::time::timeout(KERNEL_ANSWER_LIMIT, dropped).await.is_err() {
            self.log_no_answer();
        }
    }

    /// Queues a change of a request of the mount, which must not wait for the kernel. If the queue
    /// is full, logs a warning and drops the change: the kernel then has not answered for
    /// [`CHANGES_MAX`] changes.
    pub(crate) fn invalidate_later(&self, changed: Changed) {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return self.log_no_answer();
        };
        let (done, _) = oneshot::channel();
        // Ignore a failure: the mount has ended.
        self.queue.send(Message::Changed(Order { changed, done, _place: place })).ok();
    }

    fn log_no_answer(&self) {
        if let Some(more) = self.log.pass(()) {
            tracing::warn!(
                more,
                mount = %self.name,
                limit_s = KERNEL_ANSWER_LIMIT.as_secs(),
                "the kernel still caches what another protocol changed; programs on the mount may \
                 see old files until a slow request of the mount ends"
            );
        }
    }
}
