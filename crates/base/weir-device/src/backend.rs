//! I/O backend of this process, and the runtimes that use it.
//!
//! Each thread that does I/O has one runtime, on which the callers run their own tasks.
//!
//! Invariants:
//! - the process chooses the backend once and never changes it, so that all its runtimes are alike;
//! - if the kernel refuses io_uring, Weir logs the kernel's error once, and continues with the
//!   polling backend;
//! - `DEFER_TASKRUN` is never used without `TASKRUN_FLAG`: otherwise a task that yields in a loop
//!   would delay a completed read indefinitely (docs/decisions/0001).

use std::io;
use std::pin::Pin;
use std::sync::OnceLock;

use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};

/// Kernel interface that the runtimes use for I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring: each runtime has one ring.
    IoUring,
    /// epoll for sockets, and a thread pool for disks: the fallback if the kernel refuses io_uring.
    Polling,
}

impl IoBackend {
    /// Name of the backend in logs and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Polling => "polling",
        }
    }
}

impl std::fmt::Display for IoBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Backend of every runtime of this process. The first call chooses the backend and logs it.
pub fn io_backend() -> IoBackend {
    choice().backend
}

/// Creates a runtime for the calling thread, on which [`crate::Device`] futures can be awaited.
///
/// # Errors
/// The operating system has no descriptors or no memory left for a ring or an epoll instance.
pub fn new_runtime() -> io::Result<Runtime> {
    let choice = choice();
    let mut driver = ProactorBuilder::new();
    match choice.backend {
        IoBackend::IoUring => driver.driver_type(DriverType::IoUring),
        IoBackend::Polling => driver.driver_type(DriverType::Poll),
    };
    if choice.deferred {
        defer_completions(&mut driver);
    }
    RuntimeBuilder::new().with_proactor(driver).build()
}

/// Runs a future to its end on a runtime of the calling thread.
///
/// The function has no type parameter, so that the loop which submits I/O and waits for completions
/// is compiled in this crate, with the optimisation of the data path.
#[inline(never)]
pub fn block_on(runtime: &Runtime, work: Pin<&mut (dyn Future<Output = ()> + '_)>) {
    runtime.block_on(work);
}

/// Makes the kernel defer completion work until the thread asks for completions, which saves
/// interruptions. Kernels support this mode from version 6.1.
fn defer_completions(driver: &mut ProactorBuilder) {
    driver.single_issuer(true).defer_taskrun(true).coop_taskrun(true).taskrun_flag(true);
}

struct Choice {
    backend: IoBackend,
    /// True if the kernel supports the flags that `defer_completions` sets.
    deferred: bool,
}

fn choice() -> &'static Choice {
    static CHOICE: OnceLock<Choice> = OnceLock::new();
    CHOICE.get_or_init(|| {
        for deferred in [true, false] {
            let mut driver = ProactorBuilder::new();
            if deferred {
                defer_completions(&mut driver);
            }
            // With the automatic driver type, the library also checks whether the kernel has all
            // the operations that the library needs.
            if driver.build().is_ok_and(|built| built.driver_type().is_iouring()) {
                tracing::info!(deferred, "disks and sockets use io_uring");
                return Choice { backend: IoBackend::IoUring, deferred };
            }
        }
        let refusal = ProactorBuilder::new().driver_type(DriverType::IoUring).build().err();
        let reason = refusal.map_or_else(
            || "the kernel lacks required operations".to_owned(),
            |error| error.to_string(),
        );
        tracing::warn!(
            reason,
            "io_uring refused: falling back to polling, which costs more CPU per operation; to \
             avoid it allow io_uring (sysctl kernel.io_uring_disabled, or the container's seccomp \
             profile)"
        );
        Choice { backend: IoBackend::Polling, deferred: false }
    })
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::{Arc, Barrier, mpsc};
    use std::task::{Poll, Waker};
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn runtime_uses_the_reported_backend() {
        let runtime = new_runtime().unwrap();
        assert_eq!(runtime.driver_type().is_iouring(), io_backend() == IoBackend::IoUring);
        assert_eq!(runtime.driver_type().is_polling(), io_backend() == IoBackend::Polling);
    }

    #[test]
    fn timers_and_local_tasks_run() {
        new_runtime().unwrap().block_on(async {
            let task = compio::runtime::spawn(async {
                compio::time::sleep(Duration::from_millis(2)).await;
                7
            });
            assert_eq!(task.await.unwrap(), 7);
        });
    }

    /// Waits until its waker, which it adds to the list, is called.
    async fn wait_for_wake(wakers: Arc<Mutex<Vec<Waker>>>) {
        let mut registered = false;
        poll_fn(|context| {
            if registered {
                return Poll::Ready(());
            }
            registered = true;
            wakers.lock().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    // Regression: a waker that another thread called waited for a free entry in a queue of 64
    // entries. Two threads that each woke more than 64 tasks of the other thread waited forever.
    #[test]
    fn two_threads_wake_many_tasks_of_each_other() {
        const TASKS: usize = 200;
        let wakers: [Arc<Mutex<Vec<Waker>>>; 2] = Default::default();
        let all_wait = Arc::new(Barrier::new(2));
        let (done, ends) = mpsc::channel();
        for own in 0..2 {
            let (wakers, all_wait, done) = (wakers.clone(), all_wait.clone(), done.clone());
            std::thread::spawn(move || {
                let runtime = new_runtime().unwrap();
                let wait = |_| runtime.spawn(wait_for_wake(wakers[own].clone()));
                let tasks: Vec<_> = (0..TASKS).map(wait).collect();
                while wakers[own].lock().len() < TASKS {
                    runtime.run();
                }
                all_wait.wait();
                wakers[1 - own].lock().drain(..).for_each(Waker::wake);
                runtime.block_on(async {
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
                done.send(()).unwrap();
            });
        }
        for _ in 0..2 {
            let end = ends.recv_timeout(Duration::from_secs(10));
            end.expect("a thread waits in a wake for the other thread");
        }
    }
}
