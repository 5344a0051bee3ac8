//! The snapshots of an open filesystem below `.weir/snapshot`, for mounts and shares.
//!
//! weir-fs has the names of the directories, `recent_snapshots` the limits.
//!
//! Invariants:
//! - a snapshot that clients looked at can be destroyed at any time: [`OpenFilesystems::close`]
//!   closes it first, and later requests get an error;
//! - no call of a client waits for a management call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_api::ApiError;
use weir_base::DatasetId;
use weir_base::property::SnapshotVisibility;
use weir_dataset::{Engine, ListedSnapshot, Volume};
use weir_format::files::TimeStamp;
use weir_fs::{Filesystem, FsError, SnapshotEntry, SnapshotTotals, Snapshots};

use crate::answer::names::Of;
use crate::state::open_filesystems::{OpenFilesystem, OpenFilesystems};
use crate::state::recent_snapshots::Key;

/// Maximum time for which a call waits until the last user of a closed snapshot has freed it. This
/// takes microseconds, unless a stream that is being sent reads the snapshot.
const FREE_LIMIT: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The snapshots of a filesystem.
pub(crate) struct SnapshotDirectory {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    all: OpenFilesystems,
}

impl SnapshotDirectory {
    pub(crate) fn new((engine, volume): (Arc<Engine>, Arc<Volume>), all: OpenFilesystems) -> Self {
        Self { engine, volume, all }
    }

    fn key(&self, dataset: DatasetId) -> Key {
        (self.engine.pool().guid().0, dataset)
    }
}

impl Drop for SnapshotDirectory {
    /// Closes the snapshots. Requests that use one keep it until they end.
    fn drop(&mut self) {
        let of = self.key(self.volume.dataset());
        let closed = self.all.0.lock().recent.remove_of(of);
        drop(closed);
    }
}

fn entry(listed: ListedSnapshot) -> SnapshotEntry {
    SnapshotEntry { dataset: listed.dataset, name: listed.name.into_bytes().into() }
}

impl Snapshots for SnapshotDirectory {
    fn is_visible(&self) -> bool {
        self.volume.snapshot_visibility() == SnapshotVisibility::Visible
    }

    fn list(&self, after: DatasetId) -> Vec<SnapshotEntry> {
        self.volume.snapshots_after(after).into_iter().map(entry).collect()
    }

    fn find(&self, name: &[u8]) -> Option<SnapshotEntry> {
        self.volume.snapshot_named(std::str::from_utf8(name).ok()?).map(entry)
    }

    fn totals(&self) -> SnapshotTotals {
        let (count, newest) = self.volume.snapshot_totals();
        let time = |unix_ms: u64| TimeStamp {
            seconds: i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX),
            nanos: (unix_ms % 1000) as u32 * 1_000_000,
        };
        SnapshotTotals { count, newest: newest.map(time) }
    }

    fn open(&self, dataset: DatasetId) -> Result<Arc<Filesystem>, FsError> {
        let (key, of) = (self.key(dataset), self.key(self.volume.dataset()));
        let now = Instant::now();
        let mut all = self.all.0.lock();
        if let Some(open) = all.recent.get(&key, of, now) {
            return Ok(Arc::clone(&open.files));
        }
        // Between this check and the insertion, `close` waits for the lock.
        if all.closed.has(|| self.full_name(dataset)) {
            return Err(FsError::Stale);
        }
        let removed = all.recent.make_room(of, is_idle).map_err(|_| FsError::TooManyOpens)?;
        let view = self.engine.open_snapshot_by_number(&self.volume, dataset);
        let open =
            view.ok_or(FsError::Stale).and_then(|view| all.open_snapshot(key, &self.engine, &view));
        if let Ok(open) = &open {
            all.recent.insert(key, of, Arc::clone(open), now);
        }
        drop(all);
        // Their memory is freed without the lock.
        drop(removed);
        open.map(|open| Arc::clone(&open.files))
    }
}

impl SnapshotDirectory {
    fn full_name(&self, dataset: DatasetId) -> Option<String> {
        let (own, snapshot) = self.engine.name_of(dataset)?;
        Some(format!("{}/{own}@{}", self.engine.pool().name(), snapshot?))
    }
}

/// True if no request uses a snapshot, or if a mount keeps it open anyway.
fn is_idle(open: &Arc<OpenFilesystem>) -> bool {
    Arc::strong_count(&open.files) == 1 || Arc::strong_count(open) > 1
}

/// Snapshots that stay closed until this is dropped.
pub(crate) struct ClosedSnapshots {
    id: u64,
    all: OpenFilesystems,
}

impl Drop for ClosedSnapshots {
    fn drop(&mut self) {
        self.all.0.lock().closed.remove(self.id);
    }
}

impl OpenFilesystems {
    /// Closes the snapshots that clients have opened below `.weir/snapshot` and that the filter
    /// selects, and waits for their requests. Requests to open one of them again get an error until
    /// the result is dropped. The caller holds the lock of the pool.
    ///
    /// # Errors
    /// `Busy` if the operations of one do not end.
    pub(crate) async fn close_snapshots(&self, of: Of<'_>) -> Result<ClosedSnapshots, ApiError> {
        let (id, closed) = {
            let mut all = self.0.lock();
            let id = all.closed.add(of);
            let table = &*all;
            let is_one = |key: &Key| table.name_of(key).is_none_or(|name| of.is(&name));
            let keys: Vec<Key> = table.recent.keys().filter(is_one).collect();
            (id, all.recent.remove(|key| keys.contains(key)))
        };
        drop(closed);
        let closed = ClosedSnapshots { id, all: self.clone() };
        self.wait_for_ends(of).await?;
        let start = Instant::now();
        while start.elapsed() < FREE_LIMIT && self.0.lock().reads_snapshot(of) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(closed)
    }

    /// Closes the snapshots that no client has used for some minutes.
    pub(crate) fn close_idle_snapshots(&self) {
        let closed = self.0.lock().recent.remove_idle(Instant::now());
        drop(closed);
    }
}
