//! Checks before a disk that was absent joins its open pool again.
//!
//! The labels and the uberblock ring of the disk show whether another server uses the disk, and
//! whether the disk was written without the other disks. A resilver overwrites the disk, so a disk
//! with txgs that the pool lacks joins only with the administrator's `force`.
//!
//! Not here: the same checks of all disks at an import (`import::found`, `topology::claim`).
//!
//! Invariant: no check writes to the disk.

use weir_base::Guid;
use weir_device::Device;
use weir_format::{Label, Owner, Uberblock};

use crate::disks::leg::Leg;
use crate::disks::lineage::{DiskEnd, PoolHistory, has_diverged, newest_change, proves_commit};
use crate::error::PoolError;
use crate::state::pool::Pool;
use crate::topology::claim::{Labelled, watch};

impl Pool {
    /// Refuses a disk that another server has open. Watches the owner slot if that server may be
    /// alive.
    ///
    /// # Errors
    /// `DiskInUse` if another server has the disk open.
    pub(crate) async fn refuse_other_owner(
        &self,
        disk: &dyn Device,
        label: &Label,
        owner: Option<&Owner>,
    ) -> Result<(), PoolError> {
        let (Some(keeper), Some(slot)) = (self.owner.get(), owner) else { return Ok(()) };
        if self.vdevs.guard().is_own(slot) {
            return Ok(());
        }
        let labelled = [Labelled { disk, label, disk_bytes: None, owner }];
        let alive = watch(&labelled, keeper.identity, &*self.clock).await;
        alive.map_or(Ok(()), |Owner { host, pid, unix_ms, .. }| {
            let (pool, disk) = (self.name().to_owned(), disk.path().to_owned());
            let seconds = self.clock.unix_ms().saturating_sub(unix_ms) / 1000;
            Err(PoolError::DiskInUse { pool, disk, host, pid, seconds })
        })
    }

    /// Refuses a disk with committed txgs that the pool lacks.
    ///
    /// # Errors
    /// `DivergedDisk` if the disk has such txgs.
    pub(crate) fn check_divergence(
        &self,
        leg: &Leg,
        uberblocks: &[Uberblock],
        owner: Option<&Owner>,
        path: &str,
    ) -> Result<(), PoolError> {
        let Some(newest) = newest_change(uberblocks) else { return Ok(()) };
        let current_legs = self.vdevs.legs().filter(|leg| leg.is_whole());
        let current_legs: Vec<Guid> = current_legs.map(|leg| leg.guid).collect();
        let committed = self.committed_txg();
        let pool =
            PoolHistory { lineage: &self.lineage, newest: committed, current_legs: &current_legs };
        let disk = DiskEnd {
            newest,
            is_committed: owner.is_some_and(|owner| proves_commit(owner, newest)),
            stale_after: Some(leg.stale_after().unwrap_or(committed)),
        };
        if !has_diverged(&disk, &pool) {
            return Ok(());
        }
        let (pool, disk) = (self.name().to_owned(), path.to_owned());
        Err(PoolError::DivergedDisk { pool, disk, own: newest.txg })
    }
}
