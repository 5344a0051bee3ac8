//! Frees inodes without a name.
//!
//! A small file is freed with its last name or last close. A large file gets the state *freeing*:
//! no client can open it any more, and a background task frees some of its records in each txg. The
//! first record with data is the position of the task, so a crash loses no position.
//!
//! Invariants:
//! - one change frees a bounded number of records and reads a bounded number of tree nodes;
//! - an inode that clients have open is not freed.

use std::collections::BTreeSet;

use async_recursion::async_recursion as boxed;
use weir_base::{ObjectId, RecordSize};
use weir_format::NODE_SHIFT;
use weir_format::files::{Fate, FileRecord, FileType, Inode, InodeState};

use crate::draft::node::{Draft, records_in};
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::state::Filesystem;
use crate::inodes::{CachedInode, LockedInode};
use crate::layout::ORPHANS;
use crate::policy::FreeingLimits;

/// Maximum number of leaves of a file's tree in one part of the freeing.
const PART_LEAVES_MAX: usize = 256;

/// Maximum number of removed files in a list.
const FILES_AT_ONCE: usize = 4096;

/// Part of a file that is freed next.
enum Part {
    /// All records that are left.
    Rest,
    /// The records before this one.
    Until(u64),
}

impl Filesystem {
    /// Sets the limits of the freeing of files.
    pub fn set_freeing_limits(&self, limits: FreeingLimits) {
        *self.freeing_limits.lock() = limits;
    }

    /// True if the file has too many records to free it at once.
    fn is_large(&self, size: RecordSize, inode: &Inode) -> bool {
        // `blocks` counts all blocks of each record with data, except of the last record.
        inode.blocks.div_ceil(size.blocks()) > self.freeing_limits.lock().at_once
    }

    /// State of an inode after it loses a name. The caller holds the lock of the inode.
    pub(crate) fn fate_of(&self, size: RecordSize, inode: &Inode, cached: &CachedInode) -> Fate {
        let is_last = inode.file_type == FileType::Directory || inode.nlink <= 1;
        match is_last {
            false => Fate::Named,
            true if cached.is_open() => Fate::Orphan,
            true if self.is_large(size, inode) => Fate::Freeing,
            true => Fate::Freed,
        }
    }

    /// Frees all inodes without a name that the last server left, except large files, which it
    /// leaves to the background task.
    pub(crate) async fn free_orphans(&self) -> Result<(), FsError> {
        let mut cookie = 0;
        loop {
            let orphans = self.orphans_after(&mut cookie).await?;
            if orphans.is_empty() {
                return Ok(());
            }
            for number in orphans {
                match self.release(number).await {
                    // A damaged inode, or an entry that names no inode, keeps its entry.
                    Err(error) if error.is_damage() || matches!(error, FsError::Stale) => {
                        tracing::warn!(inode = number.0, %error, "cannot free a removed file");
                    }
                    released => released?,
                }
            }
        }
    }

    /// Returns the next inodes without a name, and advances the cookie. Empty at the end.
    async fn orphans_after(&self, cookie: &mut u64) -> Result<Vec<ObjectId>, FsError> {
        // The lock of the numbers protects the directory of orphans.
        let _numbers = self.numbers.lock().await;
        let (_, inode) = self.reads().inode(ORPHANS).await?.ok_or(FsError::Stale)?;
        let entries = self.entries(ORPHANS).after(&inode, *cookie).await?;
        *cookie = entries.last().map_or(*cookie, |entry| entry.key.number());
        Ok(entries.into_iter().map(|entry| entry.inode).collect())
    }

    /// Frees an inode without a name that no client has open, or marks it for the background task.
    pub(crate) async fn release(&self, number: ObjectId) -> Result<(), FsError> {
        let mut draft = self.draft();
        let mut locked = self.lock_freeing(&mut draft, number).await?;
        let Some((size, inode)) = locked.slot.with_freeing() else { return Ok(()) };
        if inode.state == InodeState::Named || locked.cached.is_open() {
            return Ok(());
        }
        match (self.is_large(size, inode), inode.state) {
            (true, InodeState::Freeing) => {}
            (true, _) => {
                let record = FileRecord::BeginFreeing;
                draft.apply(number, &record).await?;
                let change = Change::namespace(number, &record, vec![number], Vec::new());
                self.commit(&mut draft, change, &mut [&mut locked]).await?;
            }
            (false, _) => return self.release_whole(draft, locked).await,
        }
        self.freeing_wanted.notify_one();
        Ok(())
    }

    /// Frees an inode without a name with all its records.
    async fn release_whole(
        &self,
        mut draft: Draft<'_>,
        mut locked: LockedInode,
    ) -> Result<(), FsError> {
        let (number, record) = (locked.number(), FileRecord::Release);
        let mut numbers = self.numbers.lock().await;
        draft.apply(number, &record).await?;
        let change = Change::namespace(number, &record, vec![number], vec![number]);
        self.commit(&mut draft, change, &mut [&mut locked]).await?;
        numbers.note(draft.number_changes(), self.volume.open_txg());
        Ok(())
    }

    /// Frees the next part of a file in the state *freeing*. Returns true if a part is left.
    ///
    /// # Errors
    /// The errors of the engine.
    #[boxed(?Send)]
    pub async fn free_part(&self, number: ObjectId) -> Result<bool, FsError> {
        let mut draft = self.draft();
        let mut locked = self.lock_freeing(&mut draft, number).await?;
        let Some((size, inode)) = locked.slot.with_freeing() else { return Ok(false) };
        if inode.state != InodeState::Freeing {
            return Ok(false);
        }
        let Part::Until(end) = self.next_part(number, size, inode).await? else {
            self.release_whole(draft, locked).await?;
            return Ok(false);
        };
        let (permissions, bytes) = (inode.permissions, end * size.bytes() as u64);
        let record = FileRecord::Zero { offset: 0, bytes, permissions };
        draft.apply(number, &record).await?;
        self.commit(&mut draft, Change::inode(number, &record), &mut [&mut locked]).await?;
        Ok(true)
    }

    async fn next_part(
        &self,
        number: ObjectId,
        size: RecordSize,
        inode: &Inode,
    ) -> Result<Part, FsError> {
        let max = self.freeing_limits.lock().part;
        let (mut found, mut leaves, mut next) = (0, BTreeSet::new(), Some(0));
        while let Some(start) = next {
            let range = start..records_in(size, inode.size);
            let part = self.reads().data_records(number, size, range).await?;
            for record in part.records {
                leaves.insert(record >> NODE_SHIFT);
                if found >= max || leaves.len() > PART_LEAVES_MAX {
                    return Ok(Part::Until(record));
                }
                found += 1;
            }
            next = part.next;
        }
        Ok(Part::Rest)
    }

    /// Numbers of the files in the state *freeing*.
    ///
    /// # Errors
    /// The errors of reads.
    #[boxed(?Send)]
    pub async fn removed_files(&self) -> Result<Vec<ObjectId>, FsError> {
        let (mut cookie, mut removed) = (0, Vec::new());
        while removed.len() < FILES_AT_ONCE {
            let orphans = self.orphans_after(&mut cookie).await?;
            if orphans.is_empty() {
                break;
            }
            for number in orphans {
                let inode = self.reads().inode(number).await?;
                if inode.is_some_and(|(_, inode)| inode.state == InodeState::Freeing) {
                    removed.push(number);
                }
            }
        }
        Ok(removed)
    }

    /// Frees all files in the state *freeing*, a part in each txg. A file with a damaged part stays
    /// until the next server opens the filesystem.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn free_removed(&self) -> Result<(), FsError> {
        loop {
            let (removed, mut freed) = (self.removed_files().await?, false);
            for number in removed {
                match self.free_file(number).await {
                    Ok(()) => freed = true,
                    Err(error @ FsError::Dataset(_)) if self.engine.is_abandoned() => {
                        return Err(error);
                    }
                    Err(error) => {
                        tracing::warn!(inode = number.0, %error, "cannot free a removed file");
                    }
                }
            }
            if !freed {
                return Ok(());
            }
        }
    }

    async fn free_file(&self, number: ObjectId) -> Result<(), FsError> {
        while self.free_part(number).await? {
            self.engine.commit().await?;
        }
        Ok(())
    }

    /// Frees removed files in an endless loop; waits while no removed file is left. The caller runs
    /// the future concurrently with operations of clients, and drops it before it closes the
    /// filesystem.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn run_background(&self) -> Result<(), FsError> {
        loop {
            self.free_removed().await?;
            self.freeing_wanted.notified().await;
        }
    }
}
