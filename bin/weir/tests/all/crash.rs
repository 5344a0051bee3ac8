//! Crashes: SIGKILL at random times under load, and disks that are damaged or removed while the
//! server is stopped.
//!
//! Not here: power cuts, in which disks also lose their write cache (the simulator).
//!
//! Invariants: a change survives any crash if a flush was acknowledged after it; a block contains
//! only data that was once written to that block.
//!
//! `WEIR_CRASH_SEED` repeats the random choices of a run (not its timing), `WEIR_CRASH_ROUNDS` sets
//! the number of rounds.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Server, fio};
use rustix::process::Signal;
use serde_json::Value;

/// Time limit from the start of a server to its first response, after a SIGKILL under load. A
/// server that needs longer counts as hung on any machine. Benchmarks measure the actual time.
const IMPORT_LIMIT: Duration = Duration::from_secs(30);

fn mirror(dirs: &Dirs, bytes: u64) -> Server {
    dirs.disk("a", bytes);
    dirs.disk("b", bytes);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server
}

fn wait(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

#[test]
fn flushed_changes_survive_sigkill() {
    let mut rng = Rng::from_env("WEIR_CRASH_SEED");
    let rounds = std::env::var("WEIR_CRASH_ROUNDS").map_or(12, |text| text.parse().unwrap());
    let dirs = Dirs::new();
    // A small disk keeps imports fast: the intent log is a part of the disk, and an import reads
    // all of it.
    let mut server = mirror(&dirs, 2 * GIB);
    let blocks = [16_384_u64, 2048];
    server.volume("tank/v1", "64MiB");
    server.volume("tank/v2", "8MiB");
    let models = blocks.map(|count| Arc::new(Mutex::new(Model::new(count))));
    let mut extra = 0;
    for round in 0..rounds {
        let halves = [(0, 0..8192), (0, 8192..16_384), (1, 0..2048)];
        let load = halves.map(|(volume, range)| {
            let export = ["tank/v1", "tank/v2"][volume];
            load::start(server.nbd(), export, &models[volume], range, rng.next())
        });
        wait(20 + rng.below(400));
        server.kill();
        for worker in load {
            assert_eq!(worker.join().unwrap(), End::Broken, "round {round}");
        }
        if round % 4 == 3 {
            // Kill the new server while it imports the pool.
            let opening = Server::launch(&dirs, "", dirs.serve());
            wait(rng.below(30));
            opening.kill();
        }
        server = dirs.start();
        assert!(server.ready_after < IMPORT_LIMIT, "round {round}: {:?}", server.ready_after);
        for (volume, model) in models.iter().enumerate() {
            let name = format!("tank/v{}", volume + 1);
            let what = format!("round {round} {name}");
            extra += model.lock().unwrap().verify(&mut server.client(&name), &what);
        }
        assert_eq!(server.status("tank")["state"], "online", "round {round}: a leg was left out");
        server.assert_alive();
    }
    let counts = models.map(|model| {
        let model = model.lock().unwrap();
        assert!(model.flushes > 10 * rounds / 24, "hardly any flush was acknowledged");
        (model.writes, model.flushes)
    });
    eprintln!(
        "{rounds} rounds; changes and flushes by volume: {counts:?}; unflushed kept: {extra}"
    );
    let status = server.status("tank");
    assert_eq!(status["state"], "online", "{status}");
    assert_eq!(status["errors"]["checksum"], 0, "{status}");
    server.stop_clean();
}

#[test]
fn import_after_sigkill_under_heavy_load_is_quick() {
    let dirs = Dirs::new();
    let mut server = mirror(&dirs, 16 * GIB);
    server.volume("tank/v1", "2GiB");
    let load = ["--rw=randwrite", "--bs=4k", "--size=2g", "--iodepth=32", "--time_based"];
    for (how, pause) in [("--fsync=32", 5), ("--fsync=0", 5)] {
        let uri = server.uri("tank/v1");
        let mut arguments = load.to_vec();
        arguments.extend([how, "--runtime=60"]);
        let output = std::thread::scope(|scope| {
            let fio = scope.spawn(|| crate::common::fio_output(&uri, &arguments));
            std::thread::sleep(Duration::from_secs(pause));
            server.kill();
            fio.join().unwrap()
        });
        assert!(!output.status.success(), "fio did not notice: {}", crate::common::text(&output));
        server = dirs.start();
        eprintln!("ready {:?} after SIGKILL under fio {how}", server.ready_after);
        assert_eq!(server.status("tank")["state"], "online", "a leg was left out");
        assert!(server.ready_after < IMPORT_LIMIT, "{:?}", server.ready_after);
    }
    server.assert_alive();
}

#[test]
fn clean_stop_keeps_all_data() {
    let dirs = Dirs::new();
    let mut server = mirror(&dirs, 2 * GIB);
    server.volume("tank/v1", "256MiB");
    let job = ["--rw=randwrite", "--bs=4k", "--size=128m", "--iodepth=32", "--verify=crc32c"];
    let with = |last: &'static str| [&job[..], &["--verify_fatal=1", last]].concat();
    fio(&server.uri("tank/v1"), &with("--do_verify=0"));
    server.stop_clean();
    server = dirs.start();
    fio(&server.uri("tank/v1"), &with("--verify_only=1"));
    server.assert_alive();
}

/// Regression: the server acknowledged changes after the freeze of a txg, and lost them if it was
/// stopped during the commit of that txg. In this test, acknowledged changes must survive a clean
/// stop even without a flush, and commits run all the time.
#[test]
fn clean_stop_under_load_keeps_acknowledged_changes() {
    let mut rng = Rng::from_env("WEIR_STOP_SEED");
    let dirs = Dirs::new();
    let mut server = mirror(&dirs, 4 * GIB);
    server.volume("tank/v1", "32MiB");
    let model = Arc::new(Mutex::new(Model::new(8192)));
    for round in 0..12 {
        let worker = load::start(server.nbd(), "tank/v1", &model, 0..8192, rng.next());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (ended, shared) = (&ended, &server);
            scope.spawn(move || {
                // Each change of a property causes a commit.
                for value in ["off", "lz4"].into_iter().cycle() {
                    shared.weir(&format!("volume set compression={value} tank/v1"));
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            wait(100 + rng.below(300));
            if round % 3 == 2 {
                shared.weir("pool export tank --force").ok();
            } else {
                shared.signal(Signal::TERM);
            }
            ended.store(true, Ordering::Relaxed);
        });
        assert!(matches!(worker.join().unwrap(), End::Broken | End::Refused(..)));
        if round % 3 == 2 {
            let place = dirs.file("").display().to_string();
            server.weir(&format!("pool import -d {place} tank")).ok();
            server.weir("export create nbd tank/v1").ok();
        } else {
            let status = server.wait_end(Duration::from_secs(20));
            assert!(status.success(), "round {round}: {status}");
            drop(server);
            server = dirs.start();
        }
        let mut model = model.lock().unwrap();
        model.closed();
        model.verify(&mut server.client("tank/v1"), &format!("round {round}"));
        server.assert_alive();
    }
}

/// Creates a pool with the data of a load, flushes all of it and stops the server. Returns the
/// model of the data.
fn loaded(dirs: &Dirs) -> Model {
    let server = mirror(dirs, GIB);
    server.volume("tank/v1", "32MiB");
    let model = Arc::new(Mutex::new(Model::new(8192)));
    let worker = load::start(server.nbd(), "tank/v1", &model, 0..8192, 1);
    wait(1500);
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    let server = dirs.start();
    let mut model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    model.verify(&mut server.client("tank/v1"), "before the damage");
    server.stop_clean();
    model
}

/// Overwrites this range of a file with random bytes.
fn garbage(path: &Path, range: std::ops::Range<u64>) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    let mut bytes = vec![0; MIB as usize];
    Rng::new(range.start ^ 0x4d).fill(&mut bytes);
    for offset in range.step_by(MIB as usize) {
        file.write_all_at(&bytes, offset).unwrap();
    }
    // Write the page cache back to the file, because the server reads it with direct I/O.
    file.sync_all().unwrap();
}

fn leg<'a>(status: &'a Value, name: &str) -> &'a Value {
    let legs = status["vdevs"][0]["disks"].as_array().unwrap();
    let ends = |leg: &&Value| leg["path"].as_str().unwrap().ends_with(&format!("/{name}"));
    legs.iter().find(ends).unwrap()
}

#[test]
fn garbage_in_the_data_of_one_leg_is_healed_and_counted() {
    for name in ["a", "b"] {
        let dirs = Dirs::new();
        let mut model = loaded(&dirs);
        garbage(&dirs.file(name), MIB..GIB - MIB);
        let mut counts = Vec::new();
        for _ in 0..2 {
            let mut server = dirs.start();
            model.verify(&mut server.client("tank/v1"), name);
            // Scrub, because a read uses only one leg and may not find the damage on the other.
            server.weir("pool scrub --wait tank").ok();
            let status = server.status("tank");
            assert_eq!(status["state"], "online", "{status:#}");
            let errors = leg(&status, name)["errors"]["checksum"].as_u64().unwrap();
            assert_eq!(status["errors"]["checksum"].as_u64(), Some(errors), "{status:#}");
            if counts.is_empty() {
                let text = server.weir("pool status tank").ok().out;
                assert!(text.contains("status: Damaged copies were found"), "{text}");
                assert!(text.contains("action: "), "{text}");
            }
            counts.push(errors);
            server.assert_alive();
            server.stop_clean();
        }
        eprintln!("garbage in the data of {name}: all right; errors by restart: {counts:?}");
        assert!(counts[0] > 0 && counts[1] == 0, "not healed: {counts:?}");
    }
}

#[test]
fn leg_full_of_garbage_is_unavailable() {
    for name in ["a", "b"] {
        let dirs = Dirs::new();
        let mut model = loaded(&dirs);
        garbage(&dirs.file(name), 0..GIB);
        let mut server = dirs.start();
        model.verify(&mut server.client("tank/v1"), name);
        let status = server.status("tank");
        assert_eq!(status["state"], "degraded", "{status:#}");
        assert_eq!(leg(&status, name)["state"], "unavailable", "{status:#}");
        assert!(status["status"].as_str().unwrap().contains("missing"), "{status:#}");
        server.assert_alive();
    }
}

#[test]
fn import_needs_only_label_b() {
    let dirs = Dirs::new();
    let mut model = loaded(&dirs);
    garbage(&dirs.file("a"), 0..MIB);
    garbage(&dirs.file("b"), 0..MIB);
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v1"), "label B");
    assert_eq!(server.status("tank")["state"], "online");
    server.assert_alive();
}

#[test]
fn returning_leg_is_resilvered() {
    let dirs = Dirs::new();
    let mut model = loaded(&dirs);
    let (there, away) = (dirs.file("b"), dirs.file("b.away"));
    fs::rename(&there, &away).unwrap();
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v1"), "without b");
    let status = server.status("tank");
    assert_eq!(status["state"], "degraded", "{status:#}");
    assert_eq!(leg(&status, "b")["state"], "unavailable", "{status:#}");
    // Leg b is absent, so it misses these writes.
    let model = Arc::new(Mutex::new(model));
    let worker = load::start(server.nbd(), "tank/v1", &model, 0..8192, 2);
    wait(1000);
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    let mut model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    fs::rename(&away, &there).unwrap();
    server = dirs.start();
    for _ in 0..2 {
        model.verify(&mut server.client("tank/v1"), "b is back");
    }
    // The server starts the resilver without a command.
    crate::common::eventually("b has what it missed", Duration::from_secs(30), || {
        server.status("tank")["state"] == "online"
    });
    let text = server.weir("pool status tank").ok().out;
    assert!(text.contains("scan: resilvered"), "{text}");
    server.kill();
    fs::rename(dirs.file("a"), dirs.file("a.away")).unwrap();
    server = dirs.start();
    model.verify(&mut server.client("tank/v1"), "b alone");
    server.assert_alive();
}
