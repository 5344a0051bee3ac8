//! The flush test of `weir pool create`, with the real program and real files.
//!
//! Not here: the verdicts on measured times (unit tests of weir-device), frozen disks (unit tests
//! of weir-server).
//!
//! Invariant: no test asserts the speed of this machine's disks.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::{Dirs, MIB, code};
use serde_json::Value;

#[test]
fn pool_create_measures_its_disks() {
    let dirs = Dirs::new();
    for name in ["a", "b", "c"] {
        dirs.disk(name, 256 * MIB);
    }
    let mut server = dirs.start();
    let made = server.weir("pool create tank mirror a b --json").json();
    let checks = made["flush_checks"].as_array().unwrap();
    assert_eq!(checks.len(), 2, "{made:#}");
    for (check, name) in checks.iter().zip(["/a", "/b"]) {
        assert!(check["disk"].as_str().unwrap().ends_with(name), "{check}");
        assert!((1..=32).contains(&check["samples"].as_u64().unwrap()), "{check}");
        assert!(check["sync_write_us"].as_u64().unwrap() > 0, "{check}");
        assert!(check["medium"].as_str().unwrap().starts_with("file on "), "{check}");
    }
    // The intent log of the new pool must not contain the data that the flush test wrote.
    let mut start_of_log = vec![1; 4096];
    File::open(dirs.file("a")).unwrap().read_exact_at(&mut start_of_log, MIB).unwrap();
    assert!(start_of_log.iter().all(|byte| *byte == 0));

    let again = server.weir("pool create tank mirror a b --json").json();
    assert_eq!(again["flush_checks"], Value::Array(vec![]), "{again:#}");
    let made = server.weir("pool create solo c").ok();
    let lines: Vec<_> = made.out.lines().collect();
    assert!(lines[0].starts_with("DISK") && lines[0].contains("FLUSHES ARE"), "{}", made.out);
    assert!(lines[1].contains("/c ") && lines.len() == 2, "{}", made.out);
    server.assert_alive();
}

#[test]
fn disk_in_memory_is_reported() {
    let dirs = Dirs::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = memory.path().join("disk");
    File::create(&disk).unwrap().set_len(128 * MIB).unwrap();
    let disk = disk.display();
    let mut server = dirs.start();
    let made = server.weir(&format!("pool create tank {disk}")).ok();
    assert!(made.out.contains("NOT DURABLE") && made.out.contains("memory tmpfs"), "{}", made.out);
    let warning = format!("warning: {disk}: is in memory (tmpfs)");
    assert!(made.talk.contains(&warning), "{}", made.talk);
    let events = server.weir("events --json").ok().out;
    assert!(events.contains("flush_suspect"), "{events}");
    server.assert_alive();
}

#[test]
fn attached_and_replaced_disks_are_measured() {
    let dirs = Dirs::new();
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = |name: &str| {
        let path = memory.path().join(name);
        File::create(&path).unwrap().set_len(256 * MIB).unwrap();
        path.display().to_string()
    };
    let (first, second) = (disk("first"), disk("second"));
    dirs.disk("a", 256 * MIB);
    let mut server = dirs.start();
    server.weir("pool create tank a").ok();
    let warning = |disk: &str| format!("warning: {disk}: is in memory (tmpfs)");
    let attached = server.weir(&format!("pool attach --wait tank a {first}")).ok();
    assert!(attached.talk.contains(&warning(&first)), "{}", attached.talk);
    let replaced = server.weir(&format!("pool replace --wait tank {first} {second}")).ok();
    assert!(replaced.talk.contains(&warning(&second)), "{}", replaced.talk);
    server.assert_alive();
}

#[test]
fn disks_of_a_refused_pool_are_not_measured() {
    let dirs = Dirs::new();
    let filled = dirs.disk("a", 256 * MIB);
    let file = File::options().write(true).open(&filled).unwrap();
    file.write_all_at(&[7; 4096], MIB).unwrap();
    file.write_all_at(b"LUKS\xba\xbe", 0).unwrap();
    dirs.disk("small", 4096);
    let mut server = dirs.start();
    server.weir("pool create tank a").fails(code::EXISTS, &["LUKS"]);
    server.weir("pool create tank --force mirror a small").fails(code::INVALID, &["small"]);
    let mut kept = vec![0; 4096];
    File::open(&filled).unwrap().read_exact_at(&mut kept, MIB).unwrap();
    assert!(kept.iter().all(|byte| *byte == 7), "a refused disk was written to");
    server.assert_alive();
}
