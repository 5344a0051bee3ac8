//! Runs requests on the threads that read them from the kernel.
//!
//! A reader thread performs a request itself, which saves two switches of threads. While only one
//! reader thread is free, it passes each request to the worker of the mount (`worker`) instead.
//!
//! Invariants:
//! - one reader thread is always free to read requests, even if the disks do not answer;
//! - when [`Readers::close`] returns, no reader thread uses the filesystem.

use std::cell::OnceCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;

use compio::runtime::Runtime;
use parking_lot::{Condvar, Mutex};

use crate::limits::READERS_MAX;
use crate::operations::served::Served;

thread_local! {
    /// The runtime of a reader thread; `None` if it could not be created.
    static RUNTIME: OnceCell<Option<Runtime>> = const { OnceCell::new() };
}

/// The reader threads of a mount. `S` is the filesystem.
pub(crate) struct Readers<S = Served> {
    /// Number of reader threads.
    threads: usize,
    state: Mutex<State<S>>,
    ended: Condvar,
}

struct State<S> {
    /// `None` before the filesystem is open and after the end of the mount.
    served: Option<Arc<S>>,
    /// Number of reader threads that perform a request.
    running: usize,
}

/// The right of a reader thread to perform one request.
pub(crate) struct Turn<'r, S = Served> {
    readers: &'r Readers<S>,
    /// `None` only while the turn ends.
    served: Option<Arc<S>>,
}

impl<S> Readers<S> {
    /// Creates the state for one thread more than the machine has cores.
    pub(crate) fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::with_threads((cores + 1).clamp(2, READERS_MAX))
    }

    fn with_threads(threads: usize) -> Self {
        let state = Mutex::new(State { served: None, running: 0 });
        Self { threads, state, ended: Condvar::new() }
    }

    /// Number of threads that read requests.
    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Begins to perform requests on reader threads.
    pub(crate) fn open(&self, served: Arc<S>) {
        self.state.lock().served = Some(served);
    }

    /// Begins a request on the calling reader thread. Returns `None` if the worker has to perform
    /// the request.
    pub(crate) fn begin(&self) -> Option<Turn<'_, S>> {
        RUNTIME.with(|runtime| runtime.get_or_init(new_runtime).as_ref().map(drop))?;
        let mut state = self.state.lock();
        if state.running + 1 >= self.threads {
            return None;
        }
        let served = Arc::clone(state.served.as_ref()?);
        state.running += 1;
        Some(Turn { readers: self, served: Some(served) })
    }

    /// Waits for the requests on reader threads. Later requests go to the worker.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.served = None;
        while state.running > 0 {
            self.ended.wait(&mut state);
        }
    }
}

fn new_runtime() -> Option<Runtime> {
    let runtime = weir_device::new_runtime();
    let failed = |error: &std::io::Error| {
        tracing::warn!(%error, "a thread that reads requests of a mount performs no requests");
    };
    runtime.inspect_err(failed).ok()
}

impl<S> Turn<'_, S> {
    /// Runs a request on the filesystem to its end. Returns `None` if the request panicked.
    pub(crate) fn run<F: Future>(self, request: impl FnOnce(Arc<S>) -> F) -> Option<F::Output> {
        let served = Arc::clone(self.served.as_ref().expect("the turn has not ended"));
        let mut done = None;
        let run = || {
            let work = pin!(async { done = Some(request(served).await) });
            RUNTIME.with(|runtime| {
                let runtime = runtime.get().and_then(Option::as_ref);
                weir_device::block_on(runtime.expect("`begin` created it"), work);
            });
        };
        // The panic hook has printed the panic. The thread must survive, or the mount would lose
        // one reader after the other.
        drop(catch_unwind(AssertUnwindSafe(run)));
        done
    }
}

impl<S> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        self.served = None;
        let mut state = self.readers.state.lock();
        state.running -= 1;
        if state.running == 0 {
            self.readers.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::Semaphore;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn last_free_thread_performs_no_request_and_close_waits() {
        let readers = Arc::new(Readers::<Semaphore>::with_threads(3));
        assert!(readers.begin().is_none(), "the filesystem is not open");
        let disk = Arc::new(Semaphore::new(0));
        readers.open(Arc::clone(&disk));
        let (begun, all_begun) = mpsc::channel();
        let requests: Vec<_> = (0..2)
            .map(|_| {
                let (readers, begun) = (Arc::clone(&readers), begun.clone());
                std::thread::spawn(move || {
                    let turn = readers.begin().unwrap();
                    begun.send(()).unwrap();
                    let read = |disk: Arc<Semaphore>| async move {
                        disk.acquire().await.unwrap().forget();
                    };
                    turn.run(read).unwrap();
                })
            })
            .collect();
        all_begun.iter().take(2).for_each(drop);
        assert!(readers.begin().is_none(), "this thread is the last free one");
        disk.add_permits(1);
        while readers.state.lock().running > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(readers.begin().unwrap().run(|_| async { 7 }), Some(7));

        let (ended, end) = mpsc::channel();
        let closing = Arc::clone(&readers);
        let close = std::thread::spawn(move || {
            closing.close();
            ended.send(()).unwrap();
        });
        assert!(end.recv_timeout(SHORT).is_err(), "a request still runs");
        disk.add_permits(1);
        end.recv_timeout(Duration::from_mins(1)).unwrap();
        close.join().unwrap();
        requests.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(readers.begin().is_none(), "closed");
        assert_eq!(Arc::strong_count(&disk), 1);
    }

    #[test]
    fn panic_of_a_request_ends_the_turn_but_not_the_thread() {
        let readers = Readers::<()>::with_threads(2);
        readers.open(Arc::new(()));
        for _ in 0..3 {
            let turn = readers.begin().expect("the last turn has ended");
            assert_eq!(turn.run(|_| async { assert!(std::hint::black_box(false)) }), None);
        }
        assert_eq!(readers.begin().unwrap().run(|_| async { 7 }), Some(7));
    }

    #[test]
    fn many_threads_end_with_their_runtimes() {
        for _ in 0..50 {
            let thread = std::thread::spawn(|| {
                let readers = Readers::<()>::with_threads(2);
                readers.open(Arc::new(()));
                let sleep = |_| compio::time::sleep(Duration::from_micros(10));
                readers.begin().unwrap().run(sleep).unwrap();
            });
            thread.join().unwrap();
        }
    }
}
