//! Pools whose layout changes while the real program runs under load: vdevs added and removed, log
//! vdevs, larger disks, and diverged halves of a mirror.
//!
//! Not here: crashes during these changes (the simulator), spares (the tests of weir-server),
//! layouts that are refused (weir-dataset).
//!
//! Invariants: clients get no error; after the removal of a vdev, the pool does not need its disks.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::{Dirs, MIB, Server, code};
use serde_json::Value;

const DISK: u64 = 256 * MIB;
const BLOCKS: u64 = 8192;

fn made(dirs: &Dirs, disks: &[&str], words: &str) -> Server {
    for name in disks {
        dirs.disk(name, DISK);
    }
    let server = dirs.start();
    server.weir(&format!("pool create tank {words}")).ok();
    server.volume("tank/v", "32MiB");
    server
}

fn vdevs(server: &Server) -> Vec<String> {
    let status = server.status("tank");
    let vdevs = status["vdevs"].as_array().unwrap().iter();
    let last = |name: &str| name.rsplit('/').next().unwrap().to_owned();
    let word = |vdev: &Value| match vdev["role"].as_str().unwrap() {
        "data" => last(vdev["name"].as_str().unwrap()),
        role => format!("{role} {}", last(vdev["name"].as_str().unwrap())),
    };
    vdevs.map(word).collect()
}

fn clean_scrub(server: &Server) {
    let scan = &server.weir("pool scrub --wait --json tank").json()["scan"];
    assert_eq!((&scan["repaired_bytes"], &scan["errors"]), (&0.into(), &0.into()), "{scan}");
}

/// Kills the server under load; returns the model of the contents that the clients wrote.
fn killed(
    mut server: Server,
    model: Arc<Mutex<Model>>,
    worker: std::thread::JoinHandle<End>,
) -> Model {
    server.assert_alive();
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    Arc::into_inner(model).unwrap().into_inner().unwrap()
}

fn verify(dirs: &Dirs, model: &mut Model, what: &str) {
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), what);
    server.assert_alive();
    server.stop_clean();
}

#[test]
fn mirror_is_replaced_by_raidz2_under_load() {
    let dirs = Dirs::new();
    let server = made(&dirs, &["a", "b"], "mirror a b");
    for name in ["c", "d", "e", "f"] {
        dirs.disk(name, DISK);
    }
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 3);
    std::thread::sleep(Duration::from_secs(1));
    server.weir("pool add tank raidz2 c d e f").fails(code::INVALID, &["--force"]);
    server.weir("pool add tank mirror a c").fails(code::BUSY, &["/a"]);
    server.weir("pool remove --yes tank mirror-0").fails(code::INVALID, &["last data vdev"]);
    server.weir("pool add --force tank raidz2 c d e f").ok();
    assert_eq!(vdevs(&server), ["mirror-0", "raidz2-1"]);
    server.weir("pool remove --yes tank a").fails(code::INVALID, &["is part of mirror-0"]);
    server.weir("pool remove --yes --wait tank mirror-0").ok();
    assert_eq!(vdevs(&server), ["raidz2-1"]);
    clean_scrub(&server);
    let mut model = killed(server, model, worker);

    for name in ["a", "b", "c", "f"] {
        fs::remove_file(dirs.file(name)).unwrap();
    }
    verify(&dirs, &mut model, "on two disks of raidz2");
}

#[test]
fn removal_resumes_after_a_kill_and_frees_its_disks() {
    let dirs = Dirs::new();
    let server = made(&dirs, &["a", "b"], "a b");
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 4);
    std::thread::sleep(Duration::from_secs(2));
    server.weir("pool remove --yes tank a").ok();
    let mut model = killed(server, model, worker);

    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), "half way");
    for _ in 0..300 {
        if vdevs(&server) == ["b"] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(vdevs(&server), ["b"]);
    // Wait until the server no longer searches for the removed disk.
    std::thread::sleep(Duration::from_millis(2500));
    server.weir("pool create other a").ok();
    server.assert_alive();
    server.stop_clean();
    verify(&dirs, &mut model, "on the disk that stayed");
}

#[test]
fn flushes_survive_the_loss_of_a_log_disk_in_use() {
    let dirs = Dirs::new();
    let server = made(&dirs, &["a", "b", "l"], "mirror a b log l");
    assert_eq!(vdevs(&server), ["mirror-0", "log l"]);
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 5);
    std::thread::sleep(Duration::from_secs(1));
    let mut model = killed(server, model, worker);

    fs::rename(dirs.file("l"), dirs.file("hidden")).unwrap();
    let server = dirs.start();
    let status = server.status("tank")["status"].to_string();
    assert!(status.contains("log disks are missing"), "{status}");
    server.stop_clean();
    fs::rename(dirs.file("hidden"), dirs.file("l")).unwrap();
    let server = dirs.start();
    model.verify(&mut server.client("tank/v"), "with its log");

    // Remove the log disk while the pool is in use.
    let model = Arc::new(Mutex::new(model));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 6);
    std::thread::sleep(Duration::from_secs(1));
    server.weir("pool offline tank l").ok();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(server.status("tank")["state"], "degraded");
    let mut model = killed(server, model, worker);
    fs::remove_file(dirs.file("l")).unwrap();
    let server = dirs.start();
    model.verify(&mut server.client("tank/v"), "without its log");
    server.weir("pool remove --yes tank l").ok();
    assert_eq!(vdevs(&server), ["mirror-0"]);
    assert_eq!(server.status("tank")["state"], "online");
    server.stop_clean();
}

#[test]
fn larger_disks_are_used_after_expand() {
    let dirs = Dirs::new();
    let server = made(&dirs, &["a"], "a");
    dirs.disk("big", 2 * DISK);
    let before = server.status("tank")["size_bytes"].as_u64().unwrap();
    server.weir("pool replace --wait tank a big").ok();
    for _ in 0..100 {
        if server.status("tank")["expandable_bytes"].as_u64().unwrap() > 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let shown = server.weir("pool status tank").ok().out;
    assert!(shown.contains("to use it: weir pool expand tank"), "{shown}");
    server.weir("pool expand tank").ok();
    let after = server.status("tank")["size_bytes"].as_u64().unwrap();
    assert!(after > before + DISK / 2, "{before} {after}");
    server.stop_clean();
    let server = dirs.start();
    assert_eq!(server.status("tank")["size_bytes"], after);
    server.stop_clean();
}

/// Writes to each half of a mirror while the other half is hidden, to `b` after `a`.
fn diverge(dirs: &Dirs) {
    let server = made(dirs, &["a", "b"], "mirror a b");
    server.stop_clean();
    for (alone, hidden, seed) in [("a", "b", 8), ("b", "a", 9)] {
        fs::rename(dirs.file(hidden), dirs.file("hidden")).unwrap();
        // Remove the server's record of the newest txg. The server then acts like another server,
        // which has not seen the writes to the other half.
        fs::remove_file(dirs.short("state/seen.json")).unwrap();
        let server = dirs.start();
        let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
        let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, seed);
        std::thread::sleep(Duration::from_secs(1));
        killed(server, model, worker);
        // This import commits the writes that are in the intent log.
        dirs.start().stop_clean();
        fs::rename(dirs.file("hidden"), dirs.file(hidden)).unwrap();
        assert!(dirs.file(alone).exists());
    }
}

#[test]
fn diverged_halves_are_refused_with_a_remedy() {
    let dirs = Dirs::new();
    diverge(&dirs);
    let server = dirs.start();
    let status = server.status("tank")["status"].to_string();
    assert!(status.contains("diverged from the other disks"), "{status}");
    server.weir("pool export --force tank").ok();
    let dir = dirs.file("a").parent().unwrap().display().to_string();
    let refused = server.weir(&format!("pool import -d {dir} tank"));
    refused.fails(code::UNAVAILABLE, &["diverged from the other disks"]);
    server.weir(&format!("pool import --force -d {dir} tank")).ok();
    server.stop_clean();
}

#[test]
fn diverged_half_joins_an_open_pool_only_by_force() {
    let dirs = Dirs::new();
    diverge(&dirs);
    let server = dirs.start();
    server.weir("pool export --force tank").ok();
    let [a, b] = ["a", "b"].map(|name| dirs.file(name).display().to_string());
    server.weir(&format!("pool import -d {b} tank")).ok();
    let online = format!("weir pool online --force tank {a}");
    let import = format!("weir pool export tank, then weir pool import -d {a} tank");
    let refused = server.weir(&format!("pool online tank {a}"));
    refused.fails(code::UNAVAILABLE, &["was written without the other disks", &online, &import]);
    let status = server.weir("pool status tank").ok().out;
    assert!(status.contains("was written without the other disks"), "{status}");
    server.weir(&format!("pool online --force --wait tank {a}")).ok();
    clean_scrub(&server);
    let history = server.weir("pool history tank").ok().out;
    assert!(history.contains(&format!("--force {a}")), "{history}");
    server.stop_clean();
}
