//! Passes requests from the threads that read them to the worker thread of the mount.
//!
//! Invariants:
//! - a thread that reads requests waits while the queue or the data of writes is at its limit, so
//!   that the kernel keeps further requests;
//! - after [`Gate::close`] no thread waits in a function of the gate, every request fails, and only
//!   the worker uses the filesystem.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

use crate::limits::{QUEUE_MAX, READ_BYTES_MAX, WRITE_BYTES_MAX};
use crate::operations::served::Served;
use crate::session::readers::Readers;

/// A request: it runs on the worker thread and sends its own answer. A request that is dropped
/// answers EIO.
pub(crate) type Job<S = Served> = Box<dyn FnOnce(Arc<S>) -> LocalBoxFuture<'static, ()> + Send>;

/// The queue of requests, and the free memory for the data of writes.
pub(crate) struct Gate {
    /// `None` after the gate was closed.
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    /// Free bytes for the data of writes; `None` after the gate was closed.
    room: Mutex<Option<usize>>,
    freed: Condvar,
    /// Free bytes for the answers of reads.
    reads: Semaphore,
    /// The threads that read requests.
    pub(crate) readers: Readers,
}

/// Memory for the data of a write, until it is dropped.
pub(crate) struct WriteRoom {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Drop for WriteRoom {
    fn drop(&mut self) {
        if let Some(free) = &mut *self.gate.room.lock() {
            *free += self.bytes;
        }
        self.gate.freed.notify_all();
    }
}

impl Gate {
    /// Creates an open gate, and the end of its queue for the worker.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Job>) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let room = Mutex::new(Some(WRITE_BYTES_MAX));
        let (queue, readers) = (Mutex::new(Some(sender)), Readers::new());
        let reads = Semaphore::new(READ_BYTES_MAX as usize);
        (Self { queue, room, freed: Condvar::new(), reads, readers }, receiver)
    }

    /// Queues a request. Waits while the queue is full.
    pub(crate) fn send(&self, job: Job) {
        let queue = self.queue.lock().clone();
        // A refused job is dropped, which answers EIO.
        drop(queue.map(|queue| queue.blocking_send(job)));
    }

    /// Takes memory for the data of a write, and waits until enough memory is free. Returns `None`
    /// if the gate is closed, or if the write exceeds [`WRITE_BYTES_MAX`].
    pub(crate) fn take_room(self: &Arc<Self>, bytes: usize) -> Option<WriteRoom> {
        let mut room = self.room.lock();
        while let Some(free) = *room
            && bytes <= WRITE_BYTES_MAX
        {
            if free >= bytes {
                *room = Some(free - bytes);
                return Some(WriteRoom { gate: Arc::clone(self), bytes });
            }
            self.freed.wait(&mut room);
        }
        None
    }

    /// Takes memory for the answer of a read, and waits until enough memory is free.
    pub(crate) async fn read_room(&self, bytes: u32) -> Option<SemaphorePermit<'_>> {
        self.reads.acquire_many(bytes.min(READ_BYTES_MAX)).await.ok()
    }

    /// Refuses all further requests. Waits for the requests that run on reader threads.
    pub(crate) fn close(&self) {
        self.readers.close();
        *self.queue.lock() = None;
        *self.room.lock() = None;
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn writes_wait_for_room_until_the_gate_closes() {
        let (gate, _queue) = Gate::new();
        let gate = Arc::new(gate);
        let all = gate.take_room(WRITE_BYTES_MAX).unwrap();
        assert!(gate.take_room(WRITE_BYTES_MAX + 1).is_none(), "never fits");
        let taken = Arc::new(AtomicUsize::new(0));
        let waiting: Vec<_> = (0..2)
            .map(|_| {
                let (gate, taken) = (Arc::clone(&gate), Arc::clone(&taken));
                std::thread::spawn(move || {
                    let room = gate.take_room(WRITE_BYTES_MAX);
                    taken.fetch_add(1, Ordering::SeqCst);
                    room
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(taken.load(Ordering::SeqCst), 0, "there is no room");
        drop(all);
        while taken.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        gate.close();
        let got: Vec<_> = waiting.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(got.iter().filter(|got| got.is_some()).count(), 1, "the other one failed");
        assert!(gate.take_room(0).is_none());
    }

    #[test]
    fn refused_write_gives_its_room_back() {
        let (gate, queue) = Gate::new();
        let gate = Arc::new(gate);
        drop(queue);
        for _ in 0..2 {
            let room = gate.take_room(WRITE_BYTES_MAX).expect("the last write gave its room back");
            gate.send(Box::new(move |_| Box::pin(async move { drop(room) })));
        }
    }

    #[test]
    fn queue_is_bounded_and_a_closed_gate_drops_requests() {
        struct Dropped(Arc<AtomicUsize>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (gate, mut queue) = Gate::new();
        let gate = Arc::new(gate);
        let dropped = Arc::new(AtomicUsize::new(0));
        let job = |dropped: &Arc<AtomicUsize>| -> Job {
            let dropped = Dropped(Arc::clone(dropped));
            Box::new(move |_| Box::pin(async move { drop(dropped) }))
        };
        (0..QUEUE_MAX).for_each(|_| gate.send(job(&dropped)));
        let (one_more, counted) = (Arc::clone(&gate), Arc::clone(&dropped));
        let waiting = std::thread::spawn(move || one_more.send(job(&counted)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "the queue is full");
        drop(queue.blocking_recv());
        waiting.join().unwrap();
        gate.close();
        gate.send(job(&dropped));
        assert_eq!(dropped.load(Ordering::SeqCst), 2, "the received one and the refused one");
    }
}
