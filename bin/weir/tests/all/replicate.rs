//! Replication between two real servers over TLS: on a schedule, with a bandwidth limit,
//! interrupted by kills; and the comparison of both servers.
//!
//! Not here: streams through pipes (`send`).
//!
//! Invariants:
//! - a standard client compares the received data byte for byte, so the test does not rely on
//!   `verify`;
//! - a server without the secret, or with a wrong certificate, gets no data.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::ports::free_port;
use crate::common::rng::Rng;
use crate::common::{
    Dirs, MIB, Ran, Server, WEIR, certificate, code, eventually, tool, write_secret,
};
use serde_json::Value;
use weir_format::stream::{StreamFrame, StreamReader, StreamWriter};

const DISK: u64 = 512 * MIB;
/// Time limit, on a busy machine, for steps that usually take seconds.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(5);

pub(crate) struct Pair {
    pub(crate) dirs: Dirs,
    port: u16,
    pub(crate) source: Option<Server>,
    pub(crate) back: Option<Server>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let dirs = Dirs::new();
        for name in ["a", "b", "c", "d"] {
            dirs.disk(name, DISK);
        }
        certificate(&dirs, "peer");
        write_secret(&dirs.file("secret"), "a-secret-of-both-of-them\n");
        let port = free_port();
        let mut pair = Self { dirs, port, source: None, back: None };
        pair.start();
        pair.source().weir("pool create tank mirror a b").ok();
        pair.back().weir("pool create back mirror c d").ok();
        pair
    }

    /// Starts each of the two servers, unless it runs already.
    pub(crate) fn start(&mut self) {
        if self.source.is_none() {
            self.source = Some(self.dirs.start());
        }
        if self.back.is_none() {
            let mut command = self.dirs.serve_as("-b");
            command.args(["--peer-listen", &format!("127.0.0.1:{}", self.port)]);
            command.args(["--tls-cert", "peer.pem", "--tls-key", "peer.key"]);
            command.args(["--peer-secret-file", "secret"]);
            self.back = Some(Server::start(&self.dirs, "-b", command));
        }
    }

    pub(crate) fn source(&self) -> &Server {
        self.source.as_ref().unwrap()
    }

    pub(crate) fn back(&self) -> &Server {
        self.back.as_ref().unwrap()
    }

    pub(crate) fn create(&self, volume: &str, to: &str, more: &str) -> Ran {
        let port = self.port;
        let line = format!(
            "replicate create {volume} --to https://localhost:{port}/{to} --ca peer.pem \
             --secret-file secret {more}"
        );
        self.source().weir(&line)
    }

    pub(crate) fn shown(&self, volume: &str) -> Value {
        let list = self.source().weir("replicate list --json").json();
        let all = list["replications"].as_array().unwrap().clone();
        all.into_iter().find(|one| one["volume"] == volume).unwrap()
    }

    /// Waits until the receiving server has the current contents of the volume.
    pub(crate) fn caught_up(&self, volume: &str) {
        // Names of replication snapshots contain the time in seconds. Wait, because a second run in
        // the same second would take no snapshot.
        std::thread::sleep(Duration::from_millis(1100));
        self.source().weir(&format!("replicate run {volume}")).ok();
        eventually("a run ends", TIMEOUT, || self.shown(volume)["state"] == "waiting");
    }

    /// Compares the volume on both servers with `replicate verify`; returns the result.
    pub(crate) fn compared(&self, volume: &str) -> Value {
        let before = self.shown(volume)["verified"]["unix_ms"].clone();
        self.source().weir(&format!("replicate verify {volume}")).ok();
        eventually("it is compared", TIMEOUT, || {
            let found = self.shown(volume)["verified"].clone();
            found["unix_ms"].is_u64() && found["unix_ms"] != before
        });
        self.shown(volume)["verified"].clone()
    }

    pub(crate) fn same(&self, here: &str, there: &str) {
        for (server, name) in [(self.source(), here), (self.back(), there)] {
            server.weir(&format!("export create nbd {name}")).ok();
        }
        let uris = (self.source().uri(here), self.back().uri(there));
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", &uris.0, &uris.1]);
        self.source().weir(&format!("export delete {here}")).ok();
        self.back().weir(&format!("export delete {there}")).ok();
    }
}

pub(crate) fn write(server: &Server, volume: &str, rng: &mut Rng, mib: u64) {
    server.weir(&format!("export create nbd {volume}")).ok();
    let mut client = server.client(volume);
    let mut data = vec![0; 64 << 10];
    for _ in 0..mib * 16 {
        rng.fill(&mut data);
        let at = rng.below(client.size_bytes / 65_536) * 65_536;
        client.write(at, &data).unwrap();
    }
    client.trim(rng.below(100) * 65_536, 65_536).unwrap();
    client.flush().unwrap();
    drop(client);
    server.weir(&format!("export delete {volume}")).ok();
}

pub(crate) fn names(server: &Server, of: &str) -> Vec<String> {
    let list = server.weir(&format!("snapshot list {of} --json")).json();
    let all = list["snapshots"].as_array().unwrap();
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

/// Tests a source that no longer has the newest common snapshot, but a bookmark of it.
fn goes_on_from_a_bookmark(pair: &Pair, rng: &mut Rng, here: &str, there: &str) {
    pair.caught_up(here);
    let last = pair.shown(here)["snapshot"].as_str().unwrap().to_owned();
    pair.source().weir(&format!("bookmark create {here}@{last} #{last}")).ok();
    pair.source().weir(&format!("snapshot release replication {here}@{last}")).ok();
    pair.source().weir(&format!("snapshot destroy {here}@{last} --yes")).ok();
    write(pair.source(), here, rng, 2);
    pair.caught_up(here);
    let last = pair.shown(here)["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("{here}@{last}"), &format!("{there}@{last}"));
}

#[test]
fn replica_follows_through_kills_renames_and_clones() {
    let mut pair = Pair::new();
    let mut rng = Rng::new(5);
    pair.source().weir("volume create tank/v --size 64MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 24);
    pair.source().weir("snapshot create tank/v@monday").ok();
    pair.create("tank/v", "back/v", "--every 5s").ok();
    pair.create("tank/v", "back/v", "--every 5s").ok();
    pair.create("tank/v", "back/other", "--every 5s").fails(code::EXISTS, &["delete that first"]);
    // The schedule starts the first two replication runs.
    eventually("the first run", TIMEOUT, || pair.shown("tank/v")["snapshot"].is_string());
    let first = pair.shown("tank/v")["snapshot"].clone();
    write(pair.source(), "tank/v", &mut rng, 2);
    eventually("the next run", TIMEOUT, || pair.shown("tank/v")["snapshot"] != first);
    pair.source().weir("replicate pause tank/v").ok();
    pair.source().weir("replicate run tank/v").fails(code::BUSY, &["paused"]);
    pair.same("tank/v@monday", "back/v@monday");
    // Set a long interval, so that no scheduled run interferes with the comparisons below.
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.source().weir("replicate resume tank/v").ok();
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));
    // Both servers hold the last snapshot, and the snapshots of earlier runs are destroyed.
    let held = format!("back/v@{last}");
    pair.back().weir(&format!("snapshot destroy {held} --yes")).fails(code::BUSY, &["held"]);
    // Wait: a run destroys older snapshots only after it has reported its own snapshot.
    eventually("what earlier runs took is gone", TIMEOUT, || {
        names(pair.source(), "tank/v") == ["tank/v@monday", &format!("tank/v@{last}")]
            && names(pair.back(), "back/v") == ["back/v@monday", &held]
    });

    // Kill each of the two servers in turn during a slow stream.
    pair.create("tank/v", "back/v", "--every 1h --bandwidth 1MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 24);
    for source in [true, false, true, false] {
        let sent = || pair.shown("tank/v")["sent_bytes"].as_u64().unwrap();
        pair.source().weir("replicate resume tank/v").ok();
        pair.source().weir("replicate run tank/v").ok();
        eventually("something is sent", TIMEOUT, || {
            pair.shown("tank/v")["state"] == "sending" && sent() > MIB
        });
        if source {
            pair.source.take().unwrap().kill();
        } else {
            pair.back.take().unwrap().kill();
        }
        pair.start();
    }
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.source().weir("replicate pause tank/v").ok();
    pair.source().weir("replicate resume tank/v").ok();
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));

    // Replicate a volume that was renamed, and a clone of a replicated snapshot.
    pair.source().weir("volume rename tank/v tank/w").ok();
    write(pair.source(), "tank/w", &mut rng, 1);
    pair.caught_up("tank/w");
    pair.source().weir("snapshot clone tank/w@monday tank/c").ok();
    write(pair.source(), "tank/c", &mut rng, 1);
    pair.create("tank/c", "back/c", "--every 1h").ok();
    eventually("the clone arrives", TIMEOUT, || pair.shown("tank/c")["snapshot"].is_string());
    let clone = pair.back().weir("volume show back/c --json").json();
    assert_eq!(clone["origin"], "back/v@monday");
    let last = pair.shown("tank/c")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/c@{last}"), &format!("back/c@{last}"));
    let list = pair.source().weir("replicate list").ok().out;
    assert!(list.contains("RPO") && list.contains("tank/w"), "{list}");
    goes_on_from_a_bookmark(&pair, &mut rng, "tank/w", "back/v");
    pair.source().weir("replicate delete tank/c").ok();
    pair.source().weir("replicate delete tank/c").fails(code::NOT_FOUND, &["tank/c"]);
    pair.source.take().unwrap().stop_clean();
    pair.back.take().unwrap().stop_clean();
    let place = pair.dirs.file("").display().to_string();
    for pool in ["tank", "back"] {
        Ran::of("check", &crate::common::run(WEIR, &["check", pool, "-d", &place])).ok();
    }
}

// Regression: a run was interrupted after it had released an older snapshot and before it destroyed
// that snapshot. No later run destroyed the snapshot.
#[test]
fn next_run_destroys_a_snapshot_released_by_an_interrupted_one() {
    let mut pair = Pair::new();
    let mut rng = Rng::new(8);
    pair.source().weir("volume create tank/v --size 16MiB").ok();
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.caught_up("tank/v");
    let old = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    let (here, there) = (format!("tank/v@{old}"), format!("back/v@{old}"));
    // Exports use the older snapshot, so the next run cannot destroy it.
    pair.source().weir(&format!("export create nbd {here}")).ok();
    pair.back().weir(&format!("export create nbd {there}")).ok();
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.caught_up("tank/v");
    let list = pair.source().weir("snapshot list tank/v --json").json();
    let guid = list["snapshots"][0]["guid"].clone();
    assert_eq!(list["snapshots"][0]["name"], here.as_str());
    pair.source().weir(&format!("export delete {here}")).ok();
    pair.back().weir(&format!("export delete {there}")).ok();
    pair.source().weir(&format!("snapshot release replication {here}")).ok();
    pair.back().weir(&format!("snapshot release replica {there}")).ok();
    // Create the state in which such an interrupted run leaves the two servers.
    pair.source.take().unwrap().stop_clean();
    let path = pair.dirs.short("state").join("state.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    state["replications"][0]["clearing"] = serde_json::json!([guid]);
    fs::write(&path, serde_json::to_vec(&state).unwrap()).unwrap();
    pair.start();
    write(pair.source(), "tank/v", &mut rng, 1);
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    assert_eq!(names(pair.source(), "tank/v"), [format!("tank/v@{last}")]);
    assert_eq!(names(pair.back(), "back/v"), [format!("back/v@{last}")]);
    let state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(state["replications"][0]["clearing"], serde_json::json!([]));
}

#[test]
fn bandwidth_is_limited_and_wrong_secrets_are_refused() {
    let pair = Pair::new();
    let mut rng = Rng::new(6);
    pair.source().weir("volume create tank/v --size 32MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 12);
    let start = Instant::now();
    pair.create("tank/v", "back/v", "--every 1h --bandwidth 2MiB").ok();
    eventually("it arrives", TIMEOUT, || pair.shown("tank/v")["snapshot"].is_string());
    let used = pair.source().weir("volume show tank/v --json").json();
    let seconds = used["stored_bytes"].as_u64().unwrap() as f64 / (2 * MIB) as f64;
    let took = start.elapsed().as_secs_f64();
    assert!(took > seconds * 0.9, "{took} s instead of {seconds} s");

    write_secret(&pair.dirs.file("wrong"), "another-secret-altogether");
    certificate(&pair.dirs, "stranger");
    pair.source().weir("volume create tank/x --size 8MiB").ok();
    let port = pair.port;
    let refused = |ca: &str, secret: &str, part: &str| {
        let line = format!(
            "replicate create tank/x --to https://localhost:{port}/back/x --ca {ca} \
             --secret-file {secret} --every 1h"
        );
        pair.source().weir(&line).ok();
        eventually("it is told", TIMEOUT, || {
            let error = pair.shown("tank/x")["error"].clone();
            error.as_str().is_some_and(|error| error.contains(part))
        });
        pair.source().weir("replicate delete tank/x").ok();
    };
    refused("peer.pem", "wrong", "secret");
    refused("stranger.pem", "secret", "certificate");
    assert!(!pair.back().weir("volume list").ok().out.contains("back/x"));
    let bad = pair.source().weir(&format!(
        "replicate create tank/x --to https://localhost:{port}/back/x --ca peer.pem \
         --secret-file none --every 1h"
    ));
    bad.fails(code::NOT_FOUND, &["none"]);
    // This port offers only the calls of peers. Other calls do not exist on this port, even for a
    // caller with the secret.
    let output = Command::new("curl")
        .args(["-s", "--cacert"])
        .arg(pair.dirs.file("peer.pem"))
        .args(["-H", "authorization: Bearer a-secret-of-both-of-them"])
        .arg(format!("https://localhost:{port}/v1/pools"))
        .stdin(Stdio::null())
        .output();
    let answer = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    assert!(answer.contains("not_found"), "{answer}");
    let talk = [pair.source().talk(), pair.back().talk()].concat();
    assert!(!talk.contains("a-secret-of") && !talk.contains("another-secret"), "{talk}");
}

fn piped(pair: &Pair, api: &str, line: &str) -> Command {
    let mut command = Command::new(WEIR);
    let api = pair.dirs.short(api);
    command.args(line.split_whitespace()).env("WEIR_API", format!("unix:{}", api.display()));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Makes a call to the port for peers, as a server with this secret would. Returns the status and
/// the body of the response.
fn peer_call(pair: &Pair, secret: &str, method: &str, path: &str, body: &str) -> (String, String) {
    let mut command = Command::new("curl");
    command.args(["-s", "--max-time", "60", "--cacert"]).arg(pair.dirs.file("peer.pem"));
    command.args(["-H", &format!("authorization: Bearer {secret}"), "-X", method]);
    command.args(["-H", "content-type: application/json", "-w", "\n%{http_code}"]);
    if !body.is_empty() {
        command.args(["--data-binary", body]);
    }
    let url = format!("https://localhost:{}/v1/{path}", pair.port);
    let output = command.arg(url).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let (answer, status) = said.rsplit_once('\n').unwrap();
    (status.to_owned(), answer.to_owned())
}

// Regression: 32 unauthenticated clients on the port for peers blocked replication. These clients
// held all slots, before the TLS handshake and again after each 401.
#[test]
fn unauthenticated_clients_delay_no_replication() {
    let pair = Pair::new();
    let mut rng = Rng::new(8);
    let silent: Vec<_> =
        (0..100).map(|_| std::net::TcpStream::connect(("localhost", pair.port)).unwrap()).collect();
    pair.source().weir("volume create tank/v --size 8MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 4);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    eventually("it arrives", TIMEOUT, || pair.shown("tank/v")["snapshot"].is_string());
    drop(silent);
    // The server closes the connection after a wrong secret, so each of the two calls needs its own
    // connection.
    let mut command = Command::new("curl");
    command.args(["-s", "--cacert"]).arg(pair.dirs.file("peer.pem"));
    command.args(["-H", "authorization: Bearer another-secret-altogether"]);
    command.args(["-o", "/dev/null", "-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n"]);
    let url = format!("https://localhost:{}/v1/server", pair.port);
    let output = command.args([&url, &url]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "401 1\n401 1\n");
}

/// Asserts that all commands show `back/half` as a volume that has received only a part of
/// `tank/p@repl-own`, and that the token in their output resumes the stream.
fn half_received_volume_is_marked(source: &Server, back: &Server) {
    let list = back.weir("volume list").ok();
    assert!(list.out.contains("back/half (part of @repl-own)"), "{}", list.out);
    let scripts = back.weir("volume list -H").ok().out;
    assert!(scripts.lines().any(|line| line.starts_with("back/half\t")), "{scripts}");
    let shown = back.weir("volume show back/half").ok().out;
    for text in [&list.talk, &shown.split_whitespace().collect::<Vec<_>>().join(" ")] {
        assert!(text.contains("@repl-own") && text.contains("receive --abort back/half"), "{text}");
    }
    let token = back.weir("receive --token back/half").ok().out;
    let estimate = |more: &str| {
        let line = format!("send -n {more} tank/p@repl-own --json");
        source.weir(&line).json()["estimate_bytes"].as_u64().unwrap()
    };
    let (all, rest) = (estimate(""), estimate(&format!("-t {}", token.trim())));
    assert!(rest > 0 && rest < all * 3 / 4, "{rest} of {all}");
}

// Regression: a server with the secret could read the size and the properties of every volume whose
// name it knew.
#[test]
fn peer_sees_only_its_own_volumes() {
    let pair = Pair::new();
    let mut rng = Rng::new(10);
    let call = |method: &str, path: &str, body: &str| {
        peer_call(&pair, "a-secret-of-both-of-them", method, path, body)
    };
    let (back, source) = (pair.back(), pair.source());
    back.weir("volume create back/p --size 8MiB").ok();
    back.weir("snapshot create back/p@monday").ok();
    for path in ["volumes/back/p", "snapshots?of=back/p", "snapshots?of=back/p@monday"] {
        let (status, answer) = call("GET", path, "");
        assert_eq!(status, "403", "{path}: {answer}");
        assert!(answer.contains("weir set weir:received-from=127.0.0.1"), "{answer}");
    }
    source.weir("volume create tank/v --size 8MiB").ok();
    write(source, "tank/v", &mut rng, 4);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    eventually("it arrives", TIMEOUT, || pair.shown("tank/v")["snapshot"].is_string());
    pair.caught_up("tank/v");
    assert_eq!(call("GET", "volumes/back/v", "").0, "200");
    for path in ["snapshots", "snapshots?of=back", "snapshots?of=back/v"] {
        let (status, answer) = call("GET", path, "");
        let is_right = status == "200" && answer.contains("back/v@repl-");
        assert!(is_right && !answer.contains("back/p"), "{path}: {answer}");
    }
    let sent = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    back.weir(&format!("snapshot release replica back/v@{sent}")).ok();
    back.weir(&format!("snapshot rename back/v@{sent} back/v@repl-kept")).ok();
    let (status, answer) = call("POST", "snapshots/destroy", r#"{"names":["back/v@repl-kept"]}"#);
    assert_eq!(status, "403", "{answer}");
}

// Regression: a server with the secret could delete a volume that a user was receiving, hold and
// destroy snapshots of users, and use up all slots for streams.
#[test]
fn peer_changes_only_its_own_objects() {
    let pair = Pair::new();
    let mut rng = Rng::new(9);
    let call = |method: &str, path: &str, body: &str| {
        peer_call(&pair, "a-secret-of-both-of-them", method, path, body)
    };
    let (back, source) = (pair.back(), pair.source());
    for server in [source, back] {
        let pool = if std::ptr::eq(server, source) { "tank" } else { "back" };
        server.weir(&format!("volume create {pool}/p --size 8MiB")).ok();
        write(server, &format!("{pool}/p"), &mut rng, 4);
        server.weir(&format!("snapshot create {pool}/p@repl-own")).ok();
    }
    let path = pair.dirs.file("stream");
    let to_file = fs::File::create(&path).unwrap();
    piped(&pair, "api", "send tank/p@repl-own").stdout(to_file).status().unwrap();
    let stream = fs::read(&path).unwrap();
    let receive = |volume: &str, bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let mut command = piped(&pair, "api-b", &format!("receive {volume}"));
        command.stdin(fs::File::open(&path).unwrap()).output().unwrap()
    };
    receive("back/half", &stream[..stream.len() / 2]);
    assert!(!back.weir("volume show back/half --json").json()["receiving"].is_null());
    half_received_volume_is_marked(source, back);

    for (method, path, body) in [
        ("DELETE", "volumes/back/half/receive", ""),
        ("GET", "volumes/back/half/receive", ""),
        ("POST", "receives", r#"{"volume":"back/half"}"#),
        ("POST", "receives", r#"{"volume":"back/p"}"#),
        ("POST", "snapshots/hold", r#"{"name":"back/p@repl-own","tag":"replication"}"#),
        ("POST", "snapshots/release", r#"{"name":"back/p@repl-own","tag":"replication"}"#),
        ("POST", "snapshots/destroy", r#"{"names":["back/p@repl-own"]}"#),
        ("POST", "snapshots/digest", r#"{"snapshot":"back/p@repl-own","first":0,"count":1}"#),
        ("GET", "volumes/back/p", ""),
        ("GET", "snapshots?of=back/p", ""),
        ("GET", "snapshots?of=back/p@repl-own", ""),
    ] {
        let (status, answer) = call(method, path, body);
        assert_eq!(status, "403", "{method} {path} {body}: {answer}");
        assert!(answer.contains("weir set weir:received-from=127.0.0.1"), "{answer}");
    }
    back.weir("snapshot list back/p@repl-own").ok();
    assert!(!back.weir("volume show back/half --json").json()["receiving"].is_null());

    // A peer may change the volumes that it has sent. A peer may not change objects of users in
    // these volumes, such as snapshots.
    source.weir("volume create tank/v --size 8MiB").ok();
    write(source, "tank/v", &mut rng, 4);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    eventually("it arrives", TIMEOUT, || pair.shown("tank/v")["snapshot"].is_string());
    pair.caught_up("tank/v");
    back.weir("snapshot create back/v@repl-people").ok();
    let (status, _) = call("POST", "snapshots/destroy", r#"{"names":["back/v@repl-people"]}"#);
    assert_eq!(status, "403");
    // An administrator can give the peer this right for a snapshot, by setting this user property
    // on it.
    back.weir("set weir:received-from=127.0.0.1 back/v@repl-people").ok();
    let (status, answer) = call("POST", "snapshots/destroy", r#"{"names":["back/v@repl-people"]}"#);
    assert_eq!(status, "200", "{answer}");

    // If a user creates the volume after a receive session for it has begun, the session must not
    // change the volume.
    let (status, begun) = call("POST", "receives", r#"{"volume":"back/late"}"#);
    assert_eq!(status, "201", "{begun}");
    let begun: Value = serde_json::from_str(&begun).unwrap();
    let session = format!("receives/{}", begun["session"].as_str().unwrap());
    back.weir("volume create back/late --size 8MiB").ok();
    fs::write(&path, &stream[..64 << 10]).unwrap();
    let part = format!("@{}", path.display());
    // The server applies a part of a stream after its response, so only the next call returns the
    // error.
    assert_eq!(call("POST", &format!("{session}/parts"), &part).0, "200");
    let (status, answer) = call("POST", &format!("{session}/finish"), "{}");
    assert_eq!(status, "403", "{answer}");

    let begin = |n: usize| call("POST", "receives", &format!(r#"{{"volume":"back/n{n}"}}"#)).0;
    assert_eq!([1, 2, 3].map(begin), ["201"; 3]);
    assert_eq!(begin(4), "423", "a server has a share of the streams");
    Ran::of("receive", &receive("back/all", &stream)).ok();
}

/// Returns a copy of the stream with one byte of one block changed and all checksums valid.
fn forged(bytes: &[u8]) -> Vec<u8> {
    let mut reader = StreamReader::default();
    let (mut writer, mut out, mut changed) = (None, Vec::new(), false);
    for piece in bytes.chunks(1 << 20) {
        reader.push(piece);
        while let Some(frame) = reader.next_frame().unwrap() {
            match frame {
                StreamFrame::Begin(begin) => {
                    let (begun, start) = StreamWriter::new(&begin);
                    writer = Some(begun);
                    out = start;
                }
                StreamFrame::Changes(changes) => {
                    let writer = writer.as_mut().unwrap();
                    for (change, stored) in changes.iter() {
                        let (codec, stored) = stored.unwrap();
                        let mut stored = stored.to_vec();
                        if !changed && stored.len() == 4096 && change.start > 100 {
                            stored[77] ^= 1;
                            changed = true;
                        }
                        let checksum = weir_codec::checksum::xxh3_128(&stored);
                        writer.record(change.start, codec, &stored, checksum);
                        out.extend(writer.full_frame().into_iter().flatten());
                    }
                }
                StreamFrame::Objects(_) => unreachable!("the stream is of a volume"),
                StreamFrame::End(_) => out.extend(writer.take().unwrap().finish().0),
            }
        }
    }
    assert!(changed);
    out
}

#[test]
fn verify_finds_equal_volumes_and_one_changed_byte() {
    let pair = Pair::new();
    let mut rng = Rng::new(7);
    pair.source().weir("volume create tank/v --size 32MiB").ok();
    write(pair.source(), "tank/v", &mut rng, 12);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.source().weir("replicate verify tank/v").fails(code::NOT_FOUND, &["yet"]);
    eventually("it arrives", TIMEOUT, || {
        let now = pair.shown("tank/v");
        now["snapshot"].is_string() && now["state"] == "waiting"
    });
    let verify = || pair.compared("tank/v");
    let found = verify();
    assert_eq!((&found["is_same"], &found["compared_bytes"]), (&true.into(), &(32 * MIB).into()));

    // Send a forged stream: the replica then has a snapshot with the same guid and other contents,
    // which the comparison must find.
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    let path: PathBuf = pair.dirs.file("stream");
    let mut command = Command::new(WEIR);
    command.args(["send", &format!("tank/v@{last}")]);
    command.env("WEIR_API", format!("unix:{}", pair.dirs.short("api").display()));
    let sent = command.output().unwrap();
    assert!(sent.status.success());
    fs::write(&path, forged(&sent.stdout)).unwrap();
    pair.back().weir("volume rename back/v back/good").ok();
    let mut command = Command::new(WEIR);
    command.args(["receive", "back/v"]).stdin(fs::File::open(&path).unwrap());
    command.env("WEIR_API", format!("unix:{}", pair.dirs.short("api-b").display()));
    assert!(command.status().unwrap().success());
    pair.back().weir("set weir:received-from=127.0.0.1 back/v").ok();
    let found = verify();
    assert_eq!(found["is_same"], false);
    let at = found["differs_at"].as_u64().unwrap();
    assert!((400 << 10..32 * MIB).contains(&(at + MIB)), "{at}");
    let list = pair.source().weir("replicate list").ok().out;
    assert!(list.contains("DIFFERS"), "{list}");
    assert!(pair.source().weir("events").ok().out.contains("DIFFER"));
    pair.back().weir("volume rename back/v back/bad").ok();
    pair.back().weir("volume rename back/good back/v").ok();
    assert_eq!(verify()["is_same"], true);
}

#[test]
fn large_records_are_replicated_and_compare_equal() {
    let mut pair = Pair::new();
    let mut rng = Rng::new(64);
    pair.source().weir("volume create tank/v --size 32MiB -b 128KiB").ok();
    write(pair.source(), "tank/v", &mut rng, 12);
    pair.create("tank/v", "back/v", "--every 1h").ok();
    eventually("it arrives", TIMEOUT, || {
        let now = pair.shown("tank/v");
        now["snapshot"].is_string() && now["state"] == "waiting"
    });
    pair.source.take().unwrap().kill();
    pair.back.take().unwrap().kill();
    pair.start();
    // Each of these writes covers only half of a record.
    write(pair.source(), "tank/v", &mut rng, 4);
    pair.caught_up("tank/v");
    let found = pair.compared("tank/v");
    assert_eq!((&found["is_same"], &found["compared_bytes"]), (&true.into(), &(32 * MIB).into()));
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.same(&format!("tank/v@{last}"), &format!("back/v@{last}"));
    let shown = pair.back().weir("volume show back/v --json").json();
    assert_eq!(shown["record_bytes"], 128 << 10);
}

/// Returns the tags of the holds on each snapshot of a volume.
fn holds(server: &Server, of: &str) -> Vec<Value> {
    let list = server.weir(&format!("snapshot list {of} --json")).json();
    let all = list["snapshots"].as_array().unwrap();
    all.iter().flat_map(|one| one["holds"].as_array().unwrap().clone()).collect()
}

// Regression: a run released the snapshot of an earlier run, but could not destroy it because the
// snapshot was exported. Later runs did not find that snapshot, so it was never destroyed.
#[test]
fn older_snapshot_in_use_is_destroyed_by_a_later_run() {
    let pair = Pair::new();
    pair.source().weir("volume create tank/v --size 16MiB").ok();
    pair.create("tank/v", "back/v", "--every 1h").ok();
    pair.caught_up("tank/v");
    let first = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    let both = [(pair.source(), "tank/v"), (pair.back(), "back/v")];
    for (server, volume) in both {
        server.weir(&format!("export create nbd {volume}@{first}")).ok();
    }
    pair.caught_up("tank/v");
    for (server, volume) in both {
        assert_eq!(names(server, volume).len(), 2, "one is exported");
        server.weir(&format!("export delete {volume}@{first}")).ok();
    }
    pair.caught_up("tank/v");
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    for (server, volume) in both {
        assert_eq!(names(server, volume), [format!("{volume}@{last}")]);
    }
}

// Regression: `replicate delete` left the holds of the replication on both servers, so the held
// snapshots could not be destroyed.
#[test]
fn deleted_replication_releases_its_holds_on_both_servers() {
    let mut pair = Pair::new();
    for volume in ["v", "w"] {
        pair.source().weir(&format!("volume create tank/{volume} --size 16MiB")).ok();
        pair.create(&format!("tank/{volume}"), &format!("back/{volume}"), "--every 1h").ok();
        pair.caught_up(&format!("tank/{volume}"));
    }
    let last = pair.shown("tank/v")["snapshot"].as_str().unwrap().to_owned();
    pair.source().weir(&format!("snapshot hold mine tank/v@{last}")).ok();
    assert_eq!(holds(pair.source(), "tank/v"), ["replication", "mine"]);
    assert_eq!(holds(pair.back(), "back/v"), ["replica"]);
    let gone = pair.source().weir("replicate delete tank/v --json").json();
    assert_eq!(gone["warnings"].as_array().unwrap().len(), 0, "{gone}");
    assert_eq!(holds(pair.source(), "tank/v"), ["mine"]);
    assert!(holds(pair.back(), "back/v").is_empty());
    assert_eq!(names(pair.back(), "back/v"), [format!("back/v@{last}")], "the snapshot stays");

    // Even if the other server is down, the replication is deleted, and the output reports the
    // holds that remain on that server.
    pair.back.take().unwrap().stop_clean();
    let last = pair.shown("tank/w")["snapshot"].as_str().unwrap().to_owned();
    let gone = pair.source().weir("replicate delete tank/w").ok();
    let action = format!("weir snapshot release replica back/w@{last}");
    assert!(gone.talk.contains(&action), "{}", gone.talk);
    assert!(holds(pair.source(), "tank/w").is_empty());
    pair.start();
    pair.back().weir(&action["weir ".len()..]).ok();
    assert!(holds(pair.back(), "back/w").is_empty());
}

// Regression: a receiver accepts three streams of one server at the same time. Runs above this
// limit failed, and were retried with growing delays.
#[test]
fn replications_beyond_the_stream_limit_wait() {
    let pair = Pair::new();
    let mut rng = Rng::new(10);
    let volumes: Vec<String> = (0..6).map(|n| format!("v{n}")).collect();
    for volume in &volumes {
        pair.source().weir(&format!("volume create tank/{volume} --size 8MiB")).ok();
        write(pair.source(), &format!("tank/{volume}"), &mut rng, 2);
    }
    for volume in &volumes {
        let more = "--every 1h --bandwidth 2MiB";
        pair.create(&format!("tank/{volume}"), &format!("back/{volume}"), more).ok();
    }
    for volume in &volumes {
        let shown = || pair.shown(&format!("tank/{volume}"));
        eventually("it arrives", TIMEOUT, || shown()["snapshot"].is_string());
    }
    let events = pair.source().weir("events").ok().out;
    assert!(!events.contains("not replicated"), "{events}");
}

// Regression: a replication to a server that accepted the connection and never responded showed
// only "sending 0B".
#[test]
fn replication_to_a_hung_server_shows_the_pending_call() {
    let dirs = Dirs::new();
    dirs.disk("a", DISK);
    certificate(&dirs, "peer");
    write_secret(&dirs.file("secret"), "a-secret-of-both-of-them\n");
    // The kernel accepts connections to this listener, but no program reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 16MiB").ok();
    server
        .weir(&format!(
            "replicate create tank/v --to https://localhost:{port}/back/v --ca peer.pem \
             --secret-file secret --every 1h"
        ))
        .ok();
    let mut wait = Value::Null;
    eventually("it says that it waits", TIMEOUT, || {
        let list = server.weir("replicate list --json").json();
        wait = list["replications"][0]["waits_for"].clone();
        wait["waited_ms"].as_u64().is_some_and(|waited| waited >= 2000)
    });
    assert_eq!(wait["call"], "show the replica");
    assert!(wait["since_unix_ms"].is_u64(), "{wait}");
    let list = server.weir("replicate list").ok();
    assert!(list.out.contains("no answer for"), "{}", list.out);
    let asked =
        format!("https://localhost:{port}/back/v has not answered the request to show the replica");
    assert!(list.talk.contains(&asked) && list.talk.contains("since 20"), "{}", list.talk);
}
