//! Inodes in memory, each with its lock.
//!
//! A lock is held while the operation reads blocks, as the Linux VFS does. An operation locks
//! directories before the inodes in them. Operations on two directories hold the rename lock.
//!
//! Invariants:
//! - a used inode in memory equals the newest inode in the dataset, unless a task holds its lock;
//! - an inode that a client has open stays in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{OwnedRwLockWriteGuard, RwLock};
use weir_base::hash::HashMap;
use weir_base::{ObjectId, RecordSize};
use weir_format::files::{Inode, InodeState};

use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::filesystem::atime::ReadTime;

/// Number of independently locked parts of the cache.
const SHARDS: usize = 64;
/// Maximum number of inodes in a part before it evicts the unused ones: 64 Ki in all, about 40 MiB.
const SHARD_INODES_MAX: usize = 1024;

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
    /// True if a client has the inode open. Changes only under the lock of the slot.
    pub(crate) fn is_open(&self) -> bool {
        self.opens.load(Ordering::Acquire) > 0
    }
}

/// An inode whose lock the holder has for writing.
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
    /// The inode for a client.
    ///
    /// # Errors
    /// `Stale` if the number is unused, or the inode is being freed.
    pub(crate) fn used(&self) -> Result<(RecordSize, &Inode), FsError> {
        let is_kept = |(_, inode): &(RecordSize, &Inode)| {
            matches!(inode.state, InodeState::Named | InodeState::Orphan)
        };
        self.with_freeing().filter(is_kept).ok_or(FsError::Stale)
    }

    /// The inode, also one that is being freed; `None` if the number is unused.
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
}

impl InodeCache {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Returns an inode. Evicts others that no task uses if there are too many.
    pub(crate) fn get(&self, number: ObjectId) -> Arc<CachedInode> {
        let shard = self.shards.get((number.0 as usize) % SHARDS).expect("a valid part");
        let mut shard = shard.lock();
        if let Some(known) = shard.get(&number) {
            return Arc::clone(known);
        }
        if shard.len() >= SHARD_INODES_MAX {
            shard.retain(|_, inode| {
                let is_held = Arc::strong_count(inode) > 1 || Arc::strong_count(&inode.slot) > 1;
                is_held || inode.is_open()
            });
        }
        let inode = Arc::new(CachedInode { number, ..CachedInode::default() });
        shard.insert(number, Arc::clone(&inode));
        inode
    }

    /// Inodes whose atime only memory has.
    pub(crate) fn with_read_time(&self) -> Vec<ObjectId> {
        let of = |shard: &Shard| {
            let shard = shard.lock();
            let read = shard.values().filter(|inode| inode.read_time.lock().is_some());
            read.map(|inode| inode.number).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }
}
