//! Inodes in memory, each with its lock.
//!
//! An operation holds the locks of inodes while it reads blocks, as the Linux VFS does. An
//! operation locks directories before the inodes in them. Operations on two directories hold the
//! rename lock.
//!
//! Invariants:
//! - a used inode in memory equals the newest inode in the dataset, unless a task holds its lock;
//! - an inode that a client has open stays in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use weir_base::hash::HashMap;
use weir_base::{ObjectId, RecordSize};
use weir_dataset::LayerMemory;
use weir_format::files::{Inode, InodeState, TimeStamp};

use crate::attributes::Attributes;
use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::policy::ReadTime;

/// Number of independently locked parts of the cache.
const SHARDS: usize = 64;
/// Memory of an inode with its area and its lock, in bytes.
const INODE_BYTES: u64 = 1536;
/// Maximum number of open handles of a filesystem.
const OPENS_MAX: usize = 64 << 10;

/// Content of a slot.
#[derive(Clone, Debug, Default)]
pub(crate) enum Slot {
    /// Not read yet.
    #[default]
    Unread,
    /// The number is unused.
    Unused,
    Used(RecordSize, Box<Inode>),
}

/// An inode in memory.
#[derive(Default)]
pub(crate) struct CachedInode {
    pub(crate) number: ObjectId,
    pub(crate) slot: Arc<RwLock<Slot>>,
    /// Number of open handles. Changes only under the lock of the slot.
    pub(crate) opens: AtomicU32,
    /// Time of the last read, if the inode in the dataset has an older one. Changes only under the
    /// lock of the slot.
    pub(crate) read_time: Mutex<Option<ReadTime>>,
    /// For a directory: preferred inode number of its next entry.
    pub(crate) next_number: AtomicU64,
}

impl CachedInode {
    /// A copy of an inode with the newest atime.
    pub(crate) fn with_read_time(&self, inode: &Inode) -> Inode {
        Inode { atime: self.atime(inode), ..inode.clone() }
    }

    /// Attributes of an inode with the newest atime.
    pub(crate) fn attributes(&self, inode: &Inode) -> Attributes {
        Attributes { atime: self.atime(inode), ..Attributes::of(self.number, inode) }
    }

    fn atime(&self, inode: &Inode) -> TimeStamp {
        self.read_time.lock().map_or(inode.atime, |read| read.newest)
    }

    /// Counts a handle that a client opened. The caller holds the lock of the slot.
    fn open(&self) {
        self.opens.fetch_add(1, Ordering::AcqRel);
    }

    /// True if a client has the inode open. Changes only under the lock of the slot.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }
}

/// An inode, with its lock held for writing.
pub(crate) struct LockedInode {
    pub(crate) cached: Arc<CachedInode>,
    pub(crate) slot: OwnedRwLockWriteGuard<Slot>,
}

impl LockedInode {
    /// Waits for the lock. Reads the inode if it is not in memory.
    pub(crate) async fn new(cached: Arc<CachedInode>, reads: Reads<'_>) -> Result<Self, FsError> {
        let mut slot = Arc::clone(&cached.slot).write_owned().await;
        slot.load(cached.number, reads).await?;
        Ok(Self { cached, slot })
    }

    pub(crate) fn number(&self) -> ObjectId {
        self.cached.number
    }

    /// The inode with its record size.
    ///
    /// # Errors
    /// `Stale` if the number is unused, or the inode is being freed.
    pub(crate) fn inode(&self) -> Result<(RecordSize, &Inode), FsError> {
        self.slot.used()
    }
}

impl Slot {
    /// The inode, for use by a client.
    ///
    /// # Errors
    /// `Stale` if the number is unused, or the inode is being freed.
    pub(crate) fn used(&self) -> Result<(RecordSize, &Inode), FsError> {
        let is_kept = |(_, inode): &(RecordSize, &Inode)| {
            matches!(inode.state, InodeState::Named | InodeState::Orphan)
        };
        self.with_freeing().filter(is_kept).ok_or(FsError::Stale)
    }

    /// The inode, also while it is being freed; `None` if the number is unused.
    pub(crate) fn with_freeing(&self) -> Option<(RecordSize, &Inode)> {
        match self {
            Self::Used(size, inode) => Some((*size, inode)),
            Self::Unread | Self::Unused => None,
        }
    }

    /// Reads the slot if it is not read yet.
    pub(crate) async fn load(&mut self, number: ObjectId, reads: Reads<'_>) -> Result<(), FsError> {
        if let Self::Unread = self {
            *self = match reads.inode(number).await? {
                Some((size, inode)) => Self::Used(size, Box::new(inode)),
                None => Self::Unused,
            };
        }
        Ok(())
    }
}

type Shard = Mutex<HashMap<ObjectId, Arc<CachedInode>>>;

/// The inodes in memory.
pub(crate) struct InodeCache {
    shards: Vec<Shard>,
    /// Limit of the memory. Inodes that clients have open may exceed it.
    memory: LayerMemory,
    /// Number of open handles.
    opens: AtomicUsize,
}

/// An open handle that is counted in the total, but not yet for its inode.
pub(crate) struct NewHandle<'c>(Option<&'c AtomicUsize>);

impl NewHandle<'_> {
    /// Counts the handle for its inode. The caller holds the lock of the slot.
    pub(crate) fn give_to(mut self, inode: &CachedInode) {
        self.0 = None;
        inode.open();
    }
}

impl Drop for NewHandle<'_> {
    fn drop(&mut self) {
        if let Some(opens) = self.0 {
            opens.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl InodeCache {
    pub(crate) fn new(memory: LayerMemory) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self { shards, memory, opens: AtomicUsize::default() }
    }

    /// Maximum number of inodes in a part before it evicts the unused ones.
    fn shard_inodes_max(&self) -> usize {
        let inodes = usize::try_from(self.memory.bytes() / INODE_BYTES).unwrap_or(usize::MAX);
        (inodes / SHARDS).max(1)
    }

    /// Number of inodes in memory.
    pub(crate) fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Counts a handle in the total.
    ///
    /// # Errors
    /// `TooManyOpens`.
    pub(crate) fn new_handle(&self) -> Result<NewHandle<'_>, FsError> {
        let handle = NewHandle(Some(&self.opens));
        let is_over = self.opens.fetch_add(1, Ordering::AcqRel) >= OPENS_MAX;
        if is_over { Err(FsError::TooManyOpens) } else { Ok(handle) }
    }

    /// Ends a handle of an inode. Returns the number of handles that are left.
    pub(crate) fn close(&self, inode: &CachedInode) -> u32 {
        self.opens.fetch_sub(1, Ordering::AcqRel);
        inode.opens.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// Returns an inode. If too many inodes are in memory, evicts the inodes that no task uses.
    pub(crate) fn get(&self, number: ObjectId) -> Arc<CachedInode> {
        let shard = self.shards.get((number.0 as usize) % SHARDS).expect("a valid part");
        let mut shard = shard.lock();
        if let Some(known) = shard.get(&number) {
            return Arc::clone(known);
        }
        if shard.len() >= self.shard_inodes_max() {
            shard.retain(|_, inode| {
                let is_held = Arc::strong_count(inode) > 1 || Arc::strong_count(&inode.slot) > 1;
                is_held || inode.is_open()
            });
        }
        let inode = Arc::new(CachedInode { number, ..CachedInode::default() });
        shard.insert(number, Arc::clone(&inode));
        inode
    }

    /// Inodes whose newest atime is only in memory.
    pub(crate) fn with_read_time(&self) -> Vec<ObjectId> {
        let of = |shard: &Shard| {
            let shard = shard.lock();
            let read = shard.values().filter(|inode| inode.read_time.lock().is_some());
            read.map(|inode| inode.number).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }
}
