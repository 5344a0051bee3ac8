//! Background jobs for work that takes longer than a management call may. Each job has a thread;
//! the client polls for progress.
//!
//! `volumes::advice_calls` has the work that the jobs do.
//!
//! Invariants:
//! - a job that no client polls is cancelled and dropped;
//! - a poll returns within [`ANSWER_WITHIN`] with the progress so far;
//! - jobs run at low CPU priority ([`NICE`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::errors::internal;
use crate::answer::names::guid;

/// Maximum time after which a poll returns the result that the job has so far.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Interval at which a poll checks whether the job has a result.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time after which a job that no client polls is cancelled.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent jobs. Each job keeps one CPU busy.
const JOBS_MAX: usize = 4;
/// Nice value of job threads, relative to the nice value of the server.
const NICE: i32 = 10;

/// State of a job.
struct State<T> {
    value: Option<T>,
    end: Option<Result<(), ApiError>>,
    asked: Instant,
}

/// Handle through which a job's thread reports results.
pub(crate) struct Job<T>(Arc<Mutex<State<T>>>);

impl<T> Clone for Job<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Job<T> {
    /// Stores the current result of the job.
    pub(crate) fn report(&self, value: T) {
        self.0.lock().value = Some(value);
    }

    /// True if a client may still poll the job.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.lock().asked.elapsed() < ASKED_WITHIN
    }

    fn end(&self, end: Result<(), ApiError>) {
        self.0.lock().end.get_or_insert(end);
    }
}

/// Guard in the thread of a job. When the guard is dropped, a job without a result gets an error.
struct Ending<T>(Job<T>);

impl<T> Drop for Ending<T> {
    fn drop(&mut self) {
        self.0.end(Err(ApiError::new(ErrorKind::Internal, "the job failed inside the server")));
    }
}

/// Running jobs of one kind, by job number, each with the name of the object that it measures.
pub(crate) struct Jobs<T>(Mutex<BTreeMap<String, (String, Job<T>)>>);

impl<T> Default for Jobs<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// Result of a poll: the job's current result, and the job number if the job still runs.
pub(crate) type Known<T> = (T, Option<String>);

impl<T: Clone + Send + 'static> Jobs<T> {
    /// Starts a job about an object; returns the job number.
    pub(crate) fn start<F>(
        &self,
        about: &str,
        work: impl FnOnce(Job<T>) -> F + Send + 'static,
    ) -> Result<String, ApiError>
    where
        F: Future<Output = Result<(), ApiError>>,
    {
        let state = State { value: None, end: None, asked: Instant::now() };
        let job = Job(Arc::new(Mutex::new(state)));
        let number = guid().to_string();
        {
            let mut jobs = self.0.lock();
            jobs.retain(|_, (_, job)| job.is_wanted());
            if jobs.len() == JOBS_MAX {
                let message = format!("{JOBS_MAX} forecasts are already running");
                return Err(ApiError::new(ErrorKind::Busy, message)
                    .with_action("wait for one of them to end"));
            }
            jobs.insert(number.clone(), (about.to_owned(), job.clone()));
        }
        let body = move || {
            let ending = Ending(job.clone());
            if let Err(error) = rustix::process::nice(NICE) {
                tracing::debug!(%error, "cannot lower the priority of a forecast");
            }
            let done = weir_device::new_runtime()
                .map_err(|error| internal("no runtime for a forecast", &error))
                .and_then(|runtime| runtime.block_on(work(job)));
            ending.0.end(done);
        };
        let thread = std::thread::Builder::new().name("forecast".to_owned()).spawn(body);
        thread.map_err(|error| internal("no thread for a forecast", &error))?;
        Ok(number)
    }

    /// Polls a job by its number; `about` must be the object for which the job was started.
    pub(crate) async fn ask(&self, number: &str, about: &str) -> Result<Known<T>, ApiError> {
        let job = {
            let jobs = self.0.lock();
            jobs.get(number).filter(|(of, _)| of == about).map(|(_, job)| job.clone())
        };
        let job = job.ok_or_else(|| {
            let message = format!("forecast {number} of {about} no longer exists");
            ApiError::new(ErrorKind::NotFound, message).with_action("start another one")
        })?;
        let start = Instant::now();
        loop {
            {
                let mut state = job.0.lock();
                state.asked = Instant::now();
                if let Some(end) = state.end.take() {
                    self.0.lock().remove(number);
                    end?;
                    let value = state.value.take().ok_or_else(|| {
                        ApiError::new(ErrorKind::Internal, "a forecast ended without a result")
                    })?;
                    return Ok((value, None));
                }
                if let Some(value) =
                    state.value.as_ref().filter(|_| start.elapsed() >= ANSWER_WITHIN)
                {
                    return Ok((value.clone(), Some(number.to_owned())));
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn poll_returns_partial_results_and_then_the_final_one() {
        let jobs = Jobs::<u32>::default();
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let number = jobs.start("a", move |job: Job<u32>| async move {
            job.report(1);
            gone.recv().ok();
            job.report(2);
            Ok(())
        });
        let number = number.unwrap();
        assert_eq!(jobs.ask(&number, "a").await.unwrap(), (1, Some(number.clone())));
        assert_eq!(jobs.ask(&number, "b").await.unwrap_err().kind, ErrorKind::NotFound);
        drop(go);
        assert_eq!(jobs.ask(&number, "a").await.unwrap(), (2, None));
        assert_eq!(jobs.ask(&number, "a").await.unwrap_err().kind, ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn panicked_job_is_an_error_and_excess_jobs_are_refused() {
        let jobs = Jobs::<u32>::default();
        let number = jobs.start("a", |_| async { panic!("planned") }).unwrap();
        assert_eq!(jobs.ask(&number, "a").await.unwrap_err().kind, ErrorKind::Internal);
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let gone = Arc::new(Mutex::new(gone));
        for round in 0..=JOBS_MAX {
            let gone = Arc::clone(&gone);
            let started = jobs.start("a", move |_| async move {
                gone.lock().recv().ok();
                Ok(())
            });
            assert_eq!(started.is_ok(), round < JOBS_MAX, "{round}");
        }
        drop(go);
    }

    #[tokio::test]
    async fn job_without_a_poll_for_ten_seconds_ends() {
        let jobs = Jobs::<u32>::default();
        let (report, told) = std::sync::mpsc::channel();
        let start = || {
            let report = report.clone();
            jobs.start("a", move |job: Job<u32>| async move {
                while job.is_wanted() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                report.send(()).map_err(|error| internal("no test", &error))
            })
        };
        let numbers = [(); JOBS_MAX].map(|()| start().unwrap());
        // Sets the time of the job's last poll back by `ago` seconds.
        let set_asked = |ago: u64| {
            let asked = Instant::now().checked_sub(Duration::from_secs(ago)).unwrap();
            let jobs = jobs.0.lock();
            jobs.values().for_each(|(_, job)| job.0.lock().asked = asked);
        };
        set_asked(5);
        assert!(start().is_err(), "somebody may still ask");
        set_asked(10);
        numbers.iter().for_each(|_| told.recv_timeout(Duration::from_secs(20)).unwrap());
        let number = start().unwrap();
        assert_eq!(jobs.0.lock().keys().collect::<Vec<_>>(), [&number], "the others are forgotten");
        set_asked(10);
        told.recv_timeout(Duration::from_secs(20)).unwrap();
    }
}
