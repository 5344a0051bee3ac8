//! Adding, expanding and removing vdevs, log vdevs, spares, and diverged mirror halves; on memory
//! devices.
//!
//! The simulator tests crashes and load during these operations; bin/weir tests the shipped binary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{as_devices, committing, import, now, options};
use weir_base::Guid;
use weir_dataset::{DatasetError, Engine, Outcome, VolumeSpec};
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice};
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{
    CreateOptions, ImportOptions, LegState, PoolError, PoolHealth, VdevSpec, check_create,
};

const MEMORY_BYTES: u64 = 64 << 20;
const MIB: usize = 1 << 20;
const DISK: usize = 64 * MIB;

type Disk = Arc<MemoryDevice>;

fn disk(name: &str) -> Disk {
    sized(name, DISK)
}

fn sized(name: &str, bytes: usize) -> Disk {
    Arc::new(MemoryDevice::new(name, bytes))
}

fn disks(names: &[&str]) -> Vec<Disk> {
    names.iter().map(|name| disk(name)).collect()
}

fn draw() -> Guid {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Guid(NEXT.fetch_add(1, Ordering::Relaxed))
}

fn vdev(kind: VdevKind, role: VdevRole, disks: &[Disk]) -> VdevSpec {
    VdevSpec { kind, role, disks: as_devices(disks) }
}

fn data(kind: VdevKind, disks: &[Disk]) -> VdevSpec {
    vdev(kind, VdevRole::Data, disks)
}

fn made(vdevs: &[VdevSpec]) -> Arc<Engine> {
    let (sizes, options) = (CreateOptions::default(), options(MEMORY_BYTES));
    let engine = now(Engine::create("tank", vdevs, sizes, &options, &mut draw)).unwrap();
    let spec = VolumeSpec { name: "v".into(), size_bytes: 32 << 20, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    engine
}

fn add(engine: &Engine, spec: &VdevSpec) -> Result<u16, DatasetError> {
    now(engine.add_vdev(spec, &mut draw))
}

fn content(seed: u8) -> Vec<u8> {
    (0..8 * MIB).map(|at| seed ^ (at / 4096) as u8 ^ (at % 251) as u8).collect()
}

fn write(engine: &Engine, at: usize, data: &[u8]) {
    now(engine.volume("v").unwrap().write(at as u64, data)).unwrap();
}

fn holds(engine: &Engine, data: &[u8]) -> bool {
    let mut out = vec![0; data.len()];
    now(engine.volume("v").unwrap().read(0, &mut out)).unwrap();
    out == data
}

fn open(disks: &[&Disk]) -> Result<Arc<Engine>, DatasetError> {
    open_as(disks, import())
}

fn open_as(disks: &[&Disk], how: ImportOptions) -> Result<Arc<Engine>, DatasetError> {
    let disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    now(Engine::open(disks, how, &options(MEMORY_BYTES)))
}

/// Runs resilvers and evacuations until `done`, then stops the engine.
fn work_until(engine: &Engine, done: impl Fn(&Engine) -> bool) {
    let steps = AtomicU64::new(0);
    now(engine.run_scans(|_| {
        assert!(steps.fetch_add(1, Ordering::Relaxed) < 10_000, "no end");
        if done(engine) {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
}

fn no_vdev_leaves(engine: &Engine) -> bool {
    engine.pool().status().evacuations.is_empty()
}

fn check(engine: &Engine) {
    assert_eq!(now(engine.check_live_bytes()).unwrap(), []);
    assert_eq!(now(engine.check_places()).unwrap(), None);
}

fn names(engine: &Engine) -> Vec<String> {
    engine.pool().status().vdevs.into_iter().map(|vdev| vdev.name).collect()
}

#[test]
fn added_vdev_provides_space_and_survives_an_import() {
    let (old, new) = (disks(&["a", "b"]), disks(&["c", "d", "e"]));
    let engine = made(&[data(VdevKind::Mirror, &old)]);
    let before = engine.pool().space().total_bytes;
    add(&engine, &data(VdevKind::Raidz1, &new)).unwrap();
    assert!(engine.pool().space().total_bytes > 2 * before, "two disks' worth was added");
    let wanted = content(1);
    write(&engine, 0, &wanted);
    now(engine.commit()).unwrap();
    let used = engine.pool().status().vdevs[1].legs[0].io.unwrap();
    assert!(used.ops.iter().map(|op| op.bytes).sum::<u64>() > 2 << 20, "{used:?}");
    drop(engine);
    let refused = open(&[&old[0], &old[1]]).err().expect("the new vdev is needed").to_string();
    assert!(refused.contains("missing c, d, e"), "{refused}");
    let engine = open(&[&old[0], &old[1], &new[0], &new[2]]).unwrap();
    assert!(holds(&engine, &wanted));
    assert_eq!(names(&engine), ["mirror-0", "raidz1-1"]);
    check(&engine);
}

#[test]
fn mirror_is_replaced_by_a_raidz2_vdev_under_load() {
    let (old, new) = (disks(&["a", "b"]), disks(&["c", "d", "e", "f"]));
    let engine = made(&[data(VdevKind::Mirror, &old)]);
    let mut wanted = content(2);
    write(&engine, 0, &wanted);
    now(engine.commit()).unwrap();
    // Create cleaned segments and their remap tables, which the evacuation must move too.
    for round in 0..40_usize {
        let at = round * 37 % 2000 * 4096;
        wanted[at..at + 4096].fill(round as u8);
        write(&engine, at, &wanted[at..at + 4096]);
        now(engine.commit()).unwrap();
    }
    let last = now(engine.remove_vdev(0)).unwrap_err().to_string();
    assert!(last.contains("the last data vdev"), "{last}");
    add(&engine, &data(VdevKind::Raidz2, &new)).unwrap();
    assert_eq!(now(engine.remove_vdev(0)).unwrap(), Outcome::Changed);
    assert_eq!(now(engine.remove_vdev(0)).unwrap(), Outcome::Unchanged);
    let step = AtomicU64::new(0);
    work_until(&engine, |engine| {
        // Clients write during the evacuation.
        let step = step.fetch_add(1, Ordering::Relaxed);
        now(engine.volume("v").unwrap().write(step % 16 * 4096, &[7; 4096])).unwrap();
        no_vdev_leaves(engine) && step > 16
    });
    for at in 0..16 {
        wanted[at * 4096..(at + 1) * 4096].fill(7);
    }
    now(engine.commit()).unwrap();
    assert_eq!(names(&engine), ["raidz2-1"]);
    assert!(holds(&engine, &wanted));
    check(&engine);
    drop(engine);
    // The old disks are blank and no longer needed. Two of the new disks may be lost.
    assert!(open(&[&old[0], &old[1]]).is_err());
    let engine = open(&[&new[1], &new[3]]).unwrap();
    assert!(holds(&engine, &wanted));
    check(&engine);
    let spec = data(VdevKind::Mirror, &old);
    assert_eq!(add(&engine, &spec).unwrap(), 2, "numbers are not used again");
}

#[test]
fn vdev_removal_resumes_after_a_crash_and_can_be_cancelled() {
    let (a, b) = (disk("a"), disk("b"));
    let one = |disk: &Disk| data(VdevKind::Disk, std::slice::from_ref(disk));
    let engine = made(&[one(&a), one(&b)]);
    let wanted = content(3);
    write(&engine, 0, &wanted);
    now(engine.commit()).unwrap();
    now(engine.remove_vdev(0)).unwrap();
    now(engine.commit()).unwrap();
    drop(engine);
    let engine = open(&[&a, &b]).unwrap();
    assert_eq!(engine.pool().status().evacuations.len(), 1, "it is still leaving");
    assert_eq!(now(engine.cancel_removal(0)).unwrap(), Outcome::Changed);
    assert_eq!(now(engine.cancel_removal(0)).unwrap(), Outcome::Unchanged);
    drop(engine);
    let engine = open(&[&a, &b]).unwrap();
    assert!(no_vdev_leaves(&engine) && names(&engine).len() == 2);
    now(engine.remove_vdev(0)).unwrap();
    drop(engine);
    let engine = open(&[&a, &b]).unwrap();
    work_until(&engine, no_vdev_leaves);
    drop(engine);
    let engine = open(&[&b]).unwrap();
    assert!(holds(&engine, &wanted));
    check(&engine);
}

#[test]
fn vdev_removal_without_space_on_other_vdevs_is_refused() {
    let (big, small) = (sized("big", 4 * DISK), sized("small", DISK));
    let one = |disk: &Disk| data(VdevKind::Disk, std::slice::from_ref(disk));
    let engine = made(&[one(&big), one(&small)]);
    now(engine.resize_volume("v", 128 << 20)).unwrap();
    for part in 0..12 {
        write(&engine, part * 8 * MIB, &content(part as u8));
        now(engine.commit()).unwrap();
    }
    let refused = now(engine.remove_vdev(0)).unwrap_err();
    let no_room = matches!(refused, DatasetError::Pool(PoolError::NoRoomElsewhere { .. }));
    assert!(no_room, "{refused}");
    write(&engine, 0, &content(99));
    now(engine.commit()).unwrap();
    now(engine.remove_vdev(1)).unwrap();
    work_until(&engine, no_vdev_leaves);
    assert!(holds(&engine, &content(99)));
    check(&engine);
}

/// Sizes of a pool with few and small segments: each root segment is full after a few commits.
const TIGHT: CreateOptions = CreateOptions {
    segment_bytes: Some(64 << 10),
    strip_bytes: Some(4096),
    log_bytes: Some(64 << 10),
    disk_bytes_min: Some(1 << 20),
};

#[test]
fn evacuation_leaves_space_for_commits_and_for_the_cleaner() {
    const SEGMENTS: u64 = 24;
    const BLOCKS: u64 = 184;
    let bytes = 2 * LABEL_BYTES + (64 << 10) + SEGMENTS * (64 << 10);
    let (a, b) = (sized("a", bytes as usize), sized("b", bytes as usize));
    let one = |disk: &Disk| data(VdevKind::Disk, std::slice::from_ref(disk));
    let options = options(1 << 20);
    let engine =
        now(Engine::create("tank", &[one(&a), one(&b)], TIGHT, &options, &mut draw)).unwrap();
    let spec =
        VolumeSpec { name: "v".into(), size_bytes: BLOCKS * 4096, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    let content = |block: u64, version: u64| vec![(block * 31 + version) as u8; 4096];
    let write = |engine: &Engine, block: u64, version: u64| {
        let volume = engine.volume("v").unwrap();
        committing(engine, volume.write(block * 4096, &content(block, version))).unwrap();
    };
    for block in 0..BLOCKS {
        write(&engine, block, 0);
        if block % 8 == 7 {
            now(engine.commit()).unwrap();
        }
    }
    // Overwrites leave dead blocks in all segments, so that the vdevs have few free segments.
    for overwrite in 0..BLOCKS {
        write(&engine, overwrite * 67 % (BLOCKS * 2 / 3) * 3 / 2, 0);
        if overwrite % 8 == 7 {
            now(engine.commit()).unwrap();
        }
    }
    drop(engine);
    // After an import no write head is open, so that the commits must open all of them.
    let reopen = |disks: &[&Disk]| {
        let disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
        now(Engine::open(disks, import(), &options)).unwrap()
    };
    let engine = reopen(&[&a, &b]);
    now(engine.remove_vdev(0)).unwrap();
    for _ in 0..80 {
        now(engine.sync()).unwrap();
        assert!(engine.pool().free_segments().0 >= 4, "each commit needs a few segments");
    }
    work_until(&engine, no_vdev_leaves);
    drop(engine);
    let engine = reopen(&[&b]);
    let zeroed = engine.volume("v").unwrap();
    committing(&engine, zeroed.zero(0, BLOCKS / 2 * 4096)).unwrap();
    now(engine.sync()).unwrap();
    for block in 0..BLOCKS / 4 {
        write(&engine, block, 1);
    }
    now(engine.sync()).unwrap();
    drop(engine);
    let engine = reopen(&[&b]);
    let volume = engine.volume("v").unwrap();
    for block in 0..BLOCKS {
        let mut out = vec![0; 4096];
        now(volume.read(block * 4096, &mut out)).unwrap();
        let is_zero = (BLOCKS / 4..BLOCKS / 2).contains(&block);
        let wanted = content(block, u64::from(block < BLOCKS / 4));
        assert_eq!(out, if is_zero { vec![0; 4096] } else { wanted }, "block {block}");
    }
    check(&engine);
}

#[test]
fn damage_stops_a_vdev_removal_and_nothing_else() {
    let (a, b) = (disk("a"), disk("b"));
    let one = |disk: &Disk| data(VdevKind::Disk, std::slice::from_ref(disk));
    let engine = made(&[one(&a), one(&b)]);
    write(&engine, 0, &content(4));
    now(engine.commit()).unwrap();
    // This address is inside the data of the first vdev.
    let middle = 10 * MIB + 64 * 1024;
    a.corrupt(middle..middle + 4096, |byte| *byte ^= 0x40);
    now(engine.remove_vdev(0)).unwrap();
    let steps = AtomicU64::new(0);
    work_until(&engine, |engine| {
        let left = &engine.pool().status().evacuations[0];
        left.segments == left.stuck && steps.fetch_add(1, Ordering::Relaxed) > 3
    });
    let left = &engine.pool().status().evacuations[0];
    assert_eq!((left.segments, left.stuck), (1, 1), "{left:?}");
    assert!(engine.damage().data.iter().any(|data| data.in_volume), "evacuation met it first");
    assert_eq!(engine.pool().status().health, PoolHealth::Online);
    drop(engine);
    // After the damaged data is rewritten, another request completes the removal.
    let engine = open(&[&a, &b]).unwrap();
    write(&engine, 4096, &content(5)[4096..]);
    now(engine.commit()).unwrap();
    write(&engine, 0, &content(5)[..4096]);
    now(engine.remove_vdev(0)).unwrap();
    work_until(&engine, no_vdev_leaves);
    assert!(holds(&engine, &content(5)));
    check(&engine);
}

/// Returns a disk with faults that the test controls.
fn faulty(disk: &Disk) -> (Arc<dyn Device>, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let device = FaultDevice::new(Arc::clone(disk) as Arc<dyn Device>, Arc::clone(&faults));
    (Arc::new(device), faults)
}

#[test]
fn flushes_use_the_log_vdev_and_survive_its_failure() {
    let (a, log) = (disk("a"), disk("log"));
    let engine = made(&[data(VdevKind::Disk, std::slice::from_ref(&a))]);
    let (device, faults) = faulty(&log);
    let spec = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Log, disks: vec![device] };
    let number = add(&engine, &spec).unwrap();
    assert!(engine.pool().log_is_on(number));
    let volume = engine.volume("v").unwrap();
    write(&engine, 0, &[1; 4096]);
    now(engine.flush(&volume)).unwrap();
    assert_eq!(engine.pool().space().total_bytes, {
        let alone = made(&[data(VdevKind::Disk, &[disk("x")])]);
        alone.pool().space().total_bytes
    });

    // Only the log has the write, so a pool that crashes now needs the log vdev.
    let refused = open(&[&a]).err().expect("flushed data is on the log disk").to_string();
    assert!(refused.contains("log disks are missing (log)"), "{refused}");
    let with_both = open(&[&a, &log]).unwrap();
    assert!(holds(&with_both, &[1; 4096]));
    drop(with_both);

    // The imports above belong to other import epochs, so the first engine must not be used again.
    // Open the pool once more; then its log disk fails.
    let engine = open(&[&a, &log]).unwrap();
    drop(engine);
    let (device, faults2) = faulty(&log);
    drop(faults);
    let disks = vec![Arc::clone(&a) as Arc<dyn Device>, device];
    let engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES))).unwrap();
    assert!(engine.pool().log_is_on(number));
    let volume = engine.volume("v").unwrap();
    write(&engine, 4096, &[2; 4096]);
    now(engine.flush(&volume)).unwrap();
    faults2.fail(DeviceOp::Write);
    write(&engine, 8192, &[3; 4096]);
    let flush = async {
        // The flush waits for commits, so the test runs the engine's commit loop.
        let flushed = engine.flush(&volume);
        let commits = engine.run(|_| std::future::pending::<()>());
        match futures_util::future::select(std::pin::pin!(flushed), std::pin::pin!(commits)).await {
            futures_util::future::Either::Left((flushed, _)) => flushed,
            futures_util::future::Either::Right((ended, _)) => panic!("{ended:?}"),
        }
    };
    now(flush).unwrap();
    assert_eq!(engine.pool().status().health, PoolHealth::Degraded);
    drop(engine);
    let engine = open(&[&a]).unwrap();
    assert!(!engine.pool().log_is_on(number));
    for (at, byte) in [(0, 1), (4096, 2), (8192, 3)] {
        let mut out = vec![0; 4096];
        now(engine.volume("v").unwrap().read(at, &mut out)).unwrap();
        assert_eq!(out, [byte; 4096]);
    }
    // A permanently lost log vdev is removed by the name of its disk.
    let number = engine.pool().find_vdev("log").unwrap();
    now(engine.remove_vdev(number)).unwrap();
    assert_eq!(names(&engine), ["disk-0"]);
    assert_eq!(engine.pool().status().health, PoolHealth::Online);
}

#[test]
fn log_vdev_in_use_is_removed() {
    let (a, log) = (disk("a"), disk("log"));
    let engine = made(&[
        data(VdevKind::Disk, std::slice::from_ref(&a)),
        vdev(VdevKind::Disk, VdevRole::Log, std::slice::from_ref(&log)),
    ]);
    assert!(engine.pool().log_is_on(1));
    let volume = engine.volume("v").unwrap();
    write(&engine, 0, &[1; 4096]);
    now(engine.flush(&volume)).unwrap();
    now(engine.remove_vdev(1)).unwrap();
    write(&engine, 4096, &[2; 4096]);
    now(engine.flush(&volume)).unwrap();
    drop(engine);
    let engine = open(&[&a]).unwrap();
    assert!(holds(&engine, &[[1; 4096], [2; 4096]].concat()));
    assert_eq!(names(&engine), ["disk-0"]);
}

#[test]
fn spare_replaces_a_failed_leg() {
    let (legs, spares) = (disks(&["a", "b", "c"]), disks(&["s", "t"]));
    let engine =
        made(&[data(VdevKind::Raidz1, &legs), vdev(VdevKind::Disk, VdevRole::Spare, &spares[..1])]);
    let wanted = content(6);
    write(&engine, 0, &wanted);
    now(engine.commit()).unwrap();
    let b = engine.pool().find_leg("b").unwrap().0;
    engine.pool().take_leg_offline(b).unwrap();
    assert!(now(engine.use_spare(b, draw())).unwrap());
    let c = engine.pool().find_leg("c").unwrap().0;
    assert!(!now(engine.use_spare(c, draw())).unwrap_or(false), "there is no other spare");
    assert_eq!(names(&engine), ["raidz1-0"]);
    work_until(&engine, |engine| !engine.pool().wants_resilver());
    drop(engine);
    let engine = open(&[&legs[0], &spares[0]]).unwrap();
    assert!(holds(&engine, &wanted));
    let (_, _, state) = engine.pool().find_leg("s").unwrap();
    assert_eq!(state, LegState::Online);
    // An unused spare is removed at once.
    add(&engine, &vdev(VdevKind::Disk, VdevRole::Spare, &spares[1..])).unwrap();
    let spare = engine.pool().find_vdev("t").unwrap();
    now(engine.remove_vdev(spare)).unwrap();
    assert_eq!(names(&engine), ["raidz1-0"]);
}

#[test]
fn expand_uses_the_space_of_larger_disks() {
    let (a, b) = (disk("a"), sized("b", 2 * DISK));
    let engine = made(&[data(VdevKind::Mirror, &[Arc::clone(&a), Arc::clone(&b)])]);
    let wanted = content(7);
    write(&engine, 0, &wanted);
    now(engine.commit()).unwrap();
    assert_eq!(now(engine.expand()).unwrap(), 0, "the smaller disk decides");
    let c = sized("c", 2 * DISK + 4096);
    let old = engine.pool().find_leg("a").unwrap().0;
    now(engine.replace_leg(old, Arc::clone(&c) as Arc<dyn Device>, draw(), false)).unwrap();
    work_until(&engine, |engine| engine.pool().find_leg("a").is_err());
    let engine = open(&[&b, &c]).unwrap();
    let could = engine.pool().status().expandable_bytes;
    assert!(could >= DISK as u64 - (2 << 20), "{could}");
    assert_eq!(now(engine.expand()).unwrap(), could);
    assert_eq!(engine.pool().status().expandable_bytes, 0);
    now(engine.resize_volume("v", 128 << 20)).unwrap();
    for part in 0..10 {
        write(&engine, part * 8 * MIB, &content(part as u8));
        now(engine.commit()).unwrap();
    }
    drop(engine);
    for alone in [&b, &c] {
        let engine = open(&[alone]).unwrap();
        assert!(holds(&engine, &content(0)));
        check(&engine);
        drop(engine);
        // Resilver the half of the mirrors that was missing.
        let engine = open(&[&b, &c]).unwrap();
        work_until(&engine, |engine| !engine.pool().wants_resilver());
    }
}

#[test]
fn diverged_mirror_halves_are_refused() {
    let pair = disks(&["a", "b"]);
    let engine = made(&[data(VdevKind::Mirror, &pair)]);
    write(&engine, 0, &content(1));
    now(engine.commit()).unwrap();
    drop(engine);
    // A half of the mirror that was disconnected may return, however often the pool was opened on
    // the other half.
    for round in 0..20 {
        let engine = open(&[&pair[0]]).unwrap();
        write(&engine, 0, &content(round)[..MIB]);
        now(engine.commit()).unwrap();
    }
    let engine = open(&[&pair[0], &pair[1]]).unwrap();
    assert!(holds(&engine, &content(19)[..MIB]));
    work_until(&engine, |engine| !engine.pool().wants_resilver());
    drop(engine);

    for (half, seed) in [(0, 100), (1, 101)] {
        let engine = open(&[&pair[half]]).unwrap();
        for _ in 0..3 + 3 * half {
            write(&engine, 0, &content(seed)[..MIB]);
            now(engine.commit()).unwrap();
        }
    }
    let refused = open(&[&pair[0], &pair[1]]).err().expect("diverged").to_string();
    assert!(refused.contains("a diverged from the other disks"), "{refused}");
    // Each half alone is still usable.
    for (half, seed) in [(0, 100), (1, 101)] {
        assert!(holds(&open(&[&pair[half]]).unwrap(), &content(seed)[..MIB]));
    }
    let how = ImportOptions { force: true, ..import() };
    let engine = open_as(&[&pair[0], &pair[1]], how).unwrap();
    assert!(holds(&engine, &content(101)[..MIB]), "the newest counts");
    work_until(&engine, |engine| !engine.pool().wants_resilver());
    drop(engine);
    // The resilver replaced the content of the half that was missing.
    assert!(holds(&open(&[&pair[0]]).unwrap(), &content(101)[..MIB]));
}

#[test]
fn impossible_vdevs_are_refused_without_changes() {
    let a = disk("a");
    let engine = made(&[data(VdevKind::Disk, std::slice::from_ref(&a))]);
    let before = names(&engine);
    let tiny = sized("tiny", 4 * MIB);
    let raidz_log = vdev(VdevKind::Raidz1, VdevRole::Log, &disks(&["x", "y", "z"]));
    let small_spare = vdev(VdevKind::Disk, VdevRole::Spare, &[sized("s", 32 * MIB)]);
    for (spec, says) in [
        (data(VdevKind::Raidz2, &disks(&["x", "y"])), "is 3 to 32 disks"),
        (data(VdevKind::Disk, std::slice::from_ref(&tiny)), "too small"),
        (raidz_log, "not raidz"),
        (small_spare, "smaller than every disk"),
    ] {
        let refused = add(&engine, &spec).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    assert_eq!(names(&engine), before);
    assert!(now(engine.cancel_removal(0)).unwrap() == Outcome::Unchanged);
}

fn is_refused(done: Result<(), PoolError>, part: &str) -> bool {
    matches!(done, Err(PoolError::Layout { why }) if why.contains(part))
}

/// Options of a pool on disks of a few MiB.
const SMALL: CreateOptions = CreateOptions {
    segment_bytes: Some(256 << 10),
    strip_bytes: Some(4096),
    log_bytes: Some(64 << 10),
    disk_bytes_min: Some(1 << 20),
};

#[test]
fn disks_of_a_pool_are_limited() {
    let disks: Vec<Disk> = (0..257).map(|n| sized(&n.to_string(), 4 * MIB)).collect();
    let mut vdevs: Vec<VdevSpec> = disks.chunks(1).map(|disk| data(VdevKind::Disk, disk)).collect();
    assert!(is_refused(check_create("tank", &vdevs, SMALL), "at most 256 disks, not 257"));
    let last = vdevs.pop().unwrap();
    let engine = now(Engine::create("tank", &vdevs, SMALL, &options(MEMORY_BYTES), &mut draw));
    let engine = engine.unwrap();
    assert!(is_refused(engine.pool().check_new_vdev(&last), "at most 256 disks, not 257"));
}

#[test]
fn vdevs_in_the_life_of_a_pool_are_limited() {
    let (first, spare) = (sized("a", 4 * MIB), sized("s", 4 * MIB));
    let vdevs = [data(VdevKind::Disk, &[first])];
    let engine = now(Engine::create("tank", &vdevs, SMALL, &options(MEMORY_BYTES), &mut draw));
    let engine = engine.unwrap();
    let spare = vdev(VdevKind::Disk, VdevRole::Spare, &[spare]);
    for number in 1..1024 {
        assert_eq!(add(&engine, &spare).unwrap(), number);
        assert_eq!(now(engine.remove_vdev(number)).unwrap(), Outcome::Changed);
    }
    assert!(is_refused(engine.pool().check_new_vdev(&spare), "at most 1024 vdevs"));
}
