//! Reads of files that a caller or the configuration names, away from the thread that answers
//! management calls.
//!
//! Not here: the rules for paths (files) and for file types (weir-base `named_file`).
//!
//! A file of a network file system whose server is away is read for ever, whatever its type. A read
//! runs on the blocking pool, and the call that needs it waits for [`READ_LIMIT`].
//!
//! Invariants:
//! - no read of a named file runs on the thread of the management interface;
//! - at most [`READS_MAX`] threads of the blocking pool wait for such files.

use std::time::Duration;

use tokio::sync::Semaphore;
use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::errors::internal;

/// A file that is not read by then is on a file system that does not answer: less than the 5 s
/// within which a call is answered.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Reads at the same time. A read that does not end keeps its thread.
const READS_MAX: usize = 16;

/// Runs `work`, which reads or writes a few small files; `what` is how errors call them.
///
/// # Errors
/// Errors of `work`; `Unavailable` if it does not end in time, after which it may still end;
/// `Busy` while many others do not end.
pub(crate) async fn aside<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    within(&READS, READ_LIMIT, what, work).await
}

/// Reads that may begin now.
static READS: Semaphore = Semaphore::const_new(READS_MAX);

async fn within<T: Send + 'static>(
    reads: &'static Semaphore,
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let Ok(read) = reads.try_acquire() else {
        let message = format!("{what}: {READS_MAX} other files do not answer");
        return Err(ApiError::new(ErrorKind::Busy, message)
            .with_action("look at the file systems of the files that calls name"));
    };
    let done = tokio::task::spawn_blocking(move || {
        let _read = read;
        work()
    });
    match tokio::time::timeout(limit, done).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => Err(internal("reading a file broke", &error)),
        Err(_) => {
            let message = format!("{what}: not read within {} s", limit.as_secs());
            Err(ApiError::new(ErrorKind::Unavailable, message)
                .with_action("look at the file system that the file is on"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn file_that_does_not_answer_delays_its_call_only() {
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
    async fn reads_of_files_that_do_not_answer_are_limited() {
        // Other tests read files meanwhile.
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
