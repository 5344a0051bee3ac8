//! Times of the last read (atime).
//!
//! Invariants:
//! - a read changes only memory; at most once in 24 hours, it also stores the atime;
//! - a change of an inode also stores its newest atime.

use async_recursion::async_recursion as boxed;
use weir_base::ObjectId;
use weir_base::property::AtimePolicy;
use weir_format::files::{FileRecord, TimeStamp};

use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::state::Filesystem;
use crate::inodes::{CachedInode, Slot};
use crate::policy::ReadTime;

const DAY_SECONDS: i64 = 24 * 60 * 60;

fn is_day_later(now: TimeStamp, then: TimeStamp) -> bool {
    now.seconds.saturating_sub(then.seconds) >= DAY_SECONDS
}

impl Filesystem {
    /// Records a read of an inode. The caller holds the lock of the slot. Returns true if the
    /// dataset needs the new time.
    pub(crate) fn note_read(&self, cached: &CachedInode, slot: &Slot) -> bool {
        let (policy, now) = (self.volume.atime_policy(), (self.now)());
        let Ok((_, inode)) = slot.used() else { return false };
        let mut read = cached.read_time.lock();
        let atime = read.map_or(inode.atime, |read| read.newest);
        let is_old = atime <= inode.mtime.max(inode.ctime) || is_day_later(now, atime);
        let is_set = match policy {
            AtimePolicy::Relative => is_old,
            AtimePolicy::Off => false,
            AtimePolicy::On => true,
        };
        if is_set {
            let first = read.map_or(now, |read| read.first);
            *read = Some(ReadTime { newest: now, first });
        }
        read.is_some_and(|read| is_day_later(now, read.first))
    }

    /// Stores the atime of an inode, if the inode in the dataset has an older one.
    pub(crate) async fn store_atime(&self, number: ObjectId) -> Result<(), FsError> {
        let mut draft = self.draft();
        let mut locked = self.lock_for(&mut draft, number).await?;
        let read = *locked.cached.read_time.lock();
        let Some(ReadTime { newest: atime, .. }) = read else { return Ok(()) };
        let record = FileRecord::Access { atime };
        draft.apply(number, &record).await?;
        self.commit(&mut draft, Change::inode(number, &record), &mut [&mut locked]).await
    }

    /// Stores the atimes that are only in memory. A server calls this function before it stops.
    ///
    /// # Errors
    /// The errors of the engine.
    #[boxed(?Send)]
    pub async fn store_atimes(&self) -> Result<(), FsError> {
        for number in self.inodes.with_read_time() {
            match self.store_atime(number).await {
                Ok(()) | Err(FsError::Stale) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
