//! Vdevs that join a pool, grow or leave it, and spares that become legs.
//!
//! Not here: the commits between these steps and moving what a leaving vdev holds (weir-dataset,
//! clean), disks of a vdev (legs), opening disks (the caller).
//!
//! Invariants:
//! - a new vdev holds nothing before the labels of all other disks name it;
//! - a vdev leaves only when nothing stands on it any more, not even what a rewind would need;
//! - whichever labels a crash leaves, the newest of them describes the pool: labels on new disks
//!   are older than all others until these name the new disks.
//!
//! Crash safety: that a vdev is leaving is stored in the labels, so an import goes on with it.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, Guid, Txg};
use weir_device::Device;
use weir_format::layout::{DISKS_MAX, LABEL_BYTES, segments_offset};
use weir_format::{Label, VDEVS_MAX, VdevConfig, VdevRole};

use crate::disks::labels::{forget_disk, write_labels, write_second_label};
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

/// Segments that a new vdev has at least: the streams keep one open each.
const SEGMENTS_MIN: u64 = 8;

/// A vdev that is leaving, and what is still on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evacuation {
    /// Its number.
    pub vdev: u16,
    /// Live bytes on it.
    pub live_bytes: u64,
    /// Segments on it, dead ones whose places are still held among them.
    pub segments: usize,
    /// Segments that cannot be moved because something in them cannot be read.
    pub stuck: usize,
}

impl Pool {
    /// Number of the vdev that `name` means: `mirror-0` and the like, or its only disk.
    ///
    /// # Errors
    /// `NoSuchDisk`; `Layout` for one disk of several.
    pub fn find_vdev(&self, name: &str) -> Result<u16, PoolError> {
        if let Some(vdev) = self.vdevs.iter().find(|vdev| vdev.name() == name) {
            return Ok(vdev.index);
        }
        let (guid, ..) = self.find_leg(name)?;
        let (vdev, leg) = self.leg(guid)?;
        if vdev.legs.len() > 1 {
            let (disk, vdev) = (leg.path(), vdev.name());
            let why = format!("{disk} is part of {vdev}: name {vdev} to remove all of it");
            return Err(PoolError::Layout { why });
        }
        Ok(vdev.index)
    }

    /// What a vdev is for.
    pub fn vdev_role(&self, vdev: u16) -> VdevRole {
        self.vdevs[usize::from(vdev)].role()
    }

    /// Whether a vdev like this can join.
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
            return layout(format!("a pool has at most {VDEVS_MAX} vdevs in its life"));
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

    /// Adds a vdev on open disks; `guid` draws random identities.
    ///
    /// # Durability
    /// It belongs to the pool after any crash once this returns.
    ///
    /// # Errors
    /// As [`Self::check_new_vdev`], or a new disk fails: the pool is as it was.
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
            forget_disk(&**disk, config.disk_bytes).await?;
            zero_log(&**disk, self.label.log_bytes).await?;
            // Older than any other: until the pool's own disks name this one, theirs count.
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
        // An uberblock that says where the log is must not come before the labels that name it.
        vdev.set_closed_to_log(true);
        self.vdevs.push(vdev);
        // Its own disks get their new labels with the others: by now they are found by any of them.
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

    /// Lets new segments be opened on a vdev for data, or no more; nothing of it is stored.
    pub fn set_vdev_open(&self, vdev: u16, open: bool) {
        assert_eq!(self.vdev_role(vdev), VdevRole::Data, "the others never take new segments");
        self.segments.set_open(vdev, open);
    }

    /// Whether the intent log is on this vdev.
    pub fn log_is_on(&self, vdev: u16) -> bool {
        self.log.vdev() == vdev
    }

    /// The log is not kept on this vdev from the next commits on.
    pub fn retire_log(&self, vdev: u16) {
        assert_eq!(self.vdev_role(vdev), VdevRole::Log);
        self.vdevs[usize::from(vdev)].set_closed_to_log(true);
    }

    /// Takes [`Self::retire_log`] back.
    pub fn keep_log(&self, vdev: u16) {
        self.vdevs[usize::from(vdev)].set_closed_to_log(false);
    }

    /// Begins to remove a vdev for data that takes no new segments any more.
    ///
    /// # Durability
    /// An import after a crash goes on with it once this returns.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn begin_removal(&self, vdev: u16) -> Result<(), PoolError> {
        assert!(!self.segments.area(vdev).is_open(), "it was closed first");
        let _labels = self.labels.lock().await;
        self.vdevs[usize::from(vdev)].set_role(VdevRole::Leaving);
        self.next_config();
        self.write_configs().await?;
        tracing::info!(vdev, "vdev is leaving");
        Ok(())
    }

    /// Tries to move again what could not be read when it was tried before.
    pub fn retry_evacuation(&self, vdev: u16) {
        self.segments.forget_stuck_on(vdev);
    }

    /// Whether the others can take what a vdev for data holds.
    ///
    /// # Errors
    /// `Layout` for the last one, `NoRoomElsewhere`.
    pub fn check_removable(&self, vdev: u16) -> Result<(), PoolError> {
        let leaving = &self.vdevs[usize::from(vdev)];
        let others = || {
            let stay = |vdev: &&Vdev| vdev.role() == VdevRole::Data && vdev.index != leaving.index;
            self.vdevs.iter().filter(stay).map(|vdev| self.segments.area(vdev.index))
        };
        if others().next().is_none() {
            let why = "the last vdev for data cannot be removed; destroy the pool instead";
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

    /// The error of a vdev that cannot leave.
    pub fn no_room_elsewhere(&self, vdev: u16, room_bytes: u64) -> PoolError {
        let vdev = self.vdevs[usize::from(vdev)].name();
        let (pool, live_bytes) = (self.name().to_owned(), self.space().live_bytes);
        PoolError::NoRoomElsewhere { pool, vdev, room_bytes, live_bytes }
    }

    /// Lets a vdev that is leaving stay. Returns false if it was not leaving.
    ///
    /// # Durability
    /// As [`Self::begin_removal`].
    #[boxed(?Send)]
    pub async fn cancel_removal(&self, vdev: u16) -> Result<bool, PoolError> {
        let leaving = &self.vdevs[usize::from(vdev)];
        if leaving.role() != VdevRole::Leaving {
            return Ok(false);
        }
        let _labels = self.labels.lock().await;
        leaving.set_role(VdevRole::Data);
        self.next_config();
        self.write_configs().await?;
        self.segments.set_open(vdev, true);
        tracing::info!(vdev, "vdev stays");
        Ok(true)
    }

    /// Vdevs that are leaving.
    pub fn evacuations(&self) -> Vec<Evacuation> {
        let leaving = self.vdevs.iter().filter(|vdev| vdev.role() == VdevRole::Leaving);
        leaving.map(|vdev| self.evacuation(vdev.index)).collect()
    }

    fn evacuation(&self, vdev: u16) -> Evacuation {
        let (segments, live_bytes) = self.segments.on_vdev(vdev);
        Evacuation { vdev, live_bytes, segments, stuck: self.segments.stuck_on(vdev) }
    }

    /// Whether nothing stands on a vdev any more, for the last uberblocks either. No write-out may
    /// be under way.
    pub fn can_leave(&self, vdev: u16) -> bool {
        let leaves = match self.vdev_role(vdev) {
            VdevRole::Leaving | VdevRole::Spare => true,
            VdevRole::Log => self.vdevs[usize::from(vdev)].is_closed_to_log(),
            VdevRole::Data | VdevRole::Removed => false,
        };
        let left = self.evacuation(vdev);
        let empty = match self.bug {
            PlantedBug::VdevLeavesEarly => left.live_bytes == 0,
            _ => left.segments == 0,
        };
        // What an opening replayed is in the log where it was until the first commit.
        let logs = self.log.vdev() == vdev || self.committed.lock().log_vdev == vdev;
        leaves && !logs && empty
    }

    /// Takes a vdev out of the pool for good: its number stays taken.
    ///
    /// # Durability
    /// No import asks for its disks any more once this returns.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn finish_removal(&self, vdev: u16) -> Result<(), PoolError> {
        assert!(self.can_leave(vdev), "something stands on vdev {vdev}");
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

    /// Lets every vdev for data use all of its disks; returns the bytes that data gained.
    ///
    /// # Durability
    /// The new size holds after any crash once this returns.
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
            // The second label first, where the new end is: nobody looks for it there yet.
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

    /// The length to which a vdev's disks can be used, if that gains a segment.
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

    /// The first spare that can take the place of a leg.
    pub fn spare_for(&self, leg: Guid) -> Option<Guid> {
        let (vdev, _) = self.leg(leg).ok()?;
        let fits = |spare: &&Vdev| {
            spare.role() == VdevRole::Spare && spare.disk_bytes() >= vdev.disk_bytes()
        };
        let spare = self.vdevs.iter().filter(fits).flat_map(|spare| &spare.legs);
        spare.filter(|leg| leg.usable().is_some()).map(|leg| leg.guid).next()
    }

    /// Hands out the disk of a spare that is about to become a leg: it is no spare any more, as the
    /// next labels say. `None` if it is not there any more.
    pub fn take_spare(&self, spare: Guid) -> Option<Arc<dyn Device>> {
        let (vdev, leg) = self.leg(spare).ok()?;
        leg.usable().filter(|_| vdev.role() == VdevRole::Spare)?;
        vdev.set_role(VdevRole::Removed);
        leg.set_offline();
        leg.take_device()
    }

    /// Takes a spare back that did not become a leg.
    pub fn give_spare_back(&self, spare: Guid, device: Arc<dyn Device>) {
        let owner = self.vdevs.all().find(|v| v.legs.iter().any(|leg| leg.guid == spare));
        let vdev = owner.expect("it was a spare of this pool");
        let leg = vdev.legs.iter().find(|leg| leg.guid == spare).expect("found by it");
        leg.bring_back(device, self.committed_txg());
        leg.take_as_it_is();
        vdev.set_role(VdevRole::Spare);
    }
}
