//! A pool with one forged filesystem for each rule of `weir check`: the check names each violation,
//! the rescue copies the rest and stays in its directory, and a server refuses or serves each
//! filesystem.
//!
//! Not here: the forgeries (weir-forge), operations without a kernel (weir-forge's tests).
//!
//! Invariant: each command ends within [`BOUND`].

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_forge::{FILESYSTEM_FORGERIES, Tree, forged_pool};

use crate::common::{Dirs, Ran, Server, WEIR, run};
use crate::mounts::{Place, on_fuse};

/// Time within which a command on a forged filesystem must end.
const BOUND: Duration = Duration::from_mins(1);
/// Size of the writes of the disk; parts of zeros stay holes.
const WRITE_BYTES: usize = 64 << 10;
const DATA_LOST: i32 = 10;
/// Size of the file `large` of the sample.
const LARGE_BYTES: u64 = 20 * 4096;
/// Maximum number of names that the walk of a mount visits; the sample has fewer.
const NAMES_MAX: usize = 1000;

/// Writes the pool to a file; returns the inodes of each filesystem.
fn forged(dirs: &Dirs) -> (PathBuf, Vec<(&'static str, Tree)>) {
    let (content, trees) = forged_pool();
    let folder = dirs.file("pool");
    fs::create_dir(&folder).unwrap();
    let disk = File::create(folder.join("disk")).unwrap();
    disk.set_len(content.len() as u64).unwrap();
    for (at, part) in (0..).step_by(WRITE_BYTES).zip(content.chunks(WRITE_BYTES)) {
        if part.iter().any(|byte| *byte != 0) {
            disk.write_all_at(part, at).unwrap();
        }
    }
    (folder.join("disk"), trees)
}

fn weir(words: &[&str]) -> Ran {
    let start = Instant::now();
    let ran = Ran::of(&words.join(" "), &run(WEIR, words));
    let took = start.elapsed();
    assert!(took < BOUND, "weir {} took {took:?}", words.join(" "));
    assert!(ran.code.is_some(), "weir {} was killed: {}", words.join(" "), ran.talk);
    assert!(!ran.talk.contains("panicked"), "weir {}: {}", words.join(" "), ran.talk);
    ran
}

#[test]
fn check_names_filesystem_inode_and_violation() {
    let dirs = Dirs::new();
    let (disk, trees) = forged(&dirs);
    let ran = weir(&["check", "tank", "-d", disk.to_str().unwrap(), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    ran.fails(DATA_LOST, &["errors in filesystems", "weir rescue"]);
    let wrong = report["wrong_inodes"].as_array().unwrap();
    for forgery in FILESYSTEM_FORGERIES {
        let filesystem = format!("tank/{}", forgery.name);
        let of_this = || wrong.iter().filter(|one| one["filesystem"] == filesystem.as_str());
        let Some((suspect, what)) = forgery.finding else {
            assert_eq!(of_this().next(), None);
            continue;
        };
        let tree = &trees.iter().find(|(name, _)| *name == forgery.name).unwrap().1;
        let inode = suspect(tree).0;
        let is_named = of_this().any(|one| {
            one["inode"] == inode && one["what"].as_str().is_some_and(|text| text.contains(what))
        });
        assert!(is_named, "{filesystem}, inode {inode}: no finding with `{what}`");
    }
    assert!(wrong.iter().all(|one| one["filesystem"] != "tank/sound"), "{wrong:#?}");
    // Only the filesystems are damaged, not the pool.
    for counter in ["damaged_blocks", "bad_copies"] {
        assert_eq!(report[counter], 0, "{report:#}");
    }
    for list in ["wrong_counters", "wrong_references", "wrong_accounts"] {
        assert_eq!(report[list], serde_json::json!([]), "{report:#}");
    }
}

/// Sizes of all files below a directory. Follows no symbolic link.
fn files_below(path: &Path, found: &mut Vec<u64>) {
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files_below(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.metadata().unwrap().len());
        }
    }
}

#[test]
fn rescue_copies_the_rest_and_stays_in_its_directory() {
    let dirs = Dirs::new();
    let (disk, trees) = forged(&dirs);
    let before = fs::read(&disk).unwrap();
    for (name, _) in trees {
        let top = dirs.file("rescued").join(name);
        fs::create_dir_all(top.join("outside")).unwrap();
        let copy = top.join("copy");
        let (filesystem, disk) = (format!("tank/{name}"), disk.to_str().unwrap());
        let ran = weir(&["rescue", &filesystem, "-d", disk, "--to", copy.to_str().unwrap()]);
        let expected = if name == "sound" { &[0][..] } else { &[0, DATA_LOST] };
        assert!(expected.contains(&ran.code.unwrap()), "{name}: {}", ran.talk);
        // The filesystem has 120 small files in `many`, and `small`, `large` and `rich`.
        let mut sizes = Vec::new();
        files_below(&copy, &mut sizes);
        let (expected, has_large) = match name {
            "size-beyond-signed" => (122, false),
            _ => (121, true),
        };
        assert!(sizes.len() >= expected, "{name}: {} files: {}", sizes.len(), ran.talk);
        let large = sizes.iter().any(|bytes| *bytes >= LARGE_BYTES);
        assert!(large == has_large, "{name}: {}", ran.talk);
        assert_eq!(fs::read_dir(top.join("outside")).unwrap().count(), 0, "{name}");
        assert_eq!(fs::read_dir(&top).unwrap().count(), 2, "{name}");
        fs::remove_dir_all(&top).unwrap();
    }
    assert!(fs::read(&disk).unwrap() == before, "a rescue changed the disk");
}

/// Reads all names below a directory, with contents, links and attributes. Any call may fail.
/// Returns the number of names.
fn read_all(top: &Path) -> usize {
    let (mut names, mut waiting) = (0, vec![top.to_owned()]);
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            names += 1;
            assert!(names < NAMES_MAX, "{}: a listing has no end", directory.display());
            let path = entry.path();
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            let mut list = [0; 4096];
            let _names = rustix::fs::llistxattr(&path, &mut list);
            if found.is_dir() {
                waiting.push(path);
            } else if found.is_symlink() {
                let _target = fs::read_link(&path);
            } else if found.is_file() && found.len() < 1 << 20 {
                let _content = fs::read(&path);
            }
        }
    }
    names
}

/// Changes a mounted filesystem: creates, renames and removes names. Any call may fail.
fn change_all(top: &Path) {
    let at = |name: &str| top.join(name);
    let _written = fs::write(at("new"), vec![7; 100_000]);
    let _written = fs::write(at("large"), b"other");
    for (from, to) in [("a", "c"), ("c", "a"), ("large", "a/b/large"), ("a/b", "b"), ("many", "a")]
    {
        let _moved = fs::rename(at(from), at(to));
    }
    for name in ["small", "link", "long", "rich", "a/same", "a/self", "a/ghost", "top", "object"] {
        let _removed = fs::remove_file(at(name));
        let _removed = fs::remove_dir(at(name));
    }
    let _removed = fs::remove_dir_all(at("many"));
    let synced = File::open(top).and_then(|opened| opened.sync_all());
    drop(synced);
}

/// Mounts a filesystem, uses it, and unmounts it.
fn serve(server: &Server, dirs: &Dirs, name: &str) {
    let place = Place::new(dirs, &format!("at-{name}"));
    let start = Instant::now();
    let ran = server.weir(&format!("mount tank/{name} {}", place.text()));
    if ran.code == Some(0) {
        let names = read_all(&place.at(""));
        change_all(&place.at(""));
        if name == "sound" {
            assert!(names > 120, "{names} names");
            assert_eq!(fs::read(place.at("large")).ok(), None, "moved to a/b or b");
        }
        server.weir(&format!("unmount --force tank/{name}")).ok();
    } else {
        assert_ne!(name, "sound", "{}", ran.talk);
        ran.fails(DATA_LOST, &[&format!("tank/{name}"), "weir rescue"]);
    }
    let took = start.elapsed();
    assert!(took < BOUND, "{name} took {took:?}");
}

#[test]
fn server_refuses_or_serves_each_forged_filesystem() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (disk, trees) = forged(&dirs);
        let mut server = dirs.start();
        server.weir(&format!("pool import -d {} tank", disk.parent().unwrap().display())).ok();
        for (name, _) in trees {
            serve(&server, &dirs, name);
            server.assert_alive();
            assert!(!server.talk().contains("panicked"), "{name}: {}", server.talk());
        }
        server.weir("pool status tank").ok();
        server.stop_clean();
    });
}
