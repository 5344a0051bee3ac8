//! Taking legs offline and bringing them online, and changing the legs of a pool, at an
//! administrator's request.
//!
//! The server finds and opens the disk, weir-dataset runs the commits between the steps of a
//! change, and `scan` copies the data that a leg misses.
//!
//! Invariants:
//! - a leg of a vdev with segments is taken offline only if the vdev's other legs hold all data;
//! - a leg that returns or is new is stale before any reader can use it;
//! - I26: no label names a new leg before an uberblock lists it as stale, and an uberblock lists a
//!   detached leg as stale for as long as any label may name that leg ([`LEFT_LEGS_MAX`]). So
//!   whichever label and uberblock a crash leaves, no leg that missed writes counts as up to date.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::DISK_UNRESPONSIVE;
use weir_base::{Guid, Txg};
use weir_device::Device;
use weir_format::layout::{DISKS_MAX, FORMAT_VERSION, MIRROR_LEGS_MAX};
use weir_format::{Label, StaleLeg, VdevRole};

use crate::disks::labels::{
    DiskLabels, erase_all_labels, erase_labels, find_damaged_slots, read_labels, repair_config,
    write_labels,
};
use crate::disks::layout::zero_log;
use crate::disks::leg::Leg;
use crate::disks::leg_state::LegState;
use crate::disks::lineage::{RingEnd, ring_end};
use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::state::pool::Pool;

/// Maximum number of detached legs that uberblocks list as stale; if more legs were detached, only
/// the newest ones are listed.
const LEFT_LEGS_MAX: usize = 32;

/// Increase of the label txg at the first label change of an import epoch. The increase makes the
/// new labels newer than the labels of a missing disk, even if a crash left labels of an unfinished
/// change there. Each change commits at least once, so such labels are only a few txgs ahead.
const OPENING_LEAD: u64 = 16;

/// Time at which a new disk takes the position of the disk that it replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// After the resilver of the new disk. Until then both disks are legs.
    Attached,
    /// Immediately; the old disk was out of use or stale.
    Instead,
    /// Immediately, although the old disk was up to date: the vdev has less redundancy until the
    /// new disk is resilvered.
    InsteadOfGood,
}

/// A detached leg, with its disk if the disk responds.
pub struct DetachedLeg {
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) disk_bytes: u64,
}

impl Pool {
    /// Guid, path and state of the leg called `disk`: a path, the last part of a path, or a guid.
    ///
    /// # Errors
    /// `NoSuchDisk` if no leg has this name.
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

    /// Takes a leg offline. Returns true unless it was already offline.
    ///
    /// Crash safety: this call writes nothing. The next commit lists the leg as stale. An import
    /// after a crash uses the last uberblock, and writes that the leg missed after that uberblock
    /// were never committed. The offline state is not stored: an import uses every disk that it
    /// finds, and resilvers it.
    ///
    /// # Errors
    /// `OnlyCopy`: the other legs of its vdev do not hold all data.
    pub fn take_leg_offline(&self, guid: Guid) -> Result<bool, PoolError> {
        let (vdev, leg) = self.leg(guid)?;
        if leg.is_offline() {
            return Ok(false);
        }
        // A pool can be used without its spares and log vdevs, so their legs need no check.
        if vdev.role().holds_segments() {
            self.check_dispensable(vdev, leg)?;
        }
        let silent = leg.silent().is_some_and(|silent| silent >= DISK_UNRESPONSIVE);
        leg.set_offline();
        if let Some(device) = leg.take_device() {
            if let Some(watch) = device.watch().filter(|_| silent) {
                // Fail the I/O of the unresponsive disk, so that no task waits for it.
                watch.fail_io();
            }
            self.depart(&device);
        }
        tracing::warn!(disk = %leg.path(), "disk taken offline");
        Ok(true)
    }

    /// Releases a leg's disk, so that the disk can be opened again. Returns false if the leg is in
    /// use.
    pub fn fail_leg(&self, guid: Guid) -> Result<bool, PoolError> {
        let (_, leg) = self.leg(guid)?;
        if leg.usable().is_some() {
            return Ok(false);
        }
        if let Some(device) = leg.take_device() {
            self.depart(&device);
        }
        Ok(true)
    }

    /// Brings a leg online on a disk whose label names that leg, and updates its labels. The leg
    /// then needs a resilver. All labels get the current path of the disk.
    ///
    /// With `force`, the resilver overwrites txgs that only this disk has.
    ///
    /// # Errors
    /// The disk is not the disk of this leg; another server uses the disk (`DiskInUse`); the disk
    /// has committed txgs that this pool lacks (`DivergedDisk`, without `force`); or the leg was
    /// detached during the call (`NoSuchDisk`). Nothing was changed.
    #[boxed(?Send)]
    pub async fn online_leg(
        &self,
        guid: Guid,
        device: Arc<dyn Device>,
        force: bool,
    ) -> Result<(), PoolError> {
        let path = device.path().to_owned();
        let labels = read_labels(&*device).await.map_err(Arc::new)?;
        let DiskLabels { label, uberblocks, owner, .. } = match labels {
            Ok(labels) => labels,
            Err(error) => {
                let why = format!("{path} no longer has the label of this leg: {error}");
                return Err(PoolError::Layout { why });
            }
        };
        if label.pool != self.label.pool || label.disk != guid {
            let why = format!("{path} is another disk now: its label names another leg");
            return Err(PoolError::Layout { why });
        }
        self.refuse_other_owner(&*device, &label, owner.as_ref()).await?;
        // The labels of the disk may predate a change that the disk missed; a concurrent scan must
        // not count them as damage.
        let _labels = self.labels.lock().await;
        // A replaced leg may be gone: the engine detaches it as soon as its replacement is
        // resilvered.
        let left = |_| PoolError::NoSuchDisk { pool: self.name().to_owned(), disk: path.clone() };
        let (vdev, leg) = self.leg(guid).map_err(left)?;
        self.check_disk(guid, &*device)?;
        assert!(leg.usable().is_none(), "the caller released it");
        let was = leg.path();
        let committed = self.committed_txg();
        if vdev.role() != VdevRole::Spare
            && self.bug != PlantedBug::DivergedDisksTrusted
            && let Err(error) = self.check_divergence(leg, &uberblocks, owner.as_ref(), &path)
        {
            if !force {
                leg.set_note("was written without the other disks");
                return Err(error);
            }
            tracing::error!(%error, "txgs that only this disk has are dropped");
            // The disk may have reused addresses that the pool uses, so a resilver must rewrite all
            // of its data.
            leg.set_stale_since(Txg(0));
        }
        // The disk may be an old copy, which lacks more txgs than the leg missed: the end of the
        // disk's ring shows its newest txg.
        let own = ring_end(guid, &uberblocks, &self.lineage, committed).unwrap_or(RingEnd::NONE);
        self.mark_joining(&*device, vdev.disk_bytes()).await?;
        // The label may have an older format, so it is rewritten before the leg gets an uberblock.
        let current = Label { disk: guid, ..self.config.lock().clone() };
        repair_config(&*device, &current, vdev.disk_bytes()).await.map_err(Arc::new)?;
        device.flush().await.map_err(Arc::new)?;
        leg.set_stale_since(own.complete);
        let moved = leg.path() != device.path();
        leg.bring_back(self.vdevs.guard().guard(device), committed);
        if moved {
            tracing::info!(disk = %leg.path(), was, "disk found under another path");
            self.next_config();
        }
        if vdev.role() == VdevRole::Spare {
            // No data was ever written to a spare, so it has missed none.
            leg.take_as_it_is();
        }
        self.write_changed_labels().await;
        tracing::info!(disk = %leg.path(), "disk is online again");
        Ok(())
    }

    /// Resets the error counts of one leg or of all legs.
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

    /// Chooses how a disk can replace the leg `old`.
    ///
    /// # Errors
    /// `OnlyCopy` if both disks cannot be legs at the same time and the vdev needs `old`.
    pub fn plan_replacement(&self, old: Guid) -> Result<Replacement, PoolError> {
        let (vdev, leg) = self.leg(old)?;
        let room = vdev.mirrors() && vdev.legs.len() < MIRROR_LEGS_MAX;
        if leg.usable().is_some() && room {
            return Ok(Replacement::Attached);
        }
        self.check_dispensable(vdev, leg)?;
        let still_good = leg.is_up_to_date();
        Ok(if still_good { Replacement::InsteadOfGood } else { Replacement::Instead })
    }

    /// Step 1 of a new leg: checks the disk and prepares its log region. The pool does not list the
    /// disk yet. `beside` is a leg of the destination vdev.
    ///
    /// # Errors
    /// The disk is too small, or fails.
    #[boxed(?Send)]
    pub async fn ready_disk(&self, beside: Guid, device: &dyn Device) -> Result<(), PoolError> {
        self.check_disk(beside, device)?;
        let (vdev, _) = self.leg(beside)?;
        erase_all_labels(device, vdev.disk_bytes()).await?;
        zero_log(device, self.label.log_bytes).await
    }

    /// Checks that a disk is large enough for the vdev of a leg.
    ///
    /// # Errors
    /// `TooSmall` if the disk is too small.
    pub fn check_disk(&self, beside: Guid, device: &dyn Device) -> Result<(), PoolError> {
        let (vdev, _) = self.leg(beside)?;
        let (path, bytes) = (device.path().to_owned(), device.geometry().len_bytes);
        if bytes < vdev.disk_bytes() {
            return Err(PoolError::TooSmall { path, bytes, min: vdev.disk_bytes() });
        }
        Ok(())
    }

    /// Checks that a vdev can take this new leg.
    ///
    /// # Errors
    /// `Layout` if the vdev takes no more legs, `OnlyCopy` if the vdev needs the leg to be
    /// replaced.
    pub fn check_joining(&self, beside: Guid, how: Replacement) -> Result<(), PoolError> {
        let (vdev, old) = self.leg(beside)?;
        match how {
            _ if vdev.role() == VdevRole::Spare => {
                let why = "a spare cannot be replaced or attached to: remove it, add another";
                Err(PoolError::Layout { why: why.to_owned() })
            }
            Replacement::Attached if !vdev.mirrors() => {
                let why =
                    "a disk can be attached only to a disk or a mirror; raidz has a fixed width";
                Err(PoolError::Layout { why: why.to_owned() })
            }
            Replacement::Attached if vdev.legs.len() >= MIRROR_LEGS_MAX => {
                let why = format!("a mirror has at most {MIRROR_LEGS_MAX} disks");
                Err(PoolError::Layout { why })
            }
            Replacement::Attached if self.vdevs.legs().count() >= DISKS_MAX => {
                let why = format!("a pool has at most {DISKS_MAX} disks");
                Err(PoolError::Layout { why })
            }
            Replacement::Attached => Ok(()),
            Replacement::Instead | Replacement::InsteadOfGood => self.check_dispensable(vdev, old),
        }
    }

    /// True if a leg is in use and up to date.
    pub fn leg_is_up_to_date(&self, guid: Guid) -> bool {
        self.leg(guid).is_ok_and(|(_, leg)| leg.is_up_to_date())
    }

    /// Step 2: the leg joins the vdev, without its disk and fully stale. A commit must follow this
    /// call and precede step 3. Returns the leg that the new one replaced.
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
            Replacement::Attached => {
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

    /// Step 3: writes the disk's label, updates all labels and takes the leg into use. The leg then
    /// needs a resilver.
    ///
    /// # Errors
    /// The disk fails: the leg stays without a disk, and may be replaced or detached.
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

    /// Step 1 of detaching: stops using the leg. A commit must follow before step 2.
    ///
    /// # Errors
    /// `OnlyCopy`; `Layout` if the vdev is no mirror.
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

    /// Step 2: removes the leg from all labels and erases the labels on its disk.
    #[boxed(?Send)]
    pub async fn remove_leg(&self, left: DetachedLeg) -> Result<(), PoolError> {
        let _labels = self.labels.lock().await;
        self.next_config();
        self.write_configs().await?;
        Self::erase_left(left).await;
        Ok(())
    }

    /// Erases the label of a detached disk, if the disk responds. The labels of other disks no
    /// longer name the detached disk.
    #[boxed(?Send)]
    pub async fn erase_left(left: DetachedLeg) {
        if let Some(device) = left.device
            && let Err(error) = erase_labels(&*device, left.disk_bytes).await
        {
            tracing::warn!(%error, "the label of a removed disk could not be erased");
        }
    }

    /// Takes a leg out of use permanently; the next uberblocks list it as stale. An import that
    /// finds no label of the leg still lists it as stale: the label may be on a missing disk.
    fn note_leaving(&self, vdev: &Vdev, leg: &Leg) -> DetachedLeg {
        let answers = leg.silent().is_none_or(|silent| silent < DISK_UNRESPONSIVE);
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

    /// Builds the next label, with the current vdevs and legs and a higher txg than all labels
    /// before.
    pub(crate) fn next_config(&self) -> Label {
        let mut config = self.config.lock();
        let lead = if config.txg == self.label.txg { OPENING_LEAD } else { 1 };
        config.txg = self.committed_txg().max(Txg(config.txg.0 + lead));
        config.vdevs = self.vdevs.all().map(Vdev::config).collect();
        config.clone()
    }

    /// Updates the labels of every leg in use.
    ///
    /// # Durability
    /// Durable on every leg in use when this returns.
    pub(crate) async fn write_configs(&self) -> Result<(), PoolError> {
        self.write_changed_labels().await;
        self.flush_all().await
    }

    /// Writes all labels in at least this format version, with the same content; an uberblock of
    /// that version follows. A disk on which a write fails is faulted and gets no uberblock.
    ///
    /// # Durability
    /// Durable on every leg in use when this returns.
    #[boxed(?Send)]
    pub(crate) async fn raise_labels(&self, version: u32) -> Result<(), PoolError> {
        let _labels = self.labels.lock().await;
        let from = {
            let mut config = self.config.lock();
            let raised = version.max(config.version);
            std::mem::replace(&mut config.version, raised)
        };
        self.write_configs().await?;
        tracing::info!(pool = self.name(), from, to = version, "labels raised to a newer format");
        Ok(())
    }

    /// Sets the flag of datasets with many objects in all labels. `folds_names`: also sets the flag
    /// of case-insensitive filesystems. The caller commits the first such
    /// dataset afterwards, so that a Weir without the feature finds the flag on each disk that has
    /// an uberblock with the dataset. A disk on which a write fails is faulted and gets no
    /// uberblock.
    ///
    /// # Durability
    /// Durable on every leg in use when this returns.
    #[boxed(?Send)]
    pub async fn require_objects(&self, folds_names: bool) -> Result<(), PoolError> {
        if self.bug == PlantedBug::LabelsKeepFormat {
            return Ok(());
        }
        let _labels = self.labels.lock().await;
        let is_new = {
            let mut config = self.config.lock();
            let features = &mut config.features;
            let lacks_folding = folds_names && !features.has_folded_names();
            let is_new = !features.has_objects() || lacks_folding;
            features.add_objects();
            if folds_names {
                features.add_folded_names();
            }
            // Format 8 has no flags.
            config.version = config.version.max(FORMAT_VERSION);
            is_new
        };
        if is_new {
            self.next_config();
        }
        // A crash may have left labels without the flag, so the labels are checked in any case.
        self.write_configs().await
    }

    /// Rewrites labels that are damaged, or that a crash left older than a change. A disk on which
    /// a write fails is faulted.
    #[boxed(?Send)]
    pub async fn refresh_labels(&self) {
        let _labels = self.labels.lock().await;
        for (disk, _) in self.write_changed_labels().await {
            tracing::warn!(disk, "label rewritten: it was old or damaged");
        }
    }

    /// Searches every leg in use for damaged ring slots; the next commit zeroes them.
    pub(crate) async fn scan_rings(&self) {
        for vdev in self.vdevs.in_service() {
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let seen = self.committed_txg();
                let found = find_damaged_slots(&*device, vdev.disk_bytes()).await;
                let found = found.into_iter().map(|slot| (leg.guid, slot));
                self.note_damaged_slots(found, seen, &[]);
            }
        }
    }

    /// Rewrites outdated or damaged label copies on every leg in use. Returns the disks and the
    /// number of bytes written on each. A leg that fails is faulted. The caller holds `labels`.
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
