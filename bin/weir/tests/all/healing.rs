//! Scrub and resilver of the real program: disks overwritten under load, legs that disconnect and
//! return.
//!
//! Not here: crashes at every step of a scan (the simulator), damage that a read finds before a
//! scan (crash.rs).
//!
//! Invariants: clients get no error; after a scrub or a resilver, each leg alone has all data.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Server, code};
use rustix::fs::OFlags;
use serde_json::Value;
use weir_block::IoBuf;

const DISK: u64 = 256 * MIB;
const BLOCKS: u64 = 8192;
/// Size of a range that the test writes while one leg is offline, and never again.
const STILL: u64 = 8 * MIB;

fn mirror(dirs: &Dirs) -> Server {
    dirs.disk("a", DISK);
    dirs.disk("b", DISK);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "32MiB");
    server
}

fn wait(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// Overwrites a whole file with random bytes, including the labels. Uses direct I/O, as the server
/// does: after a mix of direct and cached writes, the kernel may fail a flush.
fn garbage(path: &Path) {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    let mut bytes = IoBuf::zeroed(MIB as usize);
    Rng::new(0x4d).fill(&mut bytes);
    for offset in (0..DISK).step_by(MIB as usize) {
        file.write_all_at(&bytes, offset).unwrap();
    }
    file.sync_all().unwrap();
}

fn leg<'a>(status: &'a Value, name: &str) -> &'a Value {
    let legs = status["vdevs"][0]["disks"].as_array().unwrap();
    let ends = |leg: &&Value| leg["path"].as_str().unwrap().ends_with(&format!("/{name}"));
    legs.iter().find(ends).unwrap()
}

fn stopped(model: Arc<Mutex<Model>>) -> Model {
    Arc::into_inner(model).unwrap().into_inner().unwrap()
}

/// Hides a leg, so that only the other leg can serve reads, and compares all data with the model.
fn verify_without(dirs: &Dirs, name: &str, model: &mut Model) {
    let (there, away) = (dirs.file(name), dirs.file("away"));
    fs::rename(&there, &away).unwrap();
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), &format!("without {name}"));
    assert_eq!(leg(&server.status("tank"), name)["state"], "unavailable");
    server.assert_alive();
    server.stop_clean();
    fs::rename(&away, &there).unwrap();
}

#[test]
fn scrub_heals_a_leg_full_of_garbage_under_load() {
    let dirs = Dirs::new();
    let mut server = mirror(&dirs);
    // The load may overwrite all of its blocks after the damage. The scrub must repair these.
    server.volume("tank/still", "8MiB");
    let mut still = server.client("tank/still");
    let mut content = vec![0; STILL as usize];
    Rng::new(9).fill(&mut content);
    still.write(0, &content).unwrap();
    drop(still);
    // A snapshot is acknowledged after a commit, which writes the blocks to the disks.
    server.weir("snapshot create tank/still@committed").ok();
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 3);
    wait(1000);
    garbage(&dirs.file("a"));
    wait(300);
    let status = server.weir("pool scrub --wait --json tank").json();
    let scan = &status["scan"];
    eprintln!("first scrub under load: {scan}");
    assert_eq!((&scan["kind"], &scan["state"]), (&"scrub".into(), &"finished".into()), "{scan}");
    assert_eq!(scan["errors"], 0, "{scan}");
    assert!(scan["repaired_bytes"].as_u64().unwrap() >= STILL, "{scan}");
    assert!(leg(&status, "a")["errors"]["checksum"].as_u64().unwrap() > 0, "{status:#}");
    assert_eq!(leg(&status, "b")["errors"]["checksum"], 0, "{status:#}");
    let text = server.weir("pool status tank").ok().out;
    assert!(text.contains("scan: scrub repaired"), "{text}");

    server.weir("pool clear tank").ok();
    let status = server.weir("pool scrub -w --json tank").json();
    let scan = &status["scan"];
    assert_eq!((&scan["repaired_bytes"], &scan["errors"]), (&0.into(), &0.into()), "{scan}");
    assert!(scan["examined_bytes"].as_u64().unwrap() > MIB, "{scan}");
    assert_eq!(leg(&status, "a")["errors"]["checksum"], 0, "{status:#}");
    assert_eq!(status["state"], "online", "{status:#}");
    server.assert_alive();
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);

    let mut model = stopped(model);
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), "after the scrub");
    assert_eq!(server.status("tank")["state"], "online", "a label was not healed");
    assert_eq!(server.status("tank")["errors"]["checksum"], 0);
    server.assert_alive();
    server.stop_clean();
    verify_without(&dirs, "b", &mut model);
}

#[test]
fn leg_is_resilvered_after_offline() {
    let dirs = Dirs::new();
    let mut server = mirror(&dirs);
    server.volume("tank/still", "8MiB");
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 4);
    wait(500);
    server.weir("pool offline tank b").ok();
    let status = server.status("tank");
    assert_eq!(leg(&status, "b")["state"], "offline", "{status:#}");
    assert_eq!(status["state"], "degraded", "{status:#}");
    // Write blocks that the load does not use: the load would rewrite its own blocks before a
    // resilver reaches them.
    let mut missed = vec![0; STILL as usize];
    Rng::new(9).fill(&mut missed);
    let mut still = server.client("tank/still");
    still.write(0, &missed).unwrap();
    still.flush().unwrap();
    drop(still);
    // Wait longer than a txg stays open, so that the offline leg misses commits as well as log
    // batches.
    wait(6000);
    let status = server.weir("pool online --wait --json tank b").json();
    assert_eq!(status["scan"]["kind"], "resilver", "{status:#}");
    assert_eq!(status["scan"]["errors"], 0, "{status:#}");
    assert!(status["scan"]["repaired_bytes"].as_u64().unwrap() >= STILL, "{status:#}");
    assert_eq!(status["state"], "online", "{status:#}");
    server.assert_alive();
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    let mut model = stopped(model);
    // The resilvered leg alone must have all data. Hide the other leg, which returns after the pool
    // was imported without it.
    let (there, away) = (dirs.file("a"), dirs.file("away"));
    fs::rename(&there, &away).unwrap();
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), "without a");
    assert!(server.client("tank/still").read(0, STILL as u32).unwrap() == missed);
    let data = vec![7; MIB as usize];
    let mut client = server.client("tank/v");
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    fs::rename(&away, &there).unwrap();
    server.weir("pool online -w tank a").ok();
    assert_eq!(server.status("tank")["state"], "online");
    let status = server.weir("pool scrub -w --json tank").json();
    assert_eq!(status["scan"]["repaired_bytes"], 0, "{status:#}");
    assert_eq!(client.read(0, MIB as u32).unwrap(), data);
    client.trim(0, MIB as u32).unwrap();
    client.flush().unwrap();
    model.forget((MIB / 4096) as usize);
    drop(client);
    server.assert_alive();
    server.stop_clean();
    verify_without(&dirs, "b", &mut model);
}

#[test]
fn leg_with_an_interrupted_resilver_is_not_trusted() {
    let dirs = Dirs::new();
    let server = mirror(&dirs);
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..BLOCKS, 5);
    wait(300);
    server.weir("pool offline tank a").ok();
    wait(1000);
    server.weir("pool online tank a").ok();
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken);
    let mut model = stopped(model);
    for _ in 0..3 {
        let server = dirs.start();
        wait(10);
        server.kill();
    }
    let mut server = dirs.start();
    model.verify(&mut server.client("tank/v"), "after crashes in the resilver");
    crate::common::eventually("the resilver is done", Duration::from_secs(30), || {
        server.status("tank")["state"] == "online"
    });
    server.assert_alive();
    server.stop_clean();
    verify_without(&dirs, "b", &mut model);
}

#[test]
fn invalid_disk_commands_are_refused() {
    let dirs = Dirs::new();
    let mut server = mirror(&dirs);
    dirs.disk("c", DISK);
    server.weir("pool scrub --pause tank").fails(code::BUSY, &["no scrub", "tank"]);
    server.weir("pool scrub --stop tank").fails(code::BUSY, &["no scrub"]);
    server.weir("pool scrub nowhere").fails(code::NOT_FOUND, &["nowhere"]);
    server.weir("pool offline tank c").fails(code::NOT_FOUND, &["tank", "c"]);
    server.weir("pool online tank c").fails(code::NOT_FOUND, &["tank", "c"]);
    server.weir("pool clear tank c").fails(code::NOT_FOUND, &["tank", "c"]);
    server.weir("pool offline tank a").ok();
    assert!(server.weir("pool offline tank a").ok().talk.contains("a is offline already"));
    server.weir("pool offline tank b").fails(code::BUSY, &["only disk", "/b"]);
    // Put a different disk at the path of the leg.
    fs::rename(dirs.file("a"), dirs.file("away")).unwrap();
    server.weir("pool online tank a").fails(code::NOT_FOUND, &["/a"]);
    fs::rename(dirs.file("c"), dirs.file("a")).unwrap();
    server.weir("pool online tank a").fails(code::INVALID, &["/a", "no longer has the label"]);
    assert_eq!(leg(&server.status("tank"), "a")["state"], "offline");
    fs::rename(dirs.file("away"), dirs.file("a")).unwrap();
    server.weir("pool online --wait tank a").ok();
    assert_eq!(server.status("tank")["state"], "online");
    server.assert_alive();
    server.stop_clean();
}
