//! Properties, quotas and reservations of the real program, with standard clients and SIGKILL.
//!
//! Not here: unit tests of quotas and reservations (weir-dataset).
//!
//! Invariants:
//! - clients and the command line report the same quota. At the quota, writes to this volume return
//!   ENOSPC, and writes to other volumes succeed;
//! - every refusal names the value that is refused and changes nothing.

use std::time::Duration;

use crate::common::nbd::EPERM;
use crate::common::{Dirs, MIB, Server, code, eventually, fio, fio_output, text, tool};

const DISK: u64 = 512 * MIB;

fn served(dirs: &Dirs) -> Server {
    dirs.disk("a", DISK);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "256MiB");
    server.volume("tank/w", "1GiB");
    server
}

/// Returns the value and the source of a property of an object.
fn get(server: &Server, property: &str, name: &str) -> (String, String) {
    let line = server.weir(&format!("get -H -o value,source {property} {name}")).ok().out;
    let (value, source) = line.trim_end_matches('\n').split_once('\t').unwrap();
    (value.to_owned(), source.to_owned())
}

fn exact(server: &Server, property: &str, name: &str) -> u64 {
    server.weir(&format!("get -Hp -o value {property} {name}")).ok().out.trim().parse().unwrap()
}

/// Writes random data to an export with fio. Returns true if the volume ran out of space.
fn fill(server: &Server, export: &str, mib: u64) -> bool {
    let size = format!("--size={mib}M");
    let words =
        ["--rw=write", "--bs=128k", "--iodepth=8", "--refill_buffers", "--end_fsync=1", &size];
    let out = fio_output(&server.uri(export), &words);
    let told = text(&out);
    assert!(out.status.success() || told.contains("No space"), "{told}");
    !out.status.success()
}

fn pair(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

#[test]
fn property_values_and_sources_survive_a_kill() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    assert_eq!(get(&server, "compression", "tank/v"), pair("lz4", "default"));
    server.weir("set compression=zstd-3 my:owner=alice tank").ok();
    server.weir("set compression=off quota=1GiB tank/w").ok();
    server.weir("snapshot create tank/v@s").ok();
    server.weir("set my:owner=bob tank/v@s").ok();
    server.kill();

    let server = dirs.start();
    assert_eq!(get(&server, "compression", "tank"), pair("zstd-3", "local"));
    assert_eq!(get(&server, "compression", "tank/v"), pair("zstd-3", "inherited from tank"));
    assert_eq!(get(&server, "compression", "tank/w"), pair("off", "local"));
    assert_eq!(get(&server, "quota", "tank/w"), pair("1GiB", "local"));
    assert_eq!(get(&server, "quota", "tank/v"), pair("none", "default"));
    assert_eq!(get(&server, "used", "tank/v").1, "-");
    assert_eq!(get(&server, "my:owner", "tank/v"), pair("alice", "inherited from tank"));
    assert_eq!(get(&server, "my:owner", "tank/v@s"), pair("bob", "local"));
    server.weir("inherit my:owner tank/v@s").ok();
    assert_eq!(get(&server, "my:owner", "tank/v@s"), pair("alice", "inherited from tank"));
    server.weir("inherit -r compression tank").ok();
    assert_eq!(get(&server, "compression", "tank/w"), pair("lz4", "default"));
    assert!(server.weir("set compression=lz4 tank/w").ok().talk.contains("changed"));
    assert!(server.weir("set compression=lz4 tank/w").ok().talk.contains("nothing changed"));

    let local = server.weir("get -s local -o name,property all").ok().out;
    assert!(local.contains("quota") && !local.contains("used"), "{local}");
    let json = server.weir("get quota,my:owner tank tank/w --json").json();
    let all = json["properties"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!((&all[2]["value"], &all[2]["source"]), (&"1073741824".into(), &"local".into()));
    assert_eq!(all[3]["inherited_from"], "tank");
    let people = server.weir("get type,size,clones tank/v").ok().out;
    assert_eq!(
        people,
        "NAME    PROPERTY  VALUE   SOURCE\n\
         tank/v  type      volume  -\n\
         tank/v  size      256MiB  -\n\
         tank/v  clones    -       -\n"
    );
    server.weir("set size=512MiB tank/v").ok();
    assert_eq!(exact(&server, "size", "tank/v"), 512 * MIB);
    server.weir("volume create tank/x --size 64MiB -o refreservation=auto -o my:note=x").ok();
    let thick = exact(&server, "refreservation", "tank/x");
    assert!(thick > 64 * MIB && thick < 65 * MIB, "{thick}");
    assert_eq!(exact(&server, "usedbyrefreservation", "tank/x"), thick);
    let history = server.weir("pool history tank").ok().out;
    assert!(history.contains("property set tank/w compression=off quota=1GiB"), "{history}");
    assert!(history.contains("property inherit tank compression -r"), "{history}");
    server.stop_clean();
}

#[test]
fn full_quota_affects_one_volume_and_trim_frees_space() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("set quota=64MiB tank/w").ok();
    assert!(fill(&server, "tank/w", 128), "more than the quota");
    assert!(!fill(&server, "tank/v", 96), "another volume goes on");
    eventually("it is known what the last blocks took", Duration::from_secs(20), || {
        let used = exact(&server, "used", "tank/w");
        assert!(used <= 64 * MIB, "{used}");
        used > 60 * MIB
    });
    let mut client = server.client("tank/w");
    client.trim(0, 32 << 20).unwrap();
    client.flush().unwrap();
    assert!(!fill(&server, "tank/w", 24), "what was trimmed can be written");
    let used = exact(&server, "used", "tank/w");
    let quota = format!("set quota={} tank/w", used / 2);
    server.weir(&quota).fails(code::INVALID, &["quota", "used"]);
    assert_eq!(get(&server, "quota", "tank/w"), pair("64MiB", "local"));
    let space = server.weir("volume list -o space tank").ok().out;
    assert!(space.contains("USEDREFRESERV"), "{space}");
    server.stop_clean();
}

#[test]
fn reservation_holds_in_a_full_pool_and_after_a_kill() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("set reservation=128MiB tank/v").ok();
    server.weir("set reservation=4GiB tank/w").fails(code::NO_SPACE, &["reserv", "unreserved"]);
    assert!(fill(&server, "tank/w", 700), "the pool is full for it");
    server.kill();

    let server = dirs.start();
    assert!(exact(&server, "available", "tank/v") >= 126 * MIB);
    let noise = ["--rw=write", "--bs=64k", "--iodepth=8", "--size=100M", "--end_fsync=1"];
    let verify = ["--refill_buffers", "--verify=crc32c", "--do_verify=1"];
    fio(&server.uri("tank/v"), &[&noise[..], &verify[..]].concat());
    fio(&server.uri("tank/v"), &[&noise[..], &verify[..]].concat());
    assert!(fill(&server, "tank/w", 700), "still");
    server.stop_clean();
}

#[test]
fn exports_of_a_read_only_volume_are_read_only() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    let mut open = server.client("tank/v");
    open.write(0, &[1; 4096]).unwrap();
    server.weir("set readonly=on tank/v").ok();
    assert_eq!(open.write(0, &[2; 4096]), Err(EPERM));
    assert!(tool("nbdinfo", &[&server.uri("tank/v")]).contains("is_read_only: true"));
    assert!(tool("nbdinfo", &[&server.uri("tank/w")]).contains("is_read_only: false"));
    server.weir("inherit readonly tank/v").ok();
    server.client("tank/v").write(0, &[3; 4096]).unwrap();
    server.stop_clean();
}

#[test]
fn invalid_input_is_refused_with_the_valid_values() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.weir("snapshot create tank/v@s").ok();
    let long = format!("set my:own={} tank/v", "x".repeat(1025));
    let before = server.weir("get all --json").json();
    for (line, code, parts) in [
        ("set compresion=off tank/v", code::INVALID, &["did you mean compression?"][..]),
        ("get quoata tank/v", code::INVALID, &["did you mean quota?"]),
        ("set used=1 tank/v", code::INVALID, &["is read-only"]),
        ("set compression=gzip tank/v", code::INVALID, &["gzip", "zstd-19"]),
        ("set readonly=maybe tank/v", code::INVALID, &["maybe", "on, off"]),
        ("set quota=1G tank/v@s", code::INVALID, &["quota", "snapshot"]),
        ("set reservation=1G tank", code::INVALID, &["reservation", "pool"]),
        ("set size=8K quota=1G tank/v", code::INVALID, &["size"]),
        ("set size=1G tank/v@s", code::INVALID, &["size", "snapshot"]),
        ("set refreservation=300M tank/v", code::INVALID, &["refreservation", "can use"]),
        ("set quota=1G tank/none", code::NOT_FOUND, &["tank/none"]),
        ("set quota=1G none", code::NOT_FOUND, &["none"]),
        ("set my:own=1 tank/v@none", code::NOT_FOUND, &["tank/v@none"]),
        ("set quota=1G", code::INVALID, &["is given"]),
        ("set quota=1G quota=2G tank/v", code::INVALID, &["twice"]),
        ("set Your:own=1 tank/v", code::INVALID, &["lower-case"]),
        (&long, code::INVALID, &["1024 bytes"]),
        ("inherit quota tank/v", code::INVALID, &["quota", "set quota=none"]),
        ("inherit used tank/v", code::INVALID, &["cannot be set"]),
        ("get all tank/none", code::NOT_FOUND, &["tank/none"]),
        ("get all ta@nk", code::INVALID, &["ta"]),
        ("volume create tank/y --size 1M -o size=2M", code::INVALID, &["size"]),
        ("volume create tank/y --size 1G -o reservation=1T", code::NO_SPACE, &["reserv"]),
    ] {
        server.weir(line).fails(code, parts);
    }
    let after = server.weir("get all --json").json();
    let settable = |json: &serde_json::Value| -> Vec<serde_json::Value> {
        let all = json["properties"].as_array().unwrap().iter();
        all.filter(|property| property["source"] != "none").cloned().collect()
    };
    assert_eq!(settable(&before), settable(&after));
    server.stop_clean();
}
