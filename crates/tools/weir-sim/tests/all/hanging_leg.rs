//! Leg that hangs during an import: the import opens the pool without this leg in bounded time. The
//! pool adds the disk when the disk responds, and the resilver writes all missed data to it.
//!
//! weir-pool tests legs that hang later; bin/weir tests the server.
//!
//! Invariant: no test is random; time is virtual.

use std::sync::Arc;
use std::time::Duration;

use weir_base::limits::LABELS_WAIT;
use weir_base::{Clock, Guid};
use weir_dataset::{DatasetError, Engine, VolumeSpec};
use weir_device::Device;
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, ImportOptions, LegState, PlantedBug, VdevSpec};
use weir_sim::{CutPlan, DiskOptions, Latency, MediaImage, SimWorld};

use crate::timed::options;

const LOG_BYTES: u64 = 256 << 10;
const BYTES: usize = 1 << 20;
/// Latency that is longer than any wait of an import.
const AGES: Duration = Duration::from_secs(100_000);
/// Maximum duration of an import: the wait for labels, doubled as a margin for the other steps.
const BOUND: Duration = Duration::from_secs(2 * LABELS_WAIT.as_secs());

fn devices(world: &SimWorld, without: Option<usize>) -> Vec<Arc<dyn Device>> {
    let disks = world.disks().iter().enumerate().filter(|(index, _)| Some(*index) != without);
    disks.map(|(_, disk)| Arc::clone(disk) as Arc<dyn Device>).collect()
}

/// A closed pool with one volume that holds `content`.
fn pool(kind: VdevKind, disks: usize, content: &[u8]) -> Vec<MediaImage> {
    let len = 2 * LABEL_BYTES + LOG_BYTES + (12 << 20);
    let disks: Vec<_> = (0..disks).map(|n| DiskOptions::new(&format!("disk{n}"), len)).collect();
    let world = SimWorld::new(1, &disks);
    let sizes = CreateOptions {
        segment_bytes: Some(256 << 10),
        strip_bytes: Some(4096),
        log_bytes: Some(LOG_BYTES),
        disk_bytes_min: Some(2 * LABEL_BYTES),
    };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let made = world.run_until(async {
        let vdevs = [VdevSpec { kind, role: VdevRole::Data, disks: devices(&world, None) }];
        let engine =
            Engine::create("tank", &vdevs, sizes, &options(&world, PlantedBug::None), &mut guid)
                .await?;
        let compression = Compression::Off;
        let spec = VolumeSpec { name: "v".into(), size_bytes: 2 << 20, compression };
        engine.create_volume(&spec).await?;
        engine.volume("v")?.write(0, content).await?;
        engine.sync().await
    });
    made.unwrap().unwrap();
    world.cut(CutPlan::Nothing)
}

async fn open(
    world: &SimWorld,
    without: Option<usize>,
    import_epoch: u64,
) -> Result<Arc<Engine>, DatasetError> {
    open_with(world, without, import_epoch, PlantedBug::None).await
}

async fn open_with(
    world: &SimWorld,
    without: Option<usize>,
    import_epoch: u64,
    bug: PlantedBug,
) -> Result<Arc<Engine>, DatasetError> {
    let how = ImportOptions::new(Guid(import_epoch));
    Engine::open(devices(world, without), how, &options(world, bug)).await
}

async fn assert_holds(engine: &Engine, content: &[u8]) {
    let mut out = vec![0; content.len()];
    engine.volume("v").unwrap().read(0, &mut out).await.unwrap();
    assert!(out == content);
}

async fn resilver(world: &SimWorld, engine: &Arc<Engine>) {
    let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
    let scans = async move { scanner.run_scans(|time| timer.sleep(time)).await };
    let scans = world.executor().spawn("scans", scans);
    while engine.pool().find_leg("disk1").unwrap().2 != LegState::Online {
        world.executor().sleep(Duration::from_millis(10)).await;
    }
    engine.stop();
    scans.await.unwrap();
}

/// Opens a pool whose disk 1 hangs, writes, lets the disk respond, waits for its resilver, and
/// reads without disk 0.
fn hangs_then_joins(kind: VdevKind, disks: usize) {
    let content = |seed: u8| -> Vec<u8> { (0..BYTES).map(|at| seed ^ (at % 251) as u8).collect() };
    let images = pool(kind, disks, &content(1));
    let world = SimWorld::from_media(2, images);
    world.disk(1).set_latency(Latency { min: AGES, max: AGES });
    world
        .run_until(async {
            let clock = world.executor().clock();
            let engine = open(&world, None, 100).await.unwrap();
            assert!(clock.monotonic() < BOUND, "{:?}", clock.monotonic());
            let state = |engine: &Engine| engine.pool().find_leg("disk1").unwrap().2;
            assert_eq!(state(&engine), LegState::Missing);
            assert_holds(&engine, &content(1)).await;
            engine.volume("v").unwrap().write(0, &content(2)).await.unwrap();
            engine.sync().await.unwrap();

            let micro = Duration::from_micros(50);
            world.disk(1).set_latency(Latency { min: micro, max: micro });
            engine.add_late_disks().await;
            assert_eq!(state(&engine), LegState::Stale);
            resilver(&world, &engine).await;
        })
        .unwrap();
    let world = SimWorld::from_media(3, world.cut(CutPlan::Nothing));
    world
        .run_until(async {
            let engine = open(&world, Some(0), 101).await.unwrap();
            assert_holds(&engine, &content(2)).await;
        })
        .unwrap();
}

// Regression: a leg that hung while its labels were read kept the pool closed for as long as it
// hung.
#[test]
fn mirror_opens_without_a_hanging_leg_and_adds_it_later() {
    hangs_then_joins(VdevKind::Mirror, 2);
}

#[test]
fn raidz_opens_without_a_hanging_leg_and_adds_it_later() {
    hangs_then_joins(VdevKind::Raidz1, 3);
}

/// Writes a mirror without disk 0, then imports it while disk 1 hangs. Returns the content of disk
/// 1 after the pool tried to add it.
fn late_disk_with_newer_writes(bug: PlantedBug) -> u8 {
    let disks = pool(VdevKind::Mirror, 2, &vec![1; BYTES]);
    let world = SimWorld::from_media(6, disks);
    let written_alone = world.run_until(async {
        let engine = open(&world, Some(0), 100).await?;
        engine.volume("v")?.write(0, &vec![3; BYTES]).await?;
        engine.sync().await
    });
    written_alone.unwrap().unwrap();
    let world = SimWorld::from_media(7, world.cut(CutPlan::Nothing));
    world.disk(1).set_latency(Latency { min: AGES, max: AGES });
    let joined = world.run_until(async {
        let engine = open_with(&world, None, 101, bug).await?;
        assert_holds(&engine, &vec![1; BYTES]).await;
        let micro = Duration::from_micros(50);
        world.disk(1).set_latency(Latency { min: micro, max: micro });
        engine.add_late_disks().await;
        let (_, _, state) = engine.pool().find_leg("disk1")?;
        if state == LegState::Stale {
            resilver(&world, &engine).await;
        } else {
            assert_eq!(state, LegState::Missing);
        }
        Ok::<_, DatasetError>(())
    });
    joined.unwrap().unwrap();
    let world = SimWorld::from_media(8, world.cut(CutPlan::Nothing));
    let content = world.run_until(async {
        let engine = open(&world, Some(0), 102).await?;
        let mut out = vec![0; BYTES];
        engine.volume("v")?.read(0, &mut out).await?;
        assert!(out.iter().all(|byte| *byte == out[0]));
        Ok::<_, DatasetError>(out[0])
    });
    content.unwrap().unwrap()
}

// Regression: an import opened the older disk of a mirror while the newer one hung, and the
// resilver overwrote the newer disk when that disk responded.
#[test]
fn late_disk_with_newer_writes_is_not_overwritten() {
    assert_eq!(late_disk_with_newer_writes(PlantedBug::None), 3);
}

#[test]
fn resilver_of_a_diverged_disk_is_noticed() {
    assert_eq!(late_disk_with_newer_writes(PlantedBug::DivergedDisksTrusted), 1);
}

/// The leg returns its labels and then completes no more I/O.
#[test]
fn leg_that_hangs_after_the_label_read_is_faulted() {
    let content: Vec<u8> = vec![7; BYTES];
    let world = SimWorld::from_media(4, pool(VdevKind::Mirror, 2, &content));
    let disk = world.disk(1);
    // Steps are only writes, flushes and discards. An import issues none of them before it has read
    // the labels, so the disk hangs only after its labels were read.
    world.on_step(move |_| disk.set_latency(Latency { min: AGES, max: AGES }));
    world
        .run_until(async {
            let engine = open(&world, None, 100).await.unwrap();
            assert!(world.executor().clock().monotonic() < 3 * BOUND);
            assert_eq!(engine.pool().find_leg("disk1").unwrap().2, LegState::Faulted);
            assert_holds(&engine, &content).await;
        })
        .unwrap();
}

#[test]
fn pool_waits_for_an_indispensable_leg() {
    let content: Vec<u8> = vec![7; BYTES];
    let world = SimWorld::from_media(5, pool(VdevKind::Disk, 1, &content));
    let slow = 4 * LABELS_WAIT;
    world.disk(0).set_latency(Latency { min: slow, max: slow });
    world
        .run_until(async {
            let engine = open(&world, None, 100).await.unwrap();
            assert_holds(&engine, &content).await;
        })
        .unwrap();
}
