//! Attributes of inodes.
//!
//! Invariant: the change number of an inode grows with each change, also over crashes.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use tokio::sync::OwnedRwLockReadGuard;
use weir_base::{ObjectId, Txg};
use weir_dataset::SyncOf;
use weir_format::files::{AttributeChanges, FileRecord, FileType, Inode, TimeStamp};

use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::set_id::with_permissions;
use crate::filesystem::state::Filesystem;
use crate::inodes::{LockedInode, Slot};
use crate::user::call::Call;

/// Attributes of an inode, as `struct stat` (POSIX.1-2017, sys/stat.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Inode number.
    pub number: ObjectId,
    /// Txg of the creation, which distinguishes the inodes that have had this number.
    pub generation: Txg,
    /// Type.
    pub file_type: FileType,
    /// Permission bits, set-id bits and sticky bit.
    pub permissions: u32,
    /// Number of names; for a directory, the number of its subdirectories plus 2.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Flags: `Inode::INHERITS_PROJECT`.
    pub flags: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated blocks of 4 KiB, before compression.
    pub blocks: u64,
    /// Number of a device file.
    pub device: u64,
    /// Verifier of a file that an exclusive create made, until the first change of attributes.
    pub verifier: Option<u64>,
    /// Number that grows with each change.
    pub change: u64,
    /// Time of the last read.
    pub atime: TimeStamp,
    /// Time of the last change of data.
    pub mtime: TimeStamp,
    /// Time of the last change of data or attributes.
    pub ctime: TimeStamp,
    /// Time of creation.
    pub btime: TimeStamp,
}

impl Attributes {
    pub(crate) fn of(number: ObjectId, inode: &Inode) -> Self {
        let is_device = matches!(inode.file_type, FileType::BlockDevice | FileType::CharDevice);
        Self {
            number,
            generation: inode.created_txg,
            file_type: inode.file_type,
            permissions: inode.permissions,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            project: inode.project,
            flags: inode.flags,
            size: inode.size,
            blocks: inode.blocks,
            device: if is_device { inode.device_or_entries } else { 0 },
            verifier: verifier(inode),
            change: inode.change,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
        }
    }
}

fn verifier(inode: &Inode) -> Option<u64> {
    let has_verifier = inode.flags & Inode::HAS_VERIFIER != 0;
    (has_verifier && inode.file_type == FileType::Regular).then_some(inode.device_or_entries)
}

/// New values of attributes. `None`: the attribute does not change.
pub type SetAttributes = AttributeChanges;

impl Filesystem {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// `Stale` if no inode has the number.
    #[boxed(?Send)]
    pub async fn attributes(&self, number: ObjectId) -> Result<Attributes, FsError> {
        let cached = self.inode(number)?;
        let slot = self.read_lock(number).await?;
        Ok(Attributes::of(number, &cached.with_read_time(slot.used()?.1)))
    }

    /// Changes attributes. Returns the new attributes. `clears_set_id`: a change of the size or the
    /// owner of a file clears its set-id bits, as a change by a user without CAP_FSETID does.
    ///
    /// # Durability
    /// None until a sync.
    ///
    /// # Errors
    /// `Stale`; `IsDirectory` or `Invalid` for a new size of an inode that is not a file;
    /// `TooLarge`.
    #[boxed(?Send)]
    pub async fn set_attributes(
        &self,
        number: ObjectId,
        changes: &SetAttributes,
        clears_set_id: bool,
    ) -> Result<Attributes, FsError> {
        let record = |inode: &Inode| {
            FileRecord::SetAttributes(with_permissions(inode, changes, clears_set_id))
        };
        self.change_inode(number, record).await
    }

    /// Makes changes durable: all changes of names, and all changes of this inode.
    ///
    /// # Durability
    /// Everything that was acknowledged before this call, of the names and of this inode, survives
    /// any crash.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn sync(&self, number: ObjectId) -> Result<(), FsError> {
        Ok(self.engine.sync_objects(&self.volume, SyncOf::Object(number)).await?)
    }

    /// Makes all changes of the filesystem durable.
    ///
    /// # Errors
    /// As [`Self::sync`].
    #[boxed(?Send)]
    pub async fn sync_all(&self) -> Result<(), FsError> {
        Ok(self.engine.sync_objects(&self.volume, SyncOf::All).await?)
    }

    /// Applies a record that changes one inode. `record` makes the record for the inode.
    pub(crate) async fn change_inode<'r>(
        &self,
        number: ObjectId,
        record: impl FnOnce(&Inode) -> FileRecord<'r>,
    ) -> Result<Attributes, FsError> {
        self.change_inode_for(&Call::TRUSTED, number, |inode| Ok(record(inode))).await
    }

    /// As [`Self::change_inode`], with the checks of a call. `record` makes the checks.
    pub(crate) async fn change_inode_for<'r>(
        &self,
        call: &Call<'_>,
        number: ObjectId,
        record: impl FnOnce(&Inode) -> Result<FileRecord<'r>, FsError>,
    ) -> Result<Attributes, FsError> {
        let mut draft = self.draft();
        let mut locked = self.lock_for(&mut draft, number).await?;
        let record = record(locked.inode()?.1)?;
        draft.apply(number, &record).await?;
        self.commit(&mut draft, Change::inode(number, &record), &mut [&mut locked]).await?;
        call.note_changed(number, locked.inode()?.1);
        Ok(Attributes::of(number, locked.inode()?.1))
    }

    /// Calls `read` with an inode.
    pub(crate) async fn with_inode<T>(
        &self,
        number: ObjectId,
        read: impl FnOnce(&Inode) -> T,
    ) -> Result<T, FsError> {
        let slot = self.read_lock(number).await?;
        Ok(read(slot.used()?.1))
    }

    /// Locks an inode for reading, and reads it if it is not in memory.
    pub(crate) async fn read_lock(
        &self,
        number: ObjectId,
    ) -> Result<OwnedRwLockReadGuard<Slot>, FsError> {
        let cached = self.inode(number)?;
        let slot = Arc::clone(&cached.slot).read_owned().await;
        if !matches!(*slot, Slot::Unread) {
            return Ok(slot);
        }
        drop(slot);
        Ok(LockedInode::new(cached, self.reads()).await?.slot.downgrade())
    }
}
