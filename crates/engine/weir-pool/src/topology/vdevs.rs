//! Adding, growing and removing vdevs, and spares that become legs.
//!
//! weir-dataset runs the commits between these steps, and the `cleaner` moves data off an
//! evacuating vdev. The disks of a vdev are in `legs`; the caller opens disks.
//!
//! Invariants:
//! - a new vdev holds no data before the labels of all other disks name it;
//! - a vdev is removed only when it holds no segments, including segments that an import of an
//!   older uberblock would need;
//! - whichever labels a crash leaves, the newest one describes the pool: labels on new disks are
//!   older than all other labels until the other labels name the new disks.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, Guid, Txg};
use weir_device::Device;
use weir_format::layout::{DISKS_MAX, LABEL_BYTES, segments_offset};
use weir_format::{Label, VDEVS_MAX, VdevConfig, VdevRole};

use crate::disks::labels::{erase_all_labels, write_labels, write_second_label};
use crate::disks::layout::{VdevSpec, check_disks, check_roles, vdev_config, zero_log};
use crate::disks::leg::Leg;
use crate::disks::leg_state::LegState;
use crate::disks::vdev::Vdev;
use crate::error::PoolError;
use crate::options::PoolOptions;
use crate::planted_bugs::PlantedBug;
use crate::segments::areas::SegmentArea;
use crate::segments::reserve::Reserve;
use crate::state::pool::Pool;
use crate::topology::legs::DetachedLeg;

/// Minimum number of segments of a new vdev: each write head keeps one segment open.
const SEGMENTS_MIN: u64 = 8;

/// Progress of the evacuation of a vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evacuation {
    /// Number of the vdev.
    pub vdev: u16,
    /// Live bytes still on the vdev.
    pub live_bytes: u64,
    /// Segments still on the vdev, including dead ones whose space is not yet reclaimed.
    pub segments: usize,
    /// Segments that cannot be moved because data in them is unreadable.
    pub stuck: usize,
}

impl Pool {
    /// Number of the vdev that `name` identifies: a vdev name such as `mirror-0`, or the only disk
    /// of the vdev.
    ///
    /// # Errors
    /// `NoSuchDisk`; `Layout` if `name` is one of several disks of a vdev.
    pub fn find_vdev(&self, name: &str) -> Result<u16, PoolError> {
        if let Some(vdev) = self.vdevs.iter().find(|vdev| vdev.name() == name) {
            return Ok(vdev.index);
        }
        let (guid, ..) = self.find_leg(name)?;
        let (vdev, leg) = self.leg(guid)?;
        if vdev.legs.len() > 1 {
            let (disk, vdev) = (leg.path(), vdev.name());
            let why = format!("{disk} is part of {vdev}: name {vdev} to remove the vdev");
            return Err(PoolError::Layout { why });
        }
        Ok(vdev.index)
    }

    /// Role of a vdev.
    pub fn vdev_role(&self, vdev: u16) -> VdevRole {
        self.vdevs[usize::from(vdev)].role()
    }

    /// Checks whether this vdev can join the pool.
    ///
    /// # Errors
    /// `Layout`, `TooSmall`: nothing was changed.
    pub fn check_new_vdev(&self, spec: &VdevSpec) -> Result<(), PoolError> {
        let layout = |why: String| Err(PoolError::Layout { why });
        check_disks(spec, 0)?;
        let config = vdev_config(spec, &mut || Guid(0));
        let mut all: Vec<VdevConfig> = self.vdevs.all().map(Vdev::config).collect();
        all.push(config.clone());
        check_roles(&all)?;
        if all.len() > VDEVS_MAX {
            return layout(format!(
                "a pool has at most {VDEVS_MAX} vdevs in its lifetime, removed ones included"
            ));
        }
        let disks: usize = all.iter().map(|vdev| vdev.legs.len()).sum();
        if disks > DISKS_MAX {
            return layout(format!("a pool has at most {DISKS_MAX} disks, not {disks}"));
        }
        if self.label.row_bytes(&config) > u64::from(self.label.segment_bytes) {
            let why = "its rows are larger than this pool's segments: use fewer disks".to_owned();
            return layout(why);
        }
        let around = segments_offset(self.label.log_bytes) + LABEL_BYTES;
        let area = self.label.vdev_segment_bytes(&config) / config.data_strips() as u64;
        let min = around + if spec.role == VdevRole::Data { SEGMENTS_MIN * area } else { 0 };
        check_disks(spec, min.next_multiple_of(BLOCK_BYTES as u64))
    }

    /// Adds a vdev on open disks; `guid` returns random identities.
    ///
    /// # Durability
    /// Once this returns, the vdev belongs to the pool after any crash.
    ///
    /// # Errors
    /// As [`Self::check_new_vdev`], or a new disk fails: the pool is unchanged.
    #[boxed(?Send)]
    pub async fn add_vdev(
        &self,
        spec: &VdevSpec,
        guid: &mut (dyn FnMut() -> Guid + Send),
    ) -> Result<u16, PoolError> {
        self.check_new_vdev(spec)?;
        let _labels = self.labels.lock().await;
        let index = self.vdevs.count();
        let config = vdev_config(spec, guid);
        let mut planned = self.config.lock().clone();
        planned.vdevs = self.vdevs.all().map(Vdev::config).collect();
        planned.vdevs.push(config.clone());
        for (disk, leg) in spec.disks.iter().zip(&config.legs) {
            erase_all_labels(&**disk, config.disk_bytes).await?;
            zero_log(&**disk, self.label.log_bytes).await?;
            // This label is older than all other labels: until the disks of the pool have a label
            // that names the new disks, the import uses the labels without them.
            let label = Label { disk: leg.guid, txg: Txg(0), ..planned.clone() };
            write_labels(&**disk, &label).await.map_err(Arc::new)?;
        }
        let leg = |(config, disk): (&weir_format::LegConfig, &Arc<dyn Device>)| {
            let device = self.vdevs.guard().guard(Arc::clone(disk));
            Leg::new(config.guid, config.path.clone(), Some(device))
        };
        let legs = config.legs.iter().zip(&spec.disks).map(leg).collect();
        let options = PoolOptions { cache_bytes: 0, clock: Arc::clone(&self.clock), bug: self.bug };
        let vdev = Vdev::new(&planned, index, legs, &options);
        // An uberblock that places the intent log on this vdev must not precede the labels that
        // name the vdev.
        vdev.set_closed_to_log(true);
        self.vdevs.push(vdev);
        // The new disks get their final labels together with the other disks. An import already
        // finds the new disks.
        self.next_config();
        let area = SegmentArea::of(&planned, &config);
        area.set_open(false);
        self.segments.add_area(area);
        self.write_configs().await?;
        self.segments.set_open(index as u16, spec.role == VdevRole::Data);
        self.vdevs[index].set_closed_to_log(false);
        tracing::info!(vdev = index, kind = spec.kind.name(), "vdev added");
        Ok(index as u16)
    }

    /// Allows or forbids new segments on a data vdev. The setting is not stored.
    pub fn set_vdev_open(&self, vdev: u16, open: bool) {
        assert_eq!(self.vdev_role(vdev), VdevRole::Data, "the others never take new segments");
        self.segments.set_open(vdev, open);
    }

    /// True if the intent log is on this vdev.
    pub fn log_is_on(&self, vdev: u16) -> bool {
        self.log.vdev() == vdev
    }

    /// Requests that the next commits move the intent log off this vdev.
    pub fn retire_log(&self, vdev: u16) {
        assert_eq!(self.vdev_role(vdev), VdevRole::Log);
        self.vdevs[usize::from(vdev)].set_closed_to_log(true);
    }

    /// Cancels the request of [`Self::retire_log`].
    pub fn keep_log(&self, vdev: u16) {
        self.vdevs[usize::from(vdev)].set_closed_to_log(false);
    }

    /// Starts the removal of a data vdev that no longer takes new segments.
    ///
    /// # Durability
    /// Once this returns, an import after a crash resumes the removal: the labels store that the
    /// vdev is evacuating.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn begin_removal(&self, vdev: u16) -> Result<(), PoolError> {
        assert!(!self.segments.area(vdev).is_open(), "it was closed first");
        let _labels = self.labels.lock().await;
        self.vdevs[usize::from(vdev)].set_role(VdevRole::Evacuating);
        self.next_config();
        self.write_configs().await?;
        tracing::info!(vdev, "vdev is evacuating");
        Ok(())
    }

    /// Retries to move segments that could not be moved before, because data in them was
    /// unreadable.
    pub fn retry_evacuation(&self, vdev: u16) {
        self.segments.clear_stuck(vdev);
    }

    /// Checks whether the other data vdevs have space for the contents of this vdev.
    ///
    /// # Errors
    /// `Layout` for the last data vdev; `NoRoomElsewhere`.
    pub fn check_removable(&self, vdev: u16) -> Result<(), PoolError> {
        let leaving = &self.vdevs[usize::from(vdev)];
        let others = || {
            let stay = |vdev: &&Vdev| vdev.role() == VdevRole::Data && vdev.index != leaving.index;
            self.vdevs.iter().filter(stay).map(|vdev| self.segments.area(vdev.index))
        };
        if others().next().is_none() {
            let why = "the last data vdev cannot be removed; destroy the pool instead";
            return Err(PoolError::Layout { why: why.to_owned() });
        }
        let total: u64 = others().map(|a| u64::from(a.segments()) * a.segment_bytes).sum();
        let segments = others().map(|area| u64::from(area.segments())).sum();
        let smallest = others().map(|area| area.segment_bytes).min().unwrap_or_default();
        let room_bytes = total.saturating_sub(Reserve::of(segments).reserve * smallest);
        let live_bytes = self.space().live_bytes;
        if live_bytes > room_bytes {
            return Err(self.no_room_elsewhere(vdev, room_bytes));
        }
        Ok(())
    }

    /// Error for a vdev that cannot be removed.
    pub fn no_room_elsewhere(&self, vdev: u16, room_bytes: u64) -> PoolError {
        let vdev = self.vdevs[usize::from(vdev)].name();
        let (pool, live_bytes) = (self.name().to_owned(), self.space().live_bytes);
        PoolError::NoRoomElsewhere { pool, vdev, room_bytes, live_bytes }
    }

    /// Cancels the removal of a vdev. Returns false if it was not being evacuated.
    ///
    /// # Durability
    /// As [`Self::begin_removal`].
    #[boxed(?Send)]
    pub async fn cancel_removal(&self, vdev: u16) -> Result<bool, PoolError> {
        let leaving = &self.vdevs[usize::from(vdev)];
        if leaving.role() != VdevRole::Evacuating {
            return Ok(false);
        }
        let _labels = self.labels.lock().await;
        leaving.set_role(VdevRole::Data);
        self.next_config();
        self.write_configs().await?;
        self.segments.set_open(vdev, true);
        tracing::info!(vdev, "vdev removal cancelled");
        Ok(true)
    }

    /// Vdevs that are being evacuated.
    pub fn evacuations(&self) -> Vec<Evacuation> {
        let leaving = self.vdevs.iter().filter(|vdev| vdev.role() == VdevRole::Evacuating);
        leaving.map(|vdev| self.evacuation(vdev.index)).collect()
    }

    fn evacuation(&self, vdev: u16) -> Evacuation {
        let (segments, live_bytes) = self.segments.on_vdev(vdev);
        Evacuation { vdev, live_bytes, segments, stuck: self.segments.stuck_on(vdev) }
    }

    /// True if a vdev holds no segments, including segments that the last uberblocks still need. No
    /// write-out may be in progress.
    pub fn can_leave(&self, vdev: u16) -> bool {
        let leaves = match self.vdev_role(vdev) {
            VdevRole::Evacuating | VdevRole::Spare => true,
            VdevRole::Log => self.vdevs[usize::from(vdev)].is_closed_to_log(),
            VdevRole::Data | VdevRole::Removed => false,
        };
        let left = self.evacuation(vdev);
        let empty = match self.bug {
            PlantedBug::VdevLeavesEarly => left.live_bytes == 0,
            _ => left.segments == 0,
        };
        // Until the first commit after an import, the log stays on the vdev on which replay found
        // it.
        let logs = self.log.vdev() == vdev || self.committed.lock().log_vdev == vdev;
        leaves && !logs && empty
    }

    /// Removes a vdev permanently. Its number is not reused.
    ///
    /// # Durability
    /// Once this returns, no import needs its disks.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn finish_removal(&self, vdev: u16) -> Result<(), PoolError> {
        assert!(self.can_leave(vdev), "vdev {vdev} is not empty");
        let _labels = self.labels.lock().await;
        let gone = &self.vdevs[usize::from(vdev)];
        gone.set_role(VdevRole::Removed);
        self.next_config();
        self.write_configs().await?;
        let disk_bytes = gone.disk_bytes();
        for leg in &gone.legs {
            let device = leg.usable();
            leg.set_offline();
            if let Some(device) = leg.take_device() {
                self.depart(&device);
            }
            Self::erase_left(DetachedLeg { device, disk_bytes }).await;
        }
        tracing::info!(vdev, "vdev removed");
        Ok(())
    }

    /// Expands every data vdev to the full size of its disks. Returns the bytes gained for data.
    ///
    /// # Durability
    /// Once this returns, the new size is kept after any crash.
    ///
    /// # Errors
    /// A label could not be written.
    #[boxed(?Send)]
    pub async fn expand(&self) -> Result<u64, PoolError> {
        let _labels = self.labels.lock().await;
        let before = self.space().total_bytes;
        let mut grown = Vec::new();
        for vdev in self.vdevs.iter().filter(|vdev| vdev.role() == VdevRole::Data) {
            let Some(bytes) = self.expandable_to(vdev) else { continue };
            // Write the second label at the new end of the disk first: no reader searches for a
            // label there yet.
            let mut config = self.config.lock().clone();
            config.vdevs = self.vdevs.all().map(Vdev::config).collect();
            config.vdevs[usize::from(vdev.index)].disk_bytes = bytes;
            for leg in &vdev.legs {
                let Some(device) = leg.usable() else { continue };
                let label = Label { disk: leg.guid, ..config.clone() };
                if let Err(error) = write_second_label(&*device, &label, bytes).await {
                    leg.fault(&error);
                }
            }
            vdev.set_disk_bytes(bytes);
            grown.push(vdev.index);
        }
        if grown.is_empty() {
            return Ok(0);
        }
        let config = self.next_config();
        self.write_configs().await?;
        for vdev in grown {
            let segments = config.segments(&config.vdevs[usize::from(vdev)]);
            self.segments.grow_area(vdev, segments as u32);
        }
        Ok(self.space().total_bytes - before)
    }

    /// Size to which a vdev's disks can be used; `None` if that gains no segment.
    fn expandable_to(&self, vdev: &Vdev) -> Option<u64> {
        let lengths = vdev.legs.iter().map(|leg| {
            let device = leg.usable().filter(|_| leg.state() == LegState::Online)?;
            Some(device.geometry().len_bytes)
        });
        let smallest = lengths.min_by_key(|len| len.unwrap_or_default())??;
        let bytes = smallest - smallest % BLOCK_BYTES as u64;
        let config = vdev.config();
        let longer = VdevConfig { disk_bytes: bytes, ..config.clone() };
        let gains = bytes > config.disk_bytes
            && self.label.segments(&longer) > self.label.segments(&config);
        gains.then_some(bytes)
    }

    /// Bytes that [`Self::expand`] would gain.
    pub fn expandable_bytes(&self) -> u64 {
        let data = self.vdevs.iter().filter(|vdev| vdev.role() == VdevRole::Data);
        let gain = |vdev: &Vdev| {
            let config = vdev.config();
            let longer = VdevConfig { disk_bytes: self.expandable_to(vdev)?, ..config.clone() };
            Some(self.label.vdev_bytes(&longer) - self.label.vdev_bytes(&config))
        };
        data.filter_map(gain).sum()
    }

    /// The first spare that can replace a leg.
    pub fn spare_for(&self, leg: Guid) -> Option<Guid> {
        let (vdev, _) = self.leg(leg).ok()?;
        let fits = |spare: &&Vdev| {
            spare.role() == VdevRole::Spare && spare.disk_bytes() >= vdev.disk_bytes()
        };
        let spare = self.vdevs.iter().filter(fits).flat_map(|spare| &spare.legs);
        spare.filter(|leg| leg.usable().is_some()).map(|leg| leg.guid).next()
    }

    /// Takes the disk of a spare that is about to become a leg. The next labels no longer list the
    /// spare. Returns `None` if the spare is no longer available.
    pub fn take_spare(&self, spare: Guid) -> Option<Arc<dyn Device>> {
        let (vdev, leg) = self.leg(spare).ok()?;
        leg.usable().filter(|_| vdev.role() == VdevRole::Spare)?;
        vdev.set_role(VdevRole::Removed);
        leg.set_offline();
        leg.take_device()
    }

    /// Restores a spare that did not become a leg.
    pub fn give_spare_back(&self, spare: Guid, device: Arc<dyn Device>) {
        let owner = self.vdevs.all().find(|v| v.legs.iter().any(|leg| leg.guid == spare));
        let vdev = owner.expect("it was a spare of this pool");
        let leg = vdev.legs.iter().find(|leg| leg.guid == spare).expect("found by it");
        leg.bring_back(device, self.committed_txg());
        leg.take_as_it_is();
        vdev.set_role(VdevRole::Spare);
    }
}
