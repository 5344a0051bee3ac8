//! Tests of the flush probe with disks whose times are known.

use std::cell::Cell;
use std::time::Instant;

use weir_base::SystemClock;

use super::*;
use crate::backend::new_runtime;
use crate::device::DeviceOp;
use crate::fault::{FaultDevice, Faults};
use crate::memory::MemoryDevice;

const OFFSET: u64 = 8192;

struct Disk {
    behind: Arc<MemoryDevice>,
    faults: Arc<Faults>,
    device: Arc<dyn Device>,
}

fn disk() -> Disk {
    let behind = Arc::new(MemoryDevice::new("disk", 1 << 16));
    let faults = Arc::new(Faults::default());
    let device = FaultDevice::new(Arc::clone(&behind) as Arc<dyn Device>, Arc::clone(&faults));
    Disk { behind, faults, device: Arc::new(device) }
}

async fn measure(disks: &[&Disk]) -> Result<Vec<FlushFigures>, DeviceError> {
    let devices: Vec<_> = disks.iter().map(|disk| Arc::clone(&disk.device)).collect();
    let count = Cell::new(0_u8);
    let noise = |bytes: &mut [u8]| {
        count.set(count.get().wrapping_add(1) | 1);
        bytes.fill(count.get());
    };
    probe_flushes(&devices, OFFSET, &SystemClock::default(), &noise).await
}

#[test]
fn slow_and_fast_disks_are_measured_concurrently() {
    new_runtime().unwrap().block_on(async {
        let (slow, quick) = (disk(), disk());
        let delay = Duration::from_millis(20);
        slow.faults.delay(delay);
        let start = Instant::now();
        let figures = measure(&[&slow, &quick, &slow]).await.unwrap();
        let took = start.elapsed();
        for slow in [&figures[0], &figures[2]] {
            assert!(slow.write >= delay && slow.flush >= delay && slow.sync >= delay, "{slow:?}");
            assert!((2..SAMPLES_MAX).contains(&slow.samples), "{slow:?}");
            assert!(slow.durable() >= delay);
        }
        assert!(figures[1].durable() < delay, "{:?}", figures[1]);
        assert_eq!(figures[1].samples, SAMPLES_MAX);
        // Measuring the two slow disks one after the other would take twice as long.
        assert!(took >= TIME_MAX && took < TIME_MAX * 2, "{took:?}");
    });
}

#[test]
fn very_slow_disk_is_measured_once() {
    new_runtime().unwrap().block_on(async {
        let disk = disk();
        disk.faults.delay(Duration::from_millis(150));
        let figures = measure(&[&disk]).await.unwrap();
        assert_eq!(figures[0].samples, 1);
        assert!(figures[0].flush >= Duration::from_millis(150), "{figures:?}");
    });
}

#[test]
fn probe_writes_only_at_its_offset() {
    new_runtime().unwrap().block_on(async {
        let disk = disk();
        measure(&[&disk]).await.unwrap();
        let (result, content) = disk.behind.read_at(0, IoBuf::zeroed(1 << 16)).await;
        result.unwrap();
        let place = OFFSET as usize..OFFSET as usize + FLUSH_PROBE_BYTES;
        assert!(content[place.clone()].iter().all(|byte| *byte != 0), "nothing was written");
        assert!(content[..place.start].iter().all(|byte| *byte == 0));
        assert!(content[place.end..].iter().all(|byte| *byte == 0));
    });
}

#[test]
fn failed_write_or_flush_is_an_error_and_not_retried() {
    new_runtime().unwrap().block_on(async {
        for op in [DeviceOp::Write, DeviceOp::Flush] {
            let (good, bad) = (disk(), disk());
            bad.faults.fail(op);
            let error = measure(&[&good, &bad]).await.unwrap_err();
            assert_eq!(error.op, op);
            assert_eq!(bad.faults.injected_count(), 1, "{op} was tried again");
        }
    });
}

#[test]
fn probe_waits_for_a_frozen_disk() {
    new_runtime().unwrap().block_on(async {
        let disk = disk();
        disk.faults.freeze();
        let disks = [&disk];
        let mut measuring = Box::pin(measure(&disks));
        let waited = compio::time::timeout(Duration::from_millis(600), &mut measuring).await;
        assert!(waited.is_err(), "it ended with a write under way");
        disk.faults.clear();
        assert_eq!(measuring.await.unwrap().len(), 1);
    });
}
