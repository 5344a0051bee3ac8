//! Addition and removal of vdevs, larger disks, and spares: weir-pool's steps, with the commits and
//! the space that they need.
//!
//! The server finds and opens disks; weir-pool's cleaner moves data.
//!
//! Invariants:
//! - one change of the pool's topology runs at a time, never concurrently with a change of volumes;
//! - the evacuation of a vdev begins only if the other vdevs have space for all reservations and
//!   all dirty data;
//! - an evacuating vdev is emptied in the background, also after an import, and then removed.

use std::time::Duration;

use async_recursion::async_recursion as boxed;
use weir_base::Guid;
use weir_base::limits::SCAN_BUSY_PAUSES;
use weir_format::VdevRole;
use weir_pool::{Evacuation, PoolError, VdevSpec};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::timer::Timer;

/// Maximum number of commits to move the intent log to or from a vdev. Normally two suffice: the
/// first commit stores the changes that were logged since the move began, the second commit moves
/// the log.
const LOG_MOVES_IN_TXGS: usize = 4;
/// Pause between commits that only wait for freed segments or for space.
const EVACUATION_WAIT: Duration = Duration::from_millis(100);

impl Engine {
    /// Adds a vdev on open disks; `guid` draws random identities. Returns the vdev's number.
    ///
    /// # Durability
    /// The vdev belongs to the pool after any crash once this returns.
    ///
    /// # Errors
    /// The vdev cannot be part of this pool, or a new disk fails. The pool is then unchanged.
    #[boxed(?Send)]
    pub async fn add_vdev(
        &self,
        spec: &VdevSpec,
        guid: &mut (dyn FnMut() -> Guid + Send),
    ) -> Result<u16, DatasetError> {
        let _admin = self.admin.lock().await;
        self.pool().check_alive()?;
        let vdev = self.pool().add_vdev(spec, guid).await?;
        // The commits write an uberblock to the new disks, move the log to a new log vdev, and
        // update the space available to writers. The log moves with the first commit after which no
        // batch on the old vdev is needed.
        for _ in 0..LOG_MOVES_IN_TXGS {
            self.commit_now().await?;
            if spec.role != VdevRole::Log || self.pool().log_is_on(vdev) {
                break;
            }
        }
        Ok(vdev)
    }

    /// Removes a vdev. A spare or log vdev is removed before this returns, a data vdev in the
    /// background. A repeated call retries the segments that could not be moved.
    ///
    /// # Durability
    /// The removal continues after any crash once this returns.
    ///
    /// # Errors
    /// The other vdevs have no space for the vdev's data, or the vdev is the last one.
    #[boxed(?Send)]
    pub async fn remove_vdev(&self, vdev: u16) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        let pool = self.pool();
        pool.check_alive()?;
        match pool.vdev_role(vdev) {
            VdevRole::Removed => return Ok(Outcome::Unchanged),
            VdevRole::Evacuating => {
                pool.retry_evacuation(vdev);
                self.scans.wake.notify_one();
                return Ok(Outcome::Unchanged);
            }
            VdevRole::Spare => pool.finish_removal(vdev).await?,
            VdevRole::Log => {
                pool.retire_log(vdev);
                let mut moves = 0;
                while !self.leave_if_empty(vdev).await? {
                    if moves == LOG_MOVES_IN_TXGS {
                        pool.keep_log(vdev);
                        let why = "the intent log could not be moved; try again";
                        return Err(PoolError::Scan { pool: pool.name().to_owned(), why }.into());
                    }
                    moves += 1;
                    self.commit_now().await?;
                }
            }
            VdevRole::Data => self.begin_evacuation(vdev).await?,
        }
        Ok(Outcome::Changed)
    }

    /// Removes a vdev from the pool if the vdev is empty. Returns true if the vdev was removed.
    async fn leave_if_empty(&self, vdev: u16) -> Result<bool, DatasetError> {
        // Wait for a running commit: this commit may be moving the log to this vdev, and segments
        // freed by its write-out are free only once its txg is committed.
        let _committer = self.core.committer.lock().await;
        let leaves = self.pool().can_leave(vdev);
        if leaves {
            self.pool().finish_removal(vdev).await?;
        }
        Ok(leaves)
    }

    async fn begin_evacuation(&self, vdev: u16) -> Result<(), DatasetError> {
        let pool = self.pool();
        self.commit_now().await?;
        pool.check_removable(vdev)?;
        pool.set_vdev_open(vdev, false);
        self.core.measure_space();
        // Writes that were accepted in the meantime may rely on the space of this vdev: check that
        // the other vdevs have space for these writes.
        if let Err(unreserved_bytes) = self.core.reservations_fit() {
            pool.set_vdev_open(vdev, true);
            self.core.measure_space();
            return Err(pool.no_room_elsewhere(vdev, unreserved_bytes).into());
        }
        pool.begin_removal(vdev).await?;
        self.scans.wake.notify_one();
        Ok(())
    }

    /// Cancels the removal of a vdev. The vdev keeps the data that is still on it.
    #[boxed(?Send)]
    pub async fn cancel_removal(&self, vdev: u16) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.pool().check_alive()?;
        let stays = self.pool().cancel_removal(vdev).await?;
        self.core.measure_space();
        Ok(if stays { Outcome::Changed } else { Outcome::Unchanged })
    }

    /// Lets every vdev use the full size of its disks. Returns the bytes that the pool gains for
    /// data.
    #[boxed(?Send)]
    pub async fn expand(&self) -> Result<u64, DatasetError> {
        let _admin = self.admin.lock().await;
        self.pool().check_alive()?;
        let gained = self.pool().expand().await?;
        if gained > 0 {
            self.commit_now().await?;
        }
        Ok(gained)
    }

    /// Replaces a leg that is out of use by a spare, which gets the identity `new`. False if no
    /// spare fits.
    ///
    /// # Errors
    /// The spare fails, or the vdev cannot take the spare.
    #[boxed(?Send)]
    pub async fn use_spare(&self, old: Guid, new: Guid) -> Result<bool, DatasetError> {
        let _admin = self.admin.lock().await;
        let pool = self.pool();
        pool.check_alive()?;
        let how = pool.plan_replacement(old)?;
        let Some(spare) = pool.spare_for(old) else { return Ok(false) };
        let Some(device) = pool.take_spare(spare) else { return Ok(false) };
        let joined = self.join(old, std::sync::Arc::clone(&device), new, how).await;
        if joined.is_err() {
            pool.give_spare_back(spare, device);
        }
        joined.map(|()| true)
    }

    /// Makes one step of the evacuation. Returns false if there is nothing to do.
    pub(crate) async fn evacuate(&self, sleep: &Timer<'_>) -> Result<bool, DatasetError> {
        let before = self.pool().evacuations();
        if !before.iter().any(|left| left.segments > left.stuck || left.segments == 0) {
            return Ok(false);
        }
        let (clock, activity) = (self.pool().clock(), self.activity());
        let began = clock.monotonic();
        {
            let _admin = self.admin.lock().await;
            for Evacuation { vdev, .. } in self.pool().evacuations() {
                self.leave_if_empty(vdev).await?;
            }
        }
        self.commit_now().await?;
        let took = clock.monotonic().saturating_sub(began);
        if self.pool().evacuations() == before {
            sleep(EVACUATION_WAIT).await;
        } else if self.activity() == activity {
            sleep(Duration::ZERO).await;
        } else {
            sleep(took * SCAN_BUSY_PAUSES).await;
        }
        Ok(true)
    }
}
