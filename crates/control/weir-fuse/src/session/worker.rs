//! The worker thread of a mount: runs the requests that reader threads pass on, and closes the
//! files that programs left open.
//!
//! Invariants:
//! - at most [`REQUESTS_MAX`] requests run at a time;
//! - the thread ends after its last request, and then uses nothing of the pool.

use std::pin::pin;
use std::sync::{Arc, mpsc as blocking};

use tokio::sync::{Semaphore, mpsc};

use crate::error::MountError;
use crate::limits::REQUESTS_MAX;
use crate::operations::served::Served;
use crate::session::gate::Job;

/// Runs the worker until its queue is closed. Reports whether it could start.
pub(crate) fn run(
    served: &Arc<Served>,
    queue: mpsc::Receiver<Job>,
    report: &blocking::SyncSender<Result<(), MountError>>,
) {
    let runtime = match weir_device::new_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            drop(report.send(Err(MountError::Thread(error))));
            return;
        }
    };
    if report.send(Ok(())).is_ok() {
        weir_device::block_on(&runtime, pin!(serve(served, queue)));
    }
}

async fn serve(served: &Arc<Served>, queue: mpsc::Receiver<Job>) {
    run_jobs(served, queue).await;
    served.close_all().await;
    if served.volume.is_read_only() {
        return;
    }
    // Programs expect that everything is durable after umount(8), even if a share uses the
    // filesystem further.
    if let Err(error) = served.files.sync_all().await {
        tracing::error!(%error, "changes before the unmount are not durable");
    }
}

/// Runs the jobs of a queue until it is closed and the last job has ended.
async fn run_jobs<S: 'static>(served: &Arc<S>, mut queue: mpsc::Receiver<Job<S>>) {
    let running = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        let permit = Arc::clone(&running).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        let Some(job) = queue.recv().await else { break };
        let request = job(Arc::clone(served));
        compio::runtime::spawn(async move {
            request.await;
            drop(permit);
        })
        .detach();
    }
    // All permits are free when the last request has ended.
    drop(running.acquire_many(REQUESTS_MAX as u32).await);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const JOBS: usize = REQUESTS_MAX + 50;

    #[test]
    fn running_requests_are_bounded_and_the_end_waits_for_all() {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let disk = Arc::new(Semaphore::new(0));
        let (sender, queue) = mpsc::channel(JOBS);
        for _ in 0..JOBS {
            let (begun, ended) = (Arc::clone(&begun), Arc::clone(&ended));
            let disk = Arc::clone(&disk);
            let job: Job<()> = Box::new(move |_| {
                Box::pin(async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    drop(disk.acquire().await);
                    ended.fetch_add(1, Ordering::SeqCst);
                })
            });
            assert!(sender.try_send(job).is_ok());
        }
        drop(sender);
        weir_device::new_runtime().unwrap().block_on(async {
            let all = compio::runtime::spawn(async move { run_jobs(&Arc::new(()), queue).await });
            while begun.load(Ordering::SeqCst) < REQUESTS_MAX {
                compio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            compio::time::sleep(std::time::Duration::from_millis(50)).await;
            assert_eq!(begun.load(Ordering::SeqCst), REQUESTS_MAX);
            disk.add_permits(1);
            assert!(all.await.is_ok());
        });
        assert_eq!(ended.load(Ordering::SeqCst), JOBS);
    }
}
