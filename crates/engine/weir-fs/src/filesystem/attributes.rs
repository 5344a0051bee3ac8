//! Reads and changes attributes of inodes.
//!
//! Invariant: the change number of an inode grows with each change, also over crashes.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use tokio::sync::OwnedRwLockReadGuard;
use weir_base::ObjectId;
use weir_dataset::SyncOf;
use weir_format::files::{FileRecord, Inode};

use crate::attributes::{Attributes, SetAttributes};
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::set_id::with_permissions;
use crate::filesystem::state::Filesystem;
use crate::inodes::{CachedInode, LockedInode, Slot};
use crate::user::call::Call;

impl Filesystem {
    /// Returns the attributes of an inode.
    ///
    /// # Errors
    /// `Stale` if no inode has the number.
    #[boxed(?Send)]
    pub async fn attributes(&self, number: ObjectId) -> Result<Attributes, FsError> {
        if let Some(known) = self.try_attributes(number) {
            return known;
        }
        let cached = self.inode(number)?;
        let slot = self.read_lock_of(&cached).await?;
        Ok(cached.attributes(slot.used()?.1))
    }

    /// Returns the attributes of many inodes, in their order. Reads the inodes that are not in
    /// memory together.
    ///
    /// # Errors
    /// For each inode, the errors of [`Self::attributes`].
    #[boxed(?Send)]
    pub async fn attributes_of_all(
        &self,
        numbers: &[ObjectId],
    ) -> Vec<Result<Attributes, FsError>> {
        let unread = |number: &&ObjectId| {
            let Ok(cached) = self.inode(**number) else { return false };
            cached.slot.try_read().is_ok_and(|slot| matches!(*slot, Slot::Unread))
        };
        let unread: Vec<ObjectId> = numbers.iter().filter(unread).copied().collect();
        if unread.len() > 1 {
            self.volume.load_slots(&unread).await;
        }
        let mut all = Vec::with_capacity(numbers.len());
        for number in numbers {
            all.push(match self.try_attributes(*number) {
                Some(known) => known,
                None => self.attributes(*number).await,
            });
        }
        all
    }

    /// Returns the attributes of an inode in memory; `None` while a task changes the inode.
    pub(crate) fn try_attributes(&self, number: ObjectId) -> Option<Result<Attributes, FsError>> {
        let cached = match self.inode(number) {
            Ok(cached) => cached,
            Err(error) => return Some(Err(error)),
        };
        let slot = cached.slot.try_read().ok()?;
        if matches!(*slot, Slot::Unread) {
            return None;
        }
        Some(slot.used().map(|(_, inode)| cached.attributes(inode)))
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
        self.read_lock_of(&self.inode(number)?).await
    }

    /// As [`Self::read_lock`].
    pub(crate) async fn read_lock_of(
        &self,
        cached: &Arc<CachedInode>,
    ) -> Result<OwnedRwLockReadGuard<Slot>, FsError> {
        let slot = Arc::clone(&cached.slot).read_owned().await;
        if !matches!(*slot, Slot::Unread) {
            return Ok(slot);
        }
        drop(slot);
        Ok(LockedInode::new(Arc::clone(cached), self.reads()).await?.slot.downgrade())
    }
}
