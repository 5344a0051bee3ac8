//! Activity of one call: the disks that it opened, their progress, and the disks that it may open.
//!
//! The engine monitors the disks of open pools; this file covers the disks that a call opens
//! itself, for example for a new pool.
//!
//! Invariant: an activity keeps no disk open, because it has only weak references to its disks.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weir_device::Device;

use crate::access::caller_files;
use crate::access::caller_files::{NamedDirs, Place};

tokio::task_local! {
    static ACTIVITY: Arc<Activity>;
}

/// Disks that one management call uses, with their progress counters.
#[derive(Default)]
pub struct Activity {
    /// Directories in which the caller may name disks; `None` if it may name disks in any
    /// directory.
    named: Option<Arc<NamedDirs>>,
    /// Pool names by disk path; empty for callers that may not learn in which pool a disk is.
    pools: BTreeMap<PathBuf, String>,
    steps: AtomicU64,
    disks: Mutex<Vec<Weak<dyn Device>>>,
}

impl Activity {
    /// Returns the activity of a new call by the caller of the current task.
    pub(crate) fn of_caller(
        named: &Arc<NamedDirs>,
        pools: impl FnOnce() -> BTreeMap<PathBuf, String>,
    ) -> Self {
        if caller_files::caller_names_any() {
            return Self { pools: pools(), ..Self::default() };
        }
        Self { named: Some(Arc::clone(named)), ..Self::default() }
    }

    /// Returns the name of the pool that has a disk at this path, if the caller may learn the name.
    pub(crate) fn pool_of(&self, disk: &str) -> Option<&str> {
        self.pools.get(Path::new(disk)).map(String::as_str)
    }

    /// Resolves a path from the caller; returns `None` if the caller may name any path.
    ///
    /// # Errors
    /// The errors of [`NamedDirs::place`].
    pub(crate) fn place(&self, path: &Path) -> io::Result<Option<Place>> {
        self.named.as_ref().map(|named| named.place(path)).transpose()
    }

    /// Returns the activity of the call that the current task runs.
    pub(crate) fn current() -> Arc<Self> {
        ACTIVITY.try_with(Arc::clone).unwrap_or_default()
    }

    /// Runs a call and records the disks that it opens in this activity.
    pub(crate) async fn cover<T>(self: Arc<Self>, call: impl Future<Output = T>) -> T {
        ACTIVITY.scope(self, call).await
    }

    /// Records that a disk was opened, or failed to open.
    pub(crate) fn opened(&self, disk: Option<&Arc<dyn Device>>) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.disks.lock().extend(disk.map(Arc::downgrade));
    }

    /// Returns a number that changes while the disks of the call make progress.
    pub(crate) fn progress(&self) -> u64 {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut disks = self.disks.lock();
        let before = disks.len();
        disks.retain(|disk| disk.strong_count() > 0);
        // When the call closes a disk, the sum below loses the counters of the disk. Add a large
        // number instead, because closing a disk is progress too.
        self.steps.fetch_add((before - disks.len()) as u64 * (1 << 40), Ordering::Relaxed);
        let issued = disks.iter().filter_map(Weak::upgrade).map(|disk| {
            let stats = disk.stats();
            now(&stats.reads) + now(&stats.writes) + now(&stats.flushes)
        });
        issued.sum::<u64>() + now(&self.steps)
    }
}
