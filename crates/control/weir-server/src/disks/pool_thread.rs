//! Open pools: each has a thread that commits its txgs and runs management calls.
//!
//! Client data does not pass this thread: NBD and iSCSI threads call the engine themselves.
//!
//! Invariants:
//! - code that waits for a disk runs on a thread with an I/O runtime, never on the thread of the
//!   management interface;
//! - the thread of a closing pool ends after a last commit, or without it if the pool is suspended.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, LocalBoxFuture};
use tokio::sync::{mpsc, oneshot};
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_base::Slot;
use weir_dataset::{DatasetError, Engine};

use crate::answer::errors::api_error;

/// Poll interval for a pool that is being closed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// After a pool was closed by force, its running calls have this time to end before they return an
/// error.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A closing pool is suspended after a disk was unresponsive for this long. The close also writes
/// data that no client has flushed, and a disk that is busy with other work may need several
/// seconds.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Error message for calls on a pool that was closed by force.
const LET_GO: &str = "the pool's disks were unresponsive and the pool was closed by force";

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;
type Job = Box<dyn FnOnce(Arc<Engine>) -> LocalFuture + Send>;
/// A job on the pool's thread that returns its status; its result is in a [`Slot`].
type Work = Box<dyn FnOnce(Arc<Engine>) -> LocalBoxFuture<'static, Result<(), ApiError>> + Send>;

/// A pool that is open, with the thread that runs its engine.
pub(crate) struct OpenPool {
    pub(crate) engine: Arc<Engine>,
    jobs: mpsc::UnboundedSender<Job>,
    thread: JoinHandle<()>,
}

fn gone() -> ApiError {
    ApiError::new(ErrorKind::Unavailable, "the pool's thread has ended")
}

impl OpenPool {
    /// Starts a thread that opens the engine and then runs its tasks.
    pub(crate) async fn start<F>(
        name: &str,
        open: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self, ApiError>
    where
        F: Future<Output = Result<Arc<Engine>, ApiError>> + 'static,
    {
        let (jobs, receiver) = mpsc::unbounded_channel();
        let (report, opened) = oneshot::channel();
        let body = move || {
            let runtime = match weir_device::new_runtime() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let message = format!("no runtime for the pool: {error}");
                    drop(report.send(Err(ApiError::new(ErrorKind::Unavailable, message))));
                    return;
                }
            };
            let work = async move {
                match open().await {
                    Ok(engine) => {
                        if report.send(Ok(Arc::clone(&engine))).is_ok() {
                            work_boxed(engine, receiver).await;
                        }
                    }
                    Err(error) => drop(report.send(Err(error))),
                }
            };
            weir_device::block_on(&runtime, pin!(work));
        };
        let thread = std::thread::Builder::new().name(format!("pool-{name}"));
        let thread = thread.spawn(body).map_err(|error| {
            ApiError::new(ErrorKind::Unavailable, format!("no thread for the pool: {error}"))
        })?;
        let engine = opened.await.map_err(|_| gone())??;
        Ok(Self { engine, jobs, thread })
    }

    /// Runs a call on the pool's thread.
    pub(crate) async fn call<T: Send + 'static, F>(
        &self,
        job: impl FnOnce(Arc<Engine>) -> F + Send + 'static,
    ) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, DatasetError>> + 'static,
    {
        self.call_api(move |engine| {
            let job = job(engine);
            async move { job.await.map_err(|error| api_error(&error)) }
        })
        .await
    }

    /// Runs a call like [`Self::call`], for calls that return errors of the API.
    pub(crate) async fn call_api<T: Send + 'static, F>(
        &self,
        job: impl FnOnce(Arc<Engine>) -> F + Send + 'static,
    ) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, ApiError>> + 'static,
    {
        let answer = Slot::default();
        let into = answer.clone();
        self.run(Box::new(move |engine| {
            let work = job(engine);
            Box::pin(async move {
                into.fill(work.await?);
                Ok(())
            })
        }))
        .await?;
        Ok(answer.take())
    }

    /// Runs the part of [`Self::call_api`] that does not depend on the type of the response.
    fn run(&self, work: Work) -> BoxFuture<'_, Result<(), ApiError>> {
        Box::pin(self.run_to_end(work))
    }

    async fn run_to_end(&self, work: Work) -> Result<(), ApiError> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |engine| {
            Box::pin(async move {
                // Sending the response fails if the caller stopped waiting; the call runs to
                // completion anyway.
                drop(answer.send(work(engine).await));
            })
        });
        self.jobs.send(job).map_err(|_| gone())?;
        let mut answered = answered;
        let mut left: Option<Instant> = None;
        loop {
            tokio::select! {
                done = &mut answered => return done.map_err(|_| gone())?,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            if self.engine.is_abandoned()
                && left.get_or_insert_with(Instant::now).elapsed() >= LAST_WORDS
            {
                // The suspension of the pool failed the I/O of the pool's disks, but this call
                // waits for a disk that is not in the pool yet. Return an error, so that the caller
                // releases the pool's lock. The call itself ends with the pool's thread.
                return Err(ApiError::new(ErrorKind::Unavailable, LET_GO));
            }
        }
    }

    /// Describes the disks that have completed no I/O for `limit` while operations are in flight.
    pub(crate) fn unresponsive_disks(&self, limit: Duration) -> Vec<String> {
        let silent = self.engine.pool().unresponsive_disks(limit);
        let report = |(disk, time): &(String, Duration)| {
            format!("{disk} has completed no I/O for {} s", time.as_secs())
        };
        silent.iter().map(report).collect()
    }

    /// Suspends the pool if a disk was unresponsive for `limit`, and fails all waits for its disks.
    pub(crate) fn fail_io_if_unresponsive(&self, limit: Duration) -> bool {
        fail_io_if_unresponsive(&self.engine, limit)
    }

    /// Commits a last time and ends the thread. Suspends the pool if its disks are unresponsive.
    ///
    /// # Durability
    /// All acknowledged writes are on disk when this function returns `Ok`.
    pub(crate) async fn close(self) -> Result<(), ApiError> {
        self.engine.stop();
        drop(self.jobs);
        let thread = self.thread;
        let mut join = tokio::task::spawn_blocking(move || thread.join());
        let joined = loop {
            tokio::select! {
                joined = &mut join => break joined,
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            fail_io_if_unresponsive(&self.engine, CLOSE_TIMEOUT);
        };
        let alive = self.engine.pool().check_alive();
        match joined {
            Ok(Ok(())) => alive.map_err(|error| ApiError::new(error.kind(), error.to_string())),
            _ => Err(ApiError::new(ErrorKind::Internal, "the pool's thread panicked")),
        }
    }
}

/// Suspends a pool if one of its disks was unresponsive for `limit`, and fails all waits for its
/// disks. Returns whether the pool was suspended.
pub(crate) fn fail_io_if_unresponsive(engine: &Engine, limit: Duration) -> bool {
    let silent = !engine.pool().unresponsive_disks(limit).is_empty();
    if silent {
        engine.abandon(&LET_GO);
    }
    silent
}

/// Returns the future of [`work`] in a box, so that the compiler makes its code once for all
/// callers of [`OpenPool::start`].
fn work_boxed(engine: Arc<Engine>, jobs: mpsc::UnboundedReceiver<Job>) -> LocalFuture {
    Box::pin(work(engine, jobs))
}

/// Runs the pool's thread: commits, the owner heartbeat and scans in one task each, and each
/// management call in a task of its own.
async fn work(engine: Arc<Engine>, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let committer = Arc::clone(&engine);
    let run = compio::runtime::spawn(async move {
        if let Err(error) = committer.run(compio::time::sleep).await
            && !committer.pool().is_destroyed()
        {
            tracing::error!(pool = committer.pool().name(), %error, "commits have stopped");
        }
    });
    let owner = Arc::clone(&engine);
    let beats = compio::runtime::spawn(async move {
        owner.pool().keep_owner(compio::time::sleep).await;
    });
    let scanner = Arc::clone(&engine);
    let scans = compio::runtime::spawn(async move {
        if let Err(error) = scanner.run_scans(compio::time::sleep).await
            && !scanner.pool().is_destroyed()
        {
            tracing::error!(pool = scanner.pool().name(), %error, "scans have stopped");
        }
    });
    let host = Arc::clone(&engine);
    // Detach the task, because it may wait for a disk that never responds. The task ends with the
    // runtime.
    compio::runtime::spawn(async move { host.add_late_disks().await }).detach();
    while let Some(job) = jobs.recv().await {
        compio::runtime::spawn(job(Arc::clone(&engine))).detach();
    }
    if scans.await.is_err() {
        tracing::error!(pool = engine.pool().name(), "the scanning task panicked");
    }
    if run.await.is_err() {
        engine.pool().poison(&"the committing task panicked");
    }
    // No heartbeat may follow the release of the pool.
    drop(beats);
    engine.pool().release_owner().await;
}
