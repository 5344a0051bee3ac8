//! What a person asks about a pool: health, errors and space; and taking a pool apart.
//!
//! Not here: printing.
//!
//! Invariant: answers come from RAM; a dead disk cannot hold them up.

use std::sync::atomic::Ordering;

use weir_base::{Guid, Txg, VsegId};
use weir_device::DiskFigures;
use weir_format::{BlockPtr, VdevKind, VdevRole};

use crate::error::PoolError;
use crate::import::forget_disk;
use crate::line::{Held, Roots};
use crate::pool::Pool;
use crate::scan::ScanStatus;
use crate::segments::SpaceUse;
use crate::slow::{self, Slowness};
use crate::tree::Tree;
use crate::vdev::Leg;
use crate::vdevs::Evacuation;

/// State of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// In use and up to date.
    Online,
    /// In use, but it missed writes: it takes new ones, and reads do not rely on it before a
    /// resilver has copied the rest.
    Stale,
    /// A write or flush failed; not used any more.
    Faulted,
    /// A person took it out of use.
    Offline,
    /// Not there.
    Missing,
}

/// Compares the disks of a pool that are in use.
fn mark_slow_legs(vdevs: &mut [VdevStatus]) {
    let used = |leg: &LegStatus| matches!(leg.state, LegState::Online | LegState::Stale);
    let mut legs: Vec<&mut LegStatus> = vdevs.iter_mut().flat_map(|vdev| &mut vdev.legs).collect();
    let figures: Vec<_> = legs.iter().map(|leg| leg.io.filter(|_| used(leg))).collect();
    for (leg, judged) in legs.iter_mut().zip(slow::judge(&figures)) {
        leg.slow = judged;
    }
}

/// Health of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolHealth {
    /// Everything in use and up to date.
    Online,
    /// Works with less redundancy than it was made with.
    Degraded,
    /// Acknowledges nothing any more.
    Suspended,
}

/// One disk.
#[derive(Clone, Debug)]
pub struct LegStatus {
    /// Path.
    pub path: String,
    /// Identity.
    pub guid: Guid,
    /// State.
    pub state: LegState,
    /// Txg after which it misses writes.
    pub stale_after: Option<Txg>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Reads whose bytes failed their checksum.
    pub checksum_errors: u64,
    /// Counts and times; `None` while the disk is missing.
    pub io: Option<DiskFigures>,
    /// What is wrong with its speed.
    pub slow: Option<Slowness>,
}

/// One vdev.
#[derive(Clone, Debug)]
pub struct VdevStatus {
    /// As people call it: its kind and number.
    pub name: String,
    /// Its number.
    pub number: u16,
    /// Redundancy.
    pub kind: VdevKind,
    /// What it is for.
    pub role: VdevRole,
    /// Whether enough of its disks are in use.
    pub works: bool,
    /// Its disks.
    pub legs: Vec<LegStatus>,
}

/// A pool.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Health.
    pub health: PoolHealth,
    /// Why it is suspended.
    pub suspended: Option<String>,
    /// Vdevs in label order, without those that were removed.
    pub vdevs: Vec<VdevStatus>,
    /// Vdevs that are leaving, and how far.
    pub evacuations: Vec<Evacuation>,
    /// Bytes that data would gain if all of every disk were used.
    pub expandable_bytes: u64,
    /// Space.
    pub space: SpaceUse,
    /// RAM of the remap tables.
    pub remap_bytes: u64,
    /// Newest committed txg.
    pub txg: Txg,
    /// The scan under way, or the last one since the pool was opened.
    pub scan: Option<ScanStatus>,
}

impl Leg {
    pub(crate) fn state(&self) -> LegState {
        match (self.is_offline(), self.is_faulted(), self.device(), self.stale_after()) {
            (true, ..) => LegState::Offline,
            (_, true, ..) => LegState::Faulted,
            (_, _, None, _) => LegState::Missing,
            (.., Some(_)) => LegState::Stale,
            _ => LegState::Online,
        }
    }
}

impl Pool {
    /// The pool as it is now.
    pub fn status(&self) -> PoolStatus {
        let mut vdevs: Vec<VdevStatus> = self
            .vdevs
            .iter()
            .map(|vdev| VdevStatus {
                name: vdev.name(),
                number: vdev.index,
                kind: vdev.kind(),
                role: vdev.role(),
                works: vdev.is_alive(),
                legs: vdev
                    .legs
                    .iter()
                    .map(|leg| LegStatus {
                        path: leg.path.clone(),
                        guid: leg.guid,
                        state: leg.state(),
                        stale_after: leg.stale_after(),
                        read_errors: leg.read_errors.load(Ordering::Relaxed),
                        write_errors: leg.write_errors.load(Ordering::Relaxed),
                        checksum_errors: leg.checksum_errors.load(Ordering::Relaxed),
                        io: leg.figures(),
                        slow: None,
                    })
                    .collect(),
            })
            .collect();
        mark_slow_legs(&mut vdevs);
        let suspended = self.check_alive().err().map(|error| error.to_string());
        let in_service = vdevs.iter().filter(|vdev| vdev.role != VdevRole::Spare);
        let mut legs = in_service.flat_map(|vdev| &vdev.legs);
        let all_online = legs.all(|leg| leg.state == LegState::Online);
        let health = match (&suspended, all_online) {
            (Some(_), _) => PoolHealth::Suspended,
            (None, true) => PoolHealth::Online,
            (None, false) => PoolHealth::Degraded,
        };
        PoolStatus {
            health,
            suspended,
            vdevs,
            evacuations: self.evacuations(),
            expandable_bytes: self.expandable_bytes(),
            space: self.space(),
            remap_bytes: self.segments.remap_bytes(),
            txg: self.committed_txg(),
            scan: self.scans.status(self.clock()),
        }
    }

    /// Erases the labels of every disk. The pool takes no further call but `drop`.
    ///
    /// # Durability
    /// No import finds the pool once this returns `Ok`.
    pub async fn erase(&self) -> Result<(), PoolError> {
        self.poison(&"the pool was destroyed");
        for vdev in self.vdevs.iter() {
            for device in vdev.legs.iter().filter_map(Leg::device) {
                forget_disk(&*device, vdev.disk_bytes()).await?;
            }
        }
        Ok(())
    }

    /// Compares the live-byte counter of every segment with what the trees refer to.
    ///
    /// A block that was moved counts in the segment its pointer names and in the one that holds it.
    ///
    /// `roots`: all datasets. Returns the segments that differ, with counter and sum: empty when
    /// invariant I5 holds. Call it with no write-out under way.
    pub async fn check_live_bytes(
        &self,
        roots: &Roots,
    ) -> Result<Vec<(VsegId, u64, u64)>, PoolError> {
        let mut sums = std::collections::BTreeMap::<VsegId, (u64, u64)>::new();
        for (vseg, live) in self.segments.live_by_segment() {
            sums.entry(vseg).or_default().0 = u64::from(live);
        }
        let mut unread = Vec::new();
        let mut visit = |ptr: BlockPtr| {
            let bytes = ptr.stored_bytes() as u64;
            sums.entry(ptr.vseg).or_default().1 += bytes;
            match self.segments.host_of(&ptr) {
                Ok(Some(host)) => sums.entry(host).or_default().1 += bytes,
                Ok(None) => {}
                Err(_) => unread.push(ptr),
            }
        };
        self.walk_all(roots, &mut visit).await?;
        unread.sort_unstable_by_key(|ptr| ptr.vseg);
        for ptr in unread {
            if let Some(host) = self.translated(|segments| segments.host_of(&ptr)).await? {
                sums.entry(host).or_default().1 += ptr.stored_bytes() as u64;
            }
        }
        let differ = sums.into_iter().filter(|(_, (counted, found))| counted != found);
        Ok(differ.map(|(vseg, (counted, found))| (vseg, counted, found)).collect())
    }

    /// Every pointer of every tree once, however many versions of a volume lead to it.
    async fn walk_all(
        &self,
        roots: &Roots,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<(), PoolError> {
        let own = {
            let committed = self.committed.lock();
            [committed.segments, committed.datasets, committed.remaps]
        };
        for root in own {
            Tree::new(self, root).walk(&Held::default(), 0, visit).await?;
        }
        for line in roots.lines() {
            for (index, version) in line.versions.iter().enumerate() {
                let tree = Tree::new(self, version.root);
                tree.walk(&line.held_before(index), version.freed_to, visit).await?;
            }
        }
        Ok(())
    }

    /// Two blocks of different addresses that stand in the same place, or one that stands nowhere.
    ///
    /// `roots`: all datasets. `None` when all is well. Call it with no write-out under way.
    pub async fn check_places(
        &self,
        roots: &Roots,
    ) -> Result<Option<(BlockPtr, BlockPtr)>, PoolError> {
        let mut placed = Vec::new();
        let mut nowhere = None;
        let mut unread = Vec::new();
        let mut visit = |ptr: BlockPtr| match self.segments.locate(&ptr) {
            Ok(Some(place)) => placed.push((place.vdev, place.at, ptr)),
            Ok(None) => nowhere = Some(ptr),
            Err(_) => unread.push(ptr),
        };
        self.walk_all(roots, &mut visit).await?;
        unread.sort_unstable_by_key(|ptr| ptr.vseg);
        for ptr in unread {
            match self.translated(|segments| segments.locate(&ptr)).await? {
                Some(place) => placed.push((place.vdev, place.at, ptr)),
                None => nowhere = Some(ptr),
            }
        }
        if let Some(ptr) = nowhere {
            return Ok(Some((ptr, ptr)));
        }
        placed.sort_unstable_by_key(|(vdev, at, _)| (*vdev, *at));
        let overlap = placed.windows(2).find(|pair| {
            let ((va, a, first), (vb, b, _)) = (&pair[0], &pair[1]);
            va == vb && a + first.stored_bytes() as u64 > *b
        });
        Ok(overlap.map(|pair| (pair[0].2, pair[1].2)))
    }
}
