//! Which disks a call opened, whether they do anything, and which it may open.
//!
//! Not here: disks of open pools; their engine watches them.
//!
//! Invariant: keeps no disk open.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weir_device::Device;

use crate::access::caller_files;
use crate::access::caller_files::{NamedDirs, Place};

tokio::task_local! {
    static ACTIVITY: Arc<Activity>;
}

/// The disks that one call opened.
#[derive(Default)]
pub struct Activity {
    /// Where its caller may name disks; anywhere without.
    named: Option<Arc<NamedDirs>>,
    steps: AtomicU64,
    disks: Mutex<Vec<Weak<dyn Device>>>,
}

impl Activity {
    /// That of a call by the caller of the running task.
    pub(crate) fn of_caller(named: &Arc<NamedDirs>) -> Self {
        let named = if caller_files::caller_names_any() { None } else { Some(Arc::clone(named)) };
        Self { named, ..Self::default() }
    }

    /// Resolves a path that the caller named; none where any path is good.
    ///
    /// # Errors
    /// As [`NamedDirs::place`].
    pub(crate) fn place(&self, path: &Path) -> io::Result<Option<Place>> {
        self.named.as_ref().map(|named| named.place(path)).transpose()
    }

    /// That of the call the running task answers.
    pub(crate) fn current() -> Arc<Self> {
        ACTIVITY.try_with(Arc::clone).unwrap_or_default()
    }

    /// Runs a call whose disks are noted here.
    pub(crate) async fn cover<T>(self: Arc<Self>, call: impl Future<Output = T>) -> T {
        ACTIVITY.scope(self, call).await
    }

    /// Notes that a disk was opened, or could not be.
    pub(crate) fn opened(&self, disk: Option<&Arc<dyn Device>>) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.disks.lock().extend(disk.map(Arc::downgrade));
    }

    /// A number that changes as long as something is done.
    pub(crate) fn progress(&self) -> u64 {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut disks = self.disks.lock();
        let before = disks.len();
        disks.retain(|disk| disk.strong_count() > 0);
        // A disk that was closed takes its counts along; that is progress too.
        self.steps.fetch_add((before - disks.len()) as u64 * (1 << 40), Ordering::Relaxed);
        let issued = disks.iter().filter_map(Weak::upgrade).map(|disk| {
            let stats = disk.stats();
            now(&stats.reads) + now(&stats.writes) + now(&stats.flushes)
        });
        issued.sum::<u64>() + now(&self.steps)
    }
}
