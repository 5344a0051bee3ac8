//! Messages of the command line as a new user sees them: each refusal with its cause and the next
//! command to type.
//!
//! Not here: the effects of the verbs (each verb has its own test file).
//!
//! Invariant: the tests contain the texts of the messages, so a change of a text is reviewed here.

use std::time::Duration;

use crate::common::iscsi::Initiator;
use crate::common::{Dirs, GIB, Ran, Server, WEIR, code, eventually, run};

/// Starts a server with pool `tank` on disk `a`.
fn started(dirs: &Dirs) -> Server {
    dirs.disk("a", GIB);
    dirs.disk("b", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server
}

#[test]
fn decimal_sizes_are_rounded_up_and_shown_in_both_forms() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    let said = server.weir("volume create tank/g --size 10GiB").ok();
    assert!(said.talk.contains("volume tank/g created: 10GiB (10,737,418,240 bytes)"), "{said:?}");
    let said = server.weir("volume create tank/t --size 10GB").ok();
    assert!(said.talk.contains("9.31GiB (10,000,003,072 bytes)"), "{said:?}");
    let said = server.weir("volume resize tank/g --size +1GiB").ok();
    assert!(said.talk.contains("11GiB (11,811,160,064 bytes)"), "{said:?}");
    server
        .weir("volume create tank/g --size 1GiB")
        .fails(code::EXISTS, &["volume tank/g exists with size 11GiB, not 1GiB"]);
    // Sizes in the form in which `weir get` prints them are accepted.
    server.weir("set refreservation=201.58MiB tank/t").ok();
    let printed = server.weir("get refreservation tank/t").ok().out;
    assert!(printed.contains("201.58MiB"), "{printed}");
    server.weir("volume create tank/f --size 9.31GiB").ok();
    server.weir("set size=9.33GiB tank/f").ok();
}

// Regression: the server disconnected a client without warning the administrator, and the client
// read EIO.
#[test]
fn delete_of_an_export_with_clients_needs_force_or_drain() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.volume("tank/v", "16MiB");
    let client = server.client("tank/v");
    server.weir("export delete tank/v").fails(
        code::BUSY,
        &[
            "export tank/v has 1 connection from the unix socket",
            "try: weir export delete tank/v --drain waits until they disconnect, --force \
             disconnects them",
        ],
    );
    let mut drained = server.command(&["export", "delete", "tank/v", "--drain"]).spawn().unwrap();
    eventually("the client is waited for", Duration::from_secs(30), || {
        drained.try_wait().unwrap().is_none()
            && server.weir("export list").ok().out.contains("tank/v")
    });
    drop(client);
    assert!(drained.wait().unwrap().success());
    assert!(!server.weir("export list").ok().out.contains("tank/v"));
    server.weir("export create nbd tank/v").ok();
    let _client = server.client("tank/v");
    server.weir("export delete tank/v --force").ok();
    assert!(!server.weir("export list").ok().out.contains("tank/v"), "its client is cut off");
}

#[test]
fn initiators_are_named_before_a_target_or_unit_is_removed() {
    const CLIENT: &str = "iqn.2026-01.org.example:walker";
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let server = Server::start(&dirs, "", command);
    server.weir("pool create tank a").ok();
    server.weir("volume create tank/v --size 16MiB").ok();
    server.weir(&format!("target create vms --allow {CLIENT}")).ok();
    server.weir("lun add vms tank/v").ok();
    let target = "iqn.2026-01.org.weir:vms";
    let portals = server.weir("target show vms --json").json()["portals"].clone();
    let portal = portals[0].as_str().unwrap().split(',').next().unwrap();
    let _initiator = Initiator::log_in(portal, CLIENT, 1, target).unwrap().expect("a session");
    for (line, next) in [
        ("lun remove vms tank/v", format!("weir lun remove {target} 0 --drain")),
        ("lun remove vms 0", format!("weir lun remove {target} 0 --drain")),
        ("target delete vms", format!("weir target delete {target} --drain")),
    ] {
        let why = format!("{target} has 1 initiator logged in: {CLIENT}");
        server.weir(line).fails(code::BUSY, &[&why, &next, "--force does not wait"]);
    }
    server.weir("lun remove vms tank/none").fails(code::NOT_FOUND, &["has no LUN of tank/none"]);
    server.weir("lun remove vms tank/v --force").ok();
    server.weir("target delete vms --force").ok();
}

#[test]
fn size_is_the_second_word_or_an_option() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    let said = server.weir("volume create tank/a 10GB").ok();
    assert!(
        said.talk.contains("volume tank/a created: 9.31GiB (10,000,003,072 bytes)"),
        "{said:?}"
    );
    assert!(said.talk.contains("next: weir export create nbd tank/a"), "{said:?}");
    server.weir("volume create -V 1G tank/b").ok();
    server.weir("volume create tank/c -s 1G").ok();
    server.weir("volume create tank/c 1G --size 1G").fails(2, &["cannot be used with"]);
    let said = server.weir("volume resize tank/b +1GiB").ok();
    assert!(said.talk.contains("volume tank/b changed: 2GiB (2,147,483,648 bytes)"), "{said:?}");
}

#[test]
fn outcome_names_the_change() {
    let dirs = Dirs::new();
    dirs.disk("c", GIB);
    dirs.disk("d", GIB);
    let server = started(&dirs);
    server.weir("pool create safe mirror b c").ok();
    server.weir("volume create safe/v 16MiB").ok();
    server.weir("export create nbd safe/v").ok();
    for (line, text) in [
        ("pool import safe", "pool safe is imported already"),
        ("pool offline safe c", "c is offline; mirror-0 has no redundancy left"),
        ("pool offline safe c", "c is offline already"),
        ("pool online safe c", "c is online"),
        ("pool attach safe b d --wait", "resilvered"),
        ("pool offline safe d", "d is offline; mirror-0 survives the loss of 1 more disk"),
        ("pool online safe d --wait", ""),
        ("pool detach safe d", "d is detached from pool safe"),
        ("pool clear safe", "the errors of pool safe are cleared"),
        ("pool expand safe", "pool safe uses the full size of its disks already"),
        ("pool add tank d", "pool tank has new vdevs; its size is "),
        ("volume rename safe/v safe/w", "safe/v is now safe/w; its export is still called safe/v"),
        ("snapshot create safe/w@a", "snapshot safe/w@a created"),
        ("snapshot hold keep safe/w@a", "snapshot safe/w@a is held by keep"),
        ("snapshot hold keep safe/w@a", "snapshot safe/w@a is held by keep already"),
        ("snapshot release keep safe/w@a", "hold keep of snapshot safe/w@a is released"),
        ("snapshot rename safe/w@a safe/w@b", "safe/w@a is now safe/w@b"),
        ("snapshot clone safe/w@b safe/x", "volume safe/x created, a clone of safe/w@b"),
        ("volume copy safe/w safe/y", "volume safe/y created, a copy of safe/w"),
        ("volume promote safe/x", "volume safe/x is promoted"),
        ("pool scrub tank --wait", "scrub repaired"),
    ] {
        let said = server.weir(line).ok();
        assert!(said.talk.contains(text), "{line}: {said:?}");
    }
}

#[test]
fn events_and_history_are_filtered_and_survive_a_restart() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.weir("volume create tank/v 16MiB").ok();
    server.weir("pool create other b").ok();
    server.weir("volume create other/v 16MiB").ok();
    server.weir("pool destroy other --yes").ok();
    let lines = |server: &Server, line: &str| server.weir(line).ok().out.lines().count();
    assert_eq!(lines(&server, "events --pool other"), 3);
    assert_eq!(lines(&server, "events -n 1"), 1);
    assert_eq!(lines(&server, "events --level error"), 0);
    let last = server.weir("pool history -n 1").ok().out;
    assert!(last.contains("pool destroy other") && last.contains("WHO"), "{last}");
    assert_eq!(last.lines().count(), 2, "{last}");
    let all = server.weir("pool history").ok().out;
    assert!(all.contains("volume create tank/v") && all.contains("volume create other/v"), "{all}");
    let before = server.weir("events").ok().out;
    server.stop_clean();
    let server = dirs.start();
    let after = server.weir("events").ok().out;
    assert!(after.starts_with(&before), "{before}\n{after}");
    assert_eq!(lines(&server, "events --pool other --since 1h"), 3);
}

#[test]
fn iostat_shows_the_99th_percentile() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    let shown = server.weir("pool iostat tank 1 2").ok().out;
    let header = shown.lines().next().unwrap();
    let titles: Vec<&str> = header.split_whitespace().collect();
    assert_eq!(titles.iter().filter(|title| **title == "p99").count(), 4, "{shown}");
    assert_eq!(shown.matches("READ op/s").count(), 1, "one header: {shown}");
    let json = server.weir("pool status tank --json").json();
    assert!(json["vdevs"][0]["disks"][0]["io"]["write"]["recent_p99_us"].is_u64(), "{json}");
}

#[test]
fn vdev_removal_needs_confirmation() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.weir("pool add tank b").ok();
    server.weir("pool remove tank b").fails(
        code::INVALID,
        &["b is not removed from pool tank", "try: confirm at a terminal, or add --yes"],
    );
    assert_eq!(server.status("tank")["vdevs"].as_array().unwrap().len(), 2);
    let said = server.weir("pool remove --yes tank b").ok();
    let text = &said.talk;
    let is_told = text.contains("undo: weir pool remove --stop tank disk-1");
    assert!(is_told || text.contains("b was removed from pool tank"), "{said:?}");
}

// Regression: when an administrator destroyed a pool, the log said "pool suspended" and "repair the
// disks".
#[test]
fn destroy_logs_no_error() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.weir("pool destroy tank --yes").ok();
    server.weir("pool list").ok();
    let log = server.talk();
    assert!(log.contains("pool destroyed"), "{log}");
    assert!(!log.contains("ERROR") && !log.contains("suspended"), "{log}");
}

#[test]
fn status_list_and_version_give_an_overview() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.volume("tank/v", "16MiB");
    let status = server.weir("status").ok().out;
    assert!(status.starts_with("pool tank is online, "), "{status}");
    let list = server.weir("list -H").ok().out;
    let kinds: Vec<&str> = list.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(kinds, ["pool", "volume", "export"], "{list}");
    let version = server.weir("version").ok().out;
    let number = env!("CARGO_PKG_VERSION");
    assert_eq!(version.matches(number).count(), 2, "{version}");
    assert_eq!(server.weir("list --json").json()["volumes"][0]["name"], "tank/v");
    let alone = run(WEIR, &["version", "--api", "unix:/nonexistent/api.sock"]);
    let alone = Ran::of("version", &alone);
    assert!(alone.code == Some(0) && alone.out.contains(number), "{alone:?}");
}

/// Command lines that a new user might type, each with the exit code, a text in the error, and the
/// recommended command.
const WALKS: &[(&str, i32, &str, &str)] = &[
    (
        "pool create p mirrors a b",
        code::NOT_FOUND,
        "no disk is called mirrors",
        "try: weir pool create p mirror a b",
    ),
    (
        "pool create p miror a b",
        code::NOT_FOUND,
        "no disk is called miror",
        "try: weir pool create p mirror a b",
    ),
    (
        "pool create p mirror b",
        code::INVALID,
        "a mirror needs at least two disks; one was given",
        "",
    ),
    (
        "pool create p raidz2 a b",
        code::INVALID,
        "raidz2 needs at least three disks",
        "2 were given",
    ),
    (
        "pool create p /dev/absent",
        code::NOT_FOUND,
        "/dev/absent: open failed: No such file",
        "try: lsblk -o NAME,SIZE,SERIAL,MOUNTPOINTS lists the disks",
    ),
    (
        "pool create p absent.img",
        code::NOT_FOUND,
        "absent.img: open failed: No such file",
        "to create a file: truncate -s 10G /",
    ),
    ("pool create p a", code::BUSY, "/a is a disk of pool tank", "try: weir pool status tank"),
    ("pool add tank a", code::BUSY, "/a is a disk of pool tank", "try: weir pool status tank"),
    ("pool status none", code::NOT_FOUND, "none", "try: weir pool list"),
    ("volume show tank/none", code::NOT_FOUND, "tank/none", "try: weir volume list"),
    ("export create iscsi tank/v", code::INVALID, "iSCSI shows volumes at targets", "weir lun add"),
    ("export create nfs tank/v", code::INVALID, "nfs is not in this version", "create nbd tank/v"),
    (
        "export create nbdd tank/v",
        code::INVALID,
        "nbdd is not an export protocol",
        "export create nbd tank/v",
    ),
    ("export delete none", code::NOT_FOUND, "none", "try: weir export list"),
    ("target show none", code::NOT_FOUND, "none", "try: weir target list"),
    ("snapshot rollback tank/v@none --yes", code::NOT_FOUND, "none", "try: weir snapshot list"),
    (
        "snapshot rollback tank/v@a",
        code::INVALID,
        "not rolled back to tank/v@a",
        "try: confirm at a terminal, or add --yes if these changes may be lost",
    ),
    ("volume destroy tank/v", code::INVALID, "volume tank/v is not destroyed", "add --yes"),
    ("pool destroy tank", code::INVALID, "pool tank is not destroyed", "add --yes"),
    (
        "set compression=lz4",
        code::INVALID,
        "no pool, volume or snapshot is given",
        "try: name a pool, volume",
    ),
    (
        "target create iqn.2026-13.org.example:x",
        code::INVALID,
        "bad iSCSI name \"iqn.2026-13.org.example:x\"",
        "write one such as iqn.2026-01.org.weir:vms",
    ),
    ("volume create tank/x --size ten", code::INVALID, "does not start with a number", "10GiB"),
    (
        "volume create 10G tank/x",
        code::INVALID,
        "\"10G\" is no volume: the name of the volume comes before its size",
        "try: weir volume create tank/x 10G",
    ),
    (
        "volume create tank/v 32MiB",
        code::EXISTS,
        "volume tank/v exists with size 16MiB, not 32MiB",
        "try: weir volume resize tank/v 32MiB",
    ),
    ("volume create tank/x", 2, "<SIZE", "try: weir volume create tank/x 10GiB"),
    (
        "create volume tank/x",
        2,
        "weir has no command \"create\"",
        "weir volume create tank/x 10GiB",
    ),
    ("list volumes", 2, "unexpected argument 'volumes'", "try: weir volume list"),
    ("volumes", 2, "weir has no command \"volumes\"", "try: weir volume list"),
    ("snapshot tank/v@a", 2, "weir snapshot has no command", "try: weir snapshot create tank/v@a"),
    ("volume delete tank/v", 2, "volume has no command", "try: weir volume destroy tank/v"),
    ("stat tank", 2, "weir has no command \"stat\"", "try: weir pool iostat tank"),
    ("pool stats tank", 2, "weir pool has no command \"stats\"", "try: weir pool status tank"),
    (
        "pool list -o used",
        2,
        "no column \"used\"; columns: name, size, alloc, free, cap, health",
        "try: weir pool list -o alloc",
    ),
    (
        "snapshot list tank/v -o name,usde -H",
        2,
        "no column \"usde\"; columns: name, used",
        "try: weir snapshot list tank/v -o name,used -H",
    ),
    ("snapshot list -s foo", 2, "no column \"foo\"", "try: weir snapshot list -o help"),
    ("pool list -o foo -s used", 2, "no column \"foo\"", "try: weir pool list -o help"),
];

#[test]
fn wrong_word_is_refused_with_the_right_command() {
    let dirs = Dirs::new();
    let server = started(&dirs);
    server.volume("tank/v", "16MiB");
    server.weir("snapshot create tank/v@a").ok();
    for (line, exit, words, next) in WALKS {
        server.weir(line).fails(*exit, &["weir: ", words, next]);
    }
    // Refused calls cause events, but no warnings.
    let warnings = server.weir("events --level warning").ok().out;
    assert!(!warnings.contains(", by "), "{warnings}");
    let events = server.weir("events").ok().out;
    assert!(events.contains("invalid, by ") || events.contains("not_found, by "), "{events}");
    // For this error the general advice for invalid requests is left out.
    let said = server.weir("volume create tank/x --size 1000");
    assert!(!said.talk.contains("correct the request"), "{said:?}");
    server.weir("set tank/v compression=zstd").ok();
    assert_eq!(server.weir("get compression tank/v -H").ok().out.matches("zstd").count(), 1);
    server.weir("schedule set tank hourly=24 daily=7").ok();
    server.weir("volume create tank/w --size 16MiB").ok();
    let again = server.weir("volume create tank/w --size 16MiB").ok();
    assert!(again.talk.contains("volume tank/w: already up to date"), "{again:?}");
}

/// Mistakes of a new user, each with the exit code, a text in the error, and the recommended
/// command. Words in upper case, such as `TARGET`, are placeholders.
const MISTAKES: &[(&str, i32, &str, &str)] = &[
    // Misspelled names, first names in the wrong case. The error must never recommend a command
    // that removes another object.
    (
        "volume destroy --yes tank/vm99",
        code::NOT_FOUND,
        "volume tank/vm99 does not exist; there is tank/vm9",
        "try: weir volume list tank",
    ),
    ("pool destroy --yes tnak", code::NOT_FOUND, "there is tank", "try: weir pool list"),
    ("volume destroy vm1", code::INVALID, "there is tank/vm1", "try: weir volume list"),
    ("volume show tank/VM1", code::NOT_FOUND, "does not exist", "try: weir volume show tank/vm1"),
    ("volume show vm1", code::INVALID, "such as tank/vm1", "try: weir volume show tank/vm1"),
    ("volume show /tank/vm1", code::INVALID, "bad", "try: weir volume show tank/vm1"),
    ("volume list tank/vm1", code::INVALID, "is a volume", "try: weir volume show tank/vm1"),
    (
        "snapshot rollback tank/vm1@mondya",
        code::NOT_FOUND,
        "snapshot tank/vm1@mondya does not exist; tank/vm1 has @monday, @tue",
        "try: weir snapshot list tank/vm1",
    ),
    (
        "snapshot destroy tank/vm1@mondya",
        code::NOT_FOUND,
        "tank/vm1 has @monday, @tue",
        "try: weir snapshot list tank/vm1",
    ),
    ("pool destroy nothing", code::NOT_FOUND, "does not exist", "try: weir pool list"),
    ("volume destroy tank/none", code::NOT_FOUND, "does not exist", "try: weir volume list tank"),
    ("pool remove tank nothing", code::NOT_FOUND, "has no vdev nothing", "weir pool status tank"),
    (
        "snapshot clone tank/vm1@mondya tank/c",
        code::NOT_FOUND,
        "does not exist",
        "try: weir snapshot clone tank/vm1@monday tank/c",
    ),
    ("target show vmss", code::NOT_FOUND, "does not exist", "try: weir target show vms"),
    ("export delete tank/vm11", code::NOT_FOUND, "there is tank/vm1", "try: weir export list"),
    ("token revoke bakcup", code::NOT_FOUND, "there is backup", "try: weir token list"),
    // Words from other tools.
    (
        "pool create p raid1 a b",
        code::INVALID,
        "raid1 is called mirror here",
        "try: weir pool create p mirror a b",
    ),
    (
        "pool create p raid10 a b c d",
        code::INVALID,
        "a mirror for each pair of disks",
        "try: weir pool create p mirror a b mirror c d",
    ),
    (
        "pool create p 5GiB",
        code::INVALID,
        "5GiB is a size, and a pool takes no size: it uses its whole disks",
        "try: weir pool create p DISK",
    ),
    ("pool create p b 1GiB", code::INVALID, "takes no size", "try: weir pool create p b"),
    ("rbd create --size 1024 tank/z", 2, "an RBD image", "weir volume create tank/z 1024MiB"),
    // Arguments in the wrong order.
    (
        "pool create mirror p b c",
        code::INVALID,
        "the name of the pool comes first",
        "try: weir pool create p mirror b c",
    ),
    (
        "pool create /dev/null p",
        code::INVALID,
        "\"/dev/null\" is a disk: the name of the pool comes first",
        "try: weir pool create p /dev/null",
    ),
    (
        "pool replace ./a ./b tank",
        code::INVALID,
        "the name of the pool comes first",
        "try: weir pool replace tank ./a ./b",
    ),
    (
        "target allow iqn.1993-08.org.debian:01:xyz vms",
        code::INVALID,
        "vms is a target: the target comes before the initiator",
        "try: weir target allow vms iqn.1993-08.org.debian:01:xyz",
    ),
    (
        "get tank/vm1 compression",
        code::INVALID,
        "tank/vm1 is a volume: the property comes first",
        "try: weir get compression tank/vm1",
    ),
    (
        "set tank/vm1 compression zstd",
        code::INVALID,
        "with '=' between them",
        "try: weir set tank/vm1 compression=zstd",
    ),
    (
        "set quota = 10GiB tank/vm1",
        code::INVALID,
        "with '=' between them",
        "try: weir set quota=10GiB tank/vm1",
    ),
    (
        "snapshot clone tank/c2 tank/vm1@monday",
        code::INVALID,
        "the snapshot comes before the new volume",
        "try: weir snapshot clone tank/vm1@monday tank/c2",
    ),
    (
        "snapshot create wed tank/vm1",
        code::INVALID,
        "no full name",
        "try: weir snapshot create tank/vm1@wed",
    ),
    (
        "snapshot create tank@wed",
        code::INVALID,
        "each volume of a pool",
        "try: weir snapshot create -r tank@wed",
    ),
    ("volume rename tank/vm1 vm3", code::INVALID, "", "try: weir volume rename tank/vm1 tank/vm3"),
    ("pool iostat 1", code::INVALID, "comes before the interval", "try: weir pool iostat tank 1"),
    (
        "schedule set hourly tank/vm1",
        code::INVALID,
        "the volume or pool comes first",
        "try: weir schedule set tank/vm1 hourly=24",
    ),
    (
        "schedule set tank/vm1 hourli=24",
        code::INVALID,
        "the intervals are",
        "try: weir schedule set tank/vm1 hourly=24",
    ),
    // Invalid or ambiguous sizes.
    (
        "volume create tank/s 10",
        code::INVALID,
        "bad size 10: it has no unit and would be 10 bytes",
        "try: weir volume create tank/s 10GiB",
    ),
    ("set size=100 tank/vm1", code::INVALID, "it has no unit", "weir set size=100GiB tank/vm1"),
    ("volume resize tank/vm1 100", code::INVALID, "no unit", "weir volume resize tank/vm1 100GiB"),
    (
        "volume create tank/s 10 GiB",
        2,
        "write number and unit together",
        "try: weir volume create tank/s 10GiB",
    ),
    (
        "volume create tank/s 1,5GiB",
        code::INVALID,
        "bad size \"1,5GiB\": write the decimal point",
        "try: weir volume create tank/s 1.5GiB",
    ),
    (
        "volume create tank/s 10XB",
        code::INVALID,
        "unknown unit \"XB\"; the units are K, M, G, T, P and E",
        "try: weir volume create tank/s 10GiB",
    ),
    ("volume create tank/s 50%", code::INVALID, "pool tank has", "weir volume create tank/s "),
    (
        "volume create tank/s -10GiB",
        2,
        "a size cannot be negative",
        "try: weir volume create tank/s 10GiB",
    ),
    (
        "volume resize tank/vm1 -s -4MiB",
        code::INVALID,
        "a volume is not shrunk by a difference",
        "try: weir volume resize tank/vm1 -s 12MiB",
    ),
    (
        "volume resize tank/vm1 -4MiB",
        code::INVALID,
        "a volume is not shrunk by a difference",
        "try: weir volume resize tank/vm1 12MiB",
    ),
    (
        "volume create tank/s -b 100MiB 16KiB",
        code::INVALID,
        "record size 100MiB is larger than 1MiB",
        "try: weir volume create tank/s -b 16KiB 100MiB",
    ),
    ("volume create tank/s 1GiB -b 128", code::INVALID, "no unit", "1GiB -b 128KiB"),
    ("volume create tank/s 1GiB -b 10KiB", code::INVALID, "10KiB", "-b 8KiB, or -b 16KiB"),
    (
        "volume create tank/s 20TiB",
        code::INVALID,
        "bad volume size 20TiB: it is more than the largest volume, 16TiB",
        "try: use at most 16TiB",
    ),
    ("volume create tank/s 1EiB", code::INVALID, "more than the largest volume", "at most 16TiB"),
    (
        "volume create tank/s 16MiB -o size=10GiB",
        code::INVALID,
        "the size is given twice",
        "try: weir volume create tank/s 16MiB",
    ),
    // Invalid values of properties.
    ("set compression=gzip tank/vm1", code::INVALID, "gzip", "try: weir set compression=zstd"),
    ("set compression=ztsd tank/vm1", code::INVALID, "ztsd", "try: weir set compression=zstd"),
    ("set readonly=true tank/vm1", code::INVALID, "true", "try: weir set readonly=on tank/vm1"),
    ("set quota=1.5 tank/vm1", code::INVALID, "whole number", "try: weir set quota=1.5GiB"),
    (
        "set recordsize=64KiB tank/vm1",
        code::INVALID,
        "record_size is fixed when a volume is created",
        "try: weir volume create POOL/NEW SIZE -b 64KiB",
    ),
    (
        "get compression,quata tank/vm1",
        code::INVALID,
        "quata",
        "try: weir get compression,quota tank/vm1",
    ),
    // Objects that do not exist, and missing arguments.
    ("pool status cold", code::NOT_FOUND, "no imported pool is called cold", "pool import -d /"),
    ("volume create cold/v 16MiB", code::NOT_FOUND, "no imported pool", "pool import -d /"),
    ("export create iscsi tank/vm1", code::INVALID, "at targets", "weir lun add vms tank/vm1"),
    ("send tank/vm1", code::INVALID, "its snapshots are @monday, @tue", "weir send tank/vm1@tue"),
    (
        "target allow vms iqn.1993-08.org.debian:01:abc --chap-user admin --chap-secret-file short",
        code::INVALID,
        "short has 5 bytes; a CHAP secret has 12 to 255",
        "try: openssl rand -hex 16 > short; chmod 600 short",
    ),
    (
        "target allow vms iqn.1993-08.org.debian:01:abc",
        code::EXISTS,
        "authenticates with CHAP as admin at",
        "--chap-user admin --chap-secret-file FILE changes the secret",
    ),
    (
        "target create vms --allow iqn.1993-08.org.debian:01:abc",
        code::EXISTS,
        "this would let it in without CHAP",
        "--no-chap removes it",
    ),
    ("pool list --api ./x.sock", code::INVALID, "", "try: weir pool list --api unix:./x.sock"),
];

#[test]
fn mistake_leads_to_the_command_that_was_meant() {
    let dirs = Dirs::new();
    for disk in ["a", "b", "c", "d"] {
        dirs.disk(disk, GIB);
    }
    crate::common::write_secret(&dirs.file("long"), "correct-horse-1");
    crate::common::write_secret(&dirs.file("short"), "short");
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0"]);
    let server = Server::start(&dirs, "", command);
    for line in [
        "pool create cold d",
        "pool export cold",
        "pool create tank a",
        "volume create tank/vm1 16MiB",
        "volume create tank/vm9 16MiB",
        "volume create tank/o1 16MiB",
        "snapshot create tank/vm1@monday",
        "snapshot create tank/vm1@tue",
        "export create nbd tank/vm1",
        "target create vms",
        "target allow vms iqn.1993-08.org.debian:01:abc --chap-user admin --chap-secret-file long",
        "token create backup --role viewer",
    ] {
        server.weir(line).ok();
    }
    for (line, exit, words, next) in MISTAKES {
        server.weir(line).fails(*exit, &["weir: ", words, next]);
    }
    let imported = server.weir("pool import cold");
    assert!(imported.talk.contains("weir pool import -d /"), "{imported:?}");
    let said = server.weir("volume create tank/big 1T").ok();
    let note = "note: the volume is thin and larger than the available space";
    assert!(said.talk.contains(note), "{said:?}");
    let line = "target allow vms iqn.1993-08.org.debian:01:abc --no-chap";
    server.weir(line).ok();
    server.weir("target allow vms iqn.1993-08.org.debian:01:abc").ok();
}

/// Runs the examples in the help texts, in their order, on one server whose disks are files.
#[test]
fn examples_of_the_help_work() {
    const EXAMPLES: &str = include_str!("../../src/cli/examples.txt");
    let dirs = Dirs::new();
    for disk in 'b'..='k' {
        dirs.disk(&format!("sd{disk}"), GIB);
    }
    let mut command = dirs.serve();
    command.args(["--iscsi", "127.0.0.1:0", "--nbd-allow", "127.0.0.1"]);
    let server = Server::start(&dirs, "", command);
    for line in EXAMPLES.lines().filter(|line| line.starts_with("weir")) {
        let script = line.replace("-d /dev", "-d .").replace("/dev/", "");
        let script = script.replacen("weir", WEIR, 1);
        let ran = Ran::of(line, &server.shell(&script).output().unwrap());
        assert_eq!(ran.code, Some(0), "{line}: {ran:?}");
    }
    assert!(dirs.file("vm2.img").exists(), "weir rescue wrote the volume");
}
