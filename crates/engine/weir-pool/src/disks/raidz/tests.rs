//! Tests of raidz reads with unresponsive or slow legs.
//!
//! Not here: damage and loss of legs that answer (weir-dataset's tests).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join;
use weir_base::Txg;
use weir_base::limits::{AVOID_MIN, HEDGE_MIN};
use weir_device::{Device, DeviceOp, DiskOp, Faults, MemoryDevice, new_runtime};
use weir_format::VdevKind;
use weir_format::layout::LABEL_BYTES;

use super::*;
use crate::disks::hedge::tests::vdev_of;

const STRIP: usize = 4096;
const DATA: usize = 3;
const ROWS: usize = 8;
const LEN: usize = ROWS * DATA * STRIP;
/// Time limit of a read, far longer than any read that does not wait for an unresponsive leg.
const LIMIT: Duration = Duration::from_secs(5);

/// Raidz vdev in memory with written rows, and the fault injectors of its disks.
struct Bench {
    vdev: Vdev,
    memory: Vec<Arc<MemoryDevice>>,
    faults: Vec<Arc<Faults>>,
    content: Vec<u8>,
}

impl Bench {
    async fn new(parity: usize) -> Self {
        let legs = DATA + parity;
        let len = LABEL_BYTES as usize + ROWS * STRIP;
        let disk = |n| Arc::new(MemoryDevice::new(format!("disk{n}"), len));
        let memory: Vec<_> = (0..legs).map(disk).collect();
        let kind = [VdevKind::Raidz1, VdevKind::Raidz2, VdevKind::Raidz3][parity - 1];
        let (vdev, faults) = vdev_of(kind, &memory);
        let content: Vec<u8> = (0..LEN).map(|at| (at / 64 * 31 + at) as u8).collect();
        let mut rows = IoBuf::zeroed(LEN);
        rows.copy_from_slice(&content);
        vdev.write_rows(0, &Arc::new(rows), 0..LEN).await.unwrap();
        Self { vdev, memory, faults, content }
    }

    /// Reads and verifies a range within [`LIMIT`].
    async fn read(&self, range: Range<usize>) {
        let must = &self.content[range.clone()];
        let verify = |bytes: &[u8]| bytes == must;
        let read = self.vdev.read_verified(0, range.start as u64, range.len(), verify);
        compio::time::timeout(LIMIT, read).await.expect("it hangs").unwrap();
    }

    async fn read_unverified(&self, range: Range<usize>) {
        let read = self.vdev.read_unverified(0, range.start as u64, range.len());
        let (buf, at) = compio::time::timeout(LIMIT, read).await.expect("it hangs").unwrap();
        assert!(buf[at..at + range.len()] == self.content[range], "other bytes");
    }

    fn freeze(&self, legs: Range<usize>) {
        legs.for_each(|leg| self.faults[leg].freeze());
    }

    fn bypassed(&self) -> Vec<u64> {
        self.vdev.legs.iter().map(|leg| leg.figures().map_or(0, |seen| seen.bypassed)).collect()
    }

    /// Completed reads of each leg.
    fn reads(&self) -> Vec<u64> {
        let count = |leg: &Leg| leg.figures().map_or(0, |seen| seen.of(DiskOp::Read).count);
        self.vdev.legs.iter().map(count).collect()
    }

    /// Checksum errors of each leg.
    fn wrong(&self) -> Vec<u64> {
        self.vdev.legs.iter().map(|leg| leg.checksum_errors.total()).collect()
    }

    /// Asserts that no error was counted on any leg, and that only the rows were written.
    fn assert_no_leg_blamed(&self) {
        let of = |leg: &Leg| leg.read_errors.load(Ordering::Relaxed);
        assert_eq!(
            self.vdev.legs.iter().map(of).sum::<u64>() + self.wrong().iter().sum::<u64>(),
            0
        );
        let writes = |disk: &Arc<MemoryDevice>| disk.stats().writes.load(Ordering::Relaxed);
        assert!(self.memory.iter().all(|disk| writes(disk) == 1), "a slow leg was written");
    }

    fn damage(&self, leg: usize, row: usize) {
        let at = LABEL_BYTES as usize + row * STRIP;
        self.memory[leg].corrupt(at..at + STRIP, |byte| *byte ^= 0x55);
    }

    async fn is_damaged(&self, leg: usize, row: usize) -> bool {
        let strip = (leg + self.memory.len() - row % self.memory.len()) % self.memory.len();
        let at = (row * DATA + strip) * STRIP;
        let on_disk = LABEL_BYTES + (row * STRIP) as u64;
        let (done, buf) = self.memory[leg].read_at(on_disk, IoBuf::zeroed(STRIP)).await;
        done.unwrap();
        buf[..] != self.content[at..at + STRIP]
    }
}

fn run(test: impl AsyncFn()) {
    new_runtime().unwrap().block_on(test());
}

/// Bytes of a strip of row 0; strip n of that row is on leg n.
fn strip(strip: usize) -> Range<usize> {
    strip * STRIP..(strip + 1) * STRIP
}

#[test]
fn read_bypasses_frozen_leg_and_later_reads_avoid_it() {
    run(async || {
        for parity in 1..=3 {
            let bench = Bench::new(parity).await;
            bench.freeze(0..1);
            let start = Instant::now();
            bench.read(strip(0)).await;
            assert!(start.elapsed() >= HEDGE_MIN && start.elapsed() < HEDGE_MAX * 4);
            let once = [1].into_iter().chain(vec![0; DATA + parity - 1]).collect::<Vec<_>>();
            assert_eq!(bench.bypassed(), once);
            for _ in 0..10 {
                bench.read(0..LEN).await;
                bench.read(100..STRIP + 100).await;
                bench.read_unverified(0..2 * STRIP).await;
            }
            assert_eq!(bench.bypassed(), once, "asked last, so not waited for");
            bench.assert_no_leg_blamed();
        }
    });
}

// Regression: a read got old bytes from a stale leg and identified the wrong strip only after the
// resilver had ended. The pool counted the missed write as an error of the disk.
#[test]
fn stale_bytes_are_no_disk_error_after_the_resilver() {
    run(async || {
        for parity in 1..=3 {
            let bench = Bench::new(parity).await;
            let stale = &bench.vdev.legs[0];
            stale.set_stale(Txg(1));
            bench.damage(0, 0);
            bench.freeze(1..DATA + parity);
            let resilver_ends = async {
                // The read of the strip reads leg 0 alone, then all legs: wait for the second read
                // of leg 0.
                while bench.reads()[0] < 2 {
                    compio::time::sleep(Duration::from_millis(1)).await;
                }
                assert!(stale.set_copied(stale.absences()));
                stale.settle_copied();
                bench.faults.iter().for_each(|faults| faults.clear());
            };
            join(bench.read(strip(0)), resilver_ends).await;
            assert!(stale.is_up_to_date());
            assert_eq!(bench.wrong(), vec![0; DATA + parity]);
        }
    });
}

// Regression: reads tried combinations of lost strips row by row. In a block of many rows, a disk
// with wrong bytes in all of them blocked the pool's thread for seconds, and two such disks made
// the block unreadable.
#[test]
fn legs_with_wrong_bytes_in_every_row_are_identified() {
    run(async || {
        for parity in 1..=3 {
            let bench = Bench::new(parity).await;
            for leg in DATA..DATA + parity {
                (0..ROWS).for_each(|row| bench.damage(leg, row));
            }
            bench.read(0..LEN).await;
            let wrong = bench.wrong();
            assert!(wrong[..DATA].iter().all(|count| *count == 0), "{wrong:?}");
            assert!(wrong[DATA..].iter().all(|count| *count > 0), "{wrong:?}");
            bench.read(0..LEN).await;
            assert_eq!(bench.wrong(), wrong, "they are repaired");
        }
    });
}

#[test]
fn old_bytes_of_a_stale_leg_are_no_error_of_its_disk() {
    run(async || {
        for parity in 1..=3 {
            let bench = Bench::new(parity).await;
            bench.vdev.legs[0].set_stale(Txg(1));
            (1..DATA + parity).for_each(|leg| bench.vdev.legs[leg].set_unconfirmed(Txg(1)));
            bench.damage(0, 0);
            bench.read(0..LEN).await;
            assert_eq!(bench.wrong(), vec![0; DATA + parity]);
            assert!(!bench.is_damaged(0, 0).await, "it has the right bytes now");
        }
    });
}

#[test]
fn unverified_reads_bypass_a_frozen_leg() {
    run(async || {
        for parity in 1..=3 {
            let bench = Bench::new(parity).await;
            bench.freeze(1..2);
            bench.read_unverified(0..LEN).await;
            assert_eq!(bench.bypassed()[..3], [0, 1, 0], "once for a read, however many strips");
            bench.assert_no_leg_blamed();
        }
    });
}

#[test]
fn as_many_legs_as_parity_strips_may_freeze() {
    run(async || {
        for parity in 1..=3 {
            for first in 0..=DATA {
                let bench = Bench::new(parity).await;
                bench.freeze(first..first + parity);
                // Read one strip first, so that the vdev finds the unresponsive legs one after
                // another; then read all strips at once.
                bench.read(strip(first.min(DATA - 1))).await;
                bench.read(0..LEN).await;
                bench.read_unverified(0..LEN).await;
                bench.assert_no_leg_blamed();
            }
        }
    });
}

#[test]
fn read_waits_if_more_legs_freeze_than_parity_covers() {
    run(async || {
        for parity in 1..=3 {
            for (wanted, thawing) in [(0..1, 0), (0..1, 1), (0..DATA, 0), (0..DATA, 1)] {
                let bench = Bench::new(parity).await;
                bench.freeze(0..parity + 1);
                let pause = Duration::from_millis(200);
                let thaw = async {
                    compio::time::sleep(pause).await;
                    bench.faults[thawing].clear();
                };
                let start = Instant::now();
                let wanted = wanted.start * STRIP..wanted.end * STRIP;
                futures_util::join!(bench.read(wanted), thaw);
                assert!(start.elapsed() >= pause, "answered by nobody");
                bench.assert_no_leg_blamed();
            }
        }
    });
}

#[test]
fn damaged_strip_is_found_while_another_leg_is_frozen() {
    run(async || {
        // Either the read wants the damaged strip, or the unresponsive leg's strip is computed from
        // the damaged strip.
        for (damaged, frozen, read) in [(0, 1, 0), (0, 4, 0), (1, 0, 0), (1, 0, 1), (0, 1, 1)] {
            let bench = Bench::new(2).await;
            bench.damage(damaged, 0);
            bench.freeze(frozen..frozen + 1);
            bench.read(strip(read)).await;
            let wrong: Vec<u64> = (0..5).map(|n| u64::from(n == damaged && n == read)).collect();
            assert_eq!(bench.wrong(), wrong, "only who was asked for and is wrong");
            assert_eq!(
                bench.is_damaged(damaged, 0).await,
                damaged != read,
                "repaired if it was proved"
            );
            bench.read(0..DATA * STRIP).await;
            assert!(!bench.is_damaged(damaged, 0).await);
            assert_eq!(bench.wrong().iter().sum::<u64>(), 1);
            assert_eq!(bench.memory[frozen].stats().writes.load(Ordering::Relaxed), 1);
        }
    });
}

#[test]
fn read_waits_for_slow_leg_if_others_are_wrong_fail_or_freeze() {
    run(async || {
        let slow = Duration::from_millis(150);
        let wrong = Bench::new(1).await;
        wrong.damage(3, 0);
        wrong.faults[0].delay(slow);
        wrong.read(strip(0)).await;
        wrong.assert_no_leg_blamed();

        let failing = Bench::new(1).await;
        failing.faults[2].fail(DeviceOp::Read);
        failing.faults[0].delay(slow);
        failing.read(strip(0)).await;
        assert_eq!(failing.wrong(), [0; 4]);

        let frozen = Bench::new(1).await;
        frozen.freeze(2..3);
        frozen.faults[0].delay(slow);
        let start = Instant::now();
        frozen.read(strip(0)).await;
        assert!(start.elapsed() >= slow && start.elapsed() < LIMIT / 2);
        frozen.read(0..LEN).await;
        frozen.assert_no_leg_blamed();
    });
}

#[test]
fn frozen_leg_is_bypassed_through_a_slow_one() {
    run(async || {
        let bench = Bench::new(1).await;
        // Reads prefer other legs to leg 0 for longer than the test's read may take.
        (0..5).for_each(|_| bench.vdev.legs[0].note_bypass());
        bench.faults[0].delay(Duration::from_millis(50));
        bench.freeze(2..3);
        bench.vdev.legs[2].note_bypass();
        let start = Instant::now();
        bench.read(0..LEN).await;
        assert!(start.elapsed() < DISK_UNRESPONSIVE + 3 * HEDGE_MAX);
        bench.assert_no_leg_blamed();
    });
}

#[test]
fn offline_leg_reduces_the_frozen_legs_that_parity_covers() {
    run(async || {
        let bench = Bench::new(2).await;
        bench.vdev.legs[1].set_offline();
        bench.freeze(0..1);
        bench.read(0..LEN).await;
        bench.read(strip(0)).await;
        bench.freeze(4..5);
        let thaw = async {
            compio::time::sleep(Duration::from_millis(200)).await;
            bench.faults[0].clear();
        };
        futures_util::join!(bench.read(0..LEN), thaw);
        bench.assert_no_leg_blamed();
    });
}

#[test]
fn leg_that_answers_again_is_used_again() {
    run(async || {
        let bench = Bench::new(1).await;
        bench.freeze(0..1);
        bench.read(strip(0)).await;
        bench.faults[0].clear();
        let before = bench.reads();
        bench.read(strip(0)).await;
        assert_eq!(bench.reads()[0], before[0], "avoided for a while");
        compio::time::sleep(AVOID_MIN + HEDGE_MIN).await;
        let before = bench.reads();
        bench.read(strip(0)).await;
        assert_eq!(bench.reads(), [before[0] + 1, before[1], before[2], before[3]]);
        assert_eq!(bench.bypassed(), [1, 0, 0, 0]);
    });
}

#[test]
fn only_legs_with_the_bytes_are_read_while_they_answer_in_time() {
    run(async || {
        let bench = Bench::new(2).await;
        bench.faults[1].delay(HEDGE_MIN / 4);
        bench.read(strip(1)).await;
        bench.read(100..200).await;
        bench.read(0..2 * STRIP).await;
        assert_eq!((bench.reads(), bench.bypassed()), (vec![2, 2, 0, 0, 0], vec![0; 5]));
        bench.assert_no_leg_blamed();
    });
}
