//! An unreadable tree node of a volume, or of the pool's metadata, on the only disk of a pool: its
//! effects on the real program, across SIGKILL and restarts.
//!
//! Not here: other kinds of nodes, other layouts and other times of the damage (weir-dataset,
//! weir-sim).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::nbd::EIO;
use crate::common::rng::Rng;
use crate::common::{Dirs, KIB, MIB, Ran, WEIR, code, eventually};
use weir_base::{Guid, SystemClock};
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, FileDevice, OpenMode, Overlay};
use weir_pool::{DiskAddress, ImportOptions, MetadataTree, OwnPlace, PlantedBug};

const SIZE: u64 = 4 * MIB;
/// Number of bytes of a volume that one leaf node covers.
const LEAF: u64 = 512 * KIB;
const DATA_LOST: i32 = 10;
/// Maximum number of restarts after which a recount of this pool must have ended.
const RESTARTS_MAX: usize = 60;

/// Opens the pool on a disk read-only and returns the result of `find`. The disk does not change.
fn look<T>(disk: &Path, find: impl AsyncFnOnce(&Engine) -> T) -> T {
    let runtime = weir_device::new_runtime().unwrap();
    runtime.block_on(async {
        let mut file = None;
        // Wait for the file lock: the kernel keeps it until the last I/O of the ended server has
        // completed.
        eventually("the disk is free", Duration::from_secs(20), || {
            file = FileDevice::open(disk, OpenMode::ReadOnly, 0).ok();
            file.is_some()
        });
        let file = Arc::new(file.unwrap());
        let disks: Vec<Arc<dyn Device>> = vec![Arc::new(Overlay::new(file))];
        let clock = Arc::new(SystemClock::default());
        let options = EngineOptions { memory_bytes: 64 << 20, clock, bug: PlantedBug::None };
        let how = ImportOptions::new(Guid(77));
        let engine = Engine::open(disks, how, &options).await.unwrap();
        find(&engine).await
    })
}

/// Returns the disk address of a leaf node of a volume.
fn leaf_of(disk: &Path, volume: &str, index: u64) -> DiskAddress {
    look(disk, async |engine| {
        engine.volume(volume).unwrap().disk_address(1, index).await.unwrap().unwrap()
    })
}

/// Returns the disk addresses of all copies of the metadata blocks for which `wanted` is true.
fn own_blocks(disk: &Path, wanted: impl Fn(&OwnPlace) -> bool) -> Vec<DiskAddress> {
    let places = look(disk, async |engine| engine.pool().own_places().await.unwrap());
    let copies = |place: OwnPlace| {
        let OwnPlace { copies, len, .. } = place;
        let copies = copies.into_iter().flatten();
        copies.map(move |(vdev, offset)| DiskAddress { vdev, offset, len })
    };
    places.into_iter().filter(wanted).flat_map(copies).collect()
}

fn flip(disk: &Path, place: DiskAddress) {
    let file = OpenOptions::new().read(true).write(true).open(disk).unwrap();
    let mut bytes = vec![0; place.len];
    file.read_exact_at(&mut bytes, place.offset).unwrap();
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
    file.write_all_at(&bytes, place.offset).unwrap();
}

fn offline(words: &[&str]) -> Ran {
    Ran::of(&words.join(" "), &crate::common::run(WEIR, words))
}

/// Regression: one unreadable leaf node of one volume closed the whole pool for ever. The first
/// write below the leaf suspended the pool, every import replayed that write, and `destroy`,
/// `rescue` and `check` failed too.
#[test]
fn unreadable_leaf_affects_only_its_range() {
    let dirs = Dirs::new();
    let disk = dirs.disk("a", 256 * MIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    let mut content = vec![0; SIZE as usize];
    Rng::new(5).fill(&mut content);
    for name in ["tank/v", "tank/other"] {
        server.volume(name, "4MiB");
        let mut client = server.client(name);
        for (at, part) in (0..).step_by(MIB as usize).zip(content.chunks(MIB as usize)) {
            client.write(at, part).unwrap();
        }
    }
    server.stop_clean();
    flip(&disk, leaf_of(&disk, "v", 0));

    let mut server = dirs.start();
    let mut client = server.client("tank/v");
    client.write(20 * KIB, &[7; 4096]).unwrap();
    client.flush().unwrap();
    server.weir("snapshot create tank/other@s").ok();
    server.assert_alive();
    client.write(28 * KIB, &[8; 4096]).unwrap();
    client.flush().unwrap();
    server.kill();

    let mut server = dirs.start();
    let mut client = server.client("tank/v");
    assert!(client.read(20 * KIB, 4096).unwrap() == [7; 4096]);
    assert!(client.read(28 * KIB, 4096).unwrap() == [8; 4096]);
    assert_eq!(client.read(24 * KIB, 4096), Err(EIO));
    assert!(client.read(LEAF, 4096).unwrap() == content[LEAF as usize..][..4096]);
    let mut client = server.client("tank/other");
    assert!(client.read(0, MIB as u32).unwrap() == content[..MIB as usize]);
    server.assert_alive();
    server.stop_clean();

    let place = disk.display().to_string();
    for (name, damaged) in [("tank/other", 0), ("tank/v", LEAF - 8 * KIB)] {
        let file = dirs.file(&name.replace('/', "-"));
        let to = file.display().to_string();
        let ran = offline(&["rescue", name, "-d", &place, "--to", &to, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["damaged_bytes"], damaged, "{report:#}");
        if damaged == 0 {
            ran.ok();
            assert!(fs::read(&file).unwrap() == content, "the other volume is rescued whole");
        }
    }
    offline(&["check", "tank", "-d", &place]).fails(DATA_LOST, &["blocks without a good copy"]);

    let server = dirs.start();
    server.weir("export delete tank/v").ok();
    server.weir("volume destroy tank/v --yes").ok();
    server.stop_clean();
    for _ in 0..RESTARTS_MAX {
        // Now the check finds no error. The space to which nothing refers was reclaimed in steps.
        let ran = offline(&["check", "tank", "-d", &place, "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        ran.ok();
        if report["damaged_since_txg"].is_null() {
            return;
        }
        let server = dirs.start();
        std::thread::sleep(Duration::from_secs(1));
        server.stop_clean();
    }
    panic!("the recount did not end");
}

/// Regression: one bad sector in the dataset directory closed the whole pool for ever, and no
/// volume could be rescued.
#[test]
fn unreadable_directory_record_affects_only_its_volume() {
    let dirs = Dirs::new();
    let disk = dirs.disk("a", 256 * MIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    let mut content = vec![0; MIB as usize];
    Rng::new(6).fill(&mut content);
    for name in ["tank/v", "tank/other"] {
        server.volume(name, "4MiB");
        server.client(name).write(0, &content).unwrap();
    }
    server.stop_clean();
    // The pool's first volume has the lowest dataset number, and so the first directory entry.
    let record = |place: &OwnPlace| {
        place.tree == MetadataTree::Datasets && (place.level, place.index) == (0, 1)
    };
    let places = own_blocks(&disk, record);
    assert_eq!(places.len(), 3, "it is there three times");
    places.into_iter().for_each(|place| flip(&disk, place));
    let place = disk.display().to_string();
    let rescue_other = |name: &str, content: &[u8]| {
        let file = dirs.file(name);
        let to = file.display().to_string();
        offline(&["rescue", "tank/other", "-d", &place, "--to", &to]).ok();
        assert!(fs::read(&file).unwrap()[..content.len()] == *content, "it is rescued whole");
    };
    rescue_other("before", &content);
    let to = dirs.file("v").display().to_string();
    offline(&["rescue", "tank/v", "-d", &place, "--to", &to]).fails(code::NOT_FOUND, &["tank/v"]);

    let mut server = dirs.start();
    let mut client = server.client("tank/other");
    assert!(client.read(0, MIB as u32).unwrap() == content);
    client.write(20 * KIB, &[7; 4096]).unwrap();
    client.flush().unwrap();
    content[20 * KIB as usize..][..4096].fill(7);
    server.weir("snapshot create tank/other@s").ok();
    server.volume("tank/new", "4MiB");
    server.client("tank/new").write(0, &content).unwrap();
    server.assert_alive();
    server.kill();

    rescue_other("after", &content);
    let lost = ["numbers 1 cannot be read", "their space stays in use"];
    offline(&["check", "tank", "-d", &place]).fails(DATA_LOST, &lost);
    let server = dirs.start();
    assert!(server.client("tank/other").read(0, MIB as u32).unwrap() == content);
    server.stop_clean();
}

/// Regression: an unreadable node above the pool's tables (segment, remap and reference tables)
/// suspended the pool at its first commit.
#[test]
fn unreadable_pool_nodes_do_not_affect_a_running_server() {
    let dirs = Dirs::new();
    let disk = dirs.disk("a", 256 * MIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "4MiB");
    let mut content = vec![0; MIB as usize];
    Rng::new(7).fill(&mut content);
    server.client("tank/v").write(0, &content).unwrap();
    server.stop_clean();
    let nodes = |place: &OwnPlace| place.level > 0 && place.tree == MetadataTree::Datasets;
    let before = own_blocks(&disk, nodes);
    let mut server = dirs.start();
    before.into_iter().for_each(|place| flip(&disk, place));
    let mut client = server.client("tank/v");
    client.write(20 * KIB, &[7; 4096]).unwrap();
    content[20 * KIB as usize..][..4096].fill(7);
    server.weir("snapshot create tank/v@s").ok();
    server.weir("pool scrub --wait tank").ok();
    server.assert_alive();
    server.kill();
    let place = disk.display().to_string();
    offline(&["check", "tank", "-d", &place]).ok();
    let server = dirs.start();
    assert!(server.client("tank/v").read(0, MIB as u32).unwrap() == content);
    server.stop_clean();
}
