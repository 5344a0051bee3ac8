//! State of an open filesystem.
//!
//! Invariants:
//! - no client can access an internal object;
//! - a dataset has at most one open filesystem that clients can change.

use std::sync::Arc;

use parking_lot::Mutex as SyncMutex;
use tokio::sync::{Mutex, Notify};
use weir_base::{ObjectId, RecordSize};
use weir_dataset::{Engine, OpenObjects, Volume};
use weir_format::OBJECTS_MAX;
use weir_format::files::{Layout, NameCase, Stamp, TimeStamp};
use weir_pool::PlantedBug;

use crate::directory::NameHash;
use crate::draft::node::Draft;
use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::inodes::{CachedInode, InodeCache};
use crate::layout::{FIRST, ROOT};
use crate::numbers::Numbers;
use crate::policy::FreeingLimits;

/// Source of the current time.
pub type Now = Box<dyn Fn() -> TimeStamp + Send + Sync>;

/// An open filesystem.
///
/// All operations may run concurrently, on any thread with the engine's runtime.
pub struct Filesystem {
    pub(crate) engine: Arc<Engine>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) layout: Layout,
    pub(crate) hash: NameHash,
    pub(crate) inodes: InodeCache,
    /// Lock for the allocation of numbers and for the directory of orphans.
    pub(crate) numbers: Mutex<Numbers>,
    /// Lock for the usage of users, groups and projects. It is the last lock that a change takes.
    pub(crate) usage: Mutex<()>,
    /// Held by renames between two directories, which change the tree of directories.
    pub(crate) renames: Mutex<()>,
    pub(crate) freeing_limits: SyncMutex<FreeingLimits>,
    /// Wakes the background task.
    pub(crate) freeing_wanted: Notify,
    pub(crate) now: Now,
    /// Exclusive use of the dataset; `None` if the filesystem was opened without changes.
    pub(crate) exclusive: Option<OpenObjects>,
}

impl Filesystem {
    /// Comparison of names.
    pub fn case(&self) -> NameCase {
        self.layout.case
    }

    /// Maximum record size of a file.
    pub fn record_size(&self) -> RecordSize {
        self.layout.record_size
    }

    /// Current time of the filesystem.
    pub fn time(&self) -> TimeStamp {
        (self.now)()
    }

    /// Secret key of the filesystem for a purpose outside this crate. It is the same after every
    /// open, import and rename.
    pub fn derived_key(&self, purpose: &str) -> u128 {
        self.hash.derived_key(purpose)
    }

    /// The planted bug, if any.
    pub fn bug(&self) -> PlantedBug {
        self.volume.bug()
    }

    /// Number of inodes in memory.
    pub fn inodes_in_memory(&self) -> usize {
        self.inodes.count()
    }

    pub(crate) fn reads(&self) -> Reads<'_> {
        Reads::Client(&self.volume)
    }

    /// Returns an inode of clients.
    ///
    /// # Errors
    /// `Stale` for the number of an internal object.
    pub(crate) fn inode(&self, number: ObjectId) -> Result<Arc<CachedInode>, FsError> {
        let is_internal = number != ROOT && number < FIRST || number.0 >= OBJECTS_MAX;
        if is_internal { Err(FsError::Stale) } else { Ok(self.inodes.get(number)) }
    }

    pub(crate) fn draft(&self) -> Draft<'_> {
        Draft::new(self.reads(), (&self.hash, self.layout), self.stamp())
    }

    /// Txg and time for a change that begins now.
    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { txg: self.volume.change_txg(), time: (self.now)() }
    }
}
