//! Hedged reads: reads one range from one leg after another, and does not wait for a slow leg.
//!
//! Not here: verification of the copies (`vdev`), hedged reads of raidz (`raidz`).
//!
//! Invariants:
//! - each leg is read at most once;
//! - the next leg is read if the copy of a leg was rejected, or if a leg takes far longer than
//!   usual; copies are checked in the order in which they arrive;
//! - once no other leg is left, the caller waits for the late reads.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weir_base::Clock;
use weir_base::clock::Sleep;
use weir_base::limits::{HEDGE_FACTOR, HEDGE_MAX, HEDGE_MIN};
use weir_block::IoBuf;
use weir_device::{Device, DeviceError, DiskOp, ReadFuture};

use crate::disks::leg::{Doubt, Leg};

/// Hedge delay: time that a read waits for this disk before other legs are read too.
pub(crate) fn hedge_delay(device: &dyn Device) -> Duration {
    let usual = device.watch().map_or(Duration::ZERO, |watch| watch.recent(DiskOp::Read));
    (usual * HEDGE_FACTOR).clamp(HEDGE_MIN, HEDGE_MAX)
}

/// Result of one leg's read.
pub(crate) struct Copy<'a> {
    pub(crate) leg: &'a Leg,
    /// Doubt whether the leg had current data, at the time when the read was issued.
    pub(crate) doubt: Doubt,
    pub(crate) done: Result<(), DeviceError>,
    pub(crate) buf: IoBuf,
}

/// Copies of one range, in the order in which the reads complete.
pub(crate) struct Copies<'a> {
    disk_offset: u64,
    len: usize,
    clock: &'a dyn Clock,
    unasked: std::vec::IntoIter<&'a Leg>,
    asked: Vec<Asked<'a>>,
    /// True once a read completed.
    answered: bool,
}

/// Read in flight; it keeps the disk open.
struct Asked<'a> {
    leg: &'a Leg,
    doubt: Doubt,
    device: Arc<dyn Device>,
    read: ReadFuture<'a>,
    /// True if the next leg was read as well, because this read took longer than the hedge delay.
    late: bool,
}

impl<'a> Copies<'a> {
    /// Prepares to read from `legs` in this order; issues no read yet.
    pub(crate) fn new(
        legs: Vec<&'a Leg>,
        disk_offset: u64,
        len: usize,
        clock: &'a dyn Clock,
    ) -> Self {
        let (unasked, asked) = (legs.into_iter(), Vec::new());
        Self { disk_offset, len, clock, unasked, asked, answered: false }
    }

    /// Next copy; `None` once the reads of all legs have completed.
    pub(crate) async fn next(&mut self) -> Option<Copy<'a>> {
        if self.asked.is_empty() && !self.ask() {
            return None;
        }
        loop {
            let mut timer = self.timer();
            if let Some(copy) = self.answer_or(&mut timer).await {
                self.answered = true;
                return Some(copy);
            }
            let slow = self.asked.len() - 1;
            if self.ask() {
                self.asked[slow].late = true;
            }
        }
    }

    /// Issues a read on the next usable leg; false if none is left.
    fn ask(&mut self) -> bool {
        for leg in self.unasked.by_ref() {
            if let Some(device) = leg.usable() {
                let (offset, buf, disk) =
                    (self.disk_offset, IoBuf::for_read(self.len), Arc::clone(&device));
                let read = Box::pin(async move { disk.read_at(offset, buf).await });
                let (doubt, late) = (leg.doubt(), false);
                self.asked.push(Asked { leg, doubt, device, read, late });
                return true;
            }
        }
        false
    }

    /// Timer for reading one more leg; `None` if none is left.
    fn timer(&self) -> Option<Sleep> {
        if self.unasked.as_slice().is_empty() {
            return None;
        }
        Some(self.clock.sleep(hedge_delay(&*self.asked.last()?.device)))
    }

    /// First completed read; `None` if the timer expired first.
    async fn answer_or(&mut self, timer: &mut Option<Sleep>) -> Option<Copy<'a>> {
        poll_fn(|context| {
            for index in 0..self.asked.len() {
                if let Poll::Ready((done, buf)) = self.asked[index].read.as_mut().poll(context) {
                    let Asked { leg, doubt, .. } = self.asked.swap_remove(index);
                    return Poll::Ready(Some(Copy { leg, doubt, done, buf }));
                }
            }
            match timer {
                Some(timer) => timer.as_mut().poll(context).map(|()| None),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// On drop: if the caller used another leg's copy, records for each leg with a late read that the
/// caller did not wait for that leg. If the caller rejected every copy, no read is in flight any
/// more, so bad data never makes a leg count as slow.
impl Drop for Copies<'_> {
    fn drop(&mut self) {
        for late in self.asked.iter().filter(|asked| asked.late && self.answered) {
            late.leg.note_bypass();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use weir_base::{Guid, SystemClock, Txg};
    use weir_device::{Durability, FaultDevice, Faults, MemoryDevice, WatchedDevice, new_runtime};
    use weir_format::layout::LABEL_BYTES;
    use weir_format::{Label, LegConfig, VdevConfig, VdevKind};

    use super::*;
    use crate::disks::vdev::Vdev;
    use crate::options::PoolOptions;
    use crate::planted_bugs::PlantedBug;

    struct TestClock(SystemClock);

    impl Clock for TestClock {
        fn monotonic(&self) -> Duration {
            self.0.monotonic()
        }

        fn unix_ms(&self) -> u64 {
            self.0.unix_ms()
        }

        fn sleep(&self, duration: Duration) -> Sleep {
            Box::pin(compio::time::sleep(duration))
        }
    }

    /// System clock, with the timers of the I/O runtime.
    fn test_clock() -> Arc<dyn Clock> {
        Arc::new(TestClock(SystemClock::default()))
    }

    /// Builds a vdev of watched disks; returns the fault injector of each.
    pub(crate) fn vdev_of(kind: VdevKind, disks: &[Arc<MemoryDevice>]) -> (Vdev, Vec<Arc<Faults>>) {
        let clock = test_clock();
        let faults: Vec<Arc<Faults>> = disks.iter().map(|_| Arc::default()).collect();
        let leg = |index: usize| {
            let disk = Arc::clone(&disks[index]) as Arc<dyn Device>;
            let faulty = Arc::new(FaultDevice::new(disk, Arc::clone(&faults[index])));
            let watched: Arc<dyn Device> = Arc::new(WatchedDevice::new(faulty, Arc::clone(&clock)));
            Leg::new(Guid(index as u64), format!("disk{index}"), Some(watched))
        };
        let leg_config = |n| LegConfig { guid: Guid(n as u64), path: String::new() };
        let config = VdevConfig {
            kind,
            role: weir_format::VdevRole::Data,
            disk_bytes: 3 * LABEL_BYTES,
            legs: (0..disks.len()).map(leg_config).collect(),
        };
        let label = Label {
            version: weir_format::layout::FORMAT_VERSION,
            pool: Guid(7),
            name: "tank".to_owned(),
            disk: Guid(0),
            txg: Txg(1),
            segment_bytes: 1 << 16,
            strip_bytes: 4096,
            log_bytes: 0,
            vdevs: vec![config],
            features: weir_format::Features::default(),
        };
        let options =
            PoolOptions { cache_bytes: 0, clock: Arc::clone(&clock), bug: PlantedBug::None };
        (Vdev::new(&label, 0, (0..disks.len()).map(leg).collect(), &options), faults)
    }

    /// Builds a mirror of two disks, each filled with its own index; returns their fault injectors.
    fn mirror() -> (Vdev, Vec<Arc<Faults>>) {
        let disk = |index: usize| {
            let len = LABEL_BYTES as usize + (1 << 16);
            let memory = MemoryDevice::new(format!("disk{index}"), len);
            memory.corrupt(0..len, |byte| *byte = index as u8);
            Arc::new(memory)
        };
        vdev_of(VdevKind::Mirror, &[disk(0), disk(1)])
    }

    fn bypassed(vdev: &Vdev) -> [u64; 2] {
        [0, 1].map(|leg| vdev.legs[leg].figures().map_or(0, |figures| figures.bypassed))
    }

    fn wrong(vdev: &Vdev) -> [u64; 2] {
        [0, 1].map(|leg| vdev.legs[leg].checksum_errors.total())
    }

    #[test]
    fn read_bypasses_frozen_leg_and_later_reads_avoid_it() {
        new_runtime().unwrap().block_on(async {
            let (vdev, faults) = mirror();
            faults[0].freeze();
            let start = Instant::now();
            let (buf, _) = vdev.read_verified(0, 0, 4096, |_| true).await.unwrap();
            assert_eq!((buf[0], bypassed(&vdev)), (1, [1, 0]));
            assert!(start.elapsed() >= HEDGE_MIN && start.elapsed() < HEDGE_MAX * 4);
            for _ in 0..10 {
                let (buf, _) = vdev.read_unverified(0, 0, 4096).await.unwrap();
                assert_eq!(buf[0], 1);
            }
            assert_eq!(bypassed(&vdev), [1, 0], "asked last, so not waited for");
        });
    }

    #[test]
    fn read_waits_for_slow_leg_if_the_other_is_wrong_or_fails() {
        new_runtime().unwrap().block_on(async {
            let (vdev, faults) = mirror();
            faults[0].delay(Duration::from_millis(100));
            let (buf, _) = vdev.read_verified(0, 0, 4096, |bytes| bytes[0] == 0).await.unwrap();
            assert_eq!(buf[0], 0);
            assert_eq!((wrong(&vdev), bypassed(&vdev)), ([0, 1], [0, 0]));

            faults[1].fail(weir_device::DeviceOp::Read);
            let (buf, _) = vdev.read_verified(0, 8192, 4096, |_| true).await.unwrap();
            assert_eq!(buf[0], 0);
        });
    }

    #[test]
    fn legs_that_answer_in_time_are_read_one_at_a_time() {
        new_runtime().unwrap().block_on(async {
            let (vdev, _) = mirror();
            for first in [0, 1, 0, 1] {
                let (buf, _) = vdev.read_verified(first, 0, 4096, |_| true).await.unwrap();
                assert_eq!(usize::from(buf[0]), first);
            }
            let reads = [0, 1]
                .map(|leg| vdev.legs[leg].figures().map(|figures| figures.of(DiskOp::Read).count));
            assert_eq!((reads, bypassed(&vdev)), ([Some(2), Some(2)], [0, 0]));
        });
    }

    // Regression: after a power cut between two uberblocks every good leg is unconfirmed. Reads
    // used a stale leg as often as the unconfirmed ones, and counted the writes that it had missed
    // as errors of its disk.
    #[test]
    fn stale_leg_is_read_last_and_its_old_bytes_are_no_disk_error() {
        new_runtime().unwrap().block_on(async {
            let (vdev, faults) = mirror();
            vdev.legs[0].set_stale(Txg(5));
            vdev.legs[1].set_unconfirmed(Txg(9));
            for first in [0, 1] {
                let (buf, _) = vdev.read_verified(first, 0, 4096, |_| true).await.unwrap();
                assert_eq!(buf[0], 1);
            }
            faults[1].fail(weir_device::DeviceOp::Read);
            let read = vdev.read_verified(0, 0, 4096, |bytes| bytes[0] == 1).await;
            assert!(read.is_err(), "only the stale leg answers");
            assert_eq!(wrong(&vdev), [0, 0]);
        });
    }

    // Regression: every read of an unreadable block counted as another error of each leg, and
    // concurrent reads of that block made the pool status report both disks as slow.
    #[test]
    fn block_broken_on_each_leg_counts_once_and_slows_no_leg() {
        new_runtime().unwrap().block_on(async {
            let (vdev, faults) = mirror();
            faults.iter().for_each(|faults| faults.delay(Duration::from_millis(100)));
            for _ in 0..3 {
                assert!(vdev.read_verified(0, 0, 4096, |_| false).await.is_err());
            }
            assert_eq!((wrong(&vdev), bypassed(&vdev)), ([1, 1], [0, 0]));
            assert!(vdev.read_verified(0, 4096, 4096, |_| false).await.is_err());
            assert_eq!(wrong(&vdev), [2, 2], "another block");
            vdev.legs.iter().for_each(|leg| leg.checksum_errors.restart_count());
            assert!(vdev.read_verified(0, 0, 4096, |_| false).await.is_err());
            assert_eq!(wrong(&vdev), [3, 3], "a scrub began");
        });
    }

    #[test]
    fn repaired_block_counts_again() {
        new_runtime().unwrap().block_on(async {
            let (vdev, _) = mirror();
            let read = async |right: u8| {
                let read = vdev.read_verified(0, 0, 4096, |bytes| bytes[0] == right).await;
                assert!(read.is_ok());
            };
            read(1).await;
            read(1).await;
            assert_eq!(wrong(&vdev), [1, 0], "the first read repaired the leg");
            let disk = vdev.legs[0].device().expect("it is there");
            let mut broken = IoBuf::zeroed(4096);
            broken.fill(7);
            let write = disk.write_at(vdev.base, Arc::new(broken), 0..4096, Durability::Cached);
            write.await.expect("it writes");
            read(1).await;
            assert_eq!(wrong(&vdev), [2, 0]);
        });
    }
}
