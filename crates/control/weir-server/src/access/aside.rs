//! Runs file accesses on the blocking pool, off the thread of the management interface.
//!
//! The rules for paths are in `caller_files`, those for file types in weir-base `named_file`.
//!
//! A read from a network file system whose server is down never ends, whatever the type of the
//! file. So a read of a file that a caller or the configuration names runs on the blocking pool,
//! and the call waits at most [`READ_LIMIT`].
//!
//! Invariants:
//! - no read of a named file runs on the thread of the management interface;
//! - at most [`READS_MAX`] threads of the blocking pool wait for such files.

use std::time::Duration;

use tokio::sync::Semaphore;
use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::errors::internal;

/// Time limit of a read. A file system that needs longer counts as unresponsive. The limit is less
/// than the 5 s within which the server responds to a call.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Maximum concurrent reads. A read that does not end occupies its thread for ever.
const READS_MAX: usize = 16;

/// Runs `work`, which reads or writes a few small files; error texts call these files `what`.
///
/// # Errors
/// Errors of `work`; `Unavailable` if `work` exceeds the time limit, although it may still complete
/// later; `Busy` while [`READS_MAX`] earlier reads have not ended.
pub(crate) async fn aside<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    within(&READS, READ_LIMIT, what, work).await
}

/// Permits for concurrent reads.
static READS: Semaphore = Semaphore::const_new(READS_MAX);

async fn within<T: Send + 'static>(
    reads: &'static Semaphore,
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let Ok(read) = reads.try_acquire() else {
        let message = format!("{what}: reads of {READS_MAX} other files are stuck");
        return Err(ApiError::new(ErrorKind::Busy, message)
            .with_action("check the file systems of the files that calls name"));
    };
    let done = tokio::task::spawn_blocking(move || {
        let _read = read;
        work()
    });
    match tokio::time::timeout(limit, done).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(internal("the read of a file failed", &error)),
        Err(_) => {
            let message = format!("{what}: not read within {} s", limit.as_secs());
            Err(ApiError::new(ErrorKind::Unavailable, message)
                .with_action("check the file system of the file"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unresponsive_file_delays_only_its_call() {
        let (release, released) = std::sync::mpsc::channel::<()>();
        let stuck = tokio::spawn(within(&READS, Duration::from_millis(50), "a.pem", move || {
            released.recv().ok();
            Ok(())
        }));
        tokio::task::yield_now().await;
        assert_eq!(aside("b.pem", || Ok(7)).await, Ok(7));
        let error = stuck.await.expect("no panic").expect_err("it does not end");
        assert_eq!(error.kind, ErrorKind::Unavailable);
        assert!(error.message.contains("a.pem"), "{error}");
        drop(release);
    }

    #[tokio::test]
    async fn reads_of_unresponsive_files_are_limited() {
        // This test has its own semaphore, because other tests use [`READS`].
        static OWN: Semaphore = Semaphore::const_new(READS_MAX);
        let mut stuck = Vec::new();
        for _ in 0..16 {
            let (release, released) = std::sync::mpsc::channel::<()>();
            stuck.push(release);
            let read = within(&OWN, Duration::from_millis(1), "a.pem", move || {
                released.recv().ok();
                Ok(())
            });
            assert_eq!(read.await.unwrap_err().kind, ErrorKind::Unavailable);
        }
        let read = async || within(&OWN, READ_LIMIT, "b.pem", || Ok(7)).await;
        assert_eq!(read().await.unwrap_err().kind, ErrorKind::Busy);
        drop(stuck);
        let freed = async {
            while read().await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), freed).await.expect("the places come back");
    }
}
