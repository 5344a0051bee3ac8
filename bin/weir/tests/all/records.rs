//! Volumes whose records have several blocks, in the real program: standard clients, SIGKILL,
//! damage.
//!
//! Not here: the model test of such records (weir-dataset), crashes at every step (weir-sim),
//! streams of such volumes (send.rs, replicate.rs).
//!
//! Invariants:
//! - the contents of a volume are compared byte for byte with the data that was written, whatever
//!   the size of the writes;
//! - after each test that writes, the pool is verified.

use std::fs;
use std::path::Path;

use crate::common::nbd::{Client, EIO};
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, KIB, MIB, Ran, Server, WEIR, code, spoil, tool};

const RECORD: u64 = 64 * KIB;
const SIZE: u64 = 64 * MIB;
const DATA_LOST: i32 = 10;

fn served(dirs: &Dirs) -> Server {
    dirs.disk("a", 2 * GIB);
    dirs.disk("b", 2 * GIB);
    let server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server
}

/// Creates a volume like `server.volume`, but with this record size.
fn volume(server: &Server, name: &str, record: &str) {
    server.weir(&format!("volume create {name} --size 64MiB -b {record}")).ok();
    server.weir(&format!("export create nbd {name}")).ok();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Model of the contents that a volume should have. The methods change the model and the volume in
/// the same way.
struct Model {
    content: Vec<u8>,
    rng: Rng,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { content: vec![0; SIZE as usize], rng: Rng::new(seed) }
    }

    /// Fills the model: one half with random data, a quarter with compressible data, and the rest
    /// with holes.
    fn fill(&mut self) {
        for (at, record) in self.content.chunks_mut(RECORD as usize).enumerate() {
            match at % 8 {
                0..4 => self.rng.fill(record),
                4..6 => record.fill(b'a' + (at % 26) as u8),
                _ => {}
            }
        }
    }

    /// Writes, zeroes and trims random ranges: single sectors, single blocks, and ranges of several
    /// records.
    fn change(&mut self, client: &mut Client, count: u64) {
        for _ in 0..count {
            let unit = [512, 4096][self.rng.below(2) as usize];
            let len = match self.rng.below(4) {
                0 => unit,
                1 => unit * (1 + self.rng.below(8)),
                2 => RECORD,
                _ => unit * (1 + self.rng.below(3 * RECORD / unit)),
            };
            let offset = self.rng.below((SIZE - len) / unit) * unit;
            let place = &mut self.content[offset as usize..(offset + len) as usize];
            match self.rng.below(4) {
                0 => {
                    place.fill(0);
                    client.trim(offset, len as u32).unwrap();
                }
                1 => {
                    place.fill(self.rng.below(256) as u8);
                    client.write(offset, place).unwrap();
                }
                _ => {
                    self.rng.fill(place);
                    client.write(offset, place).unwrap();
                }
            }
        }
    }

    /// Asserts that standard clients read the contents of the model from this export.
    #[track_caller]
    fn is_in(&self, dirs: &Dirs, server: &Server, export: &str) {
        let (expected, found) = (dirs.file("expected"), dirs.file("found"));
        fs::write(&expected, &self.content).unwrap();
        let uri = server.uri(export);
        tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", text(&expected), &uri]);
        tool("nbdcopy", &[&uri, text(&found)]);
        assert!(fs::read(&found).unwrap() == self.content, "nbdcopy reads something else");
    }
}

fn checked(dirs: &Dirs) {
    let place = dirs.file("").display().to_string();
    let report =
        Ran::of("check", &crate::common::run(WEIR, &["check", "tank", "-d", &place, "--json"]));
    let report = report.json();
    assert_eq!((&report["damaged_blocks"], &report["bad_copies"]), (&0.into(), &0.into()));
}

fn rescue(leg: &Path, to: &Path) -> Ran {
    let words = ["rescue", "tank/v", "-d", text(leg), "--to", text(to), "--json"];
    Ran::of("rescue", &crate::common::run(WEIR, &words))
}

fn told(server: &Server, name: &str) -> String {
    server.weir(&format!("get -H -o value,source record_size {name}")).ok().out
}

/// Asserts that all commands print the record sizes that the first test has set.
fn told_everywhere(server: &Server) {
    for (name, bytes, people) in [
        ("tank/small", 4 * KIB, "4KiB"),
        ("tank/v", RECORD, "64KiB"),
        ("tank/clone", RECORD, "64KiB"),
        ("tank/copy", RECORD, "64KiB"),
        ("tank/most", MIB, "1MiB"),
    ] {
        let shown = server.weir(&format!("volume show {name} --json")).json();
        assert_eq!(shown["record_bytes"], bytes, "{name}");
        assert_eq!(told(server, name), format!("{people}\t-\n"));
        let shown = server.weir(&format!("volume show {name}")).ok().out;
        assert!(shown.contains(&format!("record: {people} ({bytes} bytes)")), "{shown}");
        let list = server.weir("volume list -o records -H").ok().out;
        let line = format!("{name}\t{SIZE}\t{bytes}\t");
        assert!(list.lines().any(|one| one.starts_with(&line)), "{list}");
    }
    assert_eq!(told(server, "tank/v@s"), "64KiB\t-\n");
    for (export, bytes) in [("tank/small", 4 * KIB), ("tank/v", RECORD)] {
        let info = tool("nbdinfo", &["--json", &server.uri(export)]);
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let of = |size: &str| info["exports"][0][format!("block_size_{size}")].as_u64();
        assert_eq!((of("minimum"), of("preferred")), (Some(512), Some(bytes)), "{info:#}");
    }
}

#[test]
fn record_size_is_shown_everywhere_and_is_permanent() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    server.volume("tank/small", "64MiB");
    volume(&server, "tank/v", "64KiB");
    let again = server.weir("volume create tank/v --size 64MiB --record-size 64k").ok().talk;
    assert!(again.contains("nothing changed"), "{again}");
    server.weir("volume create tank/v --size 64MiB").fails(code::EXISTS, &["tank/v"]);
    server.weir("snapshot create tank/v@s").ok();
    server.weir("snapshot clone tank/v@s tank/clone").ok();
    server.weir("volume copy tank/v@s tank/copy").ok();
    server.weir("volume create tank/most --size 64MiB -b 1MiB").ok();
    told_everywhere(&server);
    server.kill();

    let server = dirs.start();
    told_everywhere(&server);
    let other = ["weir volume create --record-size", "nbdcopy"];
    let next = ["record size, 64KiB", "next larger is 67174400"];
    for (line, parts) in [
        ("set record_size=4KiB tank/v", &other[..]),
        ("volume set record_size=4KiB tank/v", &other),
        ("inherit record_size tank/v", &other),
        ("volume create tank/x --size 1G -o record_size=8K", &other[..1]),
        ("volume create tank/x --size 1100000 -b 64k", &["next larger is 1114112"]),
        ("volume create tank/x --size 1G -b 48k", &["4KiB to 1MiB"]),
        ("volume create tank/x --size 1G -b 2MiB", &["4KiB to 1MiB"]),
        ("volume create tank/x --size 1G -b much", &["much"]),
        ("volume resize tank/v --size 67112960", &next),
        ("set size=67112960 tank/v", &next),
    ] {
        server.weir(line).fails(code::INVALID, parts);
    }
    server.weir("volume resize tank/v --size 67174400").ok();
    server.weir("set size=64MiB tank/v").ok();
    told_everywhere(&server);
    let history = server.weir("pool history tank").ok().out;
    assert!(history.contains("--size 64MiB --record-size 64KiB"), "{history}");
    server.stop_clean();
    checked(&dirs);
}

#[test]
fn pool_with_small_segments_names_the_largest_record_size() {
    let dirs = Dirs::new();
    dirs.disk("small", 64 * MIB);
    let server = dirs.start();
    server.weir("pool create tank small").ok();
    let refused = server.weir("volume create tank/v --size 16MiB -b 1MiB");
    assert_eq!(refused.code, Some(code::INVALID), "{}", refused.talk);
    let most = refused.talk.split("at most ").nth(1).unwrap().split_whitespace().next().unwrap();
    let most = most.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned();
    server.weir(&format!("volume create tank/v --size 16MiB -b {most}")).ok();
    assert_eq!(told(&server, "tank/v"), format!("{most}\t-\n"));
    server.stop_clean();
}

#[test]
fn partial_record_changes_survive_a_kill_and_a_rescue() {
    let dirs = Dirs::new();
    let server = served(&dirs);
    volume(&server, "tank/v", "64KiB");
    let mut model = Model::new(64);
    model.fill();
    let image = dirs.file("image");
    fs::write(&image, &model.content).unwrap();
    tool("nbdcopy", &["--flush", text(&image), &server.uri("tank/v")]);
    model.is_in(&dirs, &server, "tank/v");
    let edges = [(RECORD - 512, 1024), (4 * KIB, 4 * KIB), (3 * RECORD + 1024, 512)];
    let mut words = vec!["-f".to_owned(), "raw".to_owned()];
    for (offset, len) in edges {
        words.extend(["-c".to_owned(), format!("write -P 0x41 {offset} {len}")]);
        model.content[offset as usize..(offset + len) as usize].fill(0x41);
    }
    words.extend(["-c", "flush", &server.uri("tank/v")].map(str::to_owned));
    tool("qemu-io", &words.iter().map(String::as_str).collect::<Vec<_>>());
    let mut client = server.client("tank/v");
    model.change(&mut client, 300);
    model.is_in(&dirs, &server, "tank/v");
    server.weir("snapshot create tank/v@s").ok();
    let before = model.content.clone();
    for round in 0..4 {
        model.change(&mut client, 100);
        if round < 3 {
            server.weir(&format!("snapshot create tank/v@s{round}")).ok();
        }
    }
    client.flush().unwrap();
    server.kill();

    // `weir rescue` replays the intent log in memory only, so the disks do not change.
    let rescued = dirs.file("rescued");
    rescue(&dirs.file("b"), &rescued).ok();
    assert!(fs::read(&rescued).unwrap() == model.content, "what was rescued is something else");
    checked(&dirs);
    let server = dirs.start();
    model.is_in(&dirs, &server, "tank/v");
    let mut client = server.client("tank/v");
    model.change(&mut client, 100);
    model.is_in(&dirs, &server, "tank/v");
    drop(client);
    server.weir("export create nbd tank/v@s").ok();
    Model { content: before, ..model }.is_in(&dirs, &server, "tank/v@s");
    server.weir("pool scrub --wait tank").ok();
    server.stop_clean();
    checked(&dirs);
}

#[test]
fn damaged_record_fails_only_requests_that_need_it() {
    let dirs = Dirs::new();
    let disk = dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    volume(&server, "tank/v", "64KiB");
    let mut model = Model::new(65);
    model.fill();
    let mut client = server.client("tank/v");
    for (at, part) in (0..).step_by(MIB as usize).zip(model.content.chunks(MIB as usize)) {
        client.write(at, part).unwrap();
    }
    drop(client);
    server.stop_clean();
    // Damage a block in the middle of a record. The record is stored raw, because its data does not
    // compress.
    let bad = 8 * RECORD;
    let record = bad as usize..(bad + RECORD) as usize;
    spoil(&disk, &model.content[bad as usize + 32 * KIB as usize..][..4096]);

    let rescued = dirs.file("rescued");
    let ran = rescue(&disk, &rescued);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["damaged_bytes"], RECORD, "{report:#}");
    assert_eq!(report["damaged"][0]["offset"], bad, "{report:#}");
    ran.fails(DATA_LOST, &["cannot be read from these disks"]);
    let mut expected = model.content.clone();
    expected[record.clone()].fill(0);
    assert!(fs::read(&rescued).unwrap() == expected, "what was rescued is something else");

    let mut server = dirs.start();
    let mut client = server.client("tank/v");
    assert_eq!(client.read(bad, 512), Err(EIO));
    assert_eq!(client.write(bad + 4096, &[1; 4096]), Err(EIO));
    assert_eq!(client.trim(bad + 4096, 4096), Err(EIO));
    // Writes to other records and commits must still succeed.
    client.write(bad + RECORD, &[2; 4096]).unwrap();
    model.content[(bad + RECORD) as usize..][..4096].fill(2);
    client.flush().unwrap();
    server.weir("snapshot create tank/v@s").ok();
    server.assert_alive();
    // A write of the complete record does not need its old data, so it succeeds and repairs the
    // record.
    model.content[record.clone()].fill(3);
    client.write(bad, &model.content[record]).unwrap();
    client.flush().unwrap();
    model.is_in(&dirs, &server, "tank/v");
    server.weir("snapshot destroy tank/v@s --yes").ok();
    server.stop_clean();
}
