//! Usage of users, groups and projects.
//!
//! Invariants:
//! - the usage of an owner changes in the same txg as the inodes of the owner, and is exact;
//! - only a change that increases the usage of an owner fails at a limit.

use weir_base::RecordSize;
use weir_block::BlockMut;
use weir_format::files::{Limits, OwnerId, Usage, UsageBlock};
use weir_pool::PlantedBug;

use crate::draft::charge::{Charge, UsageChanges};
use crate::draft::node::{Draft, DraftNode};
use crate::draft::reads::Reads;
use crate::error::FsError;
use crate::layout::USAGE;

/// Reads a block of the usage; a hole is a block without usage.
pub(crate) async fn read_usage(reads: Reads<'_>, block: u64) -> Result<UsageBlock, FsError> {
    let read = reads.record(USAGE, RecordSize::BLOCK, block).await?;
    match read.as_deref() {
        Some([block]) => {
            UsageBlock::decode(block).map_err(|error| FsError::of_inode(USAGE, &error))
        }
        _ => Ok(UsageBlock::empty()),
    }
}

/// Usage after a change.
///
/// # Errors
/// `Quota` if `enforces` is true and the usage grows beyond a limit.
fn changed(
    usage: Usage,
    owner: OwnerId,
    (blocks, inodes): (i64, i64),
    enforces: bool,
) -> Result<Usage, FsError> {
    let Usage { limits: Limits { blocks: max_blocks, inodes: max_inodes }, .. } = usage;
    let after = |used: u64, change: i64, max: u64| {
        let used = used.saturating_add_signed(change);
        let is_over = enforces && change > 0 && max > 0 && used > max;
        if is_over { Err(FsError::Quota(owner.kind)) } else { Ok(used) }
    };
    let blocks = after(usage.blocks, blocks, max_blocks)?;
    let inodes = after(usage.inodes, inodes, max_inodes)?;
    Ok(Usage { blocks, inodes, ..usage })
}

impl Draft<'_> {
    /// Changes of the usage that the changed inodes cause.
    pub(crate) fn usage_changes(&self) -> UsageChanges {
        let mut changes = UsageChanges::new();
        for (number, node) in self.nodes() {
            let DraftNode { before, inode, .. } = node;
            let mut after = if node.is_freed() { None } else { Charge::of(*number, inode) };
            if self.reads.bug() == PlantedBug::UsageStaysAtOldOwner
                && let (Some(after), Some(before)) = (&mut after, before)
            {
                after.owners = before.owners;
            }
            if *before != after {
                before.iter().for_each(|charge| charge.add_to(&mut changes, -1));
                after.iter().for_each(|charge| charge.add_to(&mut changes, 1));
            }
        }
        changes.retain(|_, change| *change != (0, 0));
        changes
    }

    /// Changes the usage of the owners of the changed inodes.
    ///
    /// # Errors
    /// `Quota` if `enforces` is true and an owner would have more than a limit.
    pub(crate) async fn update_usage(
        &mut self,
        changes: &UsageChanges,
        enforces: bool,
    ) -> Result<(), FsError> {
        for (owner, change) in changes {
            self.change_usage(*owner, |usage| changed(usage, *owner, *change, enforces)).await?;
        }
        Ok(())
    }

    /// Drops the changes of the usage from the draft, before they are computed again.
    pub(crate) fn drop_usage(&mut self, changes: &UsageChanges) {
        if !changes.is_empty() {
            self.drop_node(USAGE);
        }
    }

    /// Sets the limits of an owner.
    pub(crate) async fn set_limits(
        &mut self,
        owner: OwnerId,
        limits: Limits,
    ) -> Result<(), FsError> {
        self.change_usage(owner, |usage| Ok(Usage { limits, ..usage })).await
    }

    async fn change_usage(
        &mut self,
        owner: OwnerId,
        change: impl FnOnce(Usage) -> Result<Usage, FsError>,
    ) -> Result<(), FsError> {
        let (block, place) = owner.block();
        let read = self.record(USAGE, block).await?;
        let mut bytes = match read.as_deref() {
            Some([block]) => {
                UsageBlock::check(block).map_err(|error| FsError::of_inode(USAGE, &error))?;
                BlockMut::copy_of(block)
            }
            _ => BlockMut::zeroed(),
        };
        let usage = change(UsageBlock::entry(&bytes, place))?;
        UsageBlock::set_entry(&mut bytes, place, &usage);
        self.set_record(USAGE, block, vec![bytes.freeze()]).await
    }
}
