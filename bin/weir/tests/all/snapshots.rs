//! Snapshots, clones and schedules of the real program, with standard clients and SIGKILL.
//!
//! Not here: the model test of snapshots (weir-dataset), crashes at every step (weir-sim).
//!
//! Invariants:
//! - the contents of a snapshot are compared byte for byte with the data that was written before
//!   it;
//! - every refusal states its cause;
//! - the pool is verified at the end of the test.

use std::fs;
use std::time::Duration;

use crate::common::nbd::EPERM;
use crate::common::{Dirs, MIB, Ran, Server, WEIR, code, eventually, tool};
use serde_json::Value;

const DISK: u64 = 512 * MIB;

fn served(dirs: &Dirs) -> Server {
    for name in ["a", "b"] {
        dirs.disk(name, DISK);
    }
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "64MiB");
    server
}

/// Runs commands of qemu-io on an export. If a command reads other data than its pattern, the test
/// fails.
#[track_caller]
fn io(server: &Server, export: &str, commands: &[&str]) {
    let uri = server.uri(export);
    let mut words = vec!["-f", "raw"];
    if commands.iter().all(|command| command.starts_with("read")) {
        words.push("-r");
    }
    words.extend(commands.iter().flat_map(|command| ["-c", *command]));
    words.push(&uri);
    let out = tool("qemu-io", &words);
    assert!(!out.contains("failed") && !out.contains("rror"), "{export}: {out}");
}

fn copy(server: &Server, dirs: &Dirs, export: &str, to: &str) -> Vec<u8> {
    let to = dirs.file(to);
    tool("nbdcopy", &[&server.uri(export), to.to_str().unwrap()]);
    fs::read(to).unwrap()
}

fn names(server: &Server, of: &str) -> Vec<String> {
    let list = server.weir(&format!("snapshot list {of} --json")).json();
    let all = list["snapshots"].as_array().unwrap();
    all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

/// Asserts that the used space of all volumes adds up to the used space of the pool.
fn sums_agree(server: &Server) {
    eventually("all space is accounted for", Duration::from_secs(40), || {
        let status = server.status("tank");
        let of = |field: &str| number(&status["allocated"][field]);
        let volumes = server.weir("volume list -o space tank --json").json();
        let space = |field: &str| -> u64 {
            let all = volumes["volumes"].as_array().unwrap().iter();
            all.map(|volume| number(&volume["space"][field])).sum()
        };
        let parts = of("volumes_bytes") + of("snapshots_bytes");
        let whole = parts + of("freeing_bytes") + of("pool_bytes");
        assert_eq!(space("used_bytes"), space("by_volume_bytes") + space("by_snapshots_bytes"));
        // The parts add up to the whole, except for the metadata of the pool, which is small.
        parts == space("used_bytes")
            && whole == number(&status["allocated_bytes"])
            && of("freeing_bytes") == 0
            && of("pool_bytes") < 4 * MIB
    });
}

fn verified(dirs: &Dirs, server: Server) {
    server.stop_clean();
    let place = dirs.file("").display().to_string();
    let words = ["check", "tank", "-d", &place];
    Ran::of("check tank", &crate::common::run(WEIR, &words)).ok();
}

#[test]
fn snapshots_survive_overwrites_kills_clones_and_rollback() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    io(&server, "tank/v", &["write -P 0x11 0 16M", "write -P 0x12 40M 1M", "flush"]);
    server.weir("snapshot create tank/v@monday").ok();
    let monday = copy(&server, &dirs, "tank/v", "monday");
    io(&server, "tank/v", &["write -P 0x21 4M 8M", "discard 40M 1M", "flush"]);
    server.weir("snapshot create tank/v@tuesday").ok();
    io(&server, "tank/v", &["write -P 0x31 0 2M", "flush"]);
    let uri = server.weir("export create nbd tank/v@monday").ok().out;
    assert!(uri.contains("tank/v@monday"), "{uri}");
    assert!(tool("nbdinfo", &[&server.uri("tank/v@monday")]).contains("is_read_only: true"));
    assert_eq!(server.client("tank/v@monday").write(0, &[7; 4096]), Err(EPERM));
    server.weir("snapshot clone tank/v@monday tank/c").ok();
    server.weir("export create nbd tank/c").ok();
    io(&server, "tank/c", &["write -P 0x41 12M 8M", "flush"]);
    server.kill();

    server = dirs.start();
    assert!(copy(&server, &dirs, "tank/v@monday", "again") == monday, "the snapshot changed");
    let clone = ["read -P 0x11 0 12M", "read -P 0x41 12M 8M", "read -P 0x12 40M 1M"];
    io(&server, "tank/c", &clone);
    let changed = ["read -P 0x31 0 2M", "read -P 0x21 4M 8M", "read -P 0 40M 1M"];
    io(&server, "tank/v", &changed);
    let shown = server.weir("volume show tank/c --json").json();
    assert_eq!(shown["origin"], "tank/v@monday");
    assert!(server.weir("volume list").ok().out.contains("tank/v@monday"));
    sums_agree(&server);

    server.weir("volume promote tank/c").ok();
    assert_eq!(names(&server, "tank/c"), ["tank/c@monday"]);
    assert_eq!(names(&server, "tank/v"), ["tank/v@tuesday"]);
    let exports = server.weir("export list").ok().out;
    assert!(exports.contains("tank/c@monday"), "the export follows: {exports}");
    server.kill();

    server = dirs.start();
    // The snapshot was renamed, but its export has kept its name.
    assert!(copy(&server, &dirs, "tank/v@monday", "again") == monday, "after the promotion");
    server.weir("export delete tank/v").ok();
    server.weir("snapshot rollback tank/v@tuesday --yes").ok();
    server.weir("export create nbd tank/v").ok();
    io(&server, "tank/v", &["read -P 0x11 0 4M", "read -P 0x21 4M 8M", "read -P 0x11 12M 4M"]);
    server.kill();

    server = dirs.start();
    io(&server, "tank/v", &["read -P 0x11 0 4M", "read -P 0x21 4M 8M", "read -P 0x11 12M 4M"]);
    server.weir("export delete tank/v").ok();
    server.weir("volume destroy tank/v -r --yes").ok();
    io(&server, "tank/c", &clone);
    server.weir("volume rename tank/c tank/web").ok();
    io(&server, "tank/c", &clone);
    server.kill();
    server = dirs.start();
    io(&server, "tank/c", &clone);
    assert_eq!(names(&server, "tank"), ["tank/web@monday"]);
    sums_agree(&server);
    let history = server.weir("pool history tank").ok().out;
    for call in ["snapshot create tank/v@monday", "volume promote tank/c", "snapshot rollback"] {
        assert!(history.contains(call), "{call} is missing:\n{history}");
    }
    server.assert_alive();
    verified(&dirs, server);
}

#[test]
fn dry_run_of_a_range_predicts_the_freed_space() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    for (pattern, name) in (1..).zip(["a", "b", "c", "d", "e"]) {
        io(&server, "tank/v", &[&format!("write -P {pattern} 0 4M"), "flush"]);
        server.weir(&format!("snapshot create tank/v@{name}")).ok();
    }
    server.weir("volume create tank/w --size 8MiB").ok();
    server.weir("snapshot create -r tank@all").ok();
    assert_eq!(names(&server, "tank/w"), ["tank/w@all"]);
    let used = |server: &Server| {
        number(&server.weir("volume show tank/v --json").json()["space"]["used_bytes"])
    };
    let before = used(&server);
    let plan = server.weir("snapshot destroy tank/v@b%d -n --json").json();
    assert_eq!(plan["names"], serde_json::json!(["tank/v@b", "tank/v@c", "tank/v@d"]));
    assert_eq!((used(&server), names(&server, "tank/v").len()), (before, 6), "-n changed it");
    let done = server.weir("snapshot destroy tank/v@b%d --yes --json").json();
    assert_eq!(done["freed_bytes"], plan["freed_bytes"]);
    eventually("the space comes back", Duration::from_secs(40), || {
        used(&server) == before - number(&done["freed_bytes"])
    });
    assert_eq!(names(&server, "tank/v"), ["tank/v@a", "tank/v@e", "tank/v@all"]);
    let list = server.weir("snapshot list tank/v").ok().out;
    assert!(list.starts_with("NAME") && list.lines().count() == 4, "{list}");
    let columns = server.weir("volume list -o space").ok().out;
    assert!(columns.contains("USEDSNAP") && columns.contains("tank/v"), "{columns}");
    server.weir("snapshot rename tank/v@e tank/v@good").ok();
    server.weir("snapshot destroy tank/v@a,all tank/w@% --yes").ok();
    assert_eq!(names(&server, "tank"), ["tank/v@good"]);
    sums_agree(&server);
    server.assert_alive();
    verified(&dirs, server);
}

#[test]
fn refusals_name_their_cause() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    io(&server, "tank/v", &["write -P 1 0 1M", "flush"]);
    server.weir("snapshot create tank/v@a").ok();
    server.weir("snapshot create tank/v@b").ok();
    server.weir("snapshot hold backup tank/v@a").ok();
    assert!(server.weir("snapshot holds tank").ok().out.contains("backup"));
    server.weir("snapshot clone tank/v@b tank/c").ok();
    server.weir("export create nbd tank/v@b --name shown").ok();
    server.weir("volume create tank/w --size 1MiB").ok();
    for (line, exit, parts) in [
        ("snapshot create tank/v@a", code::EXISTS, &["tank/v@a"][..]),
        ("snapshot create tank/none@a", code::NOT_FOUND, &["tank/none"]),
        ("snapshot create none/v@a", code::NOT_FOUND, &["none"]),
        ("snapshot create tank/w@x tank/none@x", code::NOT_FOUND, &["tank/none"]),
        ("snapshot destroy tank/v@a --yes", code::BUSY, &["held by backup", "release backup"]),
        ("snapshot destroy tank/v@a -n", code::BUSY, &["held by backup"]),
        ("snapshot destroy tank/v@b --yes", code::BUSY, &["exported as shown"]),
        ("snapshot destroy tank/v@none --yes", code::NOT_FOUND, &["tank/v@none"]),
        ("snapshot destroy tank/v@b%a --yes", code::NOT_FOUND, &["b%a", "newer"]),
        ("snapshot destroy tank/w@% --yes", code::NOT_FOUND, &["tank/w has no snapshot"]),
        ("snapshot release other tank/v@a", code::INVALID, &["no tag \"other\""]),
        ("snapshot rename tank/v@a tank/v@b", code::EXISTS, &["tank/v@b"]),
        ("snapshot rename tank/v@none tank/v@c", code::NOT_FOUND, &["tank/v@none"]),
        ("snapshot rollback tank/v@a --yes", code::BUSY, &["exported as tank/v"]),
        ("snapshot clone tank/v@none tank/x", code::NOT_FOUND, &["tank/v@none"]),
        ("snapshot clone tank/v@a tank/w", code::EXISTS, &["tank/w"]),
        ("snapshot list tank/v@none", code::NOT_FOUND, &["tank/v@none"]),
        ("volume promote tank/w", code::INVALID, &["not a clone"]),
        ("volume rename tank/c tank/w", code::EXISTS, &["tank/w"]),
        ("volume rename tank/none tank/x", code::NOT_FOUND, &["tank/none"]),
        ("volume destroy tank/v -r --yes", code::BUSY, &["exported as tank/v, shown"]),
        ("export create nbd tank/v@none", code::NOT_FOUND, &["tank/v@none"]),
        ("pool export tank", code::BUSY, &["shown"]),
        ("schedule set tank/none hourly=1", code::NOT_FOUND, &["tank/none"]),
        ("schedule clear tank/v", code::NOT_FOUND, &["tank/v"]),
    ] {
        server.weir(line).fails(exit, &[parts, &["weir: "]].concat());
    }
    assert_eq!(names(&server, "tank"), ["tank/v@a", "tank/v@b"], "all or none was taken");
    server.weir("export delete tank/v").ok();
    server.weir("snapshot rollback tank/v@a --yes").fails(code::BUSY, &["newer", "-r"]);
    server.weir("snapshot rollback tank/v@a -r --yes").fails(code::BUSY, &["exported as shown"]);
    server.weir("volume destroy tank/v --yes").fails(code::BUSY, &["exported as shown"]);
    server.weir("export delete shown").ok();
    server.weir("snapshot rollback tank/v@a -r --yes").fails(code::BUSY, &["tank/c"]);
    server.weir("snapshot destroy tank/v@b --yes").fails(code::BUSY, &["tank/c", "promote"]);
    server.weir("volume destroy tank/v --yes").fails(code::BUSY, &["tank/c"]);
    server.weir("volume destroy tank/c --yes").ok();
    server.weir("volume destroy tank/v --yes").fails(code::BUSY, &["2 snapshots", "-r"]);
    server.weir("snapshot rollback tank/v@a -r --yes").ok();
    server.weir("volume destroy tank/v -r --yes").fails(code::BUSY, &["held by backup"]);
    server.weir("snapshot release backup tank/v@a").ok();
    server.weir("volume destroy tank/v -r --yes").ok();
    server.assert_alive();
    verified(&dirs, server);
}

#[test]
fn schedules_take_snapshots_immediately_and_persist() {
    let dirs = Dirs::new();
    let mut server = served(&dirs);
    server.weir("volume create tank/w --size 8MiB").ok();
    server.weir("snapshot create tank/v@mine").ok();
    for old in ["auto-hourly-2020-01-01-0000", "auto-hourly-2020-01-01-0100"] {
        server.weir(&format!("snapshot create tank/v@{old}")).ok();
    }
    server.weir("schedule set tank hourly=1,daily=7").ok();
    let wait = |what: &str, server: &Server, wanted: &dyn Fn(&[String]) -> bool| {
        eventually(what, Duration::from_secs(20), || wanted(&names(server, "tank")));
    };
    let count = |all: &[String], part: &str| all.iter().filter(|n| n.contains(part)).count();
    wait("one of each volume and sort", &server, &|all| {
        count(all, "tank/w@auto-hourly-") == 1
            && count(all, "tank/w@auto-daily-") == 1
            && count(all, "tank/v@auto-daily-") == 1
            && count(all, "tank/v@auto-hourly-") == 3
    });
    // A user's snapshot does not belong to the schedule, even if its name looks like a schedule's.
    let all = names(&server, "tank/v");
    assert_eq!((count(&all, "@mine"), count(&all, "@auto-hourly-2020-01-01")), (1, 2), "{all:?}");
    let of_schedule = |server: &Server, of: &str| {
        let list = server.weir(&format!("snapshot list {of} --json")).json();
        let all = list["snapshots"].as_array().unwrap().clone();
        let taken = all.into_iter().filter(|one| one["taken_by"] == "schedule");
        taken.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // If the count is 0, the schedule destroys all snapshots that it took, except a held one.
    let held = of_schedule(&server, "tank/v").into_iter().find(|n| n.contains("hourly")).unwrap();
    server.weir(&format!("snapshot hold keep {held}")).ok();
    server.weir("schedule set tank hourly=0,daily=7").ok();
    wait("the ones of the schedule go", &server, &|all| {
        count(all, "tank/w@auto-hourly-") == 0 && count(all, "tank/v@auto-hourly-") == 3
    });
    // The server adds the event after it has made the change, so wait for it.
    for part in [
        "taken by schedule",
        "destroyed by schedule",
        "kept beyond its schedule",
        "snapshots that its schedule did not take",
    ] {
        eventually(part, Duration::from_secs(20), || server.weir("events").ok().out.contains(part));
    }
    server.weir(&format!("snapshot release keep {held}")).ok();
    server.weir("schedule set tank hourly=1,daily=7").ok();
    let again = server.weir("schedule set tank hourly=1,daily=7").ok();
    assert!(again.talk.contains("nothing changed"), "{}", again.talk);
    server.weir("schedule set tank/w monthly=2").ok();
    server.weir("volume rename tank/w tank/web").ok();
    wait("its own schedule, by its new name", &server, &|all| {
        count(all, "tank/web@auto-monthly-") == 1
    });
    let before = names(&server, "tank");
    server.kill();
    server = dirs.start();
    let listed = server.weir("schedule list").ok().out;
    for part in ["tank", "hourly=1,daily=7", "tank/web", "monthly=2"] {
        assert!(listed.contains(part), "{part} is missing:\n{listed}");
    }
    std::thread::sleep(Duration::from_secs(3));
    let after = names(&server, "tank");
    // If a new hour began meanwhile, the schedule has taken one snapshot and destroyed another.
    assert_eq!(after.len(), before.len(), "{before:?} {after:?}");
    server.weir("schedule clear tank").ok();
    server.weir("schedule clear tank/web").ok();
    assert!(server.weir("schedule list").ok().talk.contains("no schedules"));
    server.assert_alive();
    verified(&dirs, server);
}
