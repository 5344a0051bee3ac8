//! Pool ownership: the owner slot in the labels, and the activity check before an import claims a
//! pool (becomes its owner) or takes a disk.
//!
//! Locks between processes of one machine are in weir-device, the slot's encoding in weir-format.
//!
//! Invariants (I24, docs/decisions/0016):
//! - an owner rewrites its slot every [`OWNER_HEARTBEAT`], even while the pool is idle;
//! - an import claims a pool at once only if the pool's last owner has certainly ended ([`watch`]);
//!   if the owner slot changes, only a forced import claims the pool ([`settle`]);
//! - the txg in the slot is durable: an import that finds no uberblock of that txg refuses the pool
//!   (`import::found`);
//! - an owner that finds another import epoch in its slot suspends the pool (`check_owner`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use weir_base::limits::{OWNER_HEARTBEAT, OWNER_POLL_INTERVAL, OWNER_WATCH, TAKEOVER_WAIT};
use weir_base::{Clock, Guid, Txg};
use weir_device::Device;
use weir_format::layout::{OWNER_OFFSET, SLOT_BYTES};
use weir_format::{Label, Owner};

use crate::disks::labels::{DiskLabels, read_labels};
use crate::disks::leg::Leg;
use crate::disks::owner_guard::watched;
use crate::disks::owner_slot::{read_slot, write_slot};
use crate::error::PoolError;
use crate::state::claim::{Identity, Keeper, OPEN};
use crate::state::pool::Pool;

/// A disk of a pool, with its label.
pub(crate) struct Labelled<'a> {
    pub(crate) disk: &'a dyn Device,
    pub(crate) label: &'a Label,
    /// Bytes of the disk that the pool uses; `None` if the import must write no owner slot to the
    /// disk.
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) owner: Option<&'a Owner>,
}

/// Repeatedly reads, for [`OWNER_WATCH`], the slots of owners that may be alive. Returns the first
/// owner whose slot changed. Does not wait for an owner that closed the pool, or for a process of
/// this machine that has ended or ran before the last boot.
pub(crate) async fn watch(
    disks: &[Labelled<'_>],
    identity: &Identity,
    clock: &dyn Clock,
) -> Option<Owner> {
    let suspects: Vec<_> = disks
        .iter()
        .filter_map(|disk| Some((disk, disk.owner.filter(|owner| !identity.knows_gone(owner))?)))
        .collect();
    if let Some((_, owner)) = suspects.first() {
        let (host, pid) = (&owner.host, owner.pid);
        tracing::warn!(host, pid, "the pool was not closed: checking the heartbeat of its owner");
    }
    if suspects.is_empty() {
        return None;
    }
    let end = clock.monotonic() + OWNER_WATCH;
    while clock.monotonic() < end {
        clock.sleep(OWNER_POLL_INTERVAL).await;
        let reads = suspects.iter().map(|(disk, before)| async move {
            let read = pin!(read_slot(disk.disk));
            match select(read, clock.sleep(OWNER_HEARTBEAT)).await {
                Either::Left((now, _)) => now.filter(|now| now != *before && !now.is_closed),
                Either::Right(_) => None,
            }
        });
        if let Some(alive) = join_all(reads).await.into_iter().flatten().next() {
            return Some(alive);
        }
    }
    None
}

fn in_use(pool: &str, owner: &Owner, clock: &dyn Clock) -> PoolError {
    let seconds = clock.unix_ms().saturating_sub(owner.unix_ms) / 1000;
    PoolError::InUse { pool: pool.to_owned(), host: owner.host.clone(), pid: owner.pid, seconds }
}

/// Checks that no other process has the pool on these disks open. With `force`, overwrites the
/// owner slots of a live owner, which makes that owner stop, waits [`TAKEOVER_WAIT`], and returns
/// false: the caller must then read the labels again.
///
/// # Errors
/// `InUse` without `force`; nothing was written.
pub(crate) async fn settle(
    disks: &[Labelled<'_>],
    (identity, import_epoch): (&Identity, Guid),
    force: bool,
    clock: &dyn Clock,
) -> Result<bool, PoolError> {
    let Some(alive) = watch(disks, identity, clock).await else { return Ok(true) };
    let label = disks[0].label;
    let error = in_use(&label.name, &alive, clock);
    if !force {
        return Err(error);
    }
    tracing::error!(%error, "taking over the pool from its owner by force");
    let slot = identity.slot(label.pool, import_epoch, 1, clock);
    let writes = disks.iter().map(|disk| {
        let slot = &slot;
        async move {
            let Some(bytes) = disk.disk_bytes else { return };
            let write = pin!(write_slot(disk.disk, slot, bytes));
            if let Either::Left((Err(error), _)) = select(write, clock.sleep(OWNER_HEARTBEAT)).await
            {
                tracing::warn!(%error, "owner slot not written");
            }
        }
    });
    join_all(writes).await;
    let end = clock.monotonic() + TAKEOVER_WAIT;
    while clock.monotonic() < end {
        clock.sleep(OWNER_POLL_INTERVAL).await;
        // Keep reading from the disks, because an idle disk would count as unresponsive.
        let reads = disks.iter().map(|disk| async move {
            let read = pin!(read_slot(disk.disk));
            drop(select(read, clock.sleep(OWNER_HEARTBEAT)).await);
        });
        join_all(reads).await;
    }
    Ok(false)
}

/// Refuses a disk of a pool that another process has open. The administrator's `force` does not
/// override the refusal, because a live owner can release the disk.
///
/// # Errors
/// `InUse`, or the disk fails.
#[boxed(?Send)]
pub async fn refuse_owned(
    disk: Arc<dyn Device>,
    identity: &Identity,
    clock: &Arc<dyn Clock>,
) -> Result<(), PoolError> {
    let disk = watched(disk, clock);
    let Ok(DiskLabels { label, owner, .. }) = read_labels(&*disk).await.map_err(Arc::new)? else {
        return Ok(());
    };
    let owner = owner.as_ref();
    let labelled = [Labelled { disk: &*disk, label: &label, disk_bytes: None, owner }];
    match watch(&labelled, identity, &**clock).await {
        Some(alive) => Err(in_use(&label.name, &alive, &**clock)),
        None => Ok(()),
    }
}

impl Pool {
    /// Writes the owner slot of this import epoch to every leg in use. `before`: the import epochs
    /// that the owner slots on the disks name now.
    #[boxed(?Send)]
    pub async fn announce_owner(&self, identity: &'static Identity, before: &[Guid]) {
        let import_epoch = self.lineage[0].id;
        let keeper = Keeper { identity, import_epoch, beat: AtomicU64::new(0) };
        if self.owner.set(keeper).is_ok() {
            OPEN.lock().push(import_epoch);
            // An earlier epoch counts as this owner: a slot that could not be overwritten still
            // names it.
            let earlier = self.lineage.iter().map(|import_epoch| import_epoch.id);
            let import_epochs = earlier.chain(before.iter().copied()).collect();
            self.vdevs.guard().start(self.guid(), import_epochs);
        }
        let legs = self.vdevs.iter().flat_map(|vdev| &vdev.legs);
        join_all(legs.map(|leg| self.write_beat(leg, false))).await;
    }

    /// Suspends the pool if an owner slot on a disk names another import epoch. The owner calls
    /// this function with each heartbeat and twice in each commit. Before a write after a pause,
    /// `owner_guard` reads the slot.
    ///
    /// # Errors
    /// `TakenOver` if another server took the pool.
    pub(crate) async fn check_owner(&self) -> Result<(), PoolError> {
        if self.owner.get().is_some() {
            self.vdevs.guard().look(self.read_any_slot()).await;
        }
        self.check_alive()
    }

    async fn read_any_slot(&self) -> Option<Owner> {
        for vdev in self.vdevs.with_segments() {
            let read = vdev.read_any(OWNER_OFFSET, SLOT_BYTES, |slot| Owner::decode(&slot).ok());
            if let Ok(Some(found)) = read.await {
                return Some(found);
            }
        }
        None
    }

    /// Error that names the server that took the pool over; `None` until an owner slot named such a
    /// server.
    pub(crate) fn taken_over(&self) -> Option<PoolError> {
        let Owner { host, pid, .. } = self.vdevs.guard().other()?.clone();
        Some(PoolError::TakenOver { pool: self.name().to_owned(), host, pid })
    }

    /// Writes the owner slot to a disk that is about to become a leg. The disk's slot may still
    /// name another owner.
    pub(crate) async fn mark_joining(
        &self,
        disk: &dyn Device,
        disk_bytes: u64,
    ) -> Result<(), PoolError> {
        let Some(keeper) = self.owner.get() else { return Ok(()) };
        // The slot names no txg, because the disk lacks the txgs that this epoch has committed.
        let slot = Owner { txg: Txg(0), ..self.slot(keeper) };
        write_slot(disk, &slot, disk_bytes).await.map_err(Arc::new)?;
        Ok(())
    }

    fn slot(&self, keeper: &Keeper) -> Owner {
        let beat = keeper.beat.load(Ordering::Acquire);
        let slot = keeper.identity.slot(self.guid(), keeper.import_epoch, beat, &*self.clock);
        // The first txg of an import epoch references the same trees as the txg before. Losing that
        // first txg would lose no data, so the slot does not name that first txg.
        let txg = self.committed_txg();
        Owner { txg: if txg > self.lineage[0].first { txg } else { Txg(0) }, ..slot }
    }

    async fn write_beat(&self, leg: &Leg, is_closed: bool) {
        let (Some(keeper), Some(device)) = (self.owner.get(), leg.usable()) else { return };
        let Ok((vdev, _)) = self.leg(leg.guid) else { return };
        let slot = Owner { is_closed, ..self.slot(keeper) };
        if let Err(error) = write_slot(&*device, &slot, vdev.disk_bytes()).await {
            tracing::debug!(disk = %leg.path(), %error, "owner slot not written");
        }
    }

    /// Rewrites the owner slot every [`OWNER_HEARTBEAT`] until the pool is suspended. Skips legs
    /// whose last rewrite is still in flight. A rewrite that fails or is slow faults no leg and
    /// does not suspend the pool.
    pub async fn keep_owner<S: Future<Output = ()>>(&self, sleep: impl Fn(Duration) -> S) {
        let Some(keeper) = self.owner.get() else { return };
        let mut writes = FuturesUnordered::new();
        let mut busy: Vec<Guid> = Vec::new();
        while self.check_alive().is_ok() {
            let mut timer = pin!(sleep(OWNER_HEARTBEAT));
            loop {
                if writes.is_empty() {
                    timer.as_mut().await;
                    break;
                }
                match select(writes.next(), timer.as_mut()).await {
                    Either::Left((done, _)) => busy.retain(|leg| Some(*leg) != done),
                    Either::Right(_) => break,
                }
            }
            // A disk that hangs must not stop the heartbeats on the other disks.
            let check = pin!(self.check_owner());
            if let Either::Left((Err(_), _)) = select(check, pin!(sleep(OWNER_HEARTBEAT))).await {
                break;
            }
            self.check_lengths();
            keeper.beat.fetch_add(1, Ordering::AcqRel);
            for leg in self.vdevs.iter().flat_map(|vdev| &vdev.legs) {
                if leg.usable().is_some() && !busy.contains(&leg.guid) {
                    busy.push(leg.guid);
                    writes.push(async move {
                        self.write_beat(leg, false).await;
                        leg.guid
                    });
                }
            }
        }
    }

    /// Ends the ownership: the owner slot of this import epoch counts as abandoned, even on disks
    /// that still have it.
    pub(crate) fn end_owner(&self) {
        if let Some(keeper) = self.owner.get() {
            keeper.end();
        }
    }

    /// Marks the pool as closed in the labels; called after the last commit.
    #[boxed(?Send)]
    pub async fn release_owner(&self) {
        if self.owner.get().is_none() || self.check_owner().await.is_err() {
            return;
        }
        if self.check_alive().is_ok() {
            let legs = self.vdevs.iter().flat_map(|vdev| &vdev.legs);
            join_all(legs.map(|leg| self.write_beat(leg, true))).await;
            if let Err(error) = self.flush_all().await {
                tracing::warn!(%error, "the owner slot may not be durable");
            }
        }
    }
}
