//! Disks that join a pool, take another's place or leave it: the steps of weir-pool with the
//! commits that they need in between.
//!
//! Not here: finding and opening disks (the server), the resilver that follows (scan).
//!
//! Invariants:
//! - one such change at a time, and none beside a change of volumes;
//! - a good disk that is replaced leaves when the new one has everything, not before, unless a
//!   person said so.
//!
//! That a disk is to leave once its successor has everything is not stored: after a crash the
//! mirror has one leg more, until somebody detaches it.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::Guid;
use weir_device::Device;
use weir_pool::{Pool, PoolError, Replacement};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::replacement::Succession;

impl Engine {
    /// Adds a disk to the disk or mirror that `beside` is a leg of.
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
        self.join(beside, device, new, Replacement::Beside).await
    }

    /// Lets a disk take the place of the leg `old`; tells how. With `at_once` also a good leg that
    /// the new disk cannot stand beside leaves before that has everything.
    ///
    /// # Durability
    /// As [`Self::attach_leg`].
    ///
    /// # Errors
    /// Also where a good leg would have to leave at once.
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
        if how == Replacement::Beside {
            self.successions.lock().push(Succession { old, new });
        }
        Ok(how)
    }

    /// Whether and how a disk can take the place of the leg `old`; nothing is changed.
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

    /// Takes a leg out of a mirror for good.
    ///
    /// # Durability
    /// It does not belong to the pool any more after any crash once this returns.
    ///
    /// # Errors
    /// No other leg has everything, or the vdev is no mirror.
    #[boxed(?Send)]
    pub async fn detach_leg(&self, guid: Guid) -> Result<(), DatasetError> {
        let _admin = self.admin.lock().await;
        self.pool().check_alive()?;
        let left = self.pool().detach_leg(guid)?;
        self.successions.lock().retain(|pair| pair.old != guid && pair.new != guid);
        self.commit_now().await?;
        Ok(self.pool().forget_leg(left).await?)
    }

    /// Lets go of replaced legs whose successors have everything now.
    pub(crate) async fn settle_successions(&self) {
        let waiting = self.successions.lock().clone();
        for Succession { old, new } in waiting {
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
