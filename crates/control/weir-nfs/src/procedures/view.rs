//! The parts of a share: its filesystem, snapshots, and the directories above the snapshots.
//!
//! Invariant: each snapshot has a number of its own in `fsid`, so clients see another file system.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher24;
use weir_base::{DatasetId, ObjectId, Txg};
use weir_fs::{Filesystem, FsError, InodeRef, ROOT, Snapshots, VirtualDirectory, WEIR_NAME};

use crate::handle::Handle;
use crate::share::Share;

/// Part of a share that has the inode of a call.
pub(crate) enum View {
    /// The filesystem.
    Own,
    /// A snapshot, which stays open during the call.
    Snapshot(DatasetId, Arc<Filesystem>),
    /// A directory above the snapshots.
    Virtual(VirtualDirectory, Arc<dyn Snapshots>),
}

/// Inode of a directory above the snapshots, in handles.
fn reference(directory: VirtualDirectory) -> InodeRef {
    let number = directory.number().0 - VirtualDirectory::NUMBERS;
    InodeRef { number: ObjectId(number), generation: Txg(0) }
}

/// Number of a snapshot in attributes. It stays the same on every server.
fn snapshot_fsid(fsid: u64, dataset: DatasetId) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(&fsid.to_le_bytes());
    hasher.write(&dataset.0.to_le_bytes());
    hasher.finish()
}

impl View {
    /// Finds the part of a share with the inode of a handle. Opens the snapshot.
    ///
    /// # Errors
    /// `Stale` for a snapshot that does not exist any more; the errors of [`Snapshots::open`].
    pub(crate) fn of(share: &Share, handle: &Handle) -> Result<Self, FsError> {
        if handle.snapshot == Handle::OF_FILESYSTEM {
            return Ok(Self::Own);
        }
        let all = share.snapshots.as_ref().ok_or(FsError::Stale)?;
        if handle.snapshot != Handle::ABOVE_SNAPSHOTS {
            let dataset = DatasetId(handle.snapshot);
            return Ok(Self::Snapshot(dataset, all.open(dataset)?));
        }
        let mut directories = [VirtualDirectory::Weir, VirtualDirectory::Snapshots].into_iter();
        let found = directories.find(|directory| reference(*directory) == handle.inode);
        found.map(|found| Self::Virtual(found, Arc::clone(all))).ok_or(FsError::Stale)
    }

    /// Number of the filesystem or snapshot in attributes. `fsid`: number of the filesystem.
    pub(crate) fn fsid(&self, fsid: u64) -> u64 {
        match self {
            Self::Own | Self::Virtual(..) => fsid,
            Self::Snapshot(dataset, _) => snapshot_fsid(fsid, *dataset),
        }
    }

    /// Number of the snapshot in handles of inodes.
    pub(crate) fn snapshot(&self) -> u64 {
        match self {
            Self::Own | Self::Virtual(..) => Handle::OF_FILESYSTEM,
            Self::Snapshot(dataset, _) => dataset.0,
        }
    }
}

impl Share {
    /// Handle of an inode of the share or, if `snapshot` is its number, of a snapshot.
    pub(crate) fn handle(&self, inode: InodeRef, snapshot: u64) -> [u8; Handle::BYTES] {
        self.key.encode(&Handle { share: self.id, fsid: self.fsid, inode, snapshot })
    }

    pub(super) fn virtual_handle(&self, directory: VirtualDirectory) -> [u8; Handle::BYTES] {
        self.handle(reference(directory), Handle::ABOVE_SNAPSHOTS)
    }

    /// Returns the snapshots if a name in a directory of the filesystem, where no entry has this
    /// name, is the name of `.weir`.
    pub(super) fn weir(&self, directory: InodeRef, name: &[u8]) -> Option<&Arc<dyn Snapshots>> {
        let all = self.snapshots.as_ref()?;
        (directory == self.root && self.files.is_weir(directory.number, name)).then_some(all)
    }

    /// True if no entry of an older version hides `.weir`.
    pub(super) async fn has_weir(&self) -> Result<bool, FsError> {
        match self.files.lookup(ROOT, WEIR_NAME).await {
            Ok(_) => Ok(false),
            Err(FsError::NotFound) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
