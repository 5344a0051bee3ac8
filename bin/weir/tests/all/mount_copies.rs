//! Copies between files of a mount: copy_file_range(2), as cp(1) uses it.
//!
//! weir-fs tests the contents of copies against a model.
//!
//! Invariant: each comparison reads the files after a crash of the server, too.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::copy_file_range;

use crate::common::{Dirs, MIB, Server, tool};
use crate::mounts::{mounted, on_fuse};

/// Content that neither compresses nor repeats.
fn noise(bytes: u64) -> Vec<u8> {
    let mut content = vec![0; bytes as usize];
    getrandom::fill(&mut content).unwrap();
    content
}

fn used(server: &Server) -> u64 {
    server.status("tank")["allocated_bytes"].as_u64().unwrap()
}

#[test]
fn cp_shares_the_records_of_a_large_file() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let content = noise(48 * MIB + 12_345);
        fs::write(home.at("source"), &content).unwrap();
        File::open(home.at("source")).unwrap().sync_all().unwrap();
        server.weir("snapshot create tank/home@before").ok();
        let before = used(&server);
        let path = |name: &str| home.at(name).to_str().unwrap().to_owned();
        tool("cp", &[&path("source"), &path("copy")]);
        let copied = used(&server);
        File::open(home.at("copy")).unwrap().sync_all().unwrap();
        let grown = used(&server).max(copied) - before;
        assert!(grown < 4 * MIB, "the copy took {grown} bytes");
        let equals = |name: &str, wanted: &[u8]| {
            assert!(fs::read(home.at(name)).unwrap() == wanted, "{name} has another content");
        };
        equals("copy", &content);

        // Later writes to one file leave the other unchanged.
        let file = File::options().write(true).open(home.at("source")).unwrap();
        file.write_all_at(&vec![1; 300_000], MIB).unwrap();
        file.sync_all().unwrap();
        equals("copy", &content);
        let mut changed = content.clone();
        changed[MIB as usize..][..300_000].fill(1);
        equals("source", &changed);
        fs::remove_file(home.at("source")).unwrap();
        equals("copy", &content);

        server.kill();
        let server = dirs.start();
        equals("copy", &content);
        server.weir("pool scrub --wait tank").ok();
        equals("copy", &content);
    });
}

#[test]
fn ranges_at_any_offset_are_copied() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (_server, home) = mounted(&dirs);
        let content = noise(3 * MIB);
        fs::write(home.at("source"), &content).unwrap();
        let open = |name: &str| {
            let options = File::options().read(true).write(true).create(true).to_owned();
            options.open(home.at(name)).unwrap()
        };
        let (source, target) = (open("source"), open("target"));
        let mut wanted = Vec::new();
        let ranges = [(0, 0, 3 * MIB), (131_072, 0, 262_144), (5, 700_001, 400_000), (3, 3, 9)];
        for (from, to, bytes) in ranges {
            let (mut from_now, mut to_now) = (from, to);
            while from_now < from + bytes {
                let left = (from + bytes - from_now) as usize;
                let copied =
                    copy_file_range(&source, Some(&mut from_now), &target, Some(&mut to_now), left);
                assert!(copied.unwrap() > 0);
            }
            let end = (to + bytes) as usize;
            wanted.resize(wanted.len().max(end), 0);
            let part = &content[from as usize..(from + bytes) as usize];
            wanted[to as usize..end].copy_from_slice(part);
            assert!(read(&home.at("target")) == wanted, "copy of {bytes} bytes from {from}");
        }
        // Ranges of one file.
        let (mut from, mut to) = (0, 10 * MIB);
        copy_file_range(&target, Some(&mut from), &target, Some(&mut to), MIB as usize).unwrap();
        let (mut from, mut to) = (0, 100);
        let overlaps = copy_file_range(&target, Some(&mut from), &target, Some(&mut to), 5_000);
        assert_eq!(overlaps, Err(rustix::io::Errno::INVAL));
        // No bytes follow the end of the source.
        let mut from = 4 * MIB;
        assert_eq!(copy_file_range(&source, Some(&mut from), &target, None, 10), Ok(0));
    });
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}
