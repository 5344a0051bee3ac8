//! Passes a change to the engine, and updates the inodes in memory.
//!
//! Invariant: the inodes in memory change in the same step as the dataset, or not at all.

use std::ops::Range;

use tokio::sync::MutexGuard;
use weir_base::ObjectId;
use weir_dataset::{LogOrder, ObjectRecord, RecordCopy};
use weir_format::files::FileRecord;

use crate::draft::charge::UsageChanges;
use crate::draft::node::Draft;
use crate::error::FsError;
use crate::filesystem::state::Filesystem;
use crate::inodes::{LockedInode, Slot};

/// A change with its log record.
pub(crate) struct Change<'r> {
    pub(crate) object: ObjectId,
    pub(crate) record: &'r FileRecord<'r>,
    pub(crate) order: LogOrder,
    /// Blocks of the file whose new content follows the log record.
    pub(crate) blocks: Range<u64>,
}

/// Form in which the engine gets a change of a draft.
enum Passed<'c> {
    /// A log record, and the blocks that follow it. `None` after the engine has the change.
    Logged(Option<ObjectRecord>, Range<u64>),
    Copy(&'c RecordCopy),
}

impl<'r> Change<'r> {
    /// A change of the names of inodes. `names`: inodes that the change names; `ends`: inodes that
    /// lose their last name.
    pub(crate) fn namespace(
        object: ObjectId,
        record: &'r FileRecord<'r>,
        names: Vec<ObjectId>,
        ends: Vec<ObjectId>,
    ) -> Self {
        let order = LogOrder::Namespace { names, ends };
        Self { object, record, order, blocks: 0..0 }
    }

    /// A change of one inode.
    pub(crate) fn inode(object: ObjectId, record: &'r FileRecord<'r>) -> Self {
        Self { object, record, order: LogOrder::Object, blocks: 0..0 }
    }
}

impl Filesystem {
    /// Locks an inode to change it.
    pub(crate) async fn lock(&self, number: ObjectId) -> Result<LockedInode, FsError> {
        LockedInode::new(self.inode(number)?, self.reads()).await
    }

    /// Locks an inode to change it, and adds it to a draft.
    pub(crate) async fn lock_for(
        &self,
        draft: &mut Draft<'_>,
        number: ObjectId,
    ) -> Result<LockedInode, FsError> {
        let locked = self.lock(number).await?;
        draft.add_locked(&locked)?;
        Ok(locked)
    }

    /// As [`Self::lock_for`], also for an inode that is being freed.
    pub(crate) async fn lock_freeing(
        &self,
        draft: &mut Draft<'_>,
        number: ObjectId,
    ) -> Result<LockedInode, FsError> {
        let locked = self.lock(number).await?;
        let (size, inode) = locked.slot.with_freeing().ok_or(FsError::Stale)?;
        draft.add(number, size, inode.clone());
        Ok(locked)
    }

    /// Applies a change. Afterwards the draft has no inodes. `locked`: the changed inodes of
    /// clients, which the caller has locked. The caller's lock of the numbers protects the other
    /// changed inodes.
    ///
    /// # Errors
    /// `Quota`, or the errors of the engine. Nothing was changed then.
    pub(crate) async fn commit(
        &self,
        draft: &mut Draft<'_>,
        change: Change<'_>,
        locked: &mut [&mut LockedInode],
    ) -> Result<(), FsError> {
        let Change { object, record, order, blocks } = change;
        let (kind, payload) = (record.kind(), record.encode(draft.stamp));
        let usage = draft.usage_changes();
        let frees = record.removes() || frees_space(&usage);
        let record = ObjectRecord { object, kind, order, payload, blocks: Vec::new(), frees };
        self.pass_on(draft, &usage, Passed::Logged(Some(record), blocks), locked).await
    }

    /// As [`Self::commit`], for a change with references, which has no log record.
    pub(crate) async fn commit_copy(
        &self,
        draft: &mut Draft<'_>,
        copy: &RecordCopy,
        locked: &mut [&mut LockedInode],
    ) -> Result<(), FsError> {
        let usage = draft.usage_changes();
        self.pass_on(draft, &usage, Passed::Copy(copy), locked).await
    }

    async fn pass_on(
        &self,
        draft: &mut Draft<'_>,
        usage: &UsageChanges,
        mut passed: Passed<'_>,
        locked: &mut [&mut LockedInode],
    ) -> Result<(), FsError> {
        while !self.try_pass_on(draft, usage, &mut passed).await? {
            // Without the lock of the usage, so that no change of another inode waits.
            draft.drop_usage(usage);
            self.volume.wait_for_room().await?;
        }
        // No await follows, so a cancelled task never changes the dataset without these inodes.
        for (number, new) in draft.take_inodes() {
            let Some(locked) = locked.iter_mut().find(|locked| locked.number() == number) else {
                continue;
            };
            *locked.cached.read_time.lock() = None;
            *locked.slot = match new {
                Some((size, inode)) => Slot::Used(size, Box::new(inode)),
                None => Slot::Unused,
            };
        }
        Ok(())
    }

    /// Passes a change to the engine, with the new usage. Returns false if it must wait for a
    /// commit.
    async fn try_pass_on(
        &self,
        draft: &mut Draft<'_>,
        usage: &UsageChanges,
        passed: &mut Passed<'_>,
    ) -> Result<bool, FsError> {
        match passed {
            Passed::Logged(record, blocks) => {
                let _usage = self.add_usage(draft, usage).await?;
                let change = record.take().expect("the engine has no change yet");
                let mut changes = draft.take_changes();
                let left =
                    self.volume.try_change_logged_objects(&mut changes, change, blocks.clone());
                *record = left.await?;
                if record.is_some() {
                    draft.restore_changes(changes);
                }
                Ok(record.is_none())
            }
            Passed::Copy(copy) => {
                let turn = self.volume.record_copy_turn().await;
                let _usage = self.add_usage(draft, usage).await?;
                let changes = draft.take_changes();
                let is_done = turn.copy(copy, &changes).await?;
                if !is_done {
                    draft.restore_changes(changes);
                }
                Ok(is_done)
            }
        }
    }

    /// Adds the new usage to a draft. The returned lock protects the usage until the engine has the
    /// change.
    async fn add_usage(
        &self,
        draft: &mut Draft<'_>,
        usage: &UsageChanges,
    ) -> Result<Option<MutexGuard<'_, ()>>, FsError> {
        if usage.is_empty() {
            return Ok(None);
        }
        let lock = self.usage.lock().await;
        draft.update_usage(usage, true).await?;
        Ok(Some(lock))
    }
}

/// True if a change reduces the usage of an owner and increases no usage.
fn frees_space(usage: &UsageChanges) -> bool {
    usage.values().all(|(blocks, inodes)| *blocks <= 0 && *inodes <= 0)
        && usage.values().any(|(blocks, _)| *blocks < 0)
}
