//! Scrub and resilver on memory devices: repairs, and the number of bytes written.
//!
//! The simulator tests crashes and load during scans.

use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use weir_base::Guid;
use weir_dataset::{Engine, Volume, VolumeSpec};
use weir_device::{Device, MemoryDevice};
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{
    CreateOptions, ImportOptions, LegState, ScanKind, ScanPlace, ScanState, ScanStatus, VdevSpec,
};

const MEMORY_BYTES: u64 = 64 << 20;
const MIB: usize = 1 << 20;

fn mirror() -> (Vec<Arc<MemoryDevice>>, Arc<Engine>, Arc<Volume>) {
    let disks: Vec<_> =
        (0..2).map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), 64 << 20))).collect();
    let vdev = VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks: as_devices(&disks) };
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let (sizes, options) = (CreateOptions::default(), options(MEMORY_BYTES));
    let engine = now(Engine::create("tank", &[vdev], sizes, &options, &mut guid)).unwrap();
    let spec = VolumeSpec { name: "v".into(), size_bytes: 32 << 20, compression: Compression::Off };
    now(engine.create_volume(&spec)).unwrap();
    let volume = engine.volume("v").unwrap();
    (disks, engine, volume)
}

fn noise(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| seed ^ (at / 4096) as u8 ^ (at % 251) as u8).collect()
}

fn write(engine: &Engine, volume: &Volume, offset: usize, data: &[u8]) {
    now(volume.write(offset as u64, data)).unwrap();
    now(engine.commit()).unwrap();
}

/// Runs scans until none is due, stops the engine and returns the status of the last scan.
fn scanned(engine: &Engine) -> ScanStatus {
    let done = now(engine.run_scans(|_| {
        let ended = |s: ScanStatus| matches!(s.state, ScanState::Finished | ScanState::Stopped);
        if engine.pool().scan_status().is_some_and(ended) {
            engine.stop();
        }
        std::future::ready(())
    }));
    done.unwrap();
    engine.pool().scan_status().unwrap()
}

fn read_alone(disk: &Arc<MemoryDevice>, len: usize) -> Vec<u8> {
    let disks = as_devices(std::slice::from_ref(disk));
    let engine = now(Engine::open(disks, import(), &options(MEMORY_BYTES)));
    let volume = engine.unwrap().volume("v").unwrap();
    let mut out = vec![0; len];
    now(volume.read(0, &mut out)).unwrap();
    out
}

#[test]
fn scrub_repairs_each_leg_from_the_other() {
    let (disks, engine, volume) = mirror();
    let data = noise(1, 8 * MIB);
    write(&engine, &volume, 0, &data);
    // Damage alternates between the legs, so that the other leg always has a good copy of data and
    // nodes.
    for at in (2 * MIB..60 * MIB).step_by(2 * MIB) {
        disks[at / (2 * MIB) % 2].corrupt(at..at + 2 * MIB, |byte| *byte ^= 0x5a);
    }
    engine.scrub_start().unwrap();
    let first = scanned(&engine);
    assert_eq!((first.kind, first.state), (ScanKind::Scrub, ScanState::Finished));
    assert!(first.damaged + first.unrepaired == 0 && first.repaired_bytes > 7 * MIB as u64);
    assert!(first.examined_bytes >= 8 * MIB as u64, "{first:?}");
    drop((engine, volume));
    for disk in &disks {
        assert!(read_alone(disk, data.len()) == data, "{} has not everything", disk.path());
    }
}

/// Runs scans until a scrub has examined `bytes`, then stops the engine.
fn scan_until(engine: &Engine, bytes: usize) -> ScanStatus {
    now(engine.run_scans(|_| {
        if engine.pool().scan_status().is_some_and(|s| s.examined_bytes >= bytes as u64) {
            engine.stop();
        }
        std::future::ready(())
    }))
    .unwrap();
    engine.pool().scan_status().unwrap()
}

// Regression: a restart lost running and paused scrubs, and the result of the last scrub.
#[test]
fn scrub_resumes_after_reopening_and_its_result_is_shown() {
    let (disks, engine, volume) = mirror();
    let len = 28 * MIB;
    for at in (0..len).step_by(4 * MIB) {
        write(&engine, &volume, at, &noise(at as u8, 4 * MIB));
    }
    let open = || now(Engine::open(as_devices(&disks), import(), &options(MEMORY_BYTES))).unwrap();
    engine.scrub_start().unwrap();
    let half = scan_until(&engine, 8 * MIB);
    let place = engine.scan_place();
    assert_eq!(half.state, ScanState::Running);
    assert!(place > ScanPlace::default() && (half.examined_bytes as usize) < len, "{half:?}");
    drop((engine, volume));

    let engine = open();
    engine.restore_scan(ScanStatus { state: ScanState::Paused, ..half }, place);
    assert_eq!(engine.pool().scan_status().unwrap().state, ScanState::Paused);
    assert!(engine.scrub_pause().is_ok(), "it is known as paused");
    assert_eq!(engine.scan_place(), place, "a second restart finds the same");
    engine.scrub_start().unwrap();
    let done = scanned(&engine);
    assert_eq!((done.state, done.started_unix_ms), (ScanState::Finished, half.started_unix_ms));
    let rest = (done.examined_bytes - half.examined_bytes) as usize;
    assert!(done.examined_bytes as usize >= len && rest < len, "{rest} bytes after {half:?}");
    drop(engine);

    let engine = open();
    engine.restore_scan(done, ScanPlace::default());
    let shown = engine.pool().scan_status().unwrap();
    assert_eq!((shown.state, shown.examined_bytes), (done.state, done.examined_bytes));
    engine.scrub_start().unwrap();
    assert!(scanned(&engine).examined_bytes as usize >= len, "the next one looks at everything");
}

#[test]
fn scrub_reports_a_block_without_a_good_copy() {
    let (disks, engine, volume) = mirror();
    write(&engine, &volume, 0, &noise(2, MIB));
    let start = 1 << 20;
    for disk in &disks {
        disk.corrupt(start..disk.geometry().len_bytes as usize - start, |byte| *byte = !*byte);
    }
    engine.scrub_start().unwrap();
    let scan = scanned(&engine);
    assert_eq!(scan.state, ScanState::Finished);
    assert!(scan.damaged > 0, "{scan:?}");
}

#[test]
fn resilver_copies_little_more_than_the_missed_writes() {
    let (disks, engine, volume) = mirror();
    let mut data = noise(3, 16 * MIB);
    write(&engine, &volume, 0, &data);
    let pool = engine.pool();
    let (guid, ..) = pool.find_leg("disk1").unwrap();
    assert!(pool.take_leg_offline(guid).unwrap());
    assert!(!pool.take_leg_offline(guid).unwrap());
    assert!(pool.take_leg_offline(pool.find_leg("disk0").unwrap().0).is_err(), "the last good leg");
    data[..2 * MIB].copy_from_slice(&noise(4, 2 * MIB));
    write(&engine, &volume, 0, &data[..2 * MIB]);
    now(pool.online_leg(guid, Arc::clone(&disks[1]) as Arc<dyn Device>, false)).unwrap();
    assert_eq!(pool.find_leg("disk1").unwrap().2, LegState::Stale);
    engine.leg_came_back();
    let scan = scanned(&engine);
    assert_eq!((scan.kind, scan.state), (ScanKind::Resilver, ScanState::Finished));
    let repaired = scan.repaired_bytes as usize;
    // The resilver also examines segments that were open before the leg went offline. The resilver
    // does not rewrite intact blocks of these segments.
    assert!((2 * MIB..4 * MIB).contains(&repaired), "{repaired} bytes for 2 MiB missed");
    assert_eq!(pool.find_leg("disk1").unwrap().2, LegState::Online);
    drop((engine, volume));
    assert!(read_alone(&disks[1], data.len()) == data, "the leg has not everything");
}

#[test]
fn import_with_a_stale_leg_alone_is_refused() {
    let (disks, engine, volume) = mirror();
    write(&engine, &volume, 0, &noise(5, MIB));
    let (guid, ..) = engine.pool().find_leg("disk1").unwrap();
    engine.pool().take_leg_offline(guid).unwrap();
    write(&engine, &volume, 0, &noise(6, MIB));
    drop((engine, volume));
    // Import the pool with both legs: the import commits to the stale leg too, and the leg stays
    // stale.
    let open = |disks: &[Arc<MemoryDevice>]| {
        now(Engine::open(as_devices(disks), import(), &options(MEMORY_BYTES)))
    };
    drop(open(&disks).unwrap());
    let refused = open(&disks[1..]).err().expect("refused").to_string();
    assert!(refused.contains("missed writes") && refused.contains("disk0"), "{refused}");
}

#[test]
fn forced_import_of_a_stale_leg_reads_the_writes_that_it_has() {
    let (disks, engine, volume) = mirror();
    write(&engine, &volume, 0, &noise(7, MIB));
    let (guid, ..) = engine.pool().find_leg("disk1").unwrap();
    engine.pool().take_leg_offline(guid).unwrap();
    write(&engine, &volume, 4 * MIB, &noise(8, MIB));
    now(engine.pool().online_leg(guid, Arc::clone(&disks[1]) as Arc<dyn Device>, false)).unwrap();
    // The leg of disk 1 is online again: it gets this write with its tree roots, but it lacks the
    // write at 4 MiB, which it missed.
    write(&engine, &volume, 8 * MIB, &noise(9, MIB));
    drop((engine, volume));
    let alone = as_devices(&disks[1..]);
    let options = options(MEMORY_BYTES);
    assert!(now(Engine::open(alone.clone(), import(), &options)).is_err());
    let engine =
        now(Engine::open(alone, ImportOptions { force: true, ..import() }, &options)).unwrap();
    let volume = engine.volume("v").unwrap();
    let mut out = vec![0; MIB];
    for (offset, seed) in [(0, 7), (8 * MIB, 9)] {
        now(volume.read(offset as u64, &mut out)).unwrap();
        assert!(out == noise(seed, MIB), "what was there at {offset}");
    }
    assert!(now(volume.read(4 * MIB as u64, &mut out)).is_err(), "what it missed is an error");
    write(&engine, &volume, 12 * MIB, &noise(10, MIB));
    now(volume.read(12 * MIB as u64, &mut out)).unwrap();
    assert!(out == noise(10, MIB), "it takes writes again");
}
