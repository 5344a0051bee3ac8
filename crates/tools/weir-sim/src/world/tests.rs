//! Tests of whole runs: replay, power cuts and continuation after them.
//!
//! The tests run without the engine.
//!
//! Invariant: tests with random outcomes use many seeds, and each test can fail.

use std::collections::BTreeSet;
use std::rc::Rc;

use weir_block::IoBuf;
use weir_device::{Device, Durability};

use super::*;
use crate::cut::Grain;
use crate::fault::{Budget, Fault};

fn options() -> Vec<DiskOptions> {
    vec![DiskOptions::new("a", 1 << 20), DiskOptions::new("b", 1 << 20)]
}

async fn write(disk: &SimDisk, offset: u64, byte: u8, len: usize) {
    let mut buf = IoBuf::zeroed(len);
    buf.fill(byte);
    disk.write_at(offset, Arc::new(buf), 0..len, Durability::Cached).await.expect("no fault here");
}

/// Runs two clients on two disks; each client writes, reads and flushes.
async fn scenario(executor: Executor, disks: Vec<Arc<SimDisk>>) {
    let client = |(number, disk): (usize, Arc<SimDisk>)| {
        executor.spawn(format!("client {number}"), async move {
            for round in 0..5_u8 {
                write(&disk, u64::from(round) * 4096, round + 1, 4096).await;
                let (result, _) = disk.read_at(0, IoBuf::zeroed(512)).await;
                result.expect("no read fault here");
                disk.flush().await.expect("no flush fault here");
            }
        })
    };
    let clients: Vec<_> = disks.into_iter().enumerate().map(client).collect();
    futures_util::future::join_all(clients).await;
}

fn start(seed: u64) -> SimWorld {
    let world = SimWorld::new(seed, &options());
    world.record_trace();
    world
}

fn run(world: &SimWorld) -> Result<(), SimError> {
    world.run_until(scenario(world.executor().clone(), world.disks().to_vec()))
}

fn bytes(images: &[MediaImage]) -> Vec<Vec<u8>> {
    let read = |image: &MediaImage| {
        let mut out = vec![0; 6 * 4096];
        image.read(0, &mut out);
        out
    };
    images.iter().map(read).collect()
}

#[test]
fn seed_replays_exactly() {
    let traces = [1, 1, 2].map(|seed| {
        let world = start(seed);
        run(&world).unwrap();
        world.trace()
    });
    assert_eq!(traces[0], traces[1]);
    assert_ne!(traces[0], traces[2]);
    // 2 clients x 5 rounds x (write, read, flush), each with an issue and a completion.
    assert_eq!(traces[0].0.len(), 60);
    assert_eq!(traces[0].to_string().lines().count(), 60);
}

#[test]
fn fault_with_probability_zero_does_not_change_the_schedule() {
    let plain = start(3);
    run(&plain).unwrap();
    let armed = start(3);
    armed.disk(0).set_fault(Fault::WriteError, Budget { per_million: 0, left: 5 });
    run(&armed).unwrap();
    assert_eq!(plain.trace(), armed.trace());
}

#[test]
fn hooked_run_sees_the_same_cuts_as_one_run_per_cut() {
    let hooked = start(4);
    let images = Rc::new(RefCell::new(Vec::new()));
    let sink = Rc::clone(&images);
    hooked.on_step(move |point| {
        assert_eq!(point.steps as usize, sink.borrow().len());
        sink.borrow_mut().push(bytes(&point.cut(CutPlan::Random(9))));
    });
    run(&hooked).unwrap();
    // Reads are not steps: 2 clients x 5 rounds x (write, flush), each with an issue and a
    // completion.
    assert_eq!((hooked.step_count(), hooked.op_count()), (40, 30));
    let images = images.take();
    for (steps, expected) in images.iter().enumerate() {
        let world = start(4);
        world.crash_after(steps as u64);
        let error = run(&world).unwrap_err();
        assert!(matches!(error, SimError::Crashed { step } if step == steps as u64), "{error}");
        assert!(matches!(run(&world), Err(SimError::Crashed { .. })), "it stays cut");
        assert_eq!(&bytes(&world.cut(CutPlan::Random(9))), expected, "after {steps} steps");
    }
    let different: BTreeSet<_> = images.into_iter().collect();
    assert!(different.len() > 10, "{} different images", different.len());
}

#[test]
fn power_cut_affects_writes_in_flight_on_all_disks() {
    let world = SimWorld::new(5, &options());
    // At this step both writes are issued and none is completed.
    world.crash_after(2);
    let (first, second) = (world.disk(0), world.disk(1));
    let writes = async {
        futures_util::join!(write(&first, 0, 1, 1024), write(&second, 0, 2, 512));
    };
    assert!(matches!(world.run_until(writes), Err(SimError::Crashed { step: 2 })));
    let unflushed = world.unflushed();
    assert_eq!(unflushed, Unflushed { sectors: 3, writes: 2 });

    let mut outcomes = BTreeSet::new();
    for plan in CutPlan::standard(unflushed, 0, 0) {
        let images = world.cut(plan);
        let mut sectors = [0; 3];
        images[0].read(0, &mut sectors[..1]);
        images[0].read(512, &mut sectors[1..2]);
        images[1].read(0, &mut sectors[2..]);
        outcomes.insert(sectors);
    }
    assert_eq!(outcomes.len(), 8, "{outcomes:?}");
    let images = bytes(&world.cut(CutPlan::Only(Grain::Write, 1)));
    assert_eq!((images[0][0], images[1][0]), (0, 2));
}

#[test]
fn new_world_reads_the_media_of_a_cut() {
    let world = SimWorld::new(6, &options());
    let disk = world.disk(0);
    world
        .run_until(async {
            write(&disk, 0, 7, 4096).await;
            disk.flush().await.expect("no fault");
            write(&disk, 4096, 8, 4096).await;
        })
        .unwrap();
    let next = SimWorld::from_media(7, world.cut(CutPlan::Nothing));
    let disk = next.disk(0);
    assert_eq!((disk.path(), disk.geometry().len_bytes), ("a", 1 << 20));
    let (first, second) = next
        .run_until(async {
            let (first, one) = disk.read_at(0, IoBuf::zeroed(4096)).await;
            let (second, two) = disk.read_at(4096, IoBuf::zeroed(4096)).await;
            first.and(second).expect("no fault");
            (one[0], two[0])
        })
        .unwrap();
    assert_eq!((first, second), (7, 0));
}

#[test]
fn hook_may_run_another_world() {
    let world = start(8);
    let recovered = Rc::new(Cell::new(0));
    let count = Rc::clone(&recovered);
    world.on_step(move |point| {
        let inner = SimWorld::from_media(point.steps, point.cut(CutPlan::Everything));
        let disk = inner.disk(0);
        let (result, _) = inner.run_until(disk.read_at(0, IoBuf::zeroed(512))).expect("it reads");
        result.expect("no fault");
        count.set(count.get() + 1);
    });
    run(&world).unwrap();
    assert_eq!(recovered.get(), 40);
}

#[test]
fn cutting_does_not_copy_disks() {
    let world = SimWorld::new(9, &[DiskOptions::new("big", 64 << 20)]);
    let disk = world.disk(0);
    world
        .run_until(async {
            for mib in 0..8 {
                write(&disk, mib << 20, 1, 1 << 20).await;
            }
            disk.flush().await.expect("no fault");
            write(&disk, 0, 2, 4096).await;
        })
        .unwrap();
    let first = world.cut(CutPlan::Nothing);
    let second = world.cut(CutPlan::Everything);
    assert_eq!(first[0].stored_blocks(), 2048);
    let shared = |block| {
        let pair = (first[0].block(block), second[0].block(block));
        matches!(pair, (Some(one), Some(two)) if Arc::ptr_eq(one, two))
    };
    assert_eq!((0..2048).filter(|block| shared(*block)).count(), 2047);
}
