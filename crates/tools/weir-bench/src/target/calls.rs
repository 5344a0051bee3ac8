//! Threads that execute the metadata operations of a lane with several operations in flight.
//!
//! io_uring has no operation for most of these system calls, and executes the others on threads of
//! the kernel. `tree` has the system calls.
//!
//! Invariants: the number of threads never exceeds the queue depth of the lane; a thread ends when
//! the lane is dropped, after the system call that it executes; each completion makes the event
//! descriptor readable.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use super::lane::Done;
use super::metadata::MetadataOp;
use super::tree::Tree;

/// Stack size of a thread in bytes. Most threads wait, so they need little memory.
const STACK_BYTES: usize = 256 << 10;

/// Operations of a lane, and the threads that execute them.
pub(super) struct Calls {
    shared: Arc<Shared>,
    threads: usize,
    threads_max: usize,
    in_flight: usize,
}

struct Shared {
    tree: Arc<Tree>,
    queue: Mutex<Queue>,
    /// Signals that the queue has work, or that the lane was dropped.
    work: Condvar,
    /// Event descriptor; readable if `Queue::done` may have completions.
    event: OwnedFd,
}

#[derive(Default)]
struct Queue {
    /// Operations that no thread executes yet, each with its slot and the contents of the file that
    /// it creates.
    waiting: VecDeque<(usize, MetadataOp, Vec<u8>)>,
    /// Slots of the completed operations, with their results.
    done: Vec<(usize, std::io::Result<()>)>,
    /// Number of threads that wait for work.
    idle: usize,
    is_closed: bool,
}

impl Calls {
    /// Creates an empty queue for a lane with `depth` operations in flight.
    pub(super) fn new(tree: Arc<Tree>, depth: usize) -> std::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (queue, work) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { tree, queue, work, event });
        Ok(Self { shared, threads: 0, threads_max: depth.max(1), in_flight: 0 })
    }

    /// Descriptor that becomes readable when an operation completes.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Number of operations whose completion was not taken yet.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Passes an operation to a thread. `data` has the contents of a file that it creates.
    ///
    /// # Errors
    /// If the first thread cannot be started.
    pub(super) fn submit(
        &mut self,
        slot: usize,
        op: MetadataOp,
        data: Vec<u8>,
    ) -> std::io::Result<()> {
        let needs_thread = {
            let mut queue = self.shared.queue.lock();
            queue.waiting.push_back((slot, op, data));
            queue.idle < queue.waiting.len()
        };
        self.in_flight += 1;
        if needs_thread && self.threads < self.threads_max {
            let shared = Arc::clone(&self.shared);
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            match thread.spawn(move || shared.work()) {
                Ok(_) => self.threads += 1,
                Err(error) if self.threads == 0 => return Err(error),
                // The other threads execute the operation.
                Err(_) => {}
            }
        }
        self.shared.work.notify_one();
        Ok(())
    }

    /// Moves all completions to `done`, and makes the event descriptor unreadable. The time of a
    /// completion is the time of this call, as for completions of the ring.
    pub(super) fn take(&mut self, done: &mut Vec<Done>) {
        let mut count = [0; 8];
        // An error means that no operation completed since the last call.
        rustix::io::read(&self.shared.event, &mut count).ok();
        let mut queue = self.shared.queue.lock();
        self.in_flight -= queue.done.len();
        let at = Instant::now();
        done.extend(queue.done.drain(..).map(|(slot, result)| Done { slot, result, at }));
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if let Some((slot, op, data)) = queue.waiting.pop_front() {
                drop(queue);
                let result = self.tree.perform(&op, &data);
                queue = self.queue.lock();
                queue.done.push((slot, result));
                // Any count above 0 makes the descriptor readable. The write fails only if the
                // counter is full; the descriptor is readable then.
                rustix::io::write(&self.event, &1_u64.to_le_bytes()).ok();
            } else if queue.is_closed {
                return;
            } else {
                queue.idle += 1;
                self.work.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}
