//! Limits of users, groups and projects.
//!
//! A file counts for its owner, its group and its project, also if another user writes to it.
//! Blocks count with their size before compression, so a write beyond a limit fails at once.
//!
//! Invariant: if entries inherit the project of a directory, all of them belong to this project.

use async_recursion::async_recursion as boxed;
use weir_base::RecordSize;
use weir_format::files::{FileRecord, Inode, Limits, OwnerId, Usage, UsageBlock};

use crate::draft::usage::read_usage;
use crate::error::FsError;
use crate::filesystem::commit::Change;
use crate::filesystem::state::Filesystem;
use crate::layout::USAGE;

/// Checks that an existing inode may get a name in a directory.
///
/// # Errors
/// `OtherProject` if the inode would have to belong to the project of the directory.
pub(crate) fn check_project(directory: &Inode, inode: &Inode) -> Result<(), FsError> {
    let inherits = directory.flags & Inode::INHERITS_PROJECT != 0;
    if inherits && directory.project != inode.project {
        return Err(FsError::OtherProject);
    }
    Ok(())
}

impl Filesystem {
    /// Returns the usage and the limits of a user, group or project.
    ///
    /// # Errors
    /// The errors of reads.
    #[boxed(?Send)]
    pub async fn usage(&self, owner: OwnerId) -> Result<Usage, FsError> {
        let (block, entry) = owner.block();
        let content = read_usage(self.reads(), block).await?;
        Ok(content.0.get(entry).copied().unwrap_or_default())
    }

    /// Returns a part of all owners with usage or limits, ordered by number, and the argument for
    /// the next part; `None` after the last part. The first argument is 0.
    ///
    /// # Errors
    /// The errors of reads.
    #[boxed(?Send)]
    pub async fn usages(&self, next: u64) -> Result<(Vec<(OwnerId, Usage)>, Option<u64>), FsError> {
        let range = next..UsageBlock::BLOCKS_MAX;
        let part = self.reads().data_records(USAGE, RecordSize::BLOCK, range).await?;
        let mut owners = Vec::new();
        for block in part.records {
            owners.extend(read_usage(self.reads(), block).await?.owners(block));
        }
        Ok((owners, part.next))
    }

    /// Sets the limits of a user, group or project. The limits may be below the usage: then the
    /// owner can only remove and shrink files.
    ///
    /// # Durability
    /// None until a sync of any inode.
    ///
    /// # Errors
    /// The errors of the engine.
    #[boxed(?Send)]
    pub async fn set_limits(&self, owner: OwnerId, limits: Limits) -> Result<(), FsError> {
        let mut draft = self.draft();
        let _usage = self.usage.lock().await;
        let record = FileRecord::SetLimits { owner, limits };
        draft.apply(USAGE, &record).await?;
        let change = Change::namespace(USAGE, &record, Vec::new(), Vec::new());
        self.commit(&mut draft, change, &mut []).await
    }
}
