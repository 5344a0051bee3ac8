//! The worker thread of a mount: opens the filesystem, runs the requests that reader threads pass
//! on, and closes the files that programs left open.
//!
//! Invariants:
//! - at most [`REQUESTS_MAX`] requests run at a time;
//! - the thread ends after its last request, and then uses nothing of the pool.

use std::pin::pin;
use std::sync::{Arc, mpsc as blocking};

use tokio::sync::{Semaphore, mpsc};
use weir_dataset::{Engine, Volume};
use weir_fs::Filesystem;

use crate::attributes::now;
use crate::error::MountError;
use crate::limits::REQUESTS_MAX;
use crate::operations::opens::Opens;
use crate::operations::served::Served;
use crate::session::gate::Job;

/// Result of the start of the worker: the open filesystem, or the cause of the failure.
pub(crate) type Opened = Result<Arc<Served>, MountError>;

/// Runs the worker until its queue is closed.
pub(crate) fn run(
    (engine, volume): (Arc<Engine>, Arc<Volume>),
    queue: mpsc::Receiver<Job>,
    report: &blocking::SyncSender<Opened>,
) {
    let runtime = match weir_device::new_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            drop(report.send(Err(MountError::Thread(error))));
            return;
        }
    };
    let work = pin!(async move {
        let opened = Filesystem::open_volume(&engine, Arc::clone(&volume), Box::new(now)).await;
        match opened {
            Ok(files) => {
                let served = Served { files, engine, volume, opens: Opens::default() };
                let served = Arc::new(served);
                if report.send(Ok(Arc::clone(&served))).is_ok() {
                    serve(served, queue).await;
                }
            }
            Err(error) => drop(report.send(Err(MountError::Open(error)))),
        }
    });
    weir_device::block_on(&runtime, work);
}

async fn serve(served: Arc<Served>, queue: mpsc::Receiver<Job>) {
    let background = (!served.volume.is_read_only()).then(|| {
        let served = Arc::clone(&served);
        compio::runtime::spawn(async move {
            if let Err(error) = served.files.run_background().await {
                // The next open of the filesystem frees the remaining files.
                tracing::warn!(%error, "removed files are not freed");
            }
        })
    });
    run_jobs(&served, queue).await;
    served.close_all().await;
    if let Some(background) = background {
        background.cancel().await;
        if let Err(error) = served.files.store_atimes().await {
            tracing::warn!(%error, "the times of the last reads are not stored");
        }
        // Programs expect that everything is durable after umount(8).
        if let Err(error) = served.files.sync_all().await {
            tracing::error!(%error, "changes before the unmount are not durable");
        }
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
