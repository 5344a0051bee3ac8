//! Disks that are attached, replaced or detached: weir-pool's steps, with the commits between them.
//!
//! The server finds and opens disks; `scan` runs the resilver that follows.
//!
//! Invariants:
//! - one change of legs runs at a time, never concurrently with a change of volumes;
//! - a good disk that is replaced is detached only once its replacement is resilvered, unless the
//!   administrator requested otherwise.
//!
//! A pending replacement is not stored: after a crash the mirror keeps the replaced leg as an
//! additional leg, until the administrator detaches the replaced leg.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::Guid;
use weir_device::Device;
use weir_pool::{Pool, PoolError, Replacement};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::replacement::PendingReplacement;

impl Engine {
    /// Attaches a disk to the vdev (disk or mirror) that contains the leg `beside`.
    ///
    /// # Durability
    /// The disk belongs to the pool after any crash once this returns, and counts as up to date
    /// once its resilver is done.
    ///
    /// # Errors
    /// The vdev takes no more disks, or the disk is too small or fails.
    #[boxed(?Send)]
    pub async fn attach_leg(
        &self,
        beside: Guid,
        device: Arc<dyn Device>,
        new: Guid,
    ) -> Result<(), DatasetError> {
        let _admin = self.admin.lock().await;
        self.join(beside, device, new, Replacement::Attached).await
    }

    /// Replaces the leg `old` by a disk; returns how the disk joined. With `at_once`, a good leg is
    /// removed before the resilver if that leg cannot stay attached in addition to the new disk.
    ///
    /// # Durability
    /// As [`Self::attach_leg`].
    ///
    /// # Errors
    /// As [`Self::attach_leg`], or a good leg would have to be removed at once.
    #[boxed(?Send)]
    pub async fn replace_leg(
        &self,
        old: Guid,
        device: Arc<dyn Device>,
        new: Guid,
        at_once: bool,
    ) -> Result<Replacement, DatasetError> {
        let _admin = self.admin.lock().await;
        let how = self.check_replacement(old, &*device, at_once)?;
        self.join(old, device, new, how).await?;
        if how == Replacement::Attached {
            self.successions.lock().push(PendingReplacement { old, new });
        }
        Ok(how)
    }

    /// Checks whether and how a disk can replace the leg `old`. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::replace_leg`].
    pub fn check_replacement(
        &self,
        old: Guid,
        device: &dyn Device,
        at_once: bool,
    ) -> Result<Replacement, DatasetError> {
        let pool = self.pool();
        let how = pool.plan_replacement(old)?;
        if how == Replacement::InsteadOfGood && !at_once {
            let disk = device.path().to_owned();
            return Err(PoolError::StillGood { pool: pool.name().to_owned(), disk }.into());
        }
        pool.check_joining(old, how)?;
        pool.check_disk(old, device)?;
        Ok(how)
    }

    pub(crate) async fn join(
        &self,
        beside: Guid,
        device: Arc<dyn Device>,
        new: Guid,
        how: Replacement,
    ) -> Result<(), DatasetError> {
        let pool = self.pool();
        pool.check_alive()?;
        pool.check_joining(beside, how)?;
        pool.ready_disk(beside, &*device).await?;
        let left = pool.announce_leg(beside, how, new, device.path())?;
        self.commit_now().await?;
        pool.install_leg(new, device).await?;
        if let Some(left) = left {
            Pool::erase_left(left).await;
        }
        self.leg_came_back();
        Ok(())
    }

    /// Detaches a leg of a mirror permanently.
    ///
    /// # Durability
    /// The leg does not belong to the pool after any crash once this returns.
    ///
    /// # Errors
    /// No other leg is complete, or the vdev is no mirror.
    #[boxed(?Send)]
    pub async fn detach_leg(&self, guid: Guid) -> Result<(), DatasetError> {
        let _admin = self.admin.lock().await;
        self.pool().check_alive()?;
        let left = self.pool().detach_leg(guid)?;
        self.successions.lock().retain(|pair| pair.old != guid && pair.new != guid);
        self.commit_now().await?;
        Ok(self.pool().remove_leg(left).await?)
    }

    /// Detaches replaced legs whose replacements are resilvered.
    pub(crate) async fn settle_successions(&self) {
        let waiting = self.successions.lock().clone();
        for PendingReplacement { old, new } in waiting {
            if !self.pool().leg_is_up_to_date(new) {
                continue;
            }
            self.successions.lock().retain(|pair| pair.new != new);
            if let Err(error) = self.detach_leg(old).await {
                tracing::error!(%error, "a replaced disk could not be detached");
            }
        }
    }
}
