//! The real `weir` program against the real HTTP server, with a fake engine in memory behind it.
//!
//! Not here: the real engine; `weir serve` as a whole.
//!
//! Invariants:
//! - every verb runs three times: with text output, with `--json`, and with an error;
//! - standard output contains only data, never errors or hints.

#[path = "../../../../crates/control/weir-api/tests/all/support/fake.rs"]
mod fake;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use fake::Fake;
use serde_json::Value;
use tokio::sync::oneshot;
use weir_api::token::NoTokens;
use weir_api::{Address, Listener};

/// A server on a unix socket, in a thread with a runtime of its own, as in the real program.
struct Server {
    dir: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&Address::Unix(dir.path().join("api.sock"))).unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let stopped = async { drop(stopped.await) };
            let served = weir_api::serve(
                vec![listener],
                Arc::new(Fake::default()),
                Arc::new(NoTokens),
                stopped,
            );
            runtime.block_on(served).unwrap();
        });
        Self { dir, stop: Some(stop), thread: Some(thread) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    /// Runs `weir` with the words of `line` as arguments.
    fn weir(&self, line: &str) -> Ran {
        let api = format!("unix:{}", self.socket().display());
        let mut command = weir(line);
        command.env("WEIR_API", api).current_dir(self.dir.path());
        Ran::of(line, &command.output().unwrap())
    }

    /// Starts a server with pool tank, volume tank/vm1 and an export of this volume.
    fn with_export() -> Self {
        let server = Self::start();
        server.weir("pool create tank mirror /a /b").ok();
        server.weir("volume create tank/vm1 --size 10GiB").ok();
        server.weir("export create nbd tank/vm1").ok();
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server broke");
        }
    }
}

fn weir(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(line.split_whitespace()).stdin(Stdio::null()).env_remove("WEIR_API");
    command
}

fn alone(line: &str) -> Ran {
    Ran::of(line, &weir(line).output().unwrap())
}

/// Result of one run of `weir`.
struct Ran {
    line: String,
    code: Option<i32>,
    out: String,
    talk: String,
}

impl Ran {
    fn of(line: &str, output: &Output) -> Self {
        Self {
            line: line.to_owned(),
            code: output.status.code(),
            out: String::from_utf8(output.stdout.clone()).unwrap(),
            talk: String::from_utf8(output.stderr.clone()).unwrap(),
        }
    }

    #[track_caller]
    fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "weir {}: {}", self.line, self.talk);
        self
    }

    /// Asserts that the run failed with this code and this text in its error, and printed nothing
    /// to standard output.
    #[track_caller]
    fn fails(self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "weir {}: {}", self.line, self.talk);
        assert!(self.talk.contains(part), "weir {}: {}", self.line, self.talk);
        assert!(self.talk.contains("weir: "), "{}", self.talk);
        let vague = ["correct the request", "against the list"];
        assert!(!vague.iter().any(|advice| self.talk.contains(advice)), "{}", self.talk);
        assert_eq!(self.out, "", "weir {}", self.line);
    }

    #[track_caller]
    fn json(self) -> Value {
        let ran = self.ok();
        assert_eq!(ran.talk, "", "weir {} talks beside its JSON", ran.line);
        let value: Value = serde_json::from_str(&ran.out).expect(&ran.line);
        assert_eq!(value["schema_version"], 1, "weir {}", ran.line);
        value
    }
}

#[test]
fn every_verb_prints_its_result() {
    let server = Server::start();
    let made = server.weir("pool create tank mirror a b mirror c d").ok();
    assert_eq!(made.talk, "pool tank created\n");
    let figures: Vec<_> = made.out.lines().take(2).map(str::trim_end).collect();
    assert!(figures[0].contains("WRITE  FLUSH   SYNC  FLUSHES ARE  MEDIUM"), "{}", made.out);
    let first = "60us  8.3ms  8.2ms  plausible    rotating disk sda, write-back cache";
    assert!(figures[1].contains(first), "{}", made.out);
    assert_eq!(made.out.lines().count(), 5, "{}", made.out);
    let again = server.weir("pool create tank mirror a b mirror c d").ok();
    assert!(again.talk.contains("nothing changed") && again.out.is_empty(), "{}", again.talk);
    let list = server.weir("pool list").ok().out;
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines[0], "NAME   SIZE  ALLOC      FREE  CAP  HEALTH");
    assert_eq!(lines[1], "tank  10GiB   1MiB  10.00GiB   0%  ONLINE");
    assert_eq!(server.weir("pool list -H").ok().out.split('\t').next(), Some("tank"));

    server.weir("volume create tank/vm1 --size 10GiB -o compression=off").ok();
    server.weir("volume create tank/vm2 --size 16TiB").ok();
    let list = server.weir("volume list -H tank").ok().out;
    assert_eq!(
        list.lines().next(),
        Some("tank/vm1\t10737418240\t8388608\t4194304\t2.00\toff\t1.33\t0\t-")
    );
    assert_eq!(server.weir("volume list").ok().out.lines().count(), 3);
    let set = server.weir("volume set compression=lz4 tank/vm1").ok();
    assert_eq!(set.talk, "volume tank/vm1 changed\n");
    server.weir("volume resize tank/vm1 --size 20GiB").ok();
    let show = server.weir("volume show tank/vm1").ok().out;
    assert!(show.contains("size: 20GiB (21474836480 bytes)"), "{show}");
    assert!(show.contains("compression: lz4") && show.contains("2023-11-14"), "{show}");

    let uri = server.weir("export create nbd tank/vm1").ok();
    assert_eq!(uri.out, "nbd://127.0.0.1/tank/vm1\n");
    server.weir("export create nbd tank/vm1 --name other --read-only").ok();
    let list = server.weir("export list").ok().out;
    assert!(list.contains("other     nbd       tank/vm1  ro"), "{list}");
    server.weir("export delete other").ok();
    server.weir("export delete tank/vm1").ok();

    snapshots_and_schedules(&server);
    server.weir("volume destroy tank/vm1 --yes -r").ok();
    assert!(server.weir("server show").ok().out.contains("io_uring"));
    server.weir("pool export tank").ok();
    let found = server.weir("pool import -d /dev -d .").ok().out;
    assert!(found.contains("id: 1234567890123456789") && found.contains("mirror-1"), "{found}");
    assert_eq!(server.weir("pool import tank").ok().talk, "pool tank imported\n");
    assert!(server.weir("pool import tank").ok().talk.contains("is imported already"));
    server.weir("pool destroy tank --yes").ok();
    let none = server.weir("pool list").ok();
    assert_eq!((none.out.as_str(), none.talk.as_str()), ("", "there are no pools\n"));
}

/// Tests every verb of snapshots and schedules, on volumes tank/vm1 and tank/vm2.
fn snapshots_and_schedules(server: &Server) {
    let taken = server.weir("snapshot create tank/vm1@a tank/vm2@a").ok();
    assert_eq!(taken.talk, "snapshot tank/vm1@a created\nsnapshot tank/vm2@a created\n");
    server.weir("snapshot create -r tank@all").ok();
    let list = server.weir("snapshot list tank/vm1").ok().out;
    let lines: Vec<_> = list.lines().collect();
    assert!(lines[0].starts_with("NAME          USED  REFER  WRITTEN  CREATED"), "{list}");
    assert!(lines[1].starts_with("tank/vm1@a    1MiB   4MiB     2MiB  2023-11-14"), "{list}");
    assert_eq!(server.weir("snapshot list -H").ok().out.lines().count(), 4);
    server.weir("snapshot hold backup tank/vm1@a").ok();
    assert_eq!(server.weir("snapshot holds -H").ok().out, "tank/vm1@a\tbackup\n");
    server.weir("snapshot destroy tank/vm1@a --yes").fails(6, "held");
    server.weir("snapshot release backup tank/vm1@a").ok();
    assert_eq!(server.weir("snapshot holds").ok().talk, "there are no holds\n");
    server.weir("snapshot rename tank/vm1@all tank/vm1@good").ok();
    server.weir("snapshot rollback tank/vm1@good -r --yes").ok();
    server.weir("snapshot clone tank/vm1@good tank/new").ok();
    let show = server.weir("volume show tank/new").ok().out;
    assert!(show.contains("origin: tank/vm1@good"), "{show}");
    assert!(show.contains("in snapshots: "), "{show}");
    server.weir("volume promote tank/new").ok();
    server.weir("volume rename tank/new tank/web").ok();
    let records = server.weir("volume list -o records tank").ok().out;
    assert!(records.contains("RECORD") && records.contains("  4KiB  "), "{records}");
    let space = server.weir("volume list -o space tank").ok().out;
    let head = "NAME      AVAIL  USED  USEDSNAP  USEDDS  USEDREFRESERV  REFER  WRITTEN";
    assert_eq!(space.lines().next(), Some(head));
    server.weir("volume destroy tank/web --yes").ok();
    let plan = server.weir("snapshot destroy -n tank/vm2@a").ok();
    assert_eq!(plan.talk, "would destroy 1 snapshot and free 1MiB\n");
    assert_eq!(plan.out, "tank/vm2@a\n");
    let gone = server.weir("snapshot destroy --yes tank/vm2@a").ok();
    assert_eq!(gone.talk, "destroyed 1 snapshot, which frees 1MiB\n");
    server.weir("volume destroy tank/vm1 --yes").fails(6, "snapshots");
    server.weir("schedule set tank/vm1 hourly=24,daily=7").ok();
    let list = server.weir("schedule list").ok().out;
    assert!(list.contains("tank/vm1  hourly=24,daily=7  2023-11-14"), "{list}");
    server.weir("schedule clear tank/vm1").ok();
    assert_eq!(server.weir("schedule list").ok().talk, "there are no schedules\n");
}

#[test]
fn status_has_the_layout_of_zpool_status() {
    let server = Server::start();
    server.weir("pool create hurt mirror /disks/a /disks/b").ok();
    assert_eq!(
        server.weir("pool status hurt").ok().out,
        "  pool: hurt
 state: DEGRADED
status: One disk gave wrong data. Its copies were healed from the other leg.
action: Look at the disk, and replace it if the count grows.
   see: weir pool status --help
 alloc: 1MiB: volumes 900KiB, only in snapshots 100KiB, pool 88KiB, less 64KiB
        shared
  size: 10GiB, 0 % used, compression 1.53x
dedupe: 1.06 (64KiB saved by dedupe and copies)
config:

        NAME          STATE     READ  WRITE  CKSUM
        hurt          DEGRADED     0      0      0
          mirror-0    DEGRADED     0      0      0
            /disks/a  FAULTED      0      0      7  too many errors
            /disks/b  ONLINE       0      0      0

errors: No known data errors
"
    );
    server.weir("pool create plain /disks/c /disks/d").ok();
    let both = server.weir("pool status").ok().out;
    assert!(both.contains("\n\n  pool: plain\n state: ONLINE\n alloc: "), "{both}");
    assert!(both.contains("\n          /disks/c  ONLINE"), "{both}");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a line or two for each verb")]
fn every_verb_prints_json() {
    let server = Server::start();
    let made = server.weir("pool create tank mirror /a /b /c --json").json();
    assert_eq!((&made["outcome"], &made["pool"]["name"]), (&"created".into(), &"tank".into()));
    assert_eq!(made["warnings"].as_array().map(Vec::len), Some(1));
    assert_eq!(made["flush_checks"].as_array().map(Vec::len), Some(3));
    assert_eq!(made["flush_checks"][2]["disk"], "/c");
    assert_eq!(made["flush_checks"][2]["sync_write_us"], 8200);
    assert_eq!(made["flush_checks"][2]["verdict"], "plausible");
    assert_eq!(server.weir("--json pool list").json()["pools"][0]["vdevs"][0]["kind"], "mirror");
    assert_eq!(server.weir("pool --json status tank").json()["state"], "online");
    assert_eq!(server.weir("pool status --json").json()["pools"][0]["name"], "tank");
    let volume = server.weir("volume create tank/a --size 1M --json").json();
    assert_eq!(volume["volume"]["size_bytes"], 1 << 20);
    assert_eq!(volume["volume"]["record_bytes"], 4096);
    let again = server.weir("volume create tank/a --size 1M --json").json();
    assert_eq!(again["outcome"], "unchanged");
    let set = server.weir("volume set compression=lz4 tank/a --json").json();
    assert_eq!(set["outcome"], "unchanged");
    assert_eq!(server.weir("volume list --json").json()["volumes"][0]["name"], "tank/a");
    assert_eq!(server.weir("volume show tank/a --json").json()["compression"], "lz4");
    let sized = server.weir("volume resize tank/a --size 1G --json").json();
    assert_eq!(sized["outcome"], "changed");
    let export = server.weir("export create nbd tank/a --json").json();
    assert_eq!(export["export"]["uris"][0], "nbd://127.0.0.1/tank/a");
    assert_eq!(server.weir("export list --json").json()["exports"][0]["protocol"], "nbd");
    assert_eq!(server.weir("export delete tank/a --json").json()["outcome"], "removed");
    let taken = server.weir("snapshot create tank/a@m --json").json();
    assert_eq!(
        (&taken["outcome"], &taken["snapshots"][0]["name"]),
        (&"created".into(), &"tank/a@m".into())
    );
    let shown = server.weir("export create nbd tank/a@m --json").json();
    assert_eq!(shown["export"]["read_only"], true);
    server.weir("export delete tank/a@m --json").json();
    assert_eq!(server.weir("snapshot list --json").json()["snapshots"][0]["used_bytes"], 1 << 20);
    assert_eq!(server.weir("snapshot hold x tank/a@m --json").json()["outcome"], "changed");
    let holds = server.weir("snapshot holds tank --json").json();
    assert_eq!(holds["snapshots"][0]["holds"][0], "x");
    assert_eq!(server.weir("snapshot release x tank/a@m --json").json()["outcome"], "changed");
    let renamed = server.weir("snapshot rename tank/a@m tank/a@n --json").json();
    assert_eq!(renamed["snapshots"][0]["name"], "tank/a@n");
    let back = server.weir("snapshot rollback tank/a@n --yes --json").json();
    assert_eq!(back["volume"]["name"], "tank/a");
    let clone = server.weir("snapshot clone tank/a@n tank/c --json").json();
    assert_eq!(
        (&clone["outcome"], &clone["volume"]["origin"]),
        (&"created".into(), &"tank/a@n".into())
    );
    assert_eq!(server.weir("volume promote tank/c --json").json()["outcome"], "changed");
    let renamed = server.weir("volume rename tank/c tank/d --json").json();
    assert_eq!(renamed["volume"]["name"], "tank/d");
    let copied = server.weir("volume copy tank/d tank/twin --json").json();
    assert_eq!(copied["volume"]["name"], "tank/twin");
    let space = server.weir("volume list -o space --json").json();
    assert_eq!(space["volumes"][0]["space"]["by_snapshots_bytes"], 2 << 20);
    let plan = server.weir("snapshot destroy -n tank/a@n --json").json();
    assert_eq!((&plan["outcome"], &plan["freed_bytes"]), (&"unchanged".into(), &(1 << 20).into()));
    assert_eq!(server.weir("snapshot destroy tank/a@n --yes --json").json()["outcome"], "removed");
    let set = server.weir("schedule set tank daily=7 --json").json();
    assert_eq!(
        (&set["outcome"], &set["schedule"]["keep"]["daily"]),
        (&"created".into(), &7.into())
    );
    assert_eq!(server.weir("schedule list --json").json()["schedules"][0]["name"], "tank");
    assert_eq!(server.weir("schedule clear tank --json").json()["outcome"], "removed");
    assert_eq!(server.weir("volume destroy tank/a --yes --json").json()["name"], "tank/a");
    assert_eq!(server.weir("server show --json").json()["io_backend"], "io_uring");
    assert_eq!(server.weir("pool export tank --json").json()["outcome"], "removed");
    assert_eq!(server.weir("pool import --json").json()["pools"][0]["name"], "tank");
    assert_eq!(server.weir("pool import tank --json").json()["outcome"], "changed");
    assert_eq!(server.weir("pool destroy tank --yes --json").json()["outcome"], "removed");
    assert_eq!(server.weir("pool list --json").json()["pools"], Value::Array(vec![]));
}

#[test]
fn errors_print_json_too() {
    let server = Server::start();
    let ran = server.weir("volume show tank/none --json");
    assert_eq!((ran.code, ran.out.as_str()), (Some(4), ""));
    let error: Value = serde_json::from_str(&ran.talk).unwrap();
    assert_eq!(
        (&error["schema_version"], &error["error"]["kind"]),
        (&1.into(), &"not_found".into())
    );
    assert!(error["error"]["action"].as_str().is_some_and(|action| !action.is_empty()));
}

#[test]
fn exit_code_gives_the_error_kind() {
    let server = Server::with_export();
    for (line, code, part) in [
        ("pool status none", 4, "no pool none"),
        ("pool create tank /x", 5, "tank already"),
        ("pool create other /a", 6, "/a is in use"),
        ("pool destroy tank --yes", 6, "exported"),
        ("pool export tank", 6, "exported"),
        ("pool import none", 4, "none"),
        ("volume create none/a --size 1G", 4, "no pool none"),
        ("volume create tank/vm1 --size 1G", 5, "already"),
        ("volume list none", 4, "none"),
        ("volume show tank/none", 4, "tank/none"),
        ("volume set compression=off tank/none", 4, "tank/none"),
        ("volume resize tank/vm1 --size 4096", 6, "holds data"),
        ("volume destroy tank/vm1 --yes", 6, "exported"),
        ("volume destroy tank/none --yes", 4, "tank/none"),
        ("export create nbd tank/none", 4, "tank/none"),
        ("export create nbd tank/vm1 --read-only", 5, "already"),
        ("export delete none", 4, "none"),
        ("pool status stuck --timeout 1", 9, "within 1 s"),
        ("pool status broken", 13, "inside the server"),
        ("pool list --api unix:/nowhere/api.sock", 9, "unix:/nowhere/api.sock"),
        ("--api unix:/nowhere/api.sock pool list", 9, "weir serve"),
    ] {
        server.weir(line).fails(code, part);
    }
    server.weir("pool export tank --force").ok();
}

/// No server runs here, so a value that is refused only by the server would cause another error.
#[test]
fn invalid_values_are_refused_before_any_call() {
    for (line, part) in [
        ("pool create 1tank /a", "'1'"),
        ("pool create ta@nk /a", "'@'"),
        ("pool create mirror /a /b", "word of the pool layout"),
        ("pool create tank mirror /a", "at least two disks"),
        ("pool create tank /a /a", "twice"),
        ("pool create tank mirror /a /./a", "first as"),
        ("pool create tank x ./x", "twice"),
        ("pool create tank /a mirror /b /c", "mismatched replication level"),
        ("pool create tank mirror /a /b mirror /c /d /e", "mismatched replication level"),
        ("pool create tank raidz1 /a", "at least two disks"),
        ("pool create tank raidz2 /a /b", "at least three disks"),
        ("pool create tank raidz3 /a /b /c", "at least four disks"),
        ("pool create tank raidz1 /a /b /./a", "first as"),
        ("pool create tank raidz1 /a /b raidz2 /c /d /e", "mismatched replication level"),
        ("pool create tank raidz4 /a /b /c", "no raidz4 vdevs"),
        ("pool create tank mirror /a /b special /c", "no special vdevs"),
        ("pool create -o compression tank /a", "'='"),
        ("pool create -o a=1 -o a=2 tank /a", "twice"),
        ("pool destroy t@nk --yes", "'@'"),
        ("pool export t@nk", "'@'"),
        ("pool import 12x", "'1'"),
        ("volume create tank --size 1G", "tank/vm1"),
        ("volume create tank/a/b --size 1G", "'/'"),
        ("volume create tank/a --size 10GG", "10GG"),
        ("volume create tank/a --size 0", "cannot be empty"),
        ("volume create tank/a --size -1", "negative"),
        ("volume create tank/a --size 5000", "it has no unit"),
        ("volume create tank/a --size 17TiB", "16TiB"),
        ("volume create tank/a --size 1100000 -b 64KiB", "1114112"),
        ("volume create tank/a --size 1G -b 5000", "4KiB to 1MiB"),
        ("volume create tank/a --size 1G -o compression=zip", "lz4, auto, off"),
        ("volume create tank/a --size 1G -o dedup=on", "dedup"),
        ("volume set size=1 tank/a", "size"),
        ("volume resize tank/a --size 1", "would be 1 byte"),
        ("volume rename tank/a other/a", "same pool"),
        ("volume copy tank/a@m other/a", "same pool"),
        ("volume create tank/a --size 1G -o dedupe=yes", "on, off"),
        ("volume promote tank", "tank/vm1"),
        ("snapshot create tank/a", "tank/vm1@monday"),
        ("snapshot create tank/a@b@c", "'@'"),
        ("snapshot create tank/a@m other/b@m", "same pool"),
        ("snapshot create tank/a@m tank/a@n", "twice"),
        ("snapshot create -r tank/a@m", "a snapshot of one volume"),
        ("snapshot list ta@nk", "bad volume name"),
        ("snapshot destroy tank/a@m%n%o", "one '%'"),
        ("snapshot hold b@d tank/a@m", "'@'"),
        ("snapshot rename tank/a@m tank/b@m", "same volume"),
        ("snapshot clone tank/a@m other/b", "same pool"),
        ("schedule set tank/a minutely=5", "frequently"),
        ("schedule set tank/a@m hourly=5", "'@'"),
        ("schedule clear t@nk", "'@'"),
        ("export create iscsi tank/a", "iSCSI"),
        ("export create nbd tank", "tank/vm1"),
        ("export create nbd tank/a --name a//b", "empty"),
        ("export delete ../a", "'.'"),
        ("pool list --api host:port", "host:port"),
        ("serve --memory 10GG", "10GG"),
        ("serve --api 127.0.0.1:1 --nbd 127.0.0.1:1", "twice"),
    ] {
        let api = if line.contains("--api") { "" } else { " --api unix:/nowhere" };
        let api = if line.starts_with("serve") { "" } else { api };
        alone(&format!("{line}{api}")).fails(3, part);
    }
    let server = Server::start();
    server.weir("pool create --force tank /a mirror /b /c").ok();
}

#[test]
fn invalid_environment_variables_are_reported() {
    let mut command = weir("pool list");
    command.env("WEIR_API", "https://host");
    Ran::of("pool list", &command.output().unwrap()).fails(3, "--ca FILE");
}

const VERBS: [&str; 39] = [
    "",
    "serve",
    "pool",
    "pool create",
    "pool list",
    "pool status",
    "pool destroy",
    "pool import",
    "pool export",
    "volume",
    "volume create",
    "volume list",
    "volume show",
    "volume set",
    "volume resize",
    "volume rename",
    "volume copy",
    "volume promote",
    "volume destroy",
    "snapshot",
    "snapshot create",
    "snapshot list",
    "snapshot destroy",
    "snapshot hold",
    "snapshot release",
    "snapshot holds",
    "snapshot rename",
    "snapshot rollback",
    "snapshot clone",
    "schedule",
    "schedule set",
    "schedule list",
    "schedule clear",
    "export",
    "export create",
    "export list",
    "export delete",
    "server show",
    "completions",
];

#[test]
fn every_verb_has_help_and_refuses_unknown_flags() {
    for verb in VERBS {
        let help = alone(&format!("{verb} --help")).ok();
        assert!(help.out.contains("Usage: weir"), "weir {verb} --help: {}", help.out);
        assert_eq!(help.talk, "", "weir {verb} --help");
        let first = help.out.lines().next().unwrap_or_default();
        assert!(
            !first.is_empty() && !first.starts_with("Usage"),
            "weir {verb} --help does not say what it does: {first:?}"
        );
        let unknown = alone(&format!("{verb} --no-such-flag"));
        assert_eq!((unknown.code, unknown.out.as_str()), (Some(2), ""), "weir {verb}");
        assert!(unknown.talk.contains("--no-such-flag"), "weir {verb}: {}", unknown.talk);
        let takes_server = verb.contains(' ');
        assert_eq!(help.out.contains("--json"), takes_server || is_noun(verb), "weir {verb}");
    }
    for line in ["", "pool", "volume", "export", "server", "pool create", "volume set a=b"] {
        let ran = alone(line);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "weir {line}");
        assert!(ran.talk.contains("Usage: weir"), "weir {line}: {}", ran.talk);
    }
    alone("help").ok();
    assert_eq!(alone("--version").ok().out, concat!("weir ", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(alone("--json serve").code, Some(2));
    assert!(alone("completions bash").ok().out.contains("complete"));
}

fn is_noun(verb: &str) -> bool {
    ["", "pool", "volume", "snapshot", "schedule", "export"].contains(&verb)
}

#[test]
fn closed_pipe_causes_no_panic() {
    let server = Server::start();
    for index in 0..200 {
        // The names are long, so that the output does not fit in one pipe buffer.
        let name = format!("p{index}{}", "x".repeat(180));
        server.weir(&format!("pool create {name} /disk{index}")).ok();
    }
    let mut child = weir("pool status --json")
        .env("WEIR_API", format!("unix:{}", server.socket().display()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let output = child.wait_with_output().unwrap();
    let ran = Ran::of("pool status --json", &output).ok();
    assert_eq!(ran.talk, "");
}
