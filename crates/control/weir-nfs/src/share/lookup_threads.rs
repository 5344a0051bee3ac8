//! Helper threads that run lookups, for lookups that may block for a long time.
//!
//! `groups` and `names` have their results.
//!
//! Invariants:
//! - there are at most [`LOOKUP_THREADS_MAX`] threads; one more starts only if none is idle;
//! - a lookup runs without the lock of the queue, so that it may lock the table of its caller, and
//!   the caller may queue lookups while it holds this lock.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::limits::LOOKUP_THREADS_MAX;

/// Queue of the lookups of `K`, and its threads.
pub(super) struct LookupThreads<K> {
    queue: Mutex<Queue<K>>,
    /// Wakes a thread.
    queued: Condvar,
}

struct Queue<K> {
    keys: VecDeque<K>,
    threads: usize,
    idle_threads: usize,
    is_closed: bool,
}

impl<K> Default for LookupThreads<K> {
    fn default() -> Self {
        let keys = VecDeque::new();
        let queue = Queue { keys, threads: 0, idle_threads: 0, is_closed: false };
        Self { queue: Mutex::new(queue), queued: Condvar::new() }
    }
}

impl<K> LookupThreads<K> {
    /// Starts a thread if the next lookup would wait for one, unless there are too many. The thread
    /// runs `main`, which calls [`Self::run`]. Returns false if there is no thread.
    pub(super) fn prepare(&self, name: &str, main: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.queue.lock();
        if queue.idle_threads <= queue.keys.len()
            && queue.threads < LOOKUP_THREADS_MAX
            && start(name, main)
        {
            queue.threads += 1;
        }
        queue.threads > 0
    }

    /// Queues a lookup.
    pub(super) fn push(&self, key: K) {
        self.queue.lock().keys.push_back(key);
        self.queued.notify_one();
    }

    /// Runs lookups until [`Self::close`].
    pub(super) fn run(&self, look_up: impl Fn(K)) {
        let mut queue = self.queue.lock();
        while !queue.is_closed {
            if let Some(key) = queue.keys.pop_front() {
                MutexGuard::unlocked(&mut queue, || look_up(key));
            } else {
                queue.idle_threads += 1;
                self.queued.wait(&mut queue);
                queue.idle_threads -= 1;
            }
        }
    }

    /// Ends the threads after their current lookup.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.queued.notify_all();
    }

    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.queue.lock().threads
    }
}

/// Starts a thread. Returns false if the system has none left.
pub(super) fn start(name: &str, main: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().name(name.to_owned()).spawn(main).is_ok()
}
