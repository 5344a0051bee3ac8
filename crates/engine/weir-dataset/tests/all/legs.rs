//! Attaching, replacing and detaching disks of a pool; on memory devices.
//!
//! The simulator tests crashes and load during these operations; bin/weir tests the shipped binary.

use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use weir_base::Guid;
use weir_block::IoBuf;
use weir_dataset::{DatasetError, Engine, VolumeSpec};
use weir_device::{Device, Durability, FaultDevice, Faults, MemoryDevice};
use weir_format::layout::{CONFIG_BYTES, label_offsets};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, LegState, PoolError, Replacement, ScanKind, ScanState, VdevSpec};

const MEMORY_BYTES: u64 = 64 << 20;
const MIB: usize = 1 << 20;
const DISK: usize = 64 * MIB;

type Disk = Arc<MemoryDevice>;

fn disk(name: &str) -> Disk {
    Arc::new(MemoryDevice::new(name, DISK))
}

fn made(kind: VdevKind, disks: &[Disk]) -> Arc<Engine> {
    made_with(0, kind, disks)
}

/// Creates a pool; its guids are the numbers after `next`.
fn made_with(mut next: u64, kind: VdevKind, disks: &[Disk]) -> Arc<Engine> {
    let vdev = VdevSpec { kind, role: VdevRole::Data, disks: as_devices(disks) };
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let (sizes, options) = (CreateOptions::default(), options(MEMORY_BYTES));
    let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
    let spec = VolumeSpec { name: "v".into(), size_bytes: 32 << 20, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    engine
}

fn data(seed: u8) -> Vec<u8> {
    (0..8 * MIB).map(|at| seed ^ (at / 4096) as u8 ^ (at % 251) as u8).collect()
}

fn write(engine: &Engine, data: &[u8]) {
    now(engine.volume("v").unwrap().write(0, data)).unwrap();
    now(engine.commit()).unwrap();
}

fn open(disks: &[&Disk]) -> Result<Arc<Engine>, DatasetError> {
    let disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    now(Engine::open(disks, import(), &options(MEMORY_BYTES)))
}

fn assert_holds(engine: &Engine, data: &[u8], what: &str) {
    let mut out = vec![0; data.len()];
    now(engine.volume("v").unwrap().read(0, &mut out)).unwrap();
    assert!(out == data, "{what}");
}

/// Runs a resilver to its end and stops the engine.
fn resilver(engine: &Engine) {
    now(engine.run_scans(|_| {
        let scan = engine.pool().scan_status();
        let ended = |state| matches!(state, ScanState::Finished | ScanState::Stopped);
        if scan.is_some_and(|s| s.kind == ScanKind::Resilver && ended(s.state)) {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
    assert_eq!(engine.pool().scan_status().unwrap().state, ScanState::Finished);
}

fn guid_of(engine: &Engine, name: &str) -> Guid {
    engine.pool().find_leg(name).unwrap().0
}

fn states(engine: &Engine) -> Vec<(String, LegState)> {
    let vdevs = engine.pool().status().vdevs;
    vdevs.into_iter().flat_map(|v| v.legs).map(|leg| (leg.path, leg.state)).collect()
}

fn as_new(disk: &Disk) -> Arc<dyn Device> {
    Arc::clone(disk) as Arc<dyn Device>
}

#[test]
fn attached_disk_has_all_data_after_its_resilver() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(VdevKind::Disk, std::slice::from_ref(&a));
    let content = data(1);
    write(&engine, &content);
    now(engine.attach_leg(guid_of(&engine, "a"), as_new(&b), Guid(100))).unwrap();
    assert_eq!(engine.pool().status().vdevs[0].kind, VdevKind::Mirror);
    assert_eq!(engine.pool().find_leg("b").unwrap().2, LegState::Stale);
    // The old disk is needed until the resilver of the new disk has finished.
    assert!(engine.pool().take_leg_offline(guid_of(&engine, "a")).is_err());
    resilver(&engine);
    assert!(states(&engine).iter().all(|(_, state)| *state == LegState::Online));
    drop(engine);
    let engine = open(&[&b]).unwrap();
    assert_holds(&engine, &content, "b alone");
    assert_eq!(states(&engine)[0], ("a".to_owned(), LegState::Missing));
}

#[test]
fn attached_disk_is_stale_after_a_crash_before_its_resilver() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(VdevKind::Disk, std::slice::from_ref(&a));
    let content = data(2);
    write(&engine, &content);
    now(engine.attach_leg(guid_of(&engine, "a"), as_new(&b), Guid(100))).unwrap();
    drop(engine);
    let refused = open(&[&b]).err().expect("refused").to_string();
    assert!(refused.contains("missed writes") || refused.contains("uberblock"), "{refused}");
    let engine = open(&[&a, &b]).unwrap();
    assert_eq!(engine.pool().find_leg("b").unwrap().2, LegState::Stale);
    resilver(&engine);
    drop(engine);
    assert_holds(&open(&[&b]).unwrap(), &content, "b alone");
}

#[test]
fn announced_leg_without_a_disk_is_dropped_at_import() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(VdevKind::Disk, std::slice::from_ref(&a));
    write(&engine, &data(3));
    let beside = guid_of(&engine, "a");
    engine.pool().announce_leg(beside, Replacement::Attached, Guid(100), "b").unwrap();
    write(&engine, &data(4));
    drop(engine);
    let engine = open(&[&a, &b]).unwrap();
    assert_eq!(states(&engine), [("a".to_owned(), LegState::Online)]);
    assert_holds(&engine, &data(4), "as before");
}

#[test]
fn mirror_leg_is_detached_after_its_replacement_is_resilvered() {
    let (a, b, c) = (disk("a"), disk("b"), disk("c"));
    let engine = made(VdevKind::Mirror, &[a.clone(), b.clone()]);
    let content = data(5);
    write(&engine, &content);
    let how = now(engine.replace_leg(guid_of(&engine, "b"), as_new(&c), Guid(100), false));
    assert_eq!(how.unwrap(), Replacement::Attached);
    let names: Vec<String> = states(&engine).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    resilver(&engine);
    let names: Vec<String> = states(&engine).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "c"]);
    drop(engine);
    assert!(open(&[&b]).is_err(), "b has left the pool");
    let engine = open(&[&b, &c]).unwrap();
    assert_holds(&engine, &content, "c alone");
    assert_eq!(states(&engine)[0].1, LegState::Missing);
}

/// The user takes the old disk offline, and brings it online again when the resilver of the new
/// disk is nearly finished. The pool detaches the old leg while it reads the labels of that leg
/// (simulator, seed 3474).
#[test]
fn disk_detached_while_its_labels_are_read_stays_detached() {
    let (a, b, c) = (disk("a"), disk("b"), disk("c"));
    let engine = made(VdevKind::Mirror, &[a.clone(), b.clone()]);
    let content = data(9);
    write(&engine, &content);
    let old = guid_of(&engine, "b");
    now(engine.replace_leg(old, as_new(&c), Guid(100), false)).unwrap();
    engine.pool().take_leg_offline(old).unwrap();
    let before = configs(&b);
    let faults = Arc::new(Faults::default());
    let slow: Arc<dyn Device> = Arc::new(FaultDevice::new(as_new(&b), Arc::clone(&faults)));
    faults.freeze();
    let mut back = Box::pin(engine.pool().online_leg(old, slow, false));
    let mut context = std::task::Context::from_waker(futures_util::task::noop_waker_ref());
    assert!(back.as_mut().poll(&mut context).is_pending(), "its labels cannot be read yet");
    resilver(&engine);
    let after = [("a".to_owned(), LegState::Online), ("c".to_owned(), LegState::Online)];
    assert_eq!(states(&engine), after);
    faults.clear();
    let refused = now(back).unwrap_err();
    assert_eq!(refused.to_string(), "pool tank has no disk b");
    assert_eq!(states(&engine), after);
    let same = |(a, b): (&(u64, IoBuf), &(u64, IoBuf))| a.0 == b.0 && a.1[..] == b.1[..];
    assert!(before.iter().zip(&configs(&b)).all(same), "nothing was written to it");
    drop(engine);
    assert_holds(&open(&[&b, &c]).unwrap(), &content, "c alone");
}

#[test]
fn missing_raidz_leg_is_replaced_in_place() {
    let disks: Vec<Disk> = ["a", "b", "c", "d"].into_iter().map(disk).collect();
    let engine = made(VdevKind::Raidz1, &disks);
    let content = data(6);
    write(&engine, &content);
    drop(engine);
    let engine = open(&[&disks[0], &disks[2], &disks[3]]).unwrap();
    let new = disk("e");
    let how = now(engine.replace_leg(guid_of(&engine, "b"), as_new(&new), Guid(100), false));
    assert_eq!(how.unwrap(), Replacement::Instead);
    let again = now(engine.replace_leg(guid_of(&engine, "c"), as_new(&disk("f")), Guid(101), true));
    assert!(matches!(again, Err(DatasetError::Pool(PoolError::OnlyCopy { .. }))), "{again:?}");
    resilver(&engine);
    let names: Vec<String> = states(&engine).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "e", "c", "d"]);
    drop(engine);
    // With another disk missing, reads need the new disk. The replaced disk does not belong to the
    // pool.
    let engine = open(&[&disks[0], &disks[1], &new, &disks[2]]).unwrap();
    assert_holds(&engine, &content, "without d");
    assert_eq!(states(&engine)[1], ("e".to_owned(), LegState::Online));
}

#[test]
fn good_raidz_leg_is_replaced_only_by_force() {
    let disks: Vec<Disk> = ["a", "b", "c"].into_iter().map(disk).collect();
    let engine = made(VdevKind::Raidz1, &disks);
    let content = data(7);
    write(&engine, &content);
    let (old, new) = (guid_of(&engine, "b"), disk("d"));
    let refused = now(engine.replace_leg(old, as_new(&new), Guid(100), false));
    assert!(matches!(refused, Err(DatasetError::Pool(PoolError::StillGood { .. }))));
    let attached = now(engine.attach_leg(old, as_new(&new), Guid(100)));
    assert!(matches!(attached, Err(DatasetError::Pool(PoolError::Layout { .. }))), "{attached:?}");
    assert!(now(engine.detach_leg(old)).is_err(), "raidz has a fixed width");
    now(engine.replace_leg(old, as_new(&new), Guid(100), true)).unwrap();
    resilver(&engine);
    drop(engine);
    let engine = open(&[&disks[0], &new]).unwrap();
    assert_holds(&engine, &content, "without c");
    drop(engine);
    assert!(open(&[&disks[1]]).is_err(), "b has left the pool");
}

#[test]
fn stale_label_of_another_pool_on_a_longer_disk_is_erased() {
    let (a, b) = (disk("a"), disk("b"));
    let long: Disk = Arc::new(MemoryDevice::new("long", DISK + 8 * MIB));
    let before = made_with(500, VdevKind::Disk, std::slice::from_ref(&long));
    (0..10).for_each(|seed| write(&before, &data(seed)[..MIB]));
    // `long` gets labels with a higher txg than any label of the pool below, so that an import
    // would choose these old labels if attaching the disk did not erase them.
    let beside = guid_of(&before, "long");
    now(before.attach_leg(beside, as_new(&disk("short")), Guid(600))).unwrap_err();
    let longer = Arc::new(MemoryDevice::new("longer", DISK + 8 * MIB));
    now(before.attach_leg(beside, as_new(&longer), Guid(600))).unwrap();
    drop(before);

    let engine = made(VdevKind::Disk, std::slice::from_ref(&a));
    write(&engine, &data(1));
    now(engine.attach_leg(guid_of(&engine, "a"), as_new(&long), Guid(100))).unwrap();
    resilver(&engine);
    drop(engine);
    let engine = open(&[&long]).unwrap();
    assert_holds(&engine, &data(1), "the attached disk alone");
    drop(engine);

    // Creating a pool on the longer disk also erases the old label at the end of that disk.
    drop(made(VdevKind::Mirror, &[b.clone(), longer.clone()]));
    assert_eq!(states(&open(&[&b, &longer]).unwrap()).len(), 2);
    assert!(open(&[&longer]).unwrap().pool().guid() < Guid(500));
}

#[test]
fn unsuitable_disks_are_refused_without_changes() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(VdevKind::Mirror, &[a, b]);
    let before = states(&engine);
    let beside = guid_of(&engine, "a");
    let small: Disk = Arc::new(MemoryDevice::new("small", DISK - MIB));
    let refused = now(engine.attach_leg(beside, as_new(&small), Guid(100)));
    assert!(matches!(refused, Err(DatasetError::Pool(PoolError::TooSmall { .. }))), "{refused:?}");
    for (n, name) in ["c", "d"].into_iter().enumerate() {
        now(engine.attach_leg(beside, as_new(&disk(name)), Guid(100 + n as u64))).unwrap();
    }
    let fifth = now(engine.attach_leg(beside, as_new(&disk("e")), Guid(200)));
    assert!(matches!(fifth, Err(DatasetError::Pool(PoolError::Layout { .. }))), "{fifth:?}");
    for name in ["c", "d"] {
        now(engine.detach_leg(guid_of(&engine, name))).unwrap();
    }
    assert_eq!(states(&engine), before);
    now(engine.detach_leg(beside)).unwrap();
    let last = now(engine.detach_leg(guid_of(&engine, "b")));
    assert!(last.is_err(), "the last disk stays");
}

/// Reads the config copies of a disk.
fn configs(disk: &Disk) -> Vec<(u64, IoBuf)> {
    let at = label_offsets(DISK as u64);
    at.map(|at| (at, now(disk.read_at(at, IoBuf::zeroed(2 * CONFIG_BYTES))).1)).into()
}

fn put_back(disk: &Disk, configs: Vec<(u64, IoBuf)>) {
    for (at, config) in configs {
        let len = config.len();
        now(disk.write_at(at, Arc::new(config), 0..len, Durability::Cached)).unwrap();
    }
}

/// Power fails after the new disk has its label and before the other disks have their labels. The
/// new disk is missing at the next import, so that only the last uberblock names the new disk.
#[test]
fn disk_that_only_its_own_label_names_is_stale() {
    let (a, b, c) = (disk("a"), disk("b"), disk("c"));
    let engine = made(VdevKind::Mirror, &[a.clone(), b.clone()]);
    write(&engine, &data(8));
    let before = [&a, &b].map(|disk| (disk, configs(disk)));
    now(engine.attach_leg(guid_of(&engine, "a"), as_new(&c), Guid(100))).unwrap();
    drop(engine);
    before.into_iter().for_each(|(disk, configs)| put_back(disk, configs));
    for generation in 9..12 {
        let engine = open(&[&a, &b]).unwrap();
        assert_eq!(states(&engine).len(), 2, "the pool does not know of c");
        write(&engine, &data(generation));
    }
    let engine = open(&[&a, &b, &c]).unwrap();
    assert_eq!(engine.pool().find_leg("c").unwrap().2, LegState::Stale);
    resilver(&engine);
    drop(engine);
    assert_holds(&open(&[&c]).unwrap(), &data(11), "c alone");
}
