//! `weir rescue`: copies volumes from the remaining disks of a pool, without a server and without a
//! write to the disks.
//!
//! Not here: pools that can be imported (crash.rs).

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Ran, WEIR, code};

const START: u64 = 4 * MIB;
const LEN: u64 = 24 * MIB;
const DATA_LOST: i32 = 10;

fn rescue(arguments: &[&str]) -> Ran {
    let words = [&["rescue"], arguments].concat();
    Ran::of(&words.join(" "), &crate::common::run(WEIR, &words))
}

/// Creates a mirror of disks `a` and `b` with a volume, writes and flushes data, and kills the
/// server. Returns the contents of the volume.
fn killed(dirs: &Dirs) -> Vec<u8> {
    dirs.disk("a", GIB);
    dirs.disk("b", GIB);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v1", "64MiB");
    let mut content = vec![0; 64 * MIB as usize];
    let written = START as usize..(START + LEN) as usize;
    Rng::new(7).fill(&mut content[written]);
    let mut client = server.client("tank/v1");
    for at in (START..START + LEN).step_by(MIB as usize) {
        client.write(at, &content[at as usize..(at + MIB) as usize]).unwrap();
    }
    client.flush().unwrap();
    // This block is only in the intent log: after such a small write, the server flushes to the log
    // and does not commit.
    content[..4096].fill(9);
    client.write(0, &content[..4096]).unwrap();
    client.flush().unwrap();
    server.kill();
    content
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn volume_is_rescued_from_one_leg_without_changing_it() {
    let dirs = Dirs::new();
    let content = killed(&dirs);
    fs::remove_file(dirs.file("a")).unwrap();
    let leg = dirs.file("b");
    let before = fs::read(&leg).unwrap();
    let listed = rescue(&["tank", "-d", text(&leg), "--json"]).json();
    assert_eq!(listed["volumes"][0]["name"], "tank/v1");
    assert_eq!(listed["volumes"][0]["size_bytes"], 64 * MIB);
    let file = dirs.file("rescued");
    let words = ["tank/v1", "-d", text(&leg), "--to", text(&file)];
    let said = rescue(&words).ok().talk;
    assert!(said.contains("of volume tank/v1 copied to"), "{said}");
    assert!(fs::read(&file).unwrap() == content, "the content differs");
    assert!(fs::read(&leg).unwrap() == before, "the leg was changed");
    rescue(&words).fails(code::EXISTS, &["exists", "try: "]);
    assert!(fs::read(&file).unwrap() == content, "an existing file was touched");
}

#[test]
fn unreadable_ranges_are_reported_and_left_out() {
    let dirs = Dirs::new();
    let content = killed(&dirs);
    fs::remove_file(dirs.file("a")).unwrap();
    let leg = OpenOptions::new().read(true).write(true).open(dirs.file("b")).unwrap();
    let lost = place_of(&leg, &content[(START + 8 * MIB) as usize..][..4096]);
    leg.write_all_at(&[0x5a; 4096], lost).unwrap();
    let file = dirs.file("rescued");
    let place = dirs.file("b");
    let ran = rescue(&["tank/v1", "-d", text(&place), "--to", text(&file), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["damaged_bytes"], 4096, "{report:#}");
    assert_eq!(report["damaged"][0]["offset"], START + 8 * MIB);
    ran.fails(DATA_LOST, &["cannot be read from these disks"]);
    let mut expected = content;
    expected[(START + 8 * MIB) as usize..][..4096].fill(0);
    assert!(fs::read(&file).unwrap() == expected);
}

/// Returns the offset of these bytes on a disk; the test fails if the disk does not have them.
fn place_of(disk: &fs::File, wanted: &[u8]) -> u64 {
    let mut window = vec![0; MIB as usize + wanted.len()];
    for start in (0..GIB - 2 * MIB).step_by(MIB as usize) {
        disk.read_exact_at(&mut window, start).unwrap();
        let found = window.windows(wanted.len()).step_by(64).position(|bytes| bytes == wanted);
        if let Some(at) = found {
            return start + 64 * at as u64;
        }
    }
    panic!("not on the disk");
}

#[test]
fn invalid_arguments_and_disks_in_use_are_refused() {
    let dirs = Dirs::new();
    let disk = dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v1", "64MiB");
    let file = dirs.file("out");
    let to = ["--to", text(&file)];
    let of = |name| [&[name, "-d", text(&disk)], &to[..]].concat();
    rescue(&of("tank/v1")).fails(code::BUSY, &["no disk of a pool", "in use", "try: "]);
    server.stop_clean();
    rescue(&of("other/v1")).fails(code::NOT_FOUND, &["no disk of a pool", "try: "]);
    rescue(&of("tank/v2")).fails(code::NOT_FOUND, &["tank/v2"]);
    rescue(&of("tank")).fails(code::INVALID, &["no volume or filesystem is named"]);
    rescue(&["tank/v1", "-d", text(&disk)]).fails(code::INVALID, &["--to"]);
    assert!(!file.exists());
    rescue(&of("tank/v1")).ok();
}
