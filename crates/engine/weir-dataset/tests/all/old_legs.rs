//! Disks with stale or foreign content that return to their pool; on memory devices.
//!
//! The simulator tests old copies under load and power cuts; bin/weir tests the shipped binary.

use std::cell::Cell;
use std::sync::Arc;

use crate::common::{as_devices, committing, import, now, options};
use weir_base::{ErrorKind, Guid};
use weir_block::IoBuf;
use weir_dataset::{DatasetError, Engine, EngineOptions, VolumeSpec};
use weir_device::{Device, Durability, MemoryDevice};
use weir_format::label::checksum_of;
use weir_format::layout::{CONFIG_BYTES, LABEL_BYTES, RING_OFFSET, SLOT_BYTES, label_offsets};
use weir_format::{Compression, Feature, Features, Label, Uberblock, VdevKind, VdevRole};
use weir_pool::{
    CreateOptions, Identity, ImportOptions, LegState, PlantedBug, PoolError, PoolOptions,
    ScanState, VdevSpec,
};

const MEMORY_BYTES: u64 = 64 << 20;
const MIB: usize = 1 << 20;
const DISK: usize = 64 * MIB;

type Disk = Arc<MemoryDevice>;

fn disk(name: &str) -> Disk {
    Arc::new(MemoryDevice::new(name, DISK))
}

/// Copies the current content of a disk to another device with the same path.
fn copy_of(disk: &Disk) -> Disk {
    let copy = MemoryDevice::new(disk.path(), DISK);
    for at in (0..DISK).step_by(MIB) {
        let (done, bytes) = now(disk.read_at(at as u64, IoBuf::zeroed(MIB)));
        done.unwrap();
        let write = copy.write_at(at as u64, Arc::new(bytes), 0..MIB, Durability::Durable);
        now(write).unwrap();
    }
    Arc::new(copy)
}

fn made(kinds: &[(VdevKind, &[&Disk])]) -> Arc<Engine> {
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let vdevs: Vec<VdevSpec> = kinds
        .iter()
        .map(|(kind, disks)| {
            let disks: Vec<Disk> = disks.iter().map(|disk| Arc::clone(disk)).collect();
            VdevSpec { kind: *kind, role: VdevRole::Data, disks: as_devices(&disks) }
        })
        .collect();
    let (sizes, options) = (CreateOptions::default(), options(MEMORY_BYTES));
    let engine = now(Engine::create("tank", &vdevs, sizes, &options, &mut guid)).unwrap();
    let spec = VolumeSpec { name: "v".into(), size_bytes: 32 << 20, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    engine
}

fn data(seed: u8) -> Vec<u8> {
    (0..4 * MIB).map(|at| seed ^ (at / 4096) as u8 ^ (at % 251) as u8).collect()
}

/// Writes at an offset and commits. Each call makes at least one txg.
fn write(engine: &Engine, at: usize, data: &[u8]) {
    now(engine.volume("v").unwrap().write(at as u64, data)).unwrap();
    now(engine.commit()).unwrap();
}

fn open_with(disks: &[&Disk], how: ImportOptions) -> Result<Arc<Engine>, DatasetError> {
    let disks = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    now(Engine::open(disks, how, &options(MEMORY_BYTES)))
}

fn open(disks: &[&Disk]) -> Result<Arc<Engine>, DatasetError> {
    open_with(disks, import())
}

/// Runs scans until every leg is online or 100 steps are over, then stops the engine.
fn run_scans(engine: &Engine) {
    let looks = Cell::new(0);
    now(engine.run_scans(|_| {
        looks.set(looks.get() + 1);
        let online = states(engine).iter().all(|(_, state)| *state == LegState::Online);
        if online || looks.get() > 100 {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
}

fn resilver(engine: &Engine) {
    run_scans(engine);
    assert_eq!(engine.pool().scan_status().unwrap().state, ScanState::Finished);
}

fn states(engine: &Engine) -> Vec<(String, LegState)> {
    let vdevs = engine.pool().status().vdevs;
    vdevs.into_iter().flat_map(|v| v.legs).map(|leg| (leg.path, leg.state)).collect()
}

fn state_of(engine: &Engine, name: &str) -> LegState {
    engine.pool().find_leg(name).unwrap().2
}

fn holds(engine: &Engine, at: usize, data: &[u8]) -> bool {
    let mut out = vec![0; data.len()];
    let read = now(engine.volume("v").unwrap().read(at as u64, &mut out));
    read.is_ok() && out == data
}

/// Creates a mirror of two disks, and an old copy of its second disk that misses the last two
/// writes.
fn with_old_copy() -> (Disk, Disk, Vec<[u8; 1]>) {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    let old = copy_of(&b);
    write(&engine, 4 * MIB, &data(2));
    write(&engine, 8 * MIB, &data(3));
    drop(engine);
    (a, old, vec![[1], [2], [3]])
}

fn assert_holds_all(engine: &Engine, seeds: &[[u8; 1]]) {
    for (index, [seed]) in seeds.iter().enumerate() {
        assert!(holds(engine, index * 4 * MIB, &data(*seed)), "write {seed}");
    }
}

// Regression: an old copy of a disk was ONLINE. No resilver copied anything to it, and the loss of
// the good disk lost all data.
#[test]
fn old_copy_of_a_disk_is_stale_until_it_is_resilvered() {
    let (a, old, seeds) = with_old_copy();
    let engine = open(&[&a, &old]).unwrap();
    assert_eq!(state_of(&engine, "b"), LegState::Stale);
    let good = engine.pool().find_leg("a").unwrap().0;
    assert!(engine.pool().take_leg_offline(good).is_err(), "the only whole disk");
    drop(engine);
    // The state `stale` survives an import that ends before the resilver.
    assert!(open(&[&old]).is_err(), "it was opened alone");
    let engine = open(&[&a, &old]).unwrap();
    assert_eq!(state_of(&engine, "b"), LegState::Stale);
    resilver(&engine);
    assert_eq!(state_of(&engine, "b"), LegState::Online);
    drop(engine);
    assert_holds_all(&open(&[&old]).unwrap(), &seeds);
}

#[test]
fn old_copy_of_a_disk_is_resilvered_when_it_reconnects() {
    let (a, old, seeds) = with_old_copy();
    let engine = open(&[&a]).unwrap();
    write(&engine, 12 * MIB, &data(4));
    let (b, _, state) = engine.pool().find_leg("b").unwrap();
    assert_eq!(state, LegState::Missing);
    now(engine.pool().online_leg(b, Arc::clone(&old) as Arc<dyn Device>, false)).unwrap();
    engine.leg_came_back();
    resilver(&engine);
    drop(engine);
    let engine = open(&[&old]).unwrap();
    assert_holds_all(&engine, &seeds);
    assert!(holds(&engine, 12 * MIB, &data(4)));
}

// Regression: a copy of a disk in the middle of a resilver counted as complete up to its own newest
// uberblock. No resilver copied the writes that this copy had missed at that time, and these writes
// were lost with the other disk.
#[test]
fn old_copy_from_an_unfinished_resilver_is_resilvered() {
    for open_when_it_comes_back in [false, true] {
        let (a, b) = (disk("a"), disk("b"));
        let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
        write(&engine, 0, &data(1));
        drop(engine);
        let engine = open(&[&a]).unwrap();
        write(&engine, 4 * MIB, &data(2));
        drop(engine);
        let engine = open(&[&a, &b]).unwrap();
        assert_eq!(state_of(&engine, "b"), LegState::Stale);
        write(&engine, 8 * MIB, &data(3));
        let old = copy_of(&b);
        resilver(&engine);
        drop(engine);
        let engine = open(&[&a, &b]).unwrap();
        write(&engine, 12 * MIB, &data(4));
        write(&engine, 16 * MIB, &data(5));
        drop(engine);
        let engine = if open_when_it_comes_back {
            let engine = open(&[&a]).unwrap();
            let b = engine.pool().find_leg("b").unwrap().0;
            now(engine.pool().online_leg(b, Arc::clone(&old) as Arc<dyn Device>, false)).unwrap();
            engine.leg_came_back();
            engine
        } else {
            open(&[&a, &old]).unwrap()
        };
        assert_eq!(state_of(&engine, "b"), LegState::Stale);
        resilver(&engine);
        drop(engine);
        assert_holds_all(&open(&[&old]).unwrap(), &[[1], [2], [3], [4], [5]]);
    }
}

#[test]
fn old_copy_of_a_raidz_disk_is_resilvered() {
    let disks = [disk("a"), disk("b"), disk("c")];
    let engine = made(&[(VdevKind::Raidz1, &[&disks[0], &disks[1], &disks[2]])]);
    write(&engine, 0, &data(1));
    let old = copy_of(&disks[1]);
    write(&engine, 4 * MIB, &data(2));
    write(&engine, 8 * MIB, &data(3));
    drop(engine);
    let engine = open(&[&disks[0], &old, &disks[2]]).unwrap();
    assert_eq!(state_of(&engine, "b"), LegState::Stale);
    resilver(&engine);
    drop(engine);
    assert_holds_all(&open(&[&disks[0], &old]).unwrap(), &[[1], [2], [3]]);
}

#[test]
fn disk_without_a_readable_uberblock_is_stale_from_txg_0() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    for label in label_offsets(DISK as u64).map(|at| at as usize) {
        let ring = label + RING_OFFSET as usize..label + LABEL_BYTES as usize;
        b.corrupt(ring, |byte| *byte ^= 0x55);
    }
    let engine = open(&[&a, &b]).unwrap();
    let status = engine.pool().status();
    assert_eq!(status.vdevs[0].legs[1].stale_after.map(|txg| txg.0), Some(0));
    resilver(&engine);
    drop(engine);
    assert!(holds(&open(&[&b]).unwrap(), 0, &data(1)));
}

#[test]
fn old_copy_of_the_only_disk_of_a_vdev_needs_force() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Disk, &[&a]), (VdevKind::Disk, &[&b])]);
    write(&engine, 0, &data(1));
    let old = copy_of(&b);
    write(&engine, 4 * MIB, &data(2));
    write(&engine, 8 * MIB, &data(3));
    drop(engine);
    let error = open(&[&a, &old]).map(drop).unwrap_err();
    assert!(matches!(&error, DatasetError::Pool(PoolError::OldDisks { .. })), "{error}");
    assert!(error.to_string().contains("b holds txg"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[test]
fn restart_after_a_commit_leaves_every_disk_online() {
    let (a, b) = (disk("a"), disk("b"));
    let mut engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    for seed in 1..4 {
        write(&engine, 0, &data(seed));
        drop(engine);
        engine = open(&[&a, &b]).unwrap();
    }
    assert!(states(&engine).iter().all(|(_, state)| *state == LegState::Online));
}

/// Damages every occurrence of `content` on a disk by overwriting its beginning.
fn damage(disk: &Disk, content: &[u8]) {
    let (done, image) = now(disk.read_at(0, IoBuf::zeroed(DISK)));
    done.unwrap();
    let places = (0..DISK - content.len()).step_by(64);
    let places: Vec<usize> = places.filter(|at| image[*at..].starts_with(content)).collect();
    assert!(!places.is_empty(), "it is stored as it is");
    places.iter().for_each(|at| disk.corrupt(*at..*at + 8, |byte| *byte ^= 0x55));
}

// Regression: a resilver that encountered damage never finished. The leg stayed stale, and no read
// used it.
#[test]
fn resilver_finishes_and_lists_blocks_that_no_leg_has() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    let engine = open(&[&a]).unwrap();
    write(&engine, 4 * MIB, &data(2));
    drop(engine);
    damage(&a, &data(2)[2 * MIB..2 * MIB + 4096]);
    let engine = open(&[&a, &b]).unwrap();
    resilver(&engine);
    assert_eq!(state_of(&engine, "b"), LegState::Online);
    let lost = engine.damage().data;
    let places: Vec<_> = lost.iter().map(|lost| (lost.offset_bytes, lost.len_bytes)).collect();
    assert_eq!(places, [(6 * MIB as u64, 4096)]);
    drop(engine);
    let engine = open(&[&b]).unwrap();
    assert_holds_all(&engine, &[[1]]);
    assert!(holds(&engine, 4 * MIB, &data(2)[..2 * MIB]));
    assert!(!holds(&engine, 6 * MIB, &data(2)[2 * MIB..2 * MIB + 4096]));
    assert!(holds(&engine, 6 * MIB + 4096, &data(2)[2 * MIB + 4096..]));
}

// If a segment's summary is unreadable, the blocks in the segment are unknown. The resilver copies
// none of these blocks, so the leg must stay stale.
#[test]
fn leg_stays_stale_if_a_segment_summary_is_unreadable() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    let engine = open(&[&a]).unwrap();
    write(&engine, 4 * MIB, &data(2));
    drop(engine);
    damage(&a, b"WEIRSUMM");
    let engine = open(&[&a, &b]).unwrap();
    run_scans(&engine);
    assert_eq!(state_of(&engine, "b"), LegState::Stale);
    assert!(holds(&engine, 4 * MIB, &data(2)), "the other leg has it");
}

fn patch(disk: &Disk, at: usize, len: usize, change: impl FnOnce(&mut [u8])) {
    let (done, mut bytes) = now(disk.read_at(at as u64, IoBuf::zeroed(len)));
    done.unwrap();
    change(&mut bytes);
    now(disk.write_at(at as u64, Arc::new(bytes), 0..len, Durability::Durable)).unwrap();
}

/// Changes the format version of every config copy, as a bit flip does, or as a newer Weir that
/// updates the checksum too.
fn set_version(disk: &Disk, version: u32, newer_weir: bool) {
    for label in label_offsets(DISK as u64).map(|at| at as usize) {
        for copy in [label, label + CONFIG_BYTES] {
            patch(disk, copy, CONFIG_BYTES, |config| {
                config[8..12].copy_from_slice(&version.to_le_bytes());
                let body = u32::from_le_bytes(*config[12..].first_chunk().unwrap()) as usize;
                let checksum = checksum_of(version, &config[32..32 + body]);
                if newer_weir {
                    config[16..32].copy_from_slice(&checksum.to_le_bytes());
                }
            });
        }
    }
}

// Regression: one leg whose label had another format version made a whole mirror unavailable, while
// any other damage only degraded the mirror.
#[test]
fn disk_with_a_damaged_format_version_degrades_the_pool() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    set_version(&a, 200, false);
    let engine = open(&[&a, &b]).unwrap();
    assert!(holds(&engine, 0, &data(1)));
    assert_eq!(
        (state_of(&engine, "a"), state_of(&engine, "b")),
        (LegState::Missing, LegState::Online)
    );
    let why = engine.pool().status().vdevs[0].legs[0].note.clone().unwrap();
    assert!(why.contains("checksum"), "{why}");
}

// A newer Weir may have committed txgs that the other disks of the pool lack, so an import must not
// treat its disk as missing.
#[test]
fn disk_of_a_newer_format_version_is_no_missing_disk() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    set_version(&a, 200, true);
    for disks in [&[&a, &b][..], &[&b, &a], &[&a]] {
        let error = open(disks).map(drop).unwrap_err();
        assert!(matches!(error, DatasetError::Pool(PoolError::OtherFormat { .. })), "{error}");
        assert!(error.to_string().contains("version 200 is newer"), "{error}");
    }
    let disks = as_devices(&[a, b]);
    let force = ImportOptions { force: true, ..import() };
    let engine = now(Engine::open(disks, force, &options(MEMORY_BYTES))).unwrap();
    assert!(holds(&engine, 0, &data(1)));
    assert_eq!(state_of(&engine, "a"), LegState::Missing);
}

/// Sets feature flags in every config copy, as a newer Weir does.
fn set_features(disk: &Disk, features: &Features) {
    for label in label_offsets(DISK as u64).map(|at| at as usize) {
        for copy in [label, label + CONFIG_BYTES] {
            patch(disk, copy, CONFIG_BYTES, |config| {
                let label = Label::decode(config).unwrap();
                config.copy_from_slice(&Label { features: features.clone(), ..label }.encode());
            });
        }
    }
}

#[test]
fn pool_with_an_unknown_feature_is_refused_or_only_read() {
    let disk = disk("a");
    let engine = made(&[(VdevKind::Disk, &[&disk])]);
    write(&engine, 0, &data(1));
    drop(engine);
    let owner: &'static Identity = Box::leak(Box::new(Identity {
        machine: "machine".to_owned(),
        host: "host".to_owned(),
        boot: "boot".to_owned(),
        pid_namespace: 1,
        pid: 7,
        pid_start: 1,
        runs: |_, _| true,
    }));
    let needed = vec![Feature { bit: 3, needs: "needs weir 0.4".to_owned() }];
    let read_only = Features { read_only_compatible: needed.clone(), ..Features::default() };
    set_features(&disk, &read_only);
    let refused = |how: ImportOptions| {
        let error = open_with(&[&disk], how).map(drop).unwrap_err();
        assert!(matches!(error, DatasetError::Pool(PoolError::OtherFormat { .. })), "{error}");
        assert!(error.to_string().contains("needs weir 0.4"), "{error}");
    };
    let server = ImportOptions { owner: Some(owner), ..import() };
    let label = || now(disk.read_at(0, IoBuf::zeroed(LABEL_BYTES as usize))).1[..].to_vec();
    let before = label();
    refused(server);
    refused(ImportOptions { force: true, ..server });
    assert!(label() == before, "not even the owner slot was written");
    assert!(holds(&open(&[&copy_of(&disk)]).unwrap(), 0, &data(1)), "readers may");
    set_features(&disk, &Features { incompatible: needed, ..Features::default() });
    refused(server);
    refused(import());
}

// A Weir that can decode the label, but not the newest uberblock, must not import an older
// uberblock.
#[test]
fn uberblock_of_a_newer_format_version_refuses_the_disk() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    patch(&a, RING_OFFSET as usize, 101 * SLOT_BYTES, |ring| {
        let mut slots = ring.chunks(SLOT_BYTES).filter_map(|slot| Uberblock::decode(slot).ok());
        let newer = Uberblock { version: 10, ..slots.next_back().unwrap() }.encode();
        ring[100 * SLOT_BYTES..].copy_from_slice(&newer);
    });
    for disks in [&[&a, &b][..], &[&a]] {
        let error = open(disks).map(drop).unwrap_err();
        assert!(matches!(error, DatasetError::Pool(PoolError::OtherFormat { .. })), "{error}");
    }
    assert!(open(&[&b]).is_ok(), "as if the other disk was missing");
}

fn bring_back(engine: &Engine, disk: &Disk, force: bool) -> Result<(), PoolError> {
    let guid = engine.pool().find_leg(disk.path()).unwrap().0;
    let back = Arc::clone(disk) as Arc<dyn Device>;
    now(engine.pool().online_leg(guid, back, force))?;
    engine.leg_came_back();
    Ok(())
}

/// Creates a mirror whose disks were then written without each other: disk `a` has the writes 1 and
/// 2, disk `b` has the writes 1 and 3.
fn diverged(commits: [u8; 2]) -> (Disk, Disk) {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    for (disk, seed, commits) in [(&a, 2, commits[0]), (&b, 3, commits[1])] {
        let engine = open(&[disk]).unwrap();
        for _ in 0..commits {
            write(&engine, 4 * MIB, &data(seed));
        }
    }
    (a, b)
}

// Regression: a disk that returned to an open pool was resilvered even if it had newer writes than
// the pool.
#[test]
fn diverged_disk_does_not_join_an_open_pool_without_force() {
    for commits in [[1, 1], [1, 5], [5, 1]] {
        let (a, b) = diverged(commits);
        let engine = open(&[&a]).unwrap();
        let refused = bring_back(&engine, &b, false).unwrap_err();
        assert!(matches!(refused, PoolError::DivergedDisk { .. }), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert_eq!(state_of(&engine, "b"), LegState::Missing);
        let status = engine.pool().status();
        assert_eq!(
            status.vdevs[0].legs[1].note.as_deref(),
            Some("was written without the other disks")
        );
        assert!(holds(&engine, 4 * MIB, &data(2)));
        drop(engine);
        assert!(holds(&open(&[&b]).unwrap(), 4 * MIB, &data(3)), "nothing was overwritten");

        let engine = open(&[&a]).unwrap();
        bring_back(&engine, &b, true).unwrap();
        assert_eq!(engine.pool().status().vdevs[0].legs[1].stale_after.map(|txg| txg.0), Some(0));
        resilver(&engine);
        drop(engine);
        let engine = open(&[&b]).unwrap();
        assert_holds_all(&engine, &[[1], [2]]);
    }
}

// Regression: a disk that was written alone joined a pool if the only other leg was unconfirmed.
#[test]
fn diverged_disk_does_not_join_an_unconfirmed_leg() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    let (alone, b) = (copy_of(&a), copy_of(&b));
    write(&engine, 0, &data(1));
    drop(engine);
    // The copy of b lacks the last txg, so the next commit lists b as unconfirmed.
    let engine = open(&[&a, &b]).unwrap();
    write(&engine, 4 * MIB, &data(3));
    drop(engine);
    // The disk is opened alone. The flush writes only to the intent log, so the import made the
    // last commit on this disk.
    let engine = open(&[&alone]).unwrap();
    let volume = engine.volume("v").unwrap();
    now(volume.write(4 * MIB as u64, &data(2))).unwrap();
    now(engine.flush(&volume)).unwrap();
    drop(engine);

    let engine = open(&[&b]).unwrap();
    let status = engine.pool().status();
    assert!(status.vdevs[0].legs[1].unconfirmed, "{status:?}");
    let refused = bring_back(&engine, &alone, false).unwrap_err();
    assert!(matches!(refused, PoolError::DivergedDisk { .. }), "{refused}");
    assert!(holds(&engine, 4 * MIB, &data(3)));
    drop(engine);
    assert!(holds(&open(&[&alone]).unwrap(), 4 * MIB, &data(2)), "nothing was overwritten");
}

// An import that ends before its first commit leaves only a claim.
#[test]
fn disk_with_an_unfinished_import_joins_an_open_pool() {
    let (a, b) = (disk("a"), disk("b"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    let EngineOptions { clock, bug, .. } = options(MEMORY_BYTES);
    let pool_options = PoolOptions { cache_bytes: 1 << 20, clock, bug };
    let disks = vec![Arc::clone(&b) as Arc<dyn Device>];
    let imported = now(weir_pool::import(disks, import(), &pool_options)).unwrap();
    now(imported.claim()).unwrap();
    drop(imported);
    let engine = open(&[&a]).unwrap();
    write(&engine, 4 * MIB, &data(2));
    bring_back(&engine, &b, false).unwrap();
    resilver(&engine);
    drop(engine);
    assert_holds_all(&open(&[&b]).unwrap(), &[[1], [2]]);
}

// Regression: an import silently ignored a diverged disk that the label of the other disk did not
// list.
#[test]
fn diverged_disk_that_the_label_does_not_list_is_refused() {
    let (a, b, c) = (disk("a"), disk("b"), disk("c"));
    let engine = made(&[(VdevKind::Mirror, &[&a, &b])]);
    write(&engine, 0, &data(1));
    drop(engine);
    for side in [[&a, &b], [&b, &a]] {
        let [kept, left] = side.map(copy_of);
        let engine = open(&[&kept]).unwrap();
        let guid = engine.pool().find_leg(kept.path()).unwrap().0;
        let new = copy_of(&c);
        let attached = Arc::clone(&new) as Arc<dyn Device>;
        now(engine.attach_leg(guid, attached, Guid(600))).unwrap();
        let left_guid = engine.pool().find_leg(left.path()).unwrap().0;
        now(engine.detach_leg(left_guid)).unwrap();
        resilver(&engine);
        write(&engine, 4 * MIB, &data(2));
        drop(engine);
        let engine = open(&[&left]).unwrap();
        write(&engine, 4 * MIB, &data(3));
        write(&engine, 8 * MIB, &data(3));
        drop(engine);
        for disks in [[&kept, &new, &left], [&left, &new, &kept]] {
            let refused = open(&disks).map(drop).unwrap_err();
            let is_diverged = matches!(refused, DatasetError::Pool(PoolError::Diverged { .. }));
            assert!(is_diverged, "{refused}");
        }
        assert!(holds(&open(&[&left]).unwrap(), 4 * MIB, &data(3)));
        assert!(holds(&open(&[&kept, &new]).unwrap(), 4 * MIB, &data(2)));
    }
}

/// A leg goes out of use, a client flushes a write, and the server crashes before its next commit.
/// Then the pool is imported with that leg alone, and the other leg returns. Returns true if the
/// pool refused the other leg.
fn other_leg_after_a_flush(bug: PlantedBug) -> bool {
    let (a, b) = (disk("a"), disk("b"));
    drop(made(&[(VdevKind::Mirror, &[&a, &b])]));
    let options = EngineOptions { bug, ..options(MEMORY_BYTES) };
    let disks = as_devices(&[Arc::clone(&a), Arc::clone(&b)]);
    let engine = now(Engine::open(disks, import(), &options)).unwrap();
    engine.pool().take_leg_offline(engine.pool().find_leg("a").unwrap().0).unwrap();
    let volume = engine.volume("v").unwrap();
    now(volume.write(0, &data(1))).unwrap();
    committing(&engine, engine.flush(&volume)).unwrap();
    drop((volume, engine));

    let engine = open(&[&a]).unwrap();
    assert!(!holds(&engine, 0, &data(1)), "the leg missed the write");
    let refused = bring_back(&engine, &b, false);
    drop(engine);
    if refused.is_err() {
        assert!(holds(&open(&[&b]).unwrap(), 0, &data(1)));
    }
    refused.is_err()
}

// Regression: after a leg missed flushed writes, no uberblock listed the leg as stale until the
// next commit. The other leg, which had these writes, was overwritten when it returned.
#[test]
fn flush_after_a_leg_failed_makes_the_other_legs_newer() {
    assert!(other_leg_after_a_flush(PlantedBug::None));
}

#[test]
fn flush_that_ignores_a_leg_that_missed_it_is_noticed() {
    assert!(!other_leg_after_a_flush(PlantedBug::UnlistedLegsIgnored));
}
