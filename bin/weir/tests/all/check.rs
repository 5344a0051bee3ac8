//! `weir check`: verifies a pool without a server and without writing.
//!
//! Not here: repair of damage (healing.rs).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use crate::common::rng::Rng;
use crate::common::{Dirs, MIB, Ran, Server, WEIR, code};

const DISK: u64 = 256 * MIB;
const DATA_LOST: i32 = 10;

fn check(dirs: &Dirs, arguments: &[&str]) -> Ran {
    let place = dirs.file("").display().to_string();
    let words = [&["check", "tank", "-d", &place], arguments].concat();
    Ran::of(&words.join(" "), &crate::common::run(WEIR, &words))
}

/// Creates a pool, writes and flushes 24 MiB of data, and kills the server before a commit: a part
/// of the data is only in the intent log.
fn killed(dirs: &Dirs, layout: &str, disks: &[&str]) -> Vec<u8> {
    for name in disks {
        dirs.disk(name, DISK);
    }
    let server: Server = dirs.start();
    server.weir(&format!("pool create tank {layout} {}", disks.join(" "))).ok();
    server.volume("tank/v", "32MiB");
    let mut content = vec![0; 24 * MIB as usize];
    Rng::new(7).fill(&mut content);
    let mut client = server.client("tank/v");
    for (at, part) in (0..).step_by(MIB as usize).zip(content.chunks(MIB as usize)) {
        client.write(at, part).unwrap();
    }
    client.flush().unwrap();
    client.write(0, &content[4096..8192]).unwrap();
    client.flush().unwrap();
    server.kill();
    content
}

fn all(dirs: &Dirs, disks: &[&str]) -> Vec<Vec<u8>> {
    disks.iter().map(|name| fs::read(dirs.file(name)).unwrap()).collect()
}

#[test]
fn check_of_an_intact_pool_succeeds_and_changes_nothing() {
    for (layout, disks) in [("mirror", &["a", "b"][..]), ("raidz1", &["a", "b", "c"])] {
        let dirs = Dirs::new();
        killed(&dirs, layout, disks);
        let before = all(&dirs, disks);
        let report = check(&dirs, &["--json"]).json();
        assert!(report["examined_bytes"].as_u64().unwrap() >= 24 * MIB, "{report:#}");
        for count in ["damaged_blocks", "bad_copies"] {
            assert_eq!(report[count], 0, "{report:#}");
        }
        let said = check(&dirs, &[]).ok();
        assert!(said.talk.contains("verified") && said.out.contains("ONLINE"), "{}", said.out);
        assert!(all(&dirs, disks) == before, "a disk of the {layout} was changed");
    }
}

/// Overwrites one block of a disk at this offset.
fn spoil(dirs: &Dirs, name: &str, at: u64) {
    let disk = OpenOptions::new().write(true).open(dirs.file(name)).unwrap();
    disk.write_all_at(&[0x5a; 4096], at).unwrap();
    disk.sync_all().unwrap();
}

#[test]
fn bad_copies_and_lost_blocks_are_distinguished() {
    for (layout, disks) in [("mirror", &["a", "b"][..]), ("raidz1", &["a", "b", "c"])] {
        let dirs = Dirs::new();
        let content = killed(&dirs, layout, disks);
        // The restarted server moves the data from the intent log into segments.
        dirs.start().stop_clean();
        let block = &content[8 * MIB as usize..][..4096];
        let before = all(&dirs, disks);
        let place = |disk: &Vec<u8>| {
            let at = (8 * MIB as usize..disk.len() - 4096).step_by(64);
            at.into_iter().find(|at| &disk[*at..*at + 4096] == block)
        };
        let mut found = before.iter().map(place).enumerate();
        let (disk, at) = found.find_map(|(n, at)| Some((n, at?))).unwrap();
        spoil(&dirs, disks[disk], at as u64);
        let before = all(&dirs, disks);
        let said = check(&dirs, &[]);
        assert!(!said.talk.contains("without a good copy"), "{}", said.talk);
        said.fails(DATA_LOST, &["1 bad copies", "weir pool scrub"]);
        assert!(all(&dirs, disks) == before, "a disk was mended");
        // Then also damage the second copy or, on raidz, a strip from which the block could be
        // reconstructed.
        spoil(&dirs, disks[(disk + 1) % disks.len()], at as u64);
        let report = check(&dirs, &["--json"]);
        report.fails(DATA_LOST, &["without a good copy", "backup"]);
    }
}

#[test]
fn disks_in_use_are_refused() {
    let dirs = Dirs::new();
    killed(&dirs, "mirror", &["a", "b"]);
    let server = dirs.start();
    check(&dirs, &[]).fails(code::BUSY, &["tank", "in use by another process", "stop the server"]);
    server.stop_clean();
    check(&dirs, &[]).ok();
    let absent = check(&dirs, &["--json", "-d", "/nowhere"]);
    absent.ok();
}

/// Regression: one flipped bit in the header of the last log batch looked like a torn write after a
/// kill. `check` and `rescue` exited with 0, although a flushed write was lost.
#[test]
fn damaged_log_batch_after_a_kill_is_no_torn_write() {
    let dirs = Dirs::new();
    killed(&dirs, "", &["a"]);
    check(&dirs, &[]).ok();
    let disk = &all(&dirs, &["a"])[0];
    // The last batch of the intent log has the header with the highest number.
    let log = MIB as usize..9 * MIB as usize;
    let header = |at: &usize| disk[*at..].starts_with(b"WEIRLOGB");
    let number = |at: &usize| u64::from_le_bytes(disk[at + 24..at + 32].try_into().unwrap());
    let last = log.step_by(4096).filter(header).max_by_key(number).unwrap();
    let file = OpenOptions::new().write(true).open(dirs.file("a")).unwrap();
    file.write_all_at(&[disk[last + 24] ^ 1], last as u64 + 24).unwrap();
    let forced = ["is damaged on every leg", "--force"];
    check(&dirs, &[]).fails(DATA_LOST, &forced);
    let place = dirs.file("").display().to_string();
    let rescue = |words: &[&str]| {
        let words = [&["rescue", "tank", "-d", &place], words].concat();
        Ran::of(&words.join(" "), &crate::common::run(WEIR, &words))
    };
    rescue(&[]).fails(DATA_LOST, &forced);
    rescue(&["--force"]).ok();
}
