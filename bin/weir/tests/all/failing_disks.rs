//! Disks that fail while they are in use, because their file system is full or their file was
//! truncated; and a kernel without io_uring.
//!
//! Not here: disks that are damaged or removed while the server is stopped (crash.rs), disks that
//! the server refuses at its start (bad_input.rs).
//!
//! Invariants: the server acknowledges a flush only if the disks stored the data; a failing pool
//! affects neither the server nor other pools.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::load::{self, End, Model};
use crate::common::nbd::{EIO, ENOSPC};
use crate::common::rng::Rng;
use crate::common::room::Room;
use crate::common::{Dirs, GIB, MIB, Server, fio, run, text};
use rustix::process::Signal;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use serde_json::Value;

#[test]
fn server_without_io_uring_reports_it_and_works() {
    const IO_URING_SETUP: i64 = 425;
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    dirs.disk("b", GIB);
    // Start the server from a thread with a seccomp filter. The filter applies only to this thread
    // and to the server, so it does not affect other tests.
    let mut server = std::thread::scope(|scope| {
        let filtered = scope.spawn(|| {
            let arch = std::env::consts::ARCH.try_into().unwrap();
            let refuse = SeccompAction::Errno(1);
            let calls = BTreeMap::from([(IO_URING_SETUP, vec![])]);
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, refuse, arch).unwrap();
            let program: BpfProgram = filter.try_into().unwrap();
            seccompiler::apply_filter(&program).unwrap();
            dirs.start()
        });
        filtered.join().unwrap()
    });
    let talk = server.talk();
    assert!(talk.contains("io_uring refused: falling back to polling"), "{talk}");
    assert!(talk.contains("Operation not permitted"), "the reason is missing: {talk}");
    assert!(server.weir("server show").ok().out.contains("polling"));
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "64MiB");
    let job = ["--rw=randwrite", "--bsrange=4k-64k", "--size=64m", "--iodepth=16", "--fsync=32"];
    fio(&server.uri("tank/v"), &[&job[..], &["--verify=crc32c", "--verify_fatal=1"]].concat());
    server.assert_alive();
    server.stop_clean();
}

fn leg<'a>(status: &'a Value, name: &str) -> &'a Value {
    let legs = status["vdevs"][0]["disks"].as_array().unwrap();
    let ends = |leg: &&Value| leg["path"].as_str().unwrap().ends_with(&format!("/{name}"));
    legs.iter().find(ends).unwrap()
}

/// Creates another pool on the same server, to check that the failures of the first pool do not
/// affect it.
fn bystander(dirs: &Dirs, server: &Server) {
    dirs.disk("other", 256 * MIB);
    server.weir(&format!("pool create other {}", dirs.file("other").display())).ok();
    server.volume("other/v", "16MiB");
}

fn bystander_works(server: &Server) {
    let mut client = server.client("other/v");
    let data = vec![3; 4096];
    client.write(0, &data).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), data);
    assert_eq!(server.status("other")["state"], "online");
}

#[test]
fn full_file_system_under_all_legs_suspends_the_pool() {
    let dirs = Dirs::new();
    let room = Room::new(&dirs, 160 * MIB);
    for name in ["a", "b"] {
        room.disk(name, GIB);
    }
    room.fill(80 * MIB);
    let mut server = room.start(&dirs);
    server.weir("pool create tank mirror room/a room/b").ok();
    bystander(&dirs, &server);
    server.volume("tank/v", "128MiB");
    let model = Arc::new(Mutex::new(Model::new(32_768)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..32_768, 5);
    let end = worker.join().unwrap();
    eprintln!("the load ended with {end:?}");
    assert!(matches!(end, End::Refused(_, EIO | ENOSPC)), "{end:?}");
    // Whatever error ended the load, no later flush may succeed.
    let mut client = server.client("tank/v");
    client.write(0, &vec![1; 1 << 20]).ok();
    let flushed = client.flush();
    assert!(matches!(flushed, Err(EIO | ENOSPC)), "{flushed:?}");
    let status = server.status("tank");
    assert_eq!(status["state"], "faulted", "{status:#}");
    let why = status["status"].as_str().unwrap();
    assert!(why.contains("tank") && why.contains("suspended"), "{why}");
    assert!(status["action"].is_string(), "{status:#}");
    let talk = server.talk();
    assert!(talk.contains("No space left on device"), "the reason is not in the log: {talk}");
    bystander_works(&server);
    server.assert_alive();
    drop(client);
    server.stop(Signal::TERM);
    room.make_room();
    let mut server = room.start(&dirs);
    let status = server.status("tank");
    assert_ne!(status["state"], "unavailable", "{status:#}");
    // The client above wrote to the first blocks, which the model does not know, and its flush
    // failed. Zero these blocks in the volume and in the model.
    server.client("tank/v").trim(0, 1 << 20).unwrap();
    let mut model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    model.forget(256);
    model.verify(&mut server.client("tank/v"), "after making room");
    assert!(model.flushes > 10, "hardly any flush was acknowledged");
    bystander_works(&server);
    server.assert_alive();
}

#[test]
fn full_file_system_under_one_leg_degrades_the_pool() {
    let dirs = Dirs::new();
    let room = Room::new(&dirs, 64 * MIB);
    dirs.disk("a", GIB);
    room.disk("b", GIB);
    let server = room.start(&dirs);
    server.weir("pool create tank mirror a room/b").ok();
    server.volume("tank/v", "64MiB");
    let model = Arc::new(Mutex::new(Model::new(16_384)));
    let worker = load::start(server.nbd(), "tank/v", &model, 0..16_384, 6);
    crate::common::eventually("one leg is faulted", Duration::from_secs(30), || {
        server.status("tank")["state"] == "degraded"
    });
    let status = server.status("tank");
    assert_eq!(leg(&status, "b")["state"], "faulted", "{status:#}");
    assert!(leg(&status, "b")["errors"]["write"].as_u64().unwrap() > 0, "{status:#}");
    assert!(status["status"].as_str().unwrap().contains("failed"), "{status:#}");
    std::thread::sleep(Duration::from_millis(500));
    server.kill();
    assert_eq!(worker.join().unwrap(), End::Broken, "clients noticed");
    let mut server = room.start(&dirs);
    let mut model = Arc::into_inner(model).unwrap().into_inner().unwrap();
    model.verify(&mut server.client("tank/v"), "one leg was full");
    let status = server.status("tank");
    assert_eq!(status["state"], "degraded", "{status:#}");
    server.assert_alive();
}

fn truncate(path: &Path, bytes: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(bytes).unwrap();
}

/// Returns random data for the block at this offset. The data does not compress, so it takes as
/// much space on the disk as in the volume.
fn pattern(offset: u64) -> Vec<u8> {
    let mut data = vec![0; MIB as usize];
    Rng::new(offset).fill(&mut data);
    data
}

#[test]
fn failed_reads_use_the_other_leg_or_return_an_error() {
    const DATA: u64 = 48 * MIB;
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    dirs.disk("b", GIB);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    bystander(&dirs, &server);
    server.volume("tank/v", "48MiB");
    let mut client = server.client("tank/v");
    for offset in (0..DATA).step_by(MIB as usize) {
        client.write(offset, &pattern(offset)).unwrap();
    }
    client.flush().unwrap();
    drop(client);
    server.stop_clean();

    // The restarted server has cached nothing, so reads go to the disks. A read beyond the end of
    // the truncated file returns no bytes.
    let mut server = dirs.start();
    truncate(&dirs.file("a"), 18 * MIB);
    let mut client = server.client("tank/v");
    for offset in (0..DATA).step_by(MIB as usize) {
        assert!(client.read(offset, MIB as u32).unwrap() == pattern(offset), "at {offset}");
    }
    let status = server.status("tank");
    assert!(leg(&status, "a")["errors"]["read"].as_u64().unwrap() > 0, "{status:#}");
    assert!(status["status"].is_string() && status["action"].is_string(), "{status:#}");
    server.assert_alive();
    server.stop(Signal::TERM);

    truncate(&dirs.file("a"), GIB);
    let mut server = dirs.start();
    for name in ["a", "b"] {
        truncate(&dirs.file(name), 18 * MIB);
    }
    let mut client = server.client("tank/v");
    let mut failed = 0;
    for offset in (0..DATA).step_by(MIB as usize) {
        match client.read(offset, MIB as u32) {
            Ok(data) => assert!(data == pattern(offset), "garbage at {offset}"),
            Err(errno) => {
                assert_eq!(errno, EIO);
                failed += 1;
            }
        }
    }
    assert!(failed > 20, "only {failed} reads failed");
    let status = server.status("tank");
    assert!(status["errors"]["read"].as_u64().unwrap() > 0, "{status:#}");
    assert!(status["status"].is_string(), "{status:#}");
    bystander_works(&server);
    let output = run("qemu-io", &["-f", "raw", "-c", "read 40M 1M", &server.uri("tank/v")]);
    assert!(text(&output).contains("Input/output error"), "{}", text(&output));
    server.assert_alive();
}
