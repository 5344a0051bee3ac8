//! Pool status for administrators: health, errors and space; and destroying a pool.
//!
//! The callers print the status.
//!
//! Invariant: the status comes from RAM, so a dead disk cannot delay it.

use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::{Guid, Txg};
use weir_device::DiskFigures;
use weir_format::{VdevKind, VdevRole};

use crate::disks::labels::erase_all_labels;
use crate::disks::leg::Leg;
use crate::disks::leg_state::LegState;
use crate::disks::slowness::{self, Slowness};
use crate::error::PoolError;
use crate::segments::entries::SpaceUse;
use crate::state::pool::Pool;
use crate::state::scans::ScanStatus;
use crate::topology::vdevs::Evacuation;

/// Marks the disks in use that are slow in comparison with the pool's other disks.
fn mark_slow_legs(vdevs: &mut [VdevStatus]) {
    let used = |leg: &LegStatus| matches!(leg.state, LegState::Online | LegState::Stale);
    let mut legs: Vec<&mut LegStatus> = vdevs.iter_mut().flat_map(|vdev| &mut vdev.legs).collect();
    let figures: Vec<_> = legs.iter().map(|leg| leg.io.filter(|_| used(leg))).collect();
    for (leg, judged) in legs.iter_mut().zip(slowness::judge(&figures)) {
        leg.slow = judged;
    }
}

/// Health of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolHealth {
    /// All legs except spares are in use and up to date.
    Online,
    /// The pool has less redundancy than configured, but serves reads and writes.
    Degraded,
    /// The pool acknowledges no more writes.
    Suspended,
}

/// Status of one disk.
#[derive(Clone, Debug)]
pub struct LegStatus {
    /// Path of the disk.
    pub path: String,
    /// Guid of the disk.
    pub guid: Guid,
    /// State of the leg.
    pub state: LegState,
    /// Txg after which the leg missed, or may have missed, writes.
    pub stale_after: Option<Txg>,
    /// True if the leg counts as up to date although its own newest uberblock is one txg older than
    /// the pool's.
    pub unconfirmed: bool,
    /// Problem with the disk, in addition to its state.
    pub note: Option<String>,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Reads whose bytes failed their checksum.
    pub checksum_errors: u64,
    /// Operation counts and latencies; `None` while the disk is missing.
    pub io: Option<DiskFigures>,
    /// Speed problem of the disk.
    pub slow: Option<Slowness>,
}

/// Status of one vdev.
#[derive(Clone, Debug)]
pub struct VdevStatus {
    /// Name for users: kind and number.
    pub name: String,
    /// Number of the vdev.
    pub number: u16,
    /// Redundancy of the vdev.
    pub kind: VdevKind,
    /// Role of the vdev in the pool.
    pub role: VdevRole,
    /// True if enough of the vdev's disks are in use.
    pub works: bool,
    /// Disks of the vdev.
    pub legs: Vec<LegStatus>,
}

/// Status of a pool.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Health of the pool.
    pub health: PoolHealth,
    /// Reason for which the pool is suspended.
    pub suspended: Option<String>,
    /// Vdevs in label order, without removed ones.
    pub vdevs: Vec<VdevStatus>,
    /// Vdevs that are being evacuated, with their progress.
    pub evacuations: Vec<Evacuation>,
    /// Bytes that [`Pool::expand`] would gain for data.
    pub expandable_bytes: u64,
    /// Space use of the pool.
    pub space: SpaceUse,
    /// RAM of the remap tables.
    pub remap_bytes: u64,
    /// Newest committed txg.
    pub txg: Txg,
    /// The running scan, or the last one since the import.
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
    /// Returns the current status.
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
                        path: leg.path().to_owned(),
                        guid: leg.guid,
                        state: leg.state(),
                        stale_after: leg.stale_after(),
                        unconfirmed: leg.is_unconfirmed(),
                        note: leg.note(),
                        read_errors: leg.read_errors.load(Ordering::Relaxed),
                        write_errors: leg.write_errors.load(Ordering::Relaxed),
                        checksum_errors: leg.checksum_errors.total(),
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

    /// Erases the labels of every disk. Afterwards the pool may only be dropped.
    ///
    /// # Durability
    /// Once this returns `Ok`, no import finds the pool.
    #[boxed(?Send)]
    pub async fn erase(&self) -> Result<(), PoolError> {
        self.note_destroyed();
        for vdev in self.vdevs.iter() {
            for device in vdev.legs.iter().filter_map(Leg::device) {
                erase_all_labels(&*device, vdev.disk_bytes()).await?;
            }
        }
        Ok(())
    }
}
