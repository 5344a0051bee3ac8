//! Filesystems and snapshots that are open for mounts, shares, calls and directories of snapshots.
//!
//! weir-fs has the filesystem itself, `snapshot_directory` opens and closes the snapshots.
//!
//! Invariants:
//! - a dataset or snapshot has at most one open filesystem, because two would not see the changes
//!   of each other;
//! - a filesystem stays open while a mount, a share or a call uses it. It then ends: its last
//!   operations complete, and its changes become durable. It has a thread, a snapshot has none.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use weir_api::ApiError;
use weir_base::ErrorKind;
use weir_dataset::{Engine, Volume};
use weir_fs::{Changed, Filesystem, FsError, Snapshots};
use weir_fuse::KernelCaches;
use weir_nfs::{Watcher, WatcherSlot};

use crate::answer::names::{Of, guid};
use crate::state::closed_names::ClosedNames;
use crate::state::recent_snapshots::{Key, RecentSnapshots};

/// Time within which a filesystem must answer a call or end. A call returns within 5 s.
const END_LIMIT: Duration = Duration::from_secs(4);

/// Poll interval for a filesystem that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce(Arc<Filesystem>) -> LocalBoxFuture<'static, ()> + Send>;

/// A filesystem or snapshot that mounts, shares and calls use together. It ends when the last of
/// them drops it.
pub(crate) struct OpenFilesystem {
    pub(crate) files: Arc<Filesystem>,
    /// Watcher of the changes by clients of the shares: the mount, if there is one.
    pub(crate) watcher: Arc<WatcherSlot>,
    /// Random number of this opening.
    pub(crate) opening: u64,
    /// Snapshots of the filesystem; `None` for a snapshot.
    pub(crate) snapshots: Option<Arc<dyn Snapshots>>,
    /// Jobs for the filesystem's own thread, which ends the filesystem when the queue is closed.
    /// `None` for a snapshot.
    jobs: Option<mpsc::UnboundedSender<Job>>,
}

/// Drops the changes by NFS clients from the caches of the kernel above a mount.
struct MountWatcher(KernelCaches);

impl Watcher for MountWatcher {
    fn changed(&self, changed: Changed) -> LocalBoxFuture<'static, ()> {
        let caches = self.0.clone();
        Box::pin(async move { caches.invalidate(changed).await })
    }
}

impl OpenFilesystem {
    /// Connects a mount with the shares. The caches of an ended mount need no disconnection: they
    /// return at once.
    pub(crate) fn connect_mount(&self, caches: &KernelCaches) {
        self.watcher.set(Some(Arc::new(MountWatcher(caches.clone()))));
    }

    /// Runs an operation on the filesystem's own thread, or on a thread for this call, also if the
    /// caller stops waiting. `full`: name of the filesystem.
    ///
    /// # Errors
    /// `Unavailable` after [`END_LIMIT`].
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        full: &str,
        operation: impl FnOnce(&Filesystem) -> LocalBoxFuture<'_, T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (sender, receiver) = oneshot::channel();
        let job: Job = Box::new(move |files| {
            Box::pin(async move {
                // Ignore a failure: the caller may no longer wait for the result.
                drop(sender.send(operation(&files).await));
            })
        });
        let ended = || ApiError::new(ErrorKind::Internal, "the thread of a filesystem has ended");
        match &self.jobs {
            Some(jobs) => jobs.send(job).map_err(|_| ended())?,
            None => {
                let files = Arc::clone(&self.files);
                drop(tokio::task::spawn_blocking(move || {
                    let runtime = weir_device::new_runtime()?;
                    weir_device::block_on(&runtime, pin!(job(files)));
                    Ok::<_, std::io::Error>(())
                }));
            }
        }
        let late = |_| {
            ApiError::new(ErrorKind::Unavailable, format!("filesystem {full} does not answer"))
                .with_action("check the disks: weir status")
        };
        let answer = tokio::time::timeout(END_LIMIT, receiver).await;
        answer.map_err(late)?.map_err(|_| ended())
    }
}

struct Entry {
    open: Weak<OpenFilesystem>,
    /// The engine, which a pool that closes must not find in use here.
    engine: Weak<Engine>,
    /// The snapshot, which requests may use; `None` for a filesystem.
    view: Option<View>,
}

/// A snapshot that is or was open.
struct View {
    files: Weak<Filesystem>,
    volume: Weak<Volume>,
}

impl Entry {
    /// True if the last use is over, and the operations have not ended. The thread of a filesystem
    /// removes the entry.
    fn is_ending(&self) -> bool {
        let uses_files = self.view.as_ref().is_none_or(|view| view.files.strong_count() > 0);
        self.open.strong_count() == 0 && uses_files
    }

    /// True for a snapshot that nothing uses.
    fn is_over(&self) -> bool {
        self.open.strong_count() == 0 && !self.is_ending()
    }
}

/// Filesystems and snapshots of a server.
#[derive(Default)]
pub(super) struct Table {
    /// Open and ending ones.
    entries: BTreeMap<Key, Entry>,
    /// Snapshots that stay open between requests.
    pub(super) recent: RecentSnapshots<Arc<OpenFilesystem>>,
    /// Snapshots that requests must not open.
    pub(super) closed: ClosedNames,
}

/// The open filesystems of a server, and the filesystems that are ending.
#[derive(Clone, Default)]
pub(crate) struct OpenFilesystems(pub(super) Arc<Mutex<Table>>);

impl OpenFilesystems {
    /// Opens a filesystem or snapshot, or returns it if it is open. The caller holds the lock of
    /// the pool. `snapshots` returns the snapshots of the filesystem.
    ///
    /// # Errors
    /// `Busy` if the last use of the filesystem does not end; the errors of
    /// [`Filesystem::open_volume`].
    pub(crate) async fn open(
        &self,
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
        snapshots: impl FnOnce() -> Arc<dyn Snapshots>,
    ) -> Result<Result<Arc<OpenFilesystem>, FsError>, ApiError> {
        let key = (engine.pool().guid().0, volume.dataset());
        if volume.is_snapshot() {
            return Ok(self.0.lock().open_snapshot(key, engine, volume));
        }
        if let Some(open) = self.0.lock().entries.get(&key).and_then(|entry| entry.open.upgrade()) {
            return Ok(Ok(open));
        }
        self.wait_for(|all| all.get(&key).and_then(|entry| name_of(&key, entry))).await?;
        let (jobs, queue) = mpsc::unbounded_channel();
        let (report, opened) = oneshot::channel();
        let (of, table) = ((Arc::clone(engine), Arc::clone(volume)), self.clone());
        let body = move || {
            work(of, queue, report);
            let all = &mut table.0.lock().entries;
            if all.get(&key).is_some_and(|entry| entry.open.strong_count() == 0) {
                all.remove(&key);
            }
        };
        let failed = |error: &dyn std::fmt::Display| {
            ApiError::new(ErrorKind::Unavailable, format!("no thread for the filesystem: {error}"))
        };
        let thread = std::thread::Builder::new().name("files".to_owned());
        drop(thread.spawn(body).map_err(|error| failed(&error))?);
        let files = match opened.await.map_err(|error| failed(&error))? {
            Ok(files) => files,
            Err(error) => return Ok(Err(error)),
        };
        let open = Arc::new(OpenFilesystem {
            files,
            watcher: Arc::default(),
            opening: guid().0,
            snapshots: Some(snapshots()),
            jobs: Some(jobs),
        });
        let entry =
            Entry { open: Arc::downgrade(&open), engine: Arc::downgrade(engine), view: None };
        drop(self.0.lock().entries.insert(key, entry));
        Ok(Ok(open))
    }

    /// Returns a filesystem or snapshot that the filter selects and that is ending.
    pub(crate) fn ending(&self, of: Of<'_>) -> Option<String> {
        ending(&self.0.lock().entries, of)
    }

    /// Waits until the ending filesystems and snapshots that the filter selects have ended.
    ///
    /// # Errors
    /// `Busy` if the operations of one do not end.
    pub(crate) async fn wait_for_ends(&self, of: Of<'_>) -> Result<(), ApiError> {
        self.wait_for(|all| ending(all, of)).await
    }

    /// Waits until `rest` names no filesystem any more.
    async fn wait_for(
        &self,
        rest: impl Fn(&BTreeMap<Key, Entry>) -> Option<String>,
    ) -> Result<(), ApiError> {
        let start = Instant::now();
        let next = || rest(&self.0.lock().entries);
        while let Some(name) = next() {
            if start.elapsed() >= END_LIMIT {
                return Err(still_ending(&name));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

impl Table {
    /// Opens a snapshot, or returns it if it is open. Neither reads a disk nor waits.
    ///
    /// # Errors
    /// `Invalid` if the dataset is not a filesystem.
    pub(super) fn open_snapshot(
        &mut self,
        key: Key,
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
    ) -> Result<Arc<OpenFilesystem>, FsError> {
        let known = self.entries.get(&key);
        if let Some(open) = known.and_then(|entry| entry.open.upgrade()) {
            return Ok(open);
        }
        // Requests may still use the snapshot.
        let files = known.and_then(|entry| entry.view.as_ref()?.files.upgrade());
        let files = match files {
            Some(files) => files,
            None => {
                let now = Box::new(weir_fuse::now);
                Arc::new(Filesystem::open_unchanged(engine, Arc::clone(volume), now)?)
            }
        };
        let view = View { files: Arc::downgrade(&files), volume: Arc::downgrade(volume) };
        let (watcher, opening) = (Arc::default(), guid().0);
        let open =
            Arc::new(OpenFilesystem { files, watcher, opening, snapshots: None, jobs: None });
        self.entries.retain(|_, entry| !entry.is_over());
        let entry =
            Entry { open: Arc::downgrade(&open), engine: Arc::downgrade(engine), view: Some(view) };
        self.entries.insert(key, entry);
        Ok(open)
    }

    /// Full name of an open snapshot; `None` if it does not exist any more.
    pub(super) fn name_of(&self, key: &Key) -> Option<String> {
        name_of(key, self.entries.get(key)?)
    }

    /// True if an object of the engine uses a snapshot that the filter selects.
    pub(super) fn reads_snapshot(&self, of: Of<'_>) -> bool {
        let used =
            |entry: &Entry| entry.view.as_ref().is_some_and(|view| view.volume.strong_count() > 0);
        let mut used = self.entries.iter().filter(|(_, entry)| used(entry));
        used.any(|(key, entry)| name_of(key, entry).is_some_and(|name| of.is(&name)))
    }
}

fn ending(all: &BTreeMap<Key, Entry>, of: Of<'_>) -> Option<String> {
    let ending = all.iter().filter(|(_, entry)| entry.is_ending());
    ending.filter_map(|(key, entry)| name_of(key, entry)).find(|name| of.is(name))
}

/// Full name of a filesystem or snapshot; `None` if it does not exist any more.
fn name_of((_, dataset): &Key, entry: &Entry) -> Option<String> {
    let engine = entry.engine.upgrade()?;
    let pool = engine.pool().name();
    Some(match engine.name_of(*dataset)? {
        (own, None) => format!("{pool}/{own}"),
        (own, Some(snapshot)) => format!("{pool}/{own}@{snapshot}"),
    })
}

/// Returns the error for a filesystem or snapshot whose last operations have not ended.
pub(crate) fn still_ending(name: &str) -> ApiError {
    let message = format!("the last operations of clients on {name} have not ended");
    ApiError::new(ErrorKind::Busy, message).with_action("check the disks: weir status")
}

/// Result of the start of the thread of a filesystem.
type Opened = Result<Arc<Filesystem>, FsError>;

/// Runs the thread of a filesystem: opens it, runs jobs, and ends it.
fn work(
    (engine, volume): (Arc<Engine>, Arc<Volume>),
    queue: mpsc::UnboundedReceiver<Job>,
    report: oneshot::Sender<Opened>,
) {
    let runtime = match weir_device::new_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "no runtime for a filesystem");
            return;
        }
    };
    let work = async move {
        let now = Box::new(weir_fuse::now);
        match Filesystem::open_volume(&engine, Arc::clone(&volume), now).await {
            Ok(files) => {
                let files = Arc::new(files);
                if report.send(Ok(Arc::clone(&files))).is_ok() {
                    serve(files, volume.is_read_only(), queue).await;
                }
            }
            Err(error) => drop(report.send(Err(error))),
        }
    };
    weir_device::block_on(&runtime, pin!(work));
}

async fn serve(
    files: Arc<Filesystem>,
    is_read_only: bool,
    mut queue: mpsc::UnboundedReceiver<Job>,
) {
    let background = (!is_read_only).then(|| {
        let files = Arc::clone(&files);
        compio::runtime::spawn(async move {
            if let Err(error) = files.run_background().await {
                // The next open of the filesystem frees the remaining files.
                tracing::warn!(%error, "removed files are not freed");
            }
        })
    });
    while let Some(job) = queue.recv().await {
        compio::runtime::spawn(job(Arc::clone(&files))).detach();
    }
    if let Some(background) = background {
        background.cancel().await;
    }
    // No mount, share or call can begin an operation now. Wait for the running operations.
    while Arc::strong_count(&files) > 1 {
        compio::time::sleep(POLL_INTERVAL).await;
    }
    if is_read_only {
        return;
    }
    if let Err(error) = files.store_atimes().await {
        tracing::warn!(%error, "the times of the last reads are not stored");
    }
    if let Err(error) = files.sync_all().await {
        tracing::error!(%error, "the last changes of a filesystem are not durable");
    }
}
