//! Tests of one disk: visibility, durability and every fault.
//!
//! The tests run without the engine.
//!
//! Invariant: tests with random outcomes use many seeds, and each test can fail.

use weir_base::ErrorKind;

use super::*;
use crate::cut::CutPlan;
use crate::media::DiskOptions;
use crate::world::SimWorld;

const DISK_BYTES: u64 = 1 << 20;

fn world(seed: u64) -> (SimWorld, Arc<SimDisk>) {
    let world = SimWorld::new(seed, &[DiskOptions::new("a", DISK_BYTES)]);
    let disk = world.disk(0);
    (world, disk)
}

fn filled(byte: u8, len: usize) -> Arc<IoBuf> {
    let mut buf = IoBuf::zeroed(len);
    buf.fill(byte);
    Arc::new(buf)
}

async fn write(disk: &SimDisk, offset: u64, byte: u8) -> Result<(), DeviceError> {
    disk.write_at(offset, filled(byte, 4096), 0..4096, Durability::Cached).await
}

async fn write_durable(disk: &SimDisk, offset: u64, byte: u8) -> Result<(), DeviceError> {
    disk.write_at(offset, filled(byte, 4096), 0..4096, Durability::Durable).await
}

/// Reads a 4 KiB block; returns its fill byte.
async fn read(disk: &SimDisk, offset: u64) -> Result<u8, DeviceError> {
    let (result, buf) = disk.read_at(offset, IoBuf::zeroed(4096)).await;
    result.map(|()| {
        assert!(buf.iter().all(|byte| *byte == buf[0]), "one fill");
        buf[0]
    })
}

/// Number of bytes with the value 1, the fill byte of the tests' writes.
fn ones(bytes: &[u8]) -> usize {
    bytes.iter().map(|byte| usize::from(*byte == 1)).sum()
}

/// Returns the byte at an offset after a cut.
fn after(world: &SimWorld, plan: CutPlan, offset: u64) -> u8 {
    let mut byte = [0];
    world.cut(plan)[0].read(offset, &mut byte);
    byte[0]
}

#[test]
fn completed_write_is_visible_and_lost_without_a_flush() {
    let (world, disk) = world(1);
    world
        .run_until(async {
            write(&disk, 0, 1).await.unwrap();
            assert_eq!(read(&disk, 0).await.unwrap(), 1);
        })
        .unwrap();
    assert_eq!(disk.counters().unflushed, Unflushed { sectors: 8, writes: 1 });
    assert_eq!(after(&world, CutPlan::Nothing, 0), 0);
    assert_eq!(after(&world, CutPlan::Everything, 0), 1);
    world.run_until(disk.flush()).unwrap().unwrap();
    assert_eq!(after(&world, CutPlan::Nothing, 0), 1);
    assert_eq!(disk.counters().unflushed, Unflushed::default());
}

#[test]
fn flush_covers_only_writes_completed_before_the_call() {
    for seed in 0..50 {
        let (world, disk) = world(seed);
        world
            .run_until(async {
                write(&disk, 0, 1).await.unwrap();
                let flush = disk.flush();
                write(&disk, 4096, 2).await.unwrap();
                let (third, flushed) = futures_util::join!(write(&disk, 8192, 3), flush);
                third.and(flushed).unwrap();
            })
            .unwrap();
        let kept = [0, 4096, 8192].map(|offset| after(&world, CutPlan::Nothing, offset));
        assert_eq!(kept, [1, 0, 0], "seed {seed}");
    }
}

#[test]
fn durable_write_survives_and_older_writes_do_not_overwrite_it() {
    let (world, disk) = world(3);
    world
        .run_until(async {
            write(&disk, 0, 1).await.unwrap();
            write(&disk, 4096, 1).await.unwrap();
            write_durable(&disk, 0, 2).await.unwrap();
        })
        .unwrap();
    for plan in (0..50).map(CutPlan::Random).chain([CutPlan::Everything, CutPlan::Nothing]) {
        assert_eq!(after(&world, plan, 0), 2, "{plan:?}");
    }
    assert_eq!(after(&world, CutPlan::Nothing, 4096), 0);
}

#[test]
fn concurrent_writes_complete_in_any_order() {
    let mut last = [0_u32; 2];
    for seed in 0..50 {
        let (world, disk) = world(seed);
        let byte = world.run_until(async {
            let (one, two) = futures_util::join!(write(&disk, 0, 1), write(&disk, 0, 2));
            one.and(two).unwrap();
            read(&disk, 0).await.unwrap()
        });
        last[usize::from(byte.unwrap()) - 1] += 1;
    }
    assert!(last[0] > 5 && last[1] > 5, "{last:?}");
}

#[test]
fn unpolled_future_does_nothing_and_dropped_future_completes() {
    let (world, disk) = world(5);
    world
        .run_until(async {
            drop(write(&disk, 0, 1));
            let mut started = Box::pin(write(&disk, 4096, 2));
            assert!(futures_util::poll!(&mut started).is_pending());
            drop(started);
            world.executor().sleep(Duration::from_secs(1)).await;
            assert_eq!((read(&disk, 0).await.unwrap(), read(&disk, 4096).await.unwrap()), (0, 2));
        })
        .unwrap();
    assert_eq!(disk.counters().ops, 3);
}

#[test]
fn failed_flush_loses_writes_despite_the_next_flush() {
    let mut kept = [0_u32; 2];
    for seed in 0..50 {
        let (world, disk) = world(seed);
        disk.set_fault(Fault::FlushError, Budget::next(1));
        world
            .run_until(async {
                write(&disk, 0, 1).await.unwrap();
                let error = disk.flush().await.unwrap_err();
                assert_eq!((error.op, error.kind()), (DeviceOp::Flush, ErrorKind::Unavailable));
                disk.flush().await.unwrap();
            })
            .unwrap();
        kept[usize::from(after(&world, CutPlan::Everything, 0))] += 1;
    }
    assert!(kept[0] > 5 && kept[1] > 5, "{kept:?}");
}

#[test]
fn lying_flush_makes_nothing_durable() {
    let (world, disk) = world(7);
    disk.set_fault(Fault::LyingFlush, Budget::ALWAYS);
    world
        .run_until(async {
            write(&disk, 0, 1).await.unwrap();
            write_durable(&disk, 4096, 2).await.unwrap();
            disk.flush().await.unwrap();
            assert_eq!(read(&disk, 4096).await.unwrap(), 2);
        })
        .unwrap();
    assert_eq!(after(&world, CutPlan::Nothing, 0), 0);
    assert_eq!(after(&world, CutPlan::Nothing, 4096), 0);
    assert_eq!(disk.counters().faults, 2);
}

#[test]
fn lost_and_misdirected_writes_are_acknowledged() {
    let (world, disk) = world(8);
    world
        .run_until(async {
            disk.set_fault(Fault::LostWrite, Budget::next(1));
            write(&disk, 0, 1).await.unwrap();
            assert_eq!(read(&disk, 0).await.unwrap(), 0);
            disk.set_fault(Fault::MisdirectedWrite, Budget::next(1));
            write(&disk, 0, 1).await.unwrap();
            assert_eq!(read(&disk, 0).await.unwrap(), 0);
            write(&disk, 4096, 3).await.unwrap();
            assert_eq!(read(&disk, 4096).await.unwrap(), 3);
        })
        .unwrap();
    let mut all = vec![0; DISK_BYTES as usize];
    disk.peek(0, &mut all);
    assert_eq!(ones(&all), 4096);
}

#[test]
fn failed_write_may_leave_any_of_its_sectors() {
    let mut outcomes = [0_u32; 9];
    for seed in 0..50 {
        let (world, disk) = world(seed);
        disk.set_fault(Fault::WriteError, Budget::next(1));
        let failed = world.run_until(write(&disk, 0, 1)).unwrap();
        assert_eq!(failed.unwrap_err().op, DeviceOp::Write);
        let mut block = [0; 4096];
        disk.peek(0, &mut block);
        outcomes[ones(&block) / 512] += 1;
    }
    assert!(outcomes.iter().filter(|count| **count > 0).count() > 4, "{outcomes:?}");
}

#[test]
fn rot_flips_one_bit_and_latent_errors_last_until_rewritten() {
    let (world, disk) = world(10);
    world
        .run_until(async {
            write_durable(&disk, 0, 0).await.unwrap();
            disk.set_fault(Fault::BitRot, Budget::next(1));
            let (result, buf) = disk.read_at(0, IoBuf::zeroed(4096)).await;
            result.unwrap();
            assert_eq!(buf.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);

            disk.set_fault(Fault::LatentRead, Budget::next(1));
            let (result, buf) = disk.read_at(4096, IoBuf::zeroed(4096)).await;
            assert_eq!(result.unwrap_err().op, DeviceOp::Read);
            assert_ne!(buf[0], 0, "a failed read leaves nothing that looks like data");
            read(&disk, 4096).await.unwrap_err();
        })
        .unwrap();
    let restarted = SimWorld::from_media(1, world.cut(CutPlan::Everything));
    let disk = restarted.disk(0);
    restarted
        .run_until(async {
            read(&disk, 4096).await.unwrap_err();
            write(&disk, 4096, 5).await.unwrap();
            assert_eq!(read(&disk, 4096).await.unwrap(), 5);
        })
        .unwrap();
}

#[test]
fn rot_below_a_cached_write_shows_after_the_cut() {
    let (world, disk) = world(11);
    world.run_until(write(&disk, 0, 1)).unwrap().unwrap();
    disk.flip_bit(100, 7);
    assert_eq!(world.run_until(read(&disk, 0)).unwrap().unwrap(), 1);
    assert_eq!(after(&world, CutPlan::Nothing, 100), 0x80);
}

#[test]
fn dead_slow_and_short_disks_behave_as_configured() {
    let (world, disk) = world(12);
    let executor = world.executor();
    world
        .run_until(async {
            write_durable(&disk, 0, 1).await.unwrap();
            disk.set_dead(true);
            write(&disk, 0, 2).await.unwrap_err();
            read(&disk, 0).await.unwrap_err();
            disk.flush().await.unwrap_err();
            disk.set_dead(false);
            assert_eq!(read(&disk, 0).await.unwrap(), 1);

            let second = Duration::from_secs(1);
            disk.set_latency(Latency { min: second, max: second });
            let before = executor.now();
            disk.flush().await.unwrap();
            assert!(executor.now() >= before + second);

            disk.shorten(8192);
            write(&disk, 4096, 3).await.unwrap();
            write(&disk, 8192, 3).await.unwrap_err();
            read(&disk, DISK_BYTES - 4096).await.unwrap_err();
            assert_eq!(disk.geometry().len_bytes, DISK_BYTES);
        })
        .unwrap();
    let restarted = SimWorld::from_media(1, world.cut(CutPlan::Everything));
    assert_eq!(restarted.disk(0).geometry().len_bytes, 8192);
}

#[test]
fn discard_makes_only_its_range_undefined() {
    let mut contents = Vec::new();
    for seed in 0..40 {
        let (world, disk) = world(seed);
        world
            .run_until(async {
                for block in 0..4 {
                    write(&disk, block * 4096, 1).await.unwrap();
                }
                disk.flush().await.unwrap();
                disk.discard(4096, 8192).await.unwrap();
                assert_eq!(read(&disk, 0).await.unwrap(), 1);
                assert_eq!(read(&disk, 3 * 4096).await.unwrap(), 1);
            })
            .unwrap();
        contents.push(after(&world, CutPlan::Nothing, 4096));
    }
    assert!(contents.contains(&0) && contents.contains(&1), "{contents:?}");
    assert!(contents.iter().any(|byte| *byte > 1), "{contents:?}");
}

#[test]
fn torn_sector_keeps_only_a_prefix() {
    let mut options = DiskOptions::new("t", DISK_BYTES);
    options.torn_sectors = true;
    let world = SimWorld::new(14, &[options]);
    let disk = world.disk(0);
    world.run_until(write(&disk, 0, 1)).unwrap().unwrap();
    let mut torn = 0;
    for seed in 0..100 {
        let mut block = [0; 4096];
        world.cut(CutPlan::Random(seed))[0].read(0, &mut block);
        for sector in block.as_chunks::<512>().0 {
            let kept = sector.iter().take_while(|byte| **byte == 1).count();
            assert!(sector[kept..].iter().all(|byte| *byte == 0));
            torn += u32::from(kept > 0 && kept < 512);
        }
    }
    assert!(torn > 20, "{torn}");
}
