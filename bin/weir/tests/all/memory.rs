//! `--memory` limits the memory of the whole process, also with hostile clients and features that
//! need much memory. At the connection limit, the server evicts idle clients.
//!
//! Not here: unit tests of memory budgets and of the connection table (weir-net), single
//! connections (weir-nbd).
//!
//! Invariant: the peak memory of the process (VmHWM) stays below the maximum that `weir server
//! show` prints.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::nbd::{Client, READ, WRITE};
use crate::common::rng::Rng;
use crate::common::{Dirs, KIB, MIB, Server, code, fio, path, run, spawn, text, tool};

/// Starts a server with this `--memory`, and creates a pool of one disk.
fn serve(dirs: &Dirs, memory: &str, disk_bytes: u64) -> Server {
    serve_with(dirs, memory, disk_bytes, &[])
}

fn serve_with(dirs: &Dirs, memory: &str, disk_bytes: u64, options: &[&str]) -> Server {
    dirs.disk("a", disk_bytes);
    let mut command = Command::new(crate::common::WEIR);
    command.args(["serve", "--memory", memory, "--state"]).arg(dirs.short("state"));
    let unix = |name: &str| format!("unix:{}", dirs.short(name).display());
    command.args(["--api", &unix("api"), "--nbd", &unix("nbd")]).args(options);
    command.env_remove("WEIR_API").current_dir(dirs.file(""));
    let server = Server::start(dirs, "", command);
    server.weir("pool create tank a").ok();
    server
}

#[track_caller]
fn assert_within_bound(server: &Server) {
    let shown = server.weir("server show --json").ok().json();
    let bound = shown["memory"]["resident_max_bytes"].as_u64().unwrap();
    let had = server.high_water_bytes();
    assert!(had <= bound, "{} MiB of at most {} MiB: {shown}", had / MIB, bound / MIB);
}

fn random(rng: &mut Rng, len: u64) -> Vec<u8> {
    let mut data = vec![0; len as usize];
    rng.fill(&mut data);
    data
}

// Regression: with --memory 256MiB, 100 connections that did not read their replies held 6.3 GiB.
#[test]
fn stalled_clients_keep_the_process_within_its_memory() {
    let dirs = Dirs::new();
    let mut server = serve(&dirs, "256MiB", 2 << 30);
    server.volume("tank/v", "1GiB");
    let mut rng = Rng::from_env("WEIR_MEMORY_SEED");
    let mut good = server.client("tank/v");
    for part in 0..256 {
        good.write(part * MIB, &random(&mut rng, MIB)).unwrap();
    }
    good.flush().unwrap();
    let mut hostile = Vec::new();
    for n in 0..100 {
        let mut client = server.client("tank/v");
        for part in 0..128 {
            let len = [MIB, 32 * MIB, 4 * KIB][n % 3];
            client.send(READ, 0, part * MIB, len as u32, &[]).unwrap();
        }
        hostile.push(client);
    }
    for n in 0..50 {
        let mut client = server.client("tank/v");
        let (offset, len) = [(0, MIB), (512, 700 * KIB), (0, 32 * MIB)][n % 3];
        client.send(WRITE, 0, offset, len as u32, &vec![7; 100 * KIB as usize]).unwrap();
        hostile.push(client);
    }
    let start = Instant::now();
    for round in 0..20 {
        let data = random(&mut rng, MIB);
        good.write(512 * MIB + round * MIB, &data).unwrap();
        assert!(good.read(512 * MIB + round * MIB, MIB as u32).unwrap() == data);
    }
    assert!(start.elapsed() < Duration::from_mins(1), "held up for {:?}", start.elapsed());
    assert_within_bound(&server);
    drop(hostile);
    server.assert_alive();
}

/// Starts a server with the smallest `--memory`, an export and a LUN.
fn serve_both(dirs: &Dirs) -> (Server, String) {
    let server = serve_with(dirs, "64MiB", 2 << 30, &["--iscsi", "127.0.0.1:0"]);
    server.volume("tank/v", "256MiB");
    server.weir("volume create tank/l --size 256MiB").ok();
    server.weir("target create vms --allow *").ok();
    server.weir("lun add vms tank/l").ok();
    let shown = server.weir("target show vms --json").json();
    let portal = shown["portals"][0].as_str().unwrap().split(',').next().unwrap().to_owned();
    (server, format!("iscsi://{portal}/iqn.2026-01.org.weir:vms/0"))
}

/// Runs iscsi-perf and ends it by SIGINT: it ends by itself only if it checks the clock in its last
/// second, which fails on a busy machine. If SIGINT comes before its first read, the exit code
/// differs, so retry with a longer time. `--foreground` is needed: otherwise `timeout` sends two
/// signals, and the second one aborts the reads.
fn read_for_a_second(arguments: &str) {
    for seconds in [1, 5, 25] {
        let interrupt =
            format!("--foreground --preserve-status -s INT {seconds} iscsi-perf {arguments}");
        let output = run("timeout", &interrupt.split(' ').collect::<Vec<_>>());
        match output.status.code() {
            Some(0) => return,
            Some(130) | None => {}
            Some(_) => panic!("iscsi-perf {arguments}: {}", text(&output)),
        }
    }
    panic!("iscsi-perf {arguments} began no read in 25 s");
}

// Regression: with --memory 64MiB, reads and writes of 1 MiB at queue depth 16 hung, as did the
// fifth read of 1 MiB in an iSCSI session.
#[test]
fn requests_of_all_sizes_complete_with_the_smallest_memory() {
    let dirs = Dirs::new();
    let (mut server, lun) = serve_both(&dirs);
    let uri = server.uri("tank/v");
    for kib in [4, 64, 256, 512, 1024, 2048, 4096, 32 * 1024] {
        let depth = (64 * 1024 / kib).min(16);
        let mixed = [
            format!("--bs={kib}k"),
            format!("--iodepth={depth}"),
            "--rw=randrw --size=256m --time_based --runtime=1".to_owned(),
        ]
        .join(" ");
        let mixed: Vec<&str> = mixed.split(' ').collect();
        let reads = format!("-r -t 90 -m {depth} -b {} {lun}", 2 * kib);
        let writes = format!(
            "bench -f raw -t none -w -d {depth} -s {kib}k -c {} {lun}",
            (64 * 1024 / kib).min(4096)
        );
        std::thread::scope(|scope| {
            scope.spawn(|| fio(&uri, &mixed));
            scope.spawn(|| read_for_a_second(&reads));
            scope.spawn(|| tool("qemu-img", &writes.split(' ').collect::<Vec<_>>()));
        });
    }
    assert_within_bound(&server);
    server.assert_alive();
    server.stop_clean();
}

// Regression: SIGTERM did not end a server while its clients waited for memory.
#[test]
fn server_ends_while_its_clients_wait_for_memory() {
    let dirs = Dirs::new();
    let (server, lun) = serve_both(&dirs);
    let start = |program: &str, arguments: &str, log: &str| {
        let mut command = Command::new(program);
        command.env("PATH", path()).args(arguments.split(' '));
        spawn(command, &dirs.file(log))
    };
    let mixed =
        "--name=mixed --ioengine=nbd --thread=1 --rw=randrw --bs=1m --iodepth=16 --size=256m";
    let mixed = format!("{mixed} --time_based --runtime=90 --uri={}", server.uri("tank/v"));
    let mut clients = [
        start("fio", &mixed, "fio.log"),
        start("iscsi-perf", &format!("-r -t 90 -m 16 -b 2048 {lun}"), "iscsi-perf.log"),
    ];
    // Wait until the clients have used up the memory budgets.
    std::thread::sleep(Duration::from_secs(3));
    for client in &mut clients {
        assert_eq!(client.try_wait().unwrap(), None, "a client ended before the server");
    }
    server.stop_clean();
    for mut client in clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
}

// Regression: with --memory 64M the dedupe index took 1.1 GiB, because its default size was a
// percentage of the machine's memory.
#[test]
fn dedupe_index_stays_within_a_small_memory() {
    let dirs = Dirs::new();
    let server = serve(&dirs, "64MiB", 2 << 30);
    server.volume("tank/v", "1GiB");
    server.weir("set dedupe=on tank/v").ok();
    let mut rng = Rng::from_env("WEIR_MEMORY_SEED");
    let mut client = server.client("tank/v");
    for part in 0..300 {
        client.write(part * MIB, &random(&mut rng, MIB)).unwrap();
    }
    client.flush().unwrap();
    assert_within_bound(&server);
    let mut command = Command::new(crate::common::WEIR);
    command.args(["serve", "--memory", "64MiB", "--dedupe-memory", "1GiB", "--state"]);
    let output = command.arg(dirs.short("other")).output().unwrap();
    let said = crate::common::Ran::of("serve", &output);
    said.fails(code::INVALID, &["--dedupe-memory", "comes out of --memory"]);
}

// Regression: 1,023 idle clients could exclude all other clients for an unlimited time.
#[test]
fn idle_clients_are_evicted_for_new_ones() {
    let dirs = Dirs::new();
    let mut server = serve(&dirs, "256MiB", 256 * MIB);
    server.volume("tank/v", "16MiB");
    let mut active = server.client("tank/v");
    let mut idle = Vec::new();
    for _ in 0..800 {
        let started = Instant::now();
        // The server may already have evicted one of the clients that connected first.
        loop {
            match Client::connect(server.nbd(), "tank/v") {
                Ok(client) => break idle.push(client),
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        active.read(0, 4096).unwrap();
    }
    let is_closed = |client: &mut Client| {
        client.send(READ, 0, 0, 4096, &[]).and_then(|_| client.receive()).is_err()
    };
    let closed = idle.iter_mut().map(is_closed).filter(|closed| *closed).count();
    assert!(closed < 100, "{closed} of 800 were closed for 33 more than one user may have");
    active.write(0, &[1; 4096]).unwrap();
    server.assert_alive();
}
