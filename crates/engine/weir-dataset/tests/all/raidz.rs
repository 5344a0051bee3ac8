//! The engine on raidz vdevs of memory devices: every layout with damage and missing legs up to its
//! parity.
//!
//! The simulator tests crashes; the tests of the binary use real disks.
//!
//! Invariant: damage never exceeds the parity of a vdev, so that every read must succeed with
//! correct data. A test with more damage has a comment about this.

use std::ops::Range;
use std::sync::Arc;

use crate::common::{as_devices, import, now, options};
use weir_base::{ErrorKind, Guid};
use weir_dataset::{Engine, Volume, VolumeSpec};
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice};
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, LegState, VdevSpec};

const MEMORY_BYTES: u64 = 64 << 20;
const DISK_BYTES: usize = 64 << 20;
const DATA_BYTES: usize = 6 << 20;
/// Every raidz kind at its minimum width, at a width whose row size is no power of two, and at a
/// common width.
const LAYOUTS: [(VdevKind, usize); 8] = [
    (VdevKind::Raidz1, 2),
    (VdevKind::Raidz1, 4),
    (VdevKind::Raidz1, 5),
    (VdevKind::Raidz2, 3),
    (VdevKind::Raidz2, 5),
    (VdevKind::Raidz2, 6),
    (VdevKind::Raidz3, 4),
    (VdevKind::Raidz3, 8),
];

fn disks(count: usize) -> Vec<Arc<MemoryDevice>> {
    (0..count).map(|n| Arc::new(MemoryDevice::new(format!("disk{n}"), DISK_BYTES))).collect()
}

fn create(vdevs: &[VdevSpec]) -> Result<Arc<Engine>, weir_dataset::DatasetError> {
    let mut next = 0;
    let mut guid = || {
        next += 1;
        Guid(next)
    };
    let sizes = CreateOptions::default();
    now(Engine::create("tank", vdevs, sizes, &options(MEMORY_BYTES), &mut guid))
}

fn open(disks: Vec<Arc<dyn Device>>) -> Result<Arc<Engine>, weir_dataset::DatasetError> {
    now(Engine::open(disks, import(), &options(MEMORY_BYTES)))
}

/// Returns the content of the volume. Half of the content compresses, so that blocks start and end
/// at any offset in strips.
fn content() -> Vec<u8> {
    let mut state = 1_u64;
    let mut data: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(DATA_BYTES)
    .collect();
    for (n, block) in data.chunks_mut(4096).enumerate().filter(|(n, _)| n % 2 == 0) {
        block[n % 3000..].fill(n as u8);
    }
    data
}

/// Creates a pool with a volume that has [`content`], commits and closes it.
fn filled(kind: VdevKind, legs: usize) -> Vec<Arc<MemoryDevice>> {
    let disks = disks(legs);
    let engine =
        create(&[VdevSpec { kind, role: VdevRole::Data, disks: as_devices(&disks) }]).unwrap();
    let size_bytes = DATA_BYTES as u64;
    let spec = VolumeSpec { name: "v".to_owned(), size_bytes, compression: Compression::Lz4 };
    now(engine.create_volume(&spec)).unwrap();
    let volume = engine.volume("v").unwrap();
    now(volume.write(0, &content())).unwrap();
    now(engine.commit()).unwrap();
    disks
}

fn assert_right(engine: &Engine, what: &str) {
    let volume = engine.volume("v").unwrap();
    let expected = content();
    assert!(read(&volume, 0..DATA_BYTES) == expected, "{what}");
    for at in (0..DATA_BYTES).step_by(177 * 4096) {
        assert!(read(&volume, at..at + 4096) == expected[at..at + 4096], "{what}: at {at}");
    }
    assert!(now(engine.check_live_bytes()).unwrap().is_empty(), "{what}");
}

fn read(volume: &Volume, range: Range<usize>) -> Vec<u8> {
    let mut out = vec![0xee; range.len()];
    now(volume.read(range.start as u64, &mut out)).unwrap();
    out
}

/// Damages everything on a disk except its first label.
fn rot(disk: &MemoryDevice) {
    disk.corrupt(LABEL_BYTES as usize..DISK_BYTES, |byte| *byte ^= 0x5a);
}

// Regression: if more strips of a row were unreadable than the parity covers, reads reported an
// unavailable vdev, although every disk was present. Commits that encountered such a row suspended
// the pool.
#[test]
fn row_with_too_many_unreadable_strips_is_damaged_data() {
    let disks = filled(VdevKind::Raidz1, 3);
    let faults = Arc::new(Faults::default());
    // The third disk is missing.
    let mut devices = as_devices(&disks[..2]);
    devices[0] = Arc::new(FaultDevice::new(Arc::clone(&devices[0]), Arc::clone(&faults)));
    let engine = open(devices).unwrap();
    let volume = engine.volume("v").unwrap();
    faults.fail_in(DeviceOp::Read, LABEL_BYTES..DISK_BYTES as u64 - LABEL_BYTES);
    let mut out = vec![0; DATA_BYTES];
    let error = now(volume.read(0, &mut out)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Data, "{error}");
    engine.pool().check_alive().unwrap();
    // A disk whose label is unreadable as well counts as missing. When the disk reconnects, the
    // lost data may be readable again.
    faults.fail(DeviceOp::Read);
    let error = now(volume.read(0, &mut out)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[test]
fn import_works_with_missing_legs_up_to_the_parity() {
    for (kind, legs) in LAYOUTS {
        for first in 0..legs {
            // Create a new pool each time, because after an import and writes the missing legs stay
            // stale.
            let disks = filled(kind, legs);
            let gone = |n: usize| (n + legs - first) % legs < kind.parity();
            let left: Vec<Arc<dyn Device>> = as_devices(&disks)
                .into_iter()
                .enumerate()
                .filter_map(|(n, disk)| (!gone(n)).then_some(disk))
                .collect();
            let engine = open(left.clone()).unwrap();
            assert_right(&engine, &format!("{kind:?} of {legs} without those from {first} on"));
            let states: Vec<LegState> =
                engine.pool().status().vdevs[0].legs.iter().map(|leg| leg.state).collect();
            assert!((0..legs).all(|n| (states[n] == LegState::Missing) == gone(n)), "{states:?}");
            let few = open(left[1..].to_vec()).map(drop).expect_err("one too many is missing");
            let what =
                if left.len() > 1 { "cannot be opened: missing disk" } else { "no Weir pool" };
            assert!(few.to_string().contains(what), "{few}");
        }
    }
}

#[test]
fn damaged_legs_are_detected_and_repaired() {
    for (kind, legs) in LAYOUTS {
        let disks = filled(kind, legs);
        let bad = [legs - 1, 0, legs / 2];
        bad[..kind.parity()].iter().for_each(|n| rot(&disks[*n]));
        let what = format!("{kind:?} of {legs}, rotten");
        let engine = open(as_devices(&disks)).unwrap();
        assert_right(&engine, &what);
        let errors = |engine: &Engine| -> Vec<u64> {
            engine.pool().status().vdevs[0].legs.iter().map(|leg| leg.checksum_errors).collect()
        };
        let counted = errors(&engine);
        for (n, count) in counted.iter().enumerate() {
            let is_bad = bad[..kind.parity()].contains(&n);
            assert_eq!(*count > 0, is_bad, "{what}: {counted:?}");
        }
        // The reads repaired all data strips, so that reads need no parity now.
        let engine = open(as_devices(&disks)).unwrap();
        assert_right(&engine, &what);
        assert_eq!(errors(&engine), vec![0; legs], "{what}");
    }
}

#[test]
fn damage_beyond_the_parity_is_a_read_error() {
    let disks = filled(VdevKind::Raidz1, 4);
    let engine = open(as_devices(&disks)).unwrap();
    engine.pool().cache().set_budget(0);
    rot(&disks[1]);
    rot(&disks[2]);
    let volume = engine.volume("v").unwrap();
    let (expected, mut lost) = (content(), 0);
    for at in (0..DATA_BYTES).step_by(4096) {
        let mut out = vec![0xee; 4096];
        match now(volume.read(at as u64, &mut out)) {
            Ok(()) => assert!(out == expected[at..at + 4096], "wrong data at {at}"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                lost += 1;
            }
        }
    }
    assert!(lost > 0, "half of the data strips are rotten");
}

#[test]
fn pool_with_vdevs_of_different_kinds_survives_missing_legs() {
    let disks = disks(12);
    let vdev = |kind, range: Range<usize>| VdevSpec {
        kind,
        role: VdevRole::Data,
        disks: as_devices(&disks[range]),
    };
    let vdevs = [
        vdev(VdevKind::Raidz2, 0..5),
        vdev(VdevKind::Mirror, 5..7),
        vdev(VdevKind::Raidz1, 7..11),
        vdev(VdevKind::Disk, 11..12),
    ];
    let engine = create(&vdevs).unwrap();
    let size_bytes = DATA_BYTES as u64;
    let spec = VolumeSpec { name: "v".to_owned(), size_bytes, compression: Compression::Lz4 };
    now(engine.create_volume(&spec)).unwrap();
    let volume = engine.volume("v").unwrap();
    for _ in 0..6 {
        now(volume.write(0, &content())).unwrap();
        now(engine.commit()).unwrap();
    }
    drop((engine, volume));
    let left = [0, 1, 4, 6, 7, 8, 10, 11].map(|n| as_devices(&disks)[n].clone());
    let engine = open(left.to_vec()).unwrap();
    assert_right(&engine, "two of raidz2, one of a mirror and one of raidz1 are gone");
}

#[test]
fn impossible_layouts_are_refused_with_a_reason() {
    for (kind, legs, part) in [
        (VdevKind::Raidz1, 1, "a raidz1 is 2 to 32 disks, not 1"),
        (VdevKind::Raidz2, 2, "a raidz2 is 3 to 32 disks, not 2"),
        (VdevKind::Raidz3, 3, "a raidz3 is 4 to 32 disks, not 3"),
        (VdevKind::Raidz3, 33, "not 33"),
        (VdevKind::Mirror, 5, "a mirror is 2 to 4 disks, not 5"),
    ] {
        let disks = disks(legs);
        let refused = create(&[VdevSpec { kind, role: VdevRole::Data, disks: as_devices(&disks) }]);
        let error = refused.map(drop).expect_err("a layout that cannot be").to_string();
        assert!(error.contains(part), "{error}");
    }
}
