//! Taking a leg out of use and back into it, and changing which legs a pool has, by a person's
//! word.
//!
//! Not here: finding and opening the disk (the server), the commits between the steps of a change
//! (weir-dataset), copying what a leg misses (scan).
//!
//! Invariants:
//! - only a leg that others can stand in for is taken out;
//! - one that comes back or is new is stale before anybody can read from it;
//! - no label names a new leg before an uberblock calls it stale, and an uberblock calls a leg that
//!   left stale for as long as some label may name it: whichever label and uberblock a crash
//!   leaves, no leg is taken for better than it is. An opening that was not told of such a leg goes
//!   on calling it stale: the label that names it may be on a disk that is away.
//!
//! Crash safety: of offline and online nothing is written here. A leg that is taken out is noted as
//! stale by the next commit, and one that comes back is stale from the first moment; an import
//! after a crash finds what the last uberblock said, and what a leg missed since that uberblock was
//! never committed.
//! Being offline is not stored: an import uses every disk it finds, and resilvers it.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::DISK_SILENT;
use weir_base::{Guid, Txg};
use weir_device::Device;
use weir_format::layout::{DISKS_MAX, MIRROR_LEGS_MAX};
use weir_format::{Label, StaleLeg, VdevRole};

use crate::disks::labels::{
    DiskLabels, erase_labels, find_damaged_slots, forget_disk, read_labels, repair_config,
    write_labels,
};
use crate::disks::layout::zero_log;
use crate::disks::leg::Leg;
use crate::disks::leg_state::LegState;
use crate::disks::lineage::{RingEnd, ring_end};
use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::state::pool::Pool;

/// Legs that left which uberblocks go on calling stale, at most.
const LEFT_LEGS_MAX: usize = 32;

/// By how much the first labels of an opening are newer than those that were found: a disk that was
/// away may have later ones, of changes that a crash cut short. Each change commits at least once,
/// so there are few beyond the txg they were made in.
const OPENING_LEAD: u64 = 16;

/// How a disk comes in for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Both are legs until the new one has everything.
    Beside,
    /// In its place at once; it was not in use, or lacked something.
    Instead,
    /// In its place at once, and that one was good: the vdev can do with less until the new one has
    /// everything.
    InsteadOfGood,
}

/// A leg that left, with its disk if that answers.
pub struct DetachedLeg {
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) disk_bytes: u64,
}

impl Pool {
    /// Guid, path and state of the leg that `disk` names: by path, by its last part, or by guid.
    ///
    /// # Errors
    /// `NoSuchDisk`.
    pub fn find_leg(&self, disk: &str) -> Result<(Guid, String, LegState), PoolError> {
        let named = |leg: &&Leg| leg.path() == disk || leg.guid.to_string() == disk;
        let ends = |leg: &&Leg| leg.path().rsplit('/').next() == Some(disk);
        let all = || self.vdevs.legs();
        let mut by_name = all().filter(ends);
        let found = all().find(named).or_else(|| match (by_name.next(), by_name.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        });
        let none = || PoolError::NoSuchDisk { pool: self.name().to_owned(), disk: disk.to_owned() };
        found.map(|leg| (leg.guid, leg.path().to_owned(), leg.state())).ok_or_else(none)
    }

    pub(crate) fn leg(&self, guid: Guid) -> Result<(&Vdev, &Leg), PoolError> {
        let legs = |vdev| move |leg| (vdev, leg);
        let mut all = self.vdevs.iter().flat_map(|vdev| vdev.legs.iter().map(legs(vdev)));
        all.find(|(_, leg)| leg.guid == guid).ok_or_else(|| PoolError::NoSuchDisk {
            pool: self.name().to_owned(),
            disk: guid.to_string(),
        })
    }

    /// Takes a leg out of use. Returns whether it was in use or might have come back by itself.
    ///
    /// # Errors
    /// `OnlyCopy`: the other legs of its vdev do not hold everything.
    pub fn take_leg_offline(&self, guid: Guid) -> Result<bool, PoolError> {
        let (vdev, leg) = self.leg(guid)?;
        if leg.is_offline() {
            return Ok(false);
        }
        // A pool can do without a spare, and without a log vdev while it is open.
        if vdev.role().holds_segments() {
            self.check_dispensable(vdev, leg)?;
        }
        let silent = leg.silent().is_some_and(|silent| silent >= DISK_SILENT);
        leg.set_offline();
        if let Some(device) = leg.take_device() {
            if let Some(watch) = device.watch().filter(|_| silent) {
                // Who waits for it must not wait for ever.
                watch.let_go();
            }
            self.depart(&device);
        }
        tracing::warn!(disk = %leg.path(), "disk taken offline");
        Ok(true)
    }

    /// Lets go of a leg's disk, so that it can be opened anew. Returns false if it is in use.
    pub fn let_go_of_leg(&self, guid: Guid) -> Result<bool, PoolError> {
        let (_, leg) = self.leg(guid)?;
        if leg.usable().is_some() {
            return Ok(false);
        }
        if let Some(device) = leg.take_device() {
            self.depart(&device);
        }
        Ok(true)
    }

    /// Takes a leg into use again, on a disk whose label says that it is that leg, and brings its
    /// labels up to date; a resilver is wanted from here on. All labels name the path that the disk
    /// has now.
    ///
    /// # Errors
    /// The disk is another one, or the leg left meanwhile (`NoSuchDisk`); nothing was changed.
    #[boxed(?Send)]
    pub async fn bring_leg_back(
        &self,
        guid: Guid,
        device: Arc<dyn Device>,
    ) -> Result<(), PoolError> {
        let path = device.path().to_owned();
        let labels = read_labels(&*device).await.map_err(Arc::new)?;
        let DiskLabels { label, uberblocks, .. } = match labels {
            Ok(labels) => labels,
            Err(error) => {
                let why = format!("{path} is not the disk it was: {error}");
                return Err(PoolError::Layout { why });
            }
        };
        if label.pool != self.label.pool || label.disk != guid {
            let why = format!("{path} is another disk now: its label is not that of this leg");
            return Err(PoolError::Layout { why });
        }
        // Its labels may be of before a change that it missed; a scan must not meet them and count
        // them as damage.
        let _labels = self.labels.lock().await;
        // A leg that was being replaced leaves as soon as its successor has everything.
        let left = |_| PoolError::NoSuchDisk { pool: self.name().to_owned(), disk: path };
        let (vdev, leg) = self.leg(guid).map_err(left)?;
        self.check_disk(guid, &*device)?;
        assert!(leg.usable().is_none(), "the caller let go of it");
        let was = leg.path();
        // An old copy of the disk misses more than the leg did when it went out of use.
        let committed = self.committed_txg();
        let own = ring_end(guid, &uberblocks, &self.lineage, committed).unwrap_or(RingEnd::NONE);
        self.mark_joining(&*device, vdev.disk_bytes()).await?;
        leg.set_stale_since(own.complete);
        let moved = leg.path() != device.path();
        leg.bring_back(self.vdevs.guard().guard(device), committed);
        if moved {
            tracing::info!(disk = %leg.path(), was, "disk found under another path");
            self.next_config();
        }
        if vdev.role() == VdevRole::Spare {
            // Nothing was ever written to it.
            leg.take_as_it_is();
        }
        self.write_changed_labels().await;
        tracing::info!(disk = %leg.path(), "disk in use again");
        Ok(())
    }

    /// Sets the error counts of one leg or of all to zero.
    pub fn clear_leg_errors(&self, guid: Option<Guid>) {
        let legs = self.vdevs.legs();
        legs.filter(|leg| guid.is_none_or(|guid| leg.guid == guid)).for_each(Leg::clear_errors);
    }

    fn check_dispensable(&self, vdev: &Vdev, leg: &Leg) -> Result<(), PoolError> {
        let others = vdev.legs.iter().filter(|other| !std::ptr::eq(*other, leg));
        if others.filter(|other| other.is_up_to_date()).count() < vdev.legs_needed() {
            let (pool, disk) = (self.name().to_owned(), leg.path().to_owned());
            let (vdev, needs) = (vdev.name(), vdev.legs_needed());
            return Err(PoolError::OnlyCopy { pool, disk, vdev, needs });
        }
        Ok(())
    }

    /// What is done about the leg `old` when a disk is to replace it.
    ///
    /// # Errors
    /// `OnlyCopy` where the disk cannot stand beside `old` and `old` cannot be done without.
    pub fn plan_replacement(&self, old: Guid) -> Result<Replacement, PoolError> {
        let (vdev, leg) = self.leg(old)?;
        let room = vdev.mirrors() && vdev.legs.len() < MIRROR_LEGS_MAX;
        if leg.usable().is_some() && room {
            return Ok(Replacement::Beside);
        }
        self.check_dispensable(vdev, leg)?;
        let still_good = leg.is_up_to_date();
        Ok(if still_good { Replacement::InsteadOfGood } else { Replacement::Instead })
    }

    /// Step 1 of a new leg: checks that the disk can be one and readies its log region; the pool
    /// does not know of it yet. `beside`: a leg of the vdev it is for.
    ///
    /// # Errors
    /// The disk is too small, or fails.
    #[boxed(?Send)]
    pub async fn ready_disk(&self, beside: Guid, device: &dyn Device) -> Result<(), PoolError> {
        self.check_disk(beside, device)?;
        let (vdev, _) = self.leg(beside)?;
        forget_disk(device, vdev.disk_bytes()).await?;
        zero_log(device, self.label.log_bytes).await
    }

    /// Whether a disk is large enough for the vdev of a leg.
    ///
    /// # Errors
    /// `TooSmall`.
    pub fn check_disk(&self, beside: Guid, device: &dyn Device) -> Result<(), PoolError> {
        let (vdev, _) = self.leg(beside)?;
        let (path, bytes) = (device.path().to_owned(), device.geometry().len_bytes);
        if bytes < vdev.disk_bytes() {
            return Err(PoolError::TooSmall { path, bytes, min: vdev.disk_bytes() });
        }
        Ok(())
    }

    /// Whether a vdev takes a new leg like this.
    ///
    /// # Errors
    /// `Layout` where it takes no more, `OnlyCopy` where the leg to be replaced is needed.
    pub fn check_joining(&self, beside: Guid, how: Replacement) -> Result<(), PoolError> {
        let (vdev, old) = self.leg(beside)?;
        match how {
            _ if vdev.role() == VdevRole::Spare => {
                let why = "a spare is not attached to or replaced: remove it, add another";
                Err(PoolError::Layout { why: why.to_owned() })
            }
            Replacement::Beside if !vdev.mirrors() => {
                let why = "a disk is attached to a disk or a mirror; raidz has a fixed width";
                Err(PoolError::Layout { why: why.to_owned() })
            }
            Replacement::Beside if vdev.legs.len() >= MIRROR_LEGS_MAX => {
                let why = format!("a mirror has at most {MIRROR_LEGS_MAX} disks");
                Err(PoolError::Layout { why })
            }
            Replacement::Beside if self.vdevs.legs().count() >= DISKS_MAX => {
                let why = format!("a pool has at most {DISKS_MAX} disks");
                Err(PoolError::Layout { why })
            }
            Replacement::Beside => Ok(()),
            Replacement::Instead | Replacement::InsteadOfGood => self.check_dispensable(vdev, old),
        }
    }

    /// Whether a leg is in use and misses nothing.
    pub fn leg_is_up_to_date(&self, guid: Guid) -> bool {
        self.leg(guid).is_ok_and(|(_, leg)| leg.is_up_to_date())
    }

    /// Step 2: the leg is part of the vdev, without its disk, and misses everything. A commit must
    /// follow before step 3. Returns the leg whose place it took.
    ///
    /// # Errors
    /// As [`Self::check_joining`].
    pub fn announce_leg(
        &self,
        beside: Guid,
        how: Replacement,
        new: Guid,
        path: &str,
    ) -> Result<Option<DetachedLeg>, PoolError> {
        let (vdev, old) = self.leg(beside)?;
        let leg = Leg::new(new, path.to_owned(), None);
        leg.set_stale(Txg(0));
        self.check_joining(beside, how)?;
        match how {
            Replacement::Beside => {
                vdev.legs.push(leg);
                Ok(None)
            }
            Replacement::Instead | Replacement::InsteadOfGood => {
                let left = self.note_leaving(vdev, old);
                vdev.legs.replace(old, leg);
                Ok(Some(left))
            }
        }
    }

    /// Step 3: the disk gets its label, all labels name the leg, and it is in use: a resilver is
    /// wanted from here on.
    ///
    /// # Errors
    /// The disk fails: the leg stays without one, and may be replaced or detached.
    #[boxed(?Send)]
    pub async fn install_leg(&self, new: Guid, device: Arc<dyn Device>) -> Result<(), PoolError> {
        let (vdev, leg) = self.leg(new)?;
        let _labels = self.labels.lock().await;
        let label = Label { disk: new, ..self.next_config() };
        write_labels(&*device, &label).await.map_err(Arc::new)?;
        self.write_configs().await?;
        self.mark_joining(&*device, vdev.disk_bytes()).await?;
        vdev.raise_sector_bytes(device.geometry().sector_bytes);
        leg.bring_back(self.vdevs.guard().guard(device), self.committed_txg());
        tracing::info!(disk = %leg.path(), "disk in use");
        Ok(())
    }

    /// Step 1 of detaching: the leg is not used any more. A commit must follow before step 2.
    ///
    /// # Errors
    /// `OnlyCopy`; `Layout` where the vdev is no mirror.
    pub fn detach_leg(&self, guid: Guid) -> Result<DetachedLeg, PoolError> {
        let (vdev, leg) = self.leg(guid)?;
        if !vdev.mirrors() || vdev.legs.len() < 2 {
            let why = "only a disk of a mirror can be detached; others are replaced".to_owned();
            return Err(PoolError::Layout { why });
        }
        self.check_dispensable(vdev, leg)?;
        let left = self.note_leaving(vdev, leg);
        vdev.legs.remove(leg);
        tracing::warn!(disk = %leg.path(), "disk detached");
        Ok(left)
    }

    /// Step 2: no label names the leg any more, its own least of all.
    #[boxed(?Send)]
    pub async fn forget_leg(&self, left: DetachedLeg) -> Result<(), PoolError> {
        let _labels = self.labels.lock().await;
        self.next_config();
        self.write_configs().await?;
        Self::erase_left(left).await;
        Ok(())
    }

    /// Erases the label of a disk that left, if it answers: other labels do not name it any more.
    #[boxed(?Send)]
    pub async fn erase_left(left: DetachedLeg) {
        if let Some(device) = left.device
            && let Err(error) = erase_labels(&*device, left.disk_bytes).await
        {
            tracing::warn!(%error, "the label of a disk that left the pool could not be erased");
        }
    }

    /// Takes a leg out of use for good; the next uberblocks call it stale.
    fn note_leaving(&self, vdev: &Vdev, leg: &Leg) -> DetachedLeg {
        let answers = leg.silent().is_none_or(|silent| silent < DISK_SILENT);
        let device = leg.usable().filter(|_| answers);
        let after = leg.stale_after().unwrap_or_else(|| self.committed_txg());
        let mut left = self.left.lock();
        left.push(StaleLeg { guid: leg.guid, after });
        let old = left.len().saturating_sub(LEFT_LEGS_MAX);
        left.drain(..old);
        drop(left);
        leg.set_offline();
        drop(leg.take_device());
        DetachedLeg { device, disk_bytes: vdev.disk_bytes() }
    }

    /// Labels written from here on have the legs as they are now, and are newer than all before.
    pub(crate) fn next_config(&self) -> Label {
        let mut config = self.config.lock();
        let lead = if config.txg == self.label.txg { OPENING_LEAD } else { 1 };
        config.txg = self.committed_txg().max(Txg(config.txg.0 + lead));
        config.vdevs = self.vdevs.all().map(Vdev::config).collect();
        config.clone()
    }

    /// Brings the labels of every leg in use up to date.
    ///
    /// # Durability
    /// Durable on every leg in use when this returns.
    pub(crate) async fn write_configs(&self) -> Result<(), PoolError> {
        self.write_changed_labels().await;
        self.flush_all().await
    }

    /// Brings labels up to date that a crash left as they were before a change, or that are
    /// damaged. A disk that fails meanwhile is faulted.
    #[boxed(?Send)]
    pub async fn refresh_labels(&self) {
        let _labels = self.labels.lock().await;
        for (disk, _) in self.write_changed_labels().await {
            tracing::warn!(disk, "label rewritten: it was old or damaged");
        }
    }

    /// Looks for damaged ring slots on every leg in use; the next commit zeroes them.
    pub(crate) async fn scan_rings(&self) {
        for vdev in self.vdevs.in_service() {
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let seen = self.committed_txg();
                let found = find_damaged_slots(&*device, vdev.disk_bytes()).await;
                self.note_damaged_slots(found.into_iter().map(|slot| (leg.guid, slot)), seen);
            }
        }
    }

    /// Rewrites config copies, on every leg in use, that are not as they must be; tells on which
    /// disks, and how many bytes. A leg that fails is faulted. The caller holds `labels`.
    ///
    /// # Durability
    /// None before the next flush.
    pub(crate) async fn write_changed_labels(&self) -> Vec<(String, u64)> {
        let config = self.config.lock().clone();
        let mut written = Vec::new();
        for vdev in self.vdevs.iter() {
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let label = Label { disk: leg.guid, ..config.clone() };
                match repair_config(&*device, &label, vdev.disk_bytes()).await {
                    Ok(0) => {}
                    Ok(bytes) => written.push((leg.path().to_owned(), bytes)),
                    Err(error) => leg.fault(&error),
                }
            }
        }
        written
    }
}
