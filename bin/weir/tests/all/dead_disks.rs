//! A pool whose disks are all dead: each verb returns, the pool can be exported by force, and the
//! other pool of the same server is not affected.
//!
//! Not here: disks that never respond (weir-server's monitor/unresponsive/tests.rs), pools that
//! have enough remaining disks (failing_disks.rs).
//!
//! Invariants: every call returns within five seconds, with success or an error; the server
//! acknowledges no flush.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::nbd::{EIO, ENOSPC};
use crate::common::room::Room;
use crate::common::{Dirs, GIB, MIB, Ran, Server, code, eventually};

/// Time within which every call must return.
const BOUND: Duration = Duration::from_secs(5);
const BLOCKS: u64 = 4096;

/// Runs one command line, which must end within [`BOUND`].
fn timely(server: &Server, line: &str) -> Ran {
    server.weir_within(line, BOUND)
}

/// Starts a load on a new volume; returns the model of the volume's contents and the load's thread.
fn loaded(server: &Server, name: &str, seed: u64) -> (Arc<Mutex<Model>>, JoinHandle<End>) {
    server.volume(name, &format!("{}MiB", BLOCKS * 4096 / MIB));
    let model = Arc::new(Mutex::new(Model::new(BLOCKS)));
    let worker = load::start(server.nbd(), name, &model, 0..BLOCKS, seed);
    (model, worker)
}

#[test]
fn every_verb_returns_while_all_disks_of_a_pool_are_dead() {
    let dirs = Dirs::new();
    let room = Room::new(&dirs, 192 * MIB);
    for name in ["a", "b"] {
        room.disk(name, GIB);
    }
    dirs.disk("other", 256 * MIB);
    dirs.disk("spare", GIB);
    let mut server = room.start(&dirs);
    server.weir("pool create tank mirror room/a room/b").ok();
    server.weir("pool create other other").ok();
    let (_, tank_load) = loaded(&server, "tank/v", 1);
    let (other, other_load) = loaded(&server, "other/v", 2);
    server.weir("volume create tank/idle --size 16MiB").ok();
    std::thread::sleep(Duration::from_millis(700));

    room.kill_disks(&["a", "b"]);
    let refused = tank_load.join().unwrap();
    assert!(matches!(refused, End::Refused(_, EIO | ENOSPC)), "{refused:?}");
    let flushes = other.lock().unwrap().flushes;
    for line in VERBS {
        timely(&server, line);
    }
    let mut client = server.client("tank/v");
    client.write(0, &[1; 4096]).ok();
    assert!(matches!(client.flush(), Err(EIO | ENOSPC)), "a dead disk acknowledged a flush");
    drop(client);
    let status = timely(&server, "pool status tank --json").json();
    assert_eq!(status["state"], "faulted", "{status:#}");
    timely(&server, "pool status tank").ok();
    timely(&server, "pool list").ok();
    timely(&server, "events").ok();
    let history = timely(&server, "pool history tank").ok().out;
    assert!(history.contains("pool offline tank"), "{history}");

    // The server could not record the destruction of the volume, so the volume and its export still
    // exist.
    let volumes = timely(&server, "volume list tank").ok().out;
    assert!(volumes.contains("tank/idle"), "{volumes}");
    timely(&server, "pool export tank").fails(code::BUSY, &["tank/v"]);
    // A suspended pool whose disks are still dead cannot be opened again. It stays listed.
    timely(&server, "pool clear tank").fails(code::UNAVAILABLE, &["tank", "could not be opened"]);
    let status = timely(&server, "pool status tank --json").json();
    assert_eq!(status["state"], "unavailable", "{status:#}");
    timely(&server, "pool export --force tank").ok();
    timely(&server, "pool status tank").fails(code::NOT_FOUND, &["tank"]);
    let list = timely(&server, "pool list").ok().out;
    assert!(list.contains("other") && !list.contains("tank"), "{list}");

    // The load on the other pool has continued all the time, and still continues.
    let now = || other.lock().unwrap().flushes;
    assert!(now() > flushes + 10, "the other pool stood still");
    let after = now();
    eventually("the other pool goes on", BOUND, || now() > after + 10);
    let status = timely(&server, "pool status other --json").json();
    assert_eq!(status["state"], "online", "{status:#}");
    server.assert_alive();
    server.kill();
    assert_eq!(other_load.join().unwrap(), End::Broken);
    server = room.start(&dirs);
    let mut model = Arc::into_inner(other).unwrap().into_inner().unwrap();
    model.verify(&mut server.client("other/v"), "beside a dead pool");
    server.assert_alive();
}

/// Command lines with all verbs that name the dead pool or one of its objects, or that list such
/// objects.
const VERBS: &[&str] = &[
    "pool status tank",
    "pool status",
    "pool list",
    "pool iostat tank",
    "pool iostat tank 1 2",
    "pool history tank",
    "events",
    "volume list",
    "volume list tank",
    "volume show tank/v",
    "volume create tank/w --size 16MiB",
    "volume set compression=off tank/v",
    "volume resize tank/v --size 32MiB",
    "volume destroy --yes tank/idle",
    "export list",
    "export create nbd tank/idle",
    "export delete tank/idle",
    "pool scrub tank",
    "pool scrub --wait tank",
    "pool scrub --pause tank",
    "pool scrub --stop tank",
    "pool offline tank a",
    "pool online tank a",
    "pool attach tank a spare",
    "pool replace tank a spare",
    "pool detach tank b",
    "pool import -d room",
    "pool import -d room tank",
    "pool create tank room/a",
];
