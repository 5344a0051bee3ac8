//! Raidz of the real program: as many disks as there is parity are overwritten, truncated or
//! removed.
//!
//! Not here: power cuts (the simulator), mirrors (crash.rs), disks that fail while in use
//! (failing_disks.rs).
//!
//! Invariants: while at most as many disks are damaged as there is parity, all data can be read.
//! With one more damaged disk, the import fails and names the disks; the server never imports a
//! pool that lacks data.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Server, code, fio};
use serde_json::Value;

const DISK_BYTES: u64 = 256 * MIB;
const LABEL_BYTES: u64 = MIB;
const BLOCKS: u64 = 4096;
/// Options of fio whose last flush covers every block. With only a flush after each 64 writes, the
/// last writes would be unflushed, and a kill could lose them.
const VERIFIED: [&str; 8] = [
    "--rw=randwrite",
    "--bs=16k",
    "--size=48m",
    "--iodepth=16",
    "--fsync=64",
    "--end_fsync=1",
    "--verify=crc32c",
    "--verify_fatal=1",
];

/// Creates a pool of this kind on these disks, with the data of two loads: fio verified one, and a
/// kill of the server ended the other.
fn loaded(dirs: &Dirs, kind: &str, disks: &[&str]) -> Model {
    for disk in disks {
        dirs.disk(disk, DISK_BYTES);
    }
    let mut server = dirs.start();
    server.weir(&format!("pool create tank {kind} {}", disks.join(" "))).ok();
    let status = server.status("tank");
    assert_eq!(status["vdevs"][0]["kind"], kind, "{status:#}");
    assert_eq!(status["vdevs"][0]["name"], format!("{kind}-0"), "{status:#}");
    server.volume("tank/v1", "16MiB");
    server.volume("tank/v2", "48MiB");
    fio(&server.uri("tank/v2"), &VERIFIED);
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v1", &model, 0..BLOCKS, 7);
    std::thread::sleep(Duration::from_millis(1200));
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    server = dirs.start();
    let mut model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    model.verify(&mut server.client("tank/v1"), "before the damage");
    assert_eq!(server.status("tank")["state"], "online", "after SIGKILL");
    server.stop_clean();
    model
}

/// Overwrites everything on a disk except the first label with random bytes.
fn garbage(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut part = vec![0; MIB as usize];
    for offset in (LABEL_BYTES..DISK_BYTES).step_by(MIB as usize) {
        Rng::new(offset).fill(&mut part);
        file.write_all_at(&part, offset).unwrap();
    }
    // Write the page cache back to the file, because the server reads it with direct I/O.
    file.sync_all().unwrap();
}

fn assert_all_right(server: &Server, model: &mut Model, what: &str) {
    model.verify(&mut server.client("tank/v1"), what);
    fio(&server.uri("tank/v2"), &[&VERIFIED[..], &["--verify_only=1"]].concat());
}

fn states(status: &Value) -> Vec<&str> {
    let disks = status["vdevs"][0]["disks"].as_array().unwrap();
    disks.iter().map(|disk| disk["state"].as_str().unwrap()).collect()
}

#[test]
fn raidz2_of_six_disks_survives_the_loss_of_any_two() {
    let dirs = Dirs::new();
    let mut model = loaded(&dirs, "raidz2", &["a", "b", "c", "d", "e", "f"]);
    garbage(&dirs.file("b"));
    garbage(&dirs.file("e"));
    let mut server = dirs.start();
    assert_all_right(&server, &mut model, "two disks overwritten");
    let errors = &server.status("tank")["vdevs"][0]["disks"];
    for (disk, bad) in [(0, false), (1, true), (2, false), (3, false), (4, true), (5, false)] {
        let count = errors[disk]["errors"]["checksum"].as_u64().unwrap();
        assert_eq!(count > 0, bad, "{errors:#}");
    }
    assert!(server.weir("pool status tank").ok().out.contains("raidz2-0"));
    // Scrub, because reads repair only the data strips that clients read. A scrub repairs all data
    // and parity.
    let scan = &server.weir("pool scrub --wait --json tank").json()["scan"];
    assert!(scan["errors"] == 0 && scan["repaired_bytes"].as_u64().unwrap() > 0, "{scan}");
    server.stop_clean();

    // Remove the other two disks, so that the two repaired disks must provide the data.
    for name in ["a", "d"] {
        fs::rename(dirs.file(name), dirs.file(&format!("{name}-away"))).unwrap();
    }
    server = dirs.start();
    assert_all_right(&server, &mut model, "two others gone");
    let status = server.status("tank");
    assert_eq!(status["state"], "degraded", "{status:#}");
    let there = ["unavailable", "online", "online", "unavailable", "online", "online"];
    assert_eq!(states(&status), there, "{status:#}");
    // The degraded pool must still accept writes.
    fio(&server.uri("tank/v2"), &VERIFIED);
    server.assert_alive();
    server.stop_clean();

    // When the disks return, the server resilvers them without a command.
    for name in ["a", "d"] {
        fs::rename(dirs.file(&format!("{name}-away")), dirs.file(name)).unwrap();
    }
    server = dirs.start();
    for _ in 0..600 {
        if server.status("tank")["state"] == "online" {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = server.status("tank");
    assert_eq!((&status["state"], &status["scan"]["kind"]), (&"online".into(), &"resilver".into()));
    let scan = &server.weir("pool scrub --wait --json tank").json()["scan"];
    assert_eq!((&scan["repaired_bytes"], &scan["errors"]), (&0.into(), &0.into()), "{scan}");
    server.stop_clean();
    fs::remove_file(dirs.file("b")).unwrap();
    fs::remove_file(dirs.file("f")).unwrap();
    server = dirs.start();
    assert_all_right(&server, &mut model, "with those that were away");
    server.assert_alive();
}

#[test]
fn import_without_enough_disks_names_the_missing_ones() {
    let dirs = Dirs::new();
    let mut model = loaded(&dirs, "raidz1", &["a", "b", "c"]);
    let mut server = dirs.start();
    server.weir("pool export tank --force").ok();
    let place = dirs.file("").display().to_string();
    let aside = dirs.file("aside");
    fs::create_dir(&aside).unwrap();
    fs::rename(dirs.file("a"), aside.join("a")).unwrap();
    fs::rename(dirs.file("b"), aside.join("b")).unwrap();
    let found = server.weir(&format!("pool import -d {place} --json")).json();
    assert_eq!(found["pools"][0]["state"], "unavailable", "{found:#}");
    let import = format!("pool import -d {place} tank");
    server.weir(&import).fails(code::UNAVAILABLE, &["cannot be opened: missing", "/a", "/b"]);
    fs::rename(aside.join("b"), dirs.file("b")).unwrap();
    let found = server.weir(&format!("pool import -d {place} --json")).json();
    assert_eq!(found["pools"][0]["state"], "degraded", "{found:#}");
    server.weir(&import).ok();
    server.weir("export create nbd tank/v1").ok();
    server.weir("export create nbd tank/v2").ok();
    assert_all_right(&server, &mut model, "one disk is missing");
    server.assert_alive();
}

#[test]
fn raidz3_survives_three_damaged_disks() {
    let dirs = Dirs::new();
    let mut model = loaded(&dirs, "raidz3", &["a", "b", "c", "d", "e"]);
    garbage(&dirs.file("a"));
    OpenOptions::new().write(true).open(dirs.file("c")).unwrap().set_len(LABEL_BYTES).unwrap();
    fs::remove_file(dirs.file("d")).unwrap();
    let mut server = dirs.start();
    assert_all_right(&server, &mut model, "three disks damaged, each in its way");
    assert_eq!(server.status("tank")["state"], "degraded");
    server.assert_alive();
}
