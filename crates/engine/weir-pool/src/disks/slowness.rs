//! Detects slow and unresponsive disks, by comparison with the other disks of the pool.
//!
//! Not here: the reaction of the pool (`unresponsive`).
//!
//! Invariant: classification reads counters and waits for no disk.

use std::time::Duration;

use weir_base::limits::{DISK_UNRESPONSIVE, HEDGE_MIN, SLOW_FACTOR, SLOW_MIN};
use weir_device::{DiskFigures, DiskOp};

use crate::disks::hedge::hedge_delay;
use crate::disks::leg::Leg;
use crate::disks::vdev::Vdev;

/// Minimum number of operations of a kind before the pool classifies a disk by their times.
const JUDGED_OPS_MIN: u64 = 16;

/// Speed problem of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slowness {
    /// The disk has operations in flight and completed none for this long.
    Unresponsive(Duration),
    /// The disk takes far longer than the pool's other disks.
    Slow {
        /// Kind of operation.
        op: DiskOp,
        /// Recent mean time of this disk.
        recent_us: u64,
        /// Median of the recent mean times of the other disks.
        others_us: u64,
    },
    /// Reads recently completed without this disk, because it was slow.
    Avoided,
}

/// Classifies the speed of each disk of a pool; `None` for a disk without problems.
pub(crate) fn judge(disks: &[Option<DiskFigures>]) -> Vec<Option<Slowness>> {
    (0..disks.len())
        .map(|index| {
            let own = disks[index].as_ref()?;
            if let Some(silent) = own.silent.filter(|silent| *silent >= DISK_UNRESPONSIVE) {
                return Some(Slowness::Unresponsive(silent));
            }
            let compared = DiskOp::ALL.into_iter().find_map(|op| compare(disks, index, op));
            compared.or(own.avoided.then_some(Slowness::Avoided))
        })
        .collect()
}

fn compare(disks: &[Option<DiskFigures>], index: usize, op: DiskOp) -> Option<Slowness> {
    let recent = |disk: &Option<DiskFigures>| {
        let figures = disk.as_ref()?.of(op);
        (figures.count >= JUDGED_OPS_MIN).then_some(figures.recent_us)
    };
    let recent_us = recent(&disks[index])?;
    let mut others: Vec<u64> = (0..disks.len())
        .filter(|other| *other != index)
        .filter_map(|other| recent(&disks[other]))
        .collect();
    others.sort_unstable();
    let others_us = *others.get(others.len() / 2)?;
    let slow = u128::from(recent_us) >= SLOW_MIN.as_micros()
        && recent_us >= others_us.saturating_mul(SLOW_FACTOR);
    slow.then_some(Slowness::Slow { op, recent_us, others_us })
}

impl Leg {
    pub(crate) fn figures(&self) -> Option<DiskFigures> {
        Some(self.device()?.watch()?.figures())
    }

    pub(crate) fn silent(&self) -> Option<Duration> {
        self.usable()?.watch()?.silent()
    }

    /// Hedge delay: time that a read waits for this leg before other legs are read too.
    pub(crate) fn hedge_delay(&self) -> Duration {
        self.device().map_or(HEDGE_MIN, |device| hedge_delay(&*device))
    }

    /// Records that a read completed without this leg, because the leg was slow.
    pub(crate) fn note_bypass(&self) {
        if let Some(watch) = self.device().as_ref().and_then(|device| device.watch()) {
            watch.bypass();
        }
    }

    /// True if reads should prefer other legs.
    pub(crate) fn is_avoided(&self) -> bool {
        let device = self.usable();
        device.as_ref().and_then(|device| device.watch()).is_some_and(|watch| {
            watch.is_avoided() || watch.silent().is_some_and(|silent| silent >= DISK_UNRESPONSIVE)
        })
    }
}

impl Vdev {
    /// Stops I/O to legs that were unresponsive for `limit`, if the responsive legs hold all data.
    /// The in-flight writes of such a leg then fail, which faults the leg. Returns the paths of
    /// these legs.
    pub(crate) fn fail_unresponsive_legs(&self, limit: Duration) -> Vec<String> {
        let answers = |leg: &Leg| {
            leg.is_whole() && leg.silent().is_none_or(|silent| silent < DISK_UNRESPONSIVE)
        };
        if self.legs.iter().filter(|leg| answers(leg)).count() < self.legs_needed() {
            return Vec::new();
        }
        let silent = self.legs.iter().filter(|leg| leg.silent().is_some_and(|s| s >= limit));
        let mut gone = Vec::new();
        for leg in silent {
            if let Some(device) = leg.usable()
                && let Some(watch) = device.watch()
                && !watch.is_io_failed()
            {
                tracing::error!(disk = %leg.path(), "disk is unresponsive: I/O to it is stopped");
                watch.fail_io();
                gone.push(leg.path().to_owned());
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(reads: u64, recent_us: u64) -> DiskFigures {
        let mut figures = DiskFigures::default();
        figures.ops[DiskOp::Read as usize].count = reads;
        figures.ops[DiskOp::Read as usize].recent_us = recent_us;
        figures
    }

    #[test]
    fn disk_far_slower_than_the_others_is_slow() {
        let disk = |recent_us| Some(figures(100, recent_us));
        let judged = judge(&[disk(900), disk(90_000), None, disk(1000)]);
        let slow = Slowness::Slow { op: DiskOp::Read, recent_us: 90_000, others_us: 1000 };
        assert_eq!(judged, [None, Some(slow), None, None]);
    }

    #[test]
    fn slow_pool_few_operations_and_short_times_are_no_fault() {
        assert_eq!(judge(&[Some(figures(100, 90_000)), Some(figures(100, 80_000))]), [None, None]);
        assert_eq!(judge(&[Some(figures(100, 1000)), Some(figures(3, 90_000))]), [None, None]);
        assert_eq!(judge(&[Some(figures(100, 100)), Some(figures(100, 20_000))]), [None, None]);
        assert_eq!(judge(&[Some(figures(100, 9_000_000))]), [None]);
    }

    #[test]
    fn unresponsive_disk_needs_no_comparison() {
        let silent = DiskFigures { silent: Some(DISK_UNRESPONSIVE), ..figures(0, 0) };
        assert_eq!(judge(&[Some(silent)]), [Some(Slowness::Unresponsive(DISK_UNRESPONSIVE))]);
    }
}
