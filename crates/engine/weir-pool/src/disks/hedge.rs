//! Reading one range from one leg after another, around a leg that does not answer in time.
//!
//! Not here: which copy is right (vdev), reading raidz around such a leg (vdev/raidz).
//!
//! Invariants:
//! - a leg is asked once;
//! - the next leg is asked when one has answered and its copy was not taken, or when it takes far
//!   longer than it usually does; whoever answers first is judged first;
//! - a late answer is waited for as long as no other leg is left.

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

/// How long a read of a disk is waited for before others are asked too.
pub(crate) fn patience(device: &dyn Device) -> Duration {
    let usual = device.watch().map_or(Duration::ZERO, |watch| watch.recent(DiskOp::Read));
    (usual * HEDGE_FACTOR).clamp(HEDGE_MIN, HEDGE_MAX)
}

/// One leg's answer.
pub(crate) struct Copy<'a> {
    pub(crate) leg: &'a Leg,
    /// Doubt about the leg when it was asked.
    pub(crate) doubt: Doubt,
    pub(crate) done: Result<(), DeviceError>,
    pub(crate) buf: IoBuf,
}

/// The copies of one range, in the order in which legs answer.
pub(crate) struct Copies<'a> {
    disk_offset: u64,
    len: usize,
    clock: &'a dyn Clock,
    unasked: std::vec::IntoIter<&'a Leg>,
    asked: Vec<Asked<'a>>,
    /// True once a leg answered.
    answered: bool,
}

/// A leg that was asked; the read keeps its disk open.
struct Asked<'a> {
    leg: &'a Leg,
    doubt: Doubt,
    device: Arc<dyn Device>,
    read: ReadFuture<'a>,
    /// The next leg was asked because this one took too long.
    late: bool,
}

impl<'a> Copies<'a> {
    /// Will ask `legs` in this order; nothing is read yet.
    pub(crate) fn new(
        legs: Vec<&'a Leg>,
        disk_offset: u64,
        len: usize,
        clock: &'a dyn Clock,
    ) -> Self {
        let (unasked, asked) = (legs.into_iter(), Vec::new());
        Self { disk_offset, len, clock, unasked, asked, answered: false }
    }

    /// The next copy; `None` when every leg has answered.
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

    /// Asks the next leg that can be used.
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

    /// How long to wait before asking one more; `None` when there is none.
    fn timer(&self) -> Option<Sleep> {
        if self.unasked.as_slice().is_empty() {
            return None;
        }
        Some(self.clock.sleep(patience(&*self.asked.last()?.device)))
    }

    /// The first answer, or `None` when the timer was first.
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

/// The caller took another leg's copy: the read went around the legs that are late. A caller that
/// rejects every copy drops `Copies` when no leg is left to wait for, so wrong bytes count as no
/// latency.
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

    /// The machine's clock, with the timers of the I/O runtime.
    fn test_clock() -> Arc<dyn Clock> {
        Arc::new(TestClock(SystemClock::default()))
    }

    /// A vdev of watched disks, and their faults.
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
            pool: Guid(7),
            name: "tank".to_owned(),
            disk: Guid(0),
            txg: Txg(1),
            segment_bytes: 1 << 16,
            strip_bytes: 4096,
            log_bytes: 0,
            vdevs: vec![config],
        };
        let options =
            PoolOptions { cache_bytes: 0, clock: Arc::clone(&clock), bug: PlantedBug::None };
        (Vdev::new(&label, 0, (0..disks.len()).map(leg).collect(), &options), faults)
    }

    /// A mirror of two disks whose bytes tell which is which, and their faults.
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
    fn a_read_goes_around_a_frozen_leg_and_the_next_ones_avoid_it() {
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
    fn a_slow_leg_is_waited_for_where_the_other_is_wrong_or_fails() {
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
    fn legs_that_answer_in_time_are_asked_one_by_one() {
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

    // After a power cut between two uberblocks every good leg is unconfirmed. Reads asked a leg
    // that missed writes as often as those, and what it never got counted as errors of its disk.
    #[test]
    fn stale_leg_is_asked_last_and_its_old_bytes_are_no_error_of_its_disk() {
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

    // Each read of a broken block counted an error of each leg. Reads of the same block at the same
    // time are slow, and status then called both disks slow.
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
            vdev.legs.iter().for_each(|leg| leg.checksum_errors.forget_all());
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
