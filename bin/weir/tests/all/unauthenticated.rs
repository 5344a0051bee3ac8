//! Callers and clients that request much data and receive none, that name files which never end
//! (FIFOs), or that keep streams, slots and permits for themselves.
//!
//! Not here: the memory for NBD data (memory), invalid requests (bad_clients, bad_input), unit
//! tests of the limits (weir-api, weir-net).
//!
//! Invariant: whatever one caller does, other callers get responses, the process stays within its
//! memory, and SIGTERM ends it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::nbd::greeted;
use crate::common::ports::free_address;
use crate::common::{Dirs, GIB, MIB, Server, certificate, code, eventually, run, write_secret};

const TARGET: &str = "iqn.2026-01.org.weir:vms";

/// Starts a server with a pool; the server also listens on TCP. Returns the server and its TCP
/// address.
fn serve(dirs: &Dirs, memory: &str, more: &[&str]) -> (Server, String) {
    let address = free_address();
    dirs.disk("a", GIB);
    let server = Server::start(dirs, "", command(dirs, memory, &address, more));
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 64MiB").ok();
    (server, address)
}

fn command(dirs: &Dirs, memory: &str, address: &str, more: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new(crate::common::WEIR);
    command.args(["serve", "--memory", memory, "--state"]).arg(dirs.short("state"));
    let unix = |name: &str| format!("unix:{}", dirs.short(name).display());
    command.args(["--api", &unix("api"), "--api", address, "--nbd", &unix("nbd")]);
    command.args(more).env_remove("WEIR_API").current_dir(dirs.file(""));
    command
}

/// Creates a token; returns its secret.
fn token(server: &Server, dirs: &Dirs, name: &str, more: &str) -> String {
    let file = dirs.file(&format!("{name}.token"));
    server.weir(&format!("token create {name} {more} --out {}", file.display())).ok();
    fs::read_to_string(file).unwrap().trim().to_owned()
}

/// Makes a call over TCP; returns the status and the body of the response.
fn call(at: &str, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

fn answer(stream: &mut impl std::io::Read) -> (u16, Value) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{text:?}")), serde_json::from_str(body).unwrap_or_default())
}

fn resident_max(server: &Server) -> u64 {
    let shown = server.weir("server show --json").json();
    shown["memory"]["resident_max_bytes"].as_u64().unwrap()
}

/// Starts a server that has 3,000 exports with long names; returns the server and its TCP address.
fn with_exports(dirs: &Dirs) -> (Server, String) {
    let (server, at) = serve(dirs, "64MiB", &[]);
    server.weir("export create nbd tank/v --name first").ok();
    server.stop_clean();
    let path = dirs.short("state").join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let dataset = state["exports"][0]["dataset"].clone();
    let export = |n: usize| {
        let name = format!("e{n:04}/{}@{}", "x".repeat(190), "y".repeat(190));
        json!({"name": name, "volume": "tank/v", "read_only": true, "dataset": dataset})
    };
    state["exports"] = (0..3000).map(export).collect();
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    (Server::start(dirs, "", command(dirs, "64MiB", &at, &[])), at)
}

/// Returns an option of the NBD handshake, without data.
fn option(number: u32) -> Vec<u8> {
    [&b"IHAVEOPT"[..], &number.to_be_bytes(), &0_u32.to_be_bytes()].concat()
}

/// Sends the option LIST and returns the number of names in the reply.
fn list(socket: &Path) -> usize {
    let mut stream = greeted(socket).unwrap();
    stream.write_all(&[&3_u32.to_be_bytes()[..], &option(3)].concat()).unwrap();
    let mut names = 0;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head).unwrap();
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let mut body = vec![0; number(16) as usize];
        stream.read_exact(&mut body).unwrap();
        match number(12) {
            1 => return names,
            2 => names += 1,
            other => panic!("reply {other}"),
        }
    }
}

// Regression: with --memory 64MiB, 600 clients that read no byte of the reply to LIST held 438 MiB,
// even after they had disconnected. 60 connections that read no byte of a list of 12 MB held 819
// MiB.
#[test]
fn unread_lists_hold_little_memory_and_free_it() {
    let dirs = Dirs::new();
    let (mut server, at) = with_exports(&dirs);
    assert_eq!(list(server.nbd()), 3000);
    let bound = resident_max(&server);
    let before = server.resident_bytes();
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut stream = greeted(server.nbd()).unwrap();
        stream.write_all(&[&3_u32.to_be_bytes()[..], &option(3)].concat()).unwrap();
        held.push(stream);
    }
    assert_eq!(list(server.nbd()), 3000, "beside them");
    let viewer = token(&server, &dirs, "viewer", "--role viewer --scope tank");
    let ask = format!(
        "GET /v1/exports HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {viewer}\r\n\r\n"
    );
    let mut callers = Vec::new();
    for _ in 0..60 {
        let mut stream = TcpStream::connect(&at).unwrap();
        stream.write_all(ask.repeat(20).as_bytes()).unwrap();
        callers.push(stream);
    }
    let begun = Instant::now();
    server.weir("pool list").ok();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // While the server is busy, it may respond with 503 and Retry-After, so repeat the call.
    let ask = || call(&at, &viewer, "GET", "/v1/pools", &Value::Null);
    let (mut status, mut pools) = ask();
    eventually("a call of the same token is answered", Duration::from_mins(1), || {
        if status == 503 {
            (status, pools) = ask();
        }
        status != 503
    });
    assert_eq!((status, &pools["pools"][0]["name"]), (200, &json!("tank")));
    let most = server.high_water_bytes();
    assert!(most <= bound, "{} of {} MiB", most / MIB, bound / MIB);
    drop((held, callers));
    eventually("the memory is given back", Duration::from_mins(1), || {
        server.resident_bytes() <= before + 48 * MIB
    });
    // The command line requests the pages of the list one after the other.
    let listed = server.weir("export list --json").json();
    assert_eq!(listed["exports"].as_array().unwrap().len(), 3000);
    server.assert_alive();
    server.stop_clean();
}

/// A directory with FIFOs and valid files, in which callers may name files.
struct Named {
    dir: PathBuf,
}

impl Named {
    fn new(dirs: &Dirs) -> Self {
        certificate(dirs, "nas");
        let named = Self { dir: dirs.file("files") };
        fs::create_dir(&named.dir).unwrap();
        for name in ["ca", "secret", "disk"] {
            named.make_fifo(&named.at(name));
        }
        write_secret(&named.dir.join("good-secret"), "a-secret-of-two-servers\n");
        fs::copy(dirs.file("nas.pem"), named.dir.join("good-ca")).unwrap();
        named
    }

    fn at(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    /// Creates a FIFO at a path, in place of any existing file.
    fn make_fifo(&self, path: &str) {
        drop(fs::remove_file(path));
        assert!(run("mkfifo", &[path]).status.success(), "{path} beside {}", self.dir.display());
    }

    /// Returns a request to create a replication with these two files.
    fn replication(&self, ca: &str, secret: &str) -> Value {
        json!({"volume": "tank/v", "to": "https://localhost:1/back/v", "every_seconds": 3600,
            "ca_file": self.at(ca), "secret_file": self.at(secret)})
    }

    /// Returns calls in which a file name is the name of a FIFO.
    fn calls(&self) -> Vec<(&'static str, Value)> {
        let chap = json!({"target": TARGET, "initiator": "iqn.2026-01.org.example:a",
            "chap": {"user": "u", "secret_file": self.at("secret")}});
        let vdevs = json!([{"kind": "disk", "disks": [self.at("disk")]}]);
        vec![
            ("/v1/replications", self.replication("ca", "good-secret")),
            ("/v1/replications", self.replication("good-ca", "secret")),
            ("/v1/initiators", chap),
            ("/v1/pools", json!({"name": "new", "vdevs": vdevs, "force": true})),
            ("/v1/pools/tank/attach", json!({"disk": "a", "new": self.at("disk")})),
            (
                "/v1/import/scan",
                json!({"search": [self.at("disk"), self.dir.display().to_string()]}),
            ),
        ]
    }
}

/// Makes a call as root over the unix socket; returns the status and the body of the response.
fn as_root(dirs: &Dirs, path: &str, body: &Value) -> (u16, Value) {
    let mut stream = UnixStream::connect(dirs.short("api")).unwrap();
    stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    answer(&mut stream)
}

// Regression: a FIFO in place of a file blocked the management interface, and SIGTERM did not end
// the server.
#[test]
fn fifos_delay_no_call_and_no_stop() {
    let dirs = Dirs::new();
    let named = Named::new(&dirs);
    let [pem, key] = ["nas.pem", "nas.key"].map(|name| dirs.file(name).display().to_string());
    let dir = named.dir.display().to_string();
    let more =
        ["--iscsi", "127.0.0.1:0", "--disk-dir", &dir, "--tls-cert", &pem, "--tls-key", &key];
    let (mut server, at) = serve(&dirs, "64MiB", &more);
    server.weir("target create vms").ok();
    for (path, body) in named.calls() {
        let begun = Instant::now();
        let (status, said) = as_root(&dirs, path, &body);
        assert!(status == 200 && path.ends_with("scan") || (400..500).contains(&status), "{said}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{path}: {:?}", begun.elapsed());
        server.weir("pool list").ok();
    }
    // Also make the calls with a token that has a scope: for such a caller, the server reads the
    // named files during the call.
    let scoped = token(&server, &dirs, "scoped", "--role operator --scope tank/v");
    let body = named.replication("ca", "good-secret").to_string();
    let bearer = format!("authorization: Bearer {scoped}");
    let url = format!("https://{at}/v1/replications");
    let json = "content-type: application/json";
    let said = run("curl", &["-sSk", "-m", "20", "-H", json, "-H", &bearer, "-d", &body, &url]);
    assert!(crate::common::text(&said).contains("not a regular file"), "{said:?}");
    // Replace two valid files by FIFOs: one before the next run of the replication reads it, and
    // the certificate before the server reads it again.
    let good = named.replication("good-ca", "good-secret");
    let (status, made) = as_root(&dirs, "/v1/replications", &good);
    assert_eq!(status, 201, "{made}");
    named.make_fifo(&named.at("good-ca"));
    named.make_fifo(&pem);
    server.weir("replicate run tank/v").ok();
    server.signal(Signal::HUP);
    eventually("the old certificate stays", Duration::from_secs(20), || {
        server.talk().contains("the old certificate stays in use")
    });
    eventually("the run says why it failed", Duration::from_secs(20), || {
        server.weir("replicate list --json").ok().out.contains("not a regular file")
    });
    let begun = Instant::now();
    server.weir("pool list").ok();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    server.assert_alive();
    let (_, took) = server.stop(Signal::TERM);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

// Regression: of 200 concurrent snapshot calls, 104 lost their connection without a response,
// although six of these calls had taken their snapshots.
#[test]
fn two_hundred_concurrent_snapshot_calls_get_responses() {
    let dirs = Dirs::new();
    let (server, at) = serve(&dirs, "64MiB", &[]);
    let operator = token(&server, &dirs, "operator", "--role operator");
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let take = |n: usize| {
            let body = json!({"names": [format!("tank/v@s{n}")]});
            call(&at, &operator, "POST", "/v1/snapshots", &body).0
        };
        let calls: Vec<_> = (0..200).map(|n| scope.spawn(move || take(n))).collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let taken = statuses.iter().filter(|status| **status == 201).count();
    assert!(statuses.iter().all(|status| matches!(status, 201 | 503)), "{statuses:?}");
    let listed = server.weir("snapshot list --json").json();
    assert_eq!(listed["snapshots"].as_array().unwrap().len(), taken);
    server.stop_clean();
}

// Regression: one caller could keep all eight streams for ever.
#[test]
fn streams_are_limited_by_caller_and_end_with_the_token() {
    let dirs = Dirs::new();
    let (server, at) = serve(&dirs, "64MiB", &[]);
    server.weir("snapshot create tank/v@a").ok();
    let ci = token(&server, &dirs, "ci", "--role operator");
    let other = token(&server, &dirs, "other", "--role operator");
    let start =
        |token: &str| call(&at, token, "POST", "/v1/sends", &json!({"snapshot": "tank/v@a"})).0;
    for _ in 0..4 {
        assert_eq!(start(&ci), 201);
    }
    assert_eq!(start(&ci), 423, "four of one token");
    assert_eq!(start(&other), 201);
    let streams =
        || server.weir("stream list --json").json()["streams"].as_array().unwrap().clone();
    let of = |caller: &str| streams().iter().filter(|stream| stream["caller"] == caller).count();
    assert_eq!((of("token ci"), of("token other")), (4, 1));
    let table = server.weir("stream list").ok().out;
    assert!(table.contains("tank/v@a") && table.contains("token other"), "{table}");
    // An operator can cancel streams, but only its own.
    let first = streams()[0]["id"].as_u64().unwrap();
    let cancel =
        |token: &str| call(&at, token, "DELETE", &format!("/v1/streams/{first}"), &Value::Null).0;
    assert_eq!((cancel(&other), cancel(&ci), cancel(&ci)), (403, 200, 404));
    let last = streams().last().unwrap()["id"].as_u64().unwrap();
    server.weir(&format!("stream cancel {last}")).ok();
    server.weir(&format!("stream cancel {last}")).fails(code::NOT_FOUND, &[]);
    assert_eq!((of("token ci"), of("token other")), (3, 0));
    server.weir("token revoke ci").ok();
    assert_eq!(of("token ci"), 0);
    // When a token expires, its streams end too.
    let brief = token(&server, &dirs, "brief", "--role operator --expires 8s");
    assert_eq!(start(&brief), 201);
    eventually("its stream ends with it", Duration::from_mins(1), || of("token brief") == 0);
    server.stop_clean();
}

#[test]
fn entries_of_each_kind_are_limited() {
    let dirs = Dirs::new();
    let iscsi = ["--iscsi", "127.0.0.1:0"];
    let (server, at) = serve(&dirs, "256MiB", &iscsi);
    server.weir("volume create tank/w --size 64MiB").ok();
    server.weir("export create nbd tank/w --name e").ok();
    server.weir("target create vms --allow *").ok();
    server.weir("lun add vms tank/v --shared").ok();
    server.weir("schedule set tank/v daily=7").ok();
    certificate(&dirs, "peer");
    write_secret(&dirs.file("secret"), "a-secret-of-two-servers\n");
    let files = "--ca peer.pem --secret-file secret --every 1h";
    let replicate =
        |volume: &str| format!("replicate create {volume} --to https://localhost:1/b/v {files}");
    server.weir(&replicate("tank/v")).ok();
    server.weir("replicate pause tank/v").ok();
    server.stop_clean();
    let path = dirs.short("state").join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    // Fill each list in the saved state up to one entry below its limit.
    let more = |entries: &mut Value, count: usize, key: &str, named: &dyn Fn(usize) -> Value| {
        let first = entries[0].clone();
        let entry = |n| {
            let mut entry = first.clone();
            entry[key] = named(n);
            entry
        };
        entries.as_array_mut().unwrap().extend((1..count - 1).map(entry));
    };
    more(&mut state["exports"], 10_000, "name", &|n| json!(format!("e{n}")));
    more(&mut state["schedules"], 10_000, "name", &|n| json!(format!("tank/v{n}")));
    // Give the new entries the guids of other pools: the server deletes a replication if its pool
    // is open and its volume does not exist.
    more(&mut state["replications"], 4096, "pool_guid", &|n| json!(n));
    let target = &mut state["targets"][0];
    let initiator = |n: usize| json!(format!("iqn.2026-01.org.example:{n}"));
    more(&mut target["initiators"], 4096, "name", &initiator);
    more(&mut target["luns"], 16_384, "number", &|n| json!(n));
    let mut targets = json!([{"name": TARGET, "initiators": [], "luns": []}]);
    more(&mut targets, 4096, "name", &|n| json!(format!("{TARGET}{n}")));
    targets[0] = target.clone();
    state["targets"] = targets;
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    let server = Server::start(&dirs, "", command(&dirs, "256MiB", &at, &iscsi));
    server.weir("volume create tank/x --size 64MiB").ok();
    let (last_one, one_more) = (replicate("tank/w"), replicate("tank/x"));
    for (last, one_more, full) in [
        (last_one.as_str(), one_more.as_str(), "4096 replications"),
        (
            "export create nbd tank/w --name last",
            "export create nbd tank/w --name more",
            "10000 exports",
        ),
        ("schedule set tank/w daily=7", "schedule set tank daily=7", "10000 schedules"),
        ("target create last", "target create more", "4096 targets"),
        (
            "target allow vms iqn.2026-01.org.example:last",
            "target allow vms iqn.2026-01.org.example:more",
            "4096 initiators",
        ),
        (
            "lun add vms tank/v --shared --lun 16383",
            "lun add vms tank/w --shared",
            "no free LUN number",
        ),
    ] {
        server.weir(last).ok();
        server.weir(one_more).fails(code::NO_SPACE, &[full]);
    }
    server.stop_clean();
}
