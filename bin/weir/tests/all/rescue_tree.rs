//! `weir rescue` and `weir check` of filesystems: disks without a server, after SIGKILL and with
//! damage.
//!
//! Not here: volumes (rescue.rs, check.rs), the reads around damage (weir-fs).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};

use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, MIB, Ran, WEIR, code, spoil};
use crate::mounts::{Place, on_fuse};

const DATA_LOST: i32 = 10;
const LARGE_BYTES: usize = 3 << 20;
/// Number of nested directories whose path is longer than PATH_MAX (4096 bytes).
const DEEP_LEVELS: u32 = 40;
/// Names in the directory with many entries.
const NAMES: u32 = 300;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn weir(words: &[&str]) -> Ran {
    Ran::of(&words.join(" "), &crate::common::run(WEIR, words))
}

fn large() -> Vec<u8> {
    let mut content = vec![0; LARGE_BYTES];
    Rng::new(11).fill(&mut content);
    content
}

/// Creates a tree with all kinds of inodes.
fn populate(top: &Path) {
    let at = |name: &str| top.join(name);
    fs::create_dir_all(at("a/b/c")).unwrap();
    fs::write(at("a/small"), b"small").unwrap();
    fs::write(at("a/b/large"), large()).unwrap();
    let sparse = File::create(at("a/sparse")).unwrap();
    sparse.write_all_at(b"end", 100 * MIB).unwrap();
    fs::hard_link(at("a/small"), at("a/b/c/same")).unwrap();
    symlink("../a/small", at("a/link")).unwrap();
    fs::write(top.join(OsStr::from_bytes(b"not utf-8 \xff")), b"x").unwrap();
    let mode = Mode::from_bits_retain(0o600);
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, mode, 0).unwrap();
    fs::create_dir(at("many")).unwrap();
    for name in 0..NAMES {
        fs::write(at("many").join(format!("file {name}")), name.to_string()).unwrap();
    }
    rustix::fs::setxattr(at("a/small"), "user.kind", b"text", XattrFlags::empty()).unwrap();
    fs::set_permissions(at("a/small"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(at("a/b"), fs::Permissions::from_mode(0o500)).unwrap();
    for name in ["a/b/large", "a/b", "a"] {
        let time = |tv_sec| Timespec { tv_sec, tv_nsec: 5 };
        let times = Timestamps { last_access: time(7), last_modification: time(1_000_000) };
        rustix::fs::utimensat(CWD, at(name), &times, AtFlags::empty()).unwrap();
    }
}

/// Asserts that two trees have the same names, types, contents and attributes.
fn assert_same(a: &Path, b: &Path) {
    let of = |path: &Path| {
        let found = fs::symlink_metadata(path).unwrap();
        let size = if found.is_dir() { 0 } else { found.len() };
        let modified = (found.mtime(), found.mtime_nsec());
        // The times of most files differ, because the two trees were made one after the other.
        let modified = (found.mtime() == 1_000_000).then_some(modified);
        (found.mode(), size, found.nlink(), modified)
    };
    assert_eq!(of(a), of(b), "{} and {}", a.display(), b.display());
    let found = fs::symlink_metadata(a).unwrap();
    if found.is_dir() {
        let names = |path: &Path| {
            let entries = fs::read_dir(path).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(a), names(b));
        names(a).iter().for_each(|name| assert_same(&a.join(name), &b.join(name)));
    } else if found.is_file() {
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{}", b.display());
    } else if found.is_symlink() {
        assert_eq!(fs::read_link(a).unwrap(), fs::read_link(b).unwrap());
    }
}

/// Creates a filesystem on these disks with the tree of [`populate`] and kills the server.
/// Afterwards the tree is in the log, or in committed segments if a snapshot was taken before the
/// kill.
fn killed(dirs: &Dirs, layout: &str, disks: &[&str], takes_snapshot: bool) {
    for name in disks {
        dirs.disk(name, GIB);
    }
    let server = dirs.start();
    server.weir(&format!("pool create tank {layout} {}", disks.join(" "))).ok();
    server.weir("filesystem create tank/home").ok();
    let home = Place::new(dirs, "home");
    server.weir(&format!("mount tank/home {}", home.text())).ok();
    populate(&home.at(""));
    // A sync of a directory makes all names durable, with the data of the files that they name.
    File::open(home.at("many")).unwrap().sync_all().unwrap();
    if takes_snapshot {
        server.weir("snapshot create tank/home@committed").ok();
    }
    server.kill();
}

#[test]
fn filesystem_is_rescued_from_one_leg_with_all_its_attributes() {
    on_fuse(|| {
        let dirs = Dirs::new();
        killed(&dirs, "mirror", &["a", "b"], false);
        fs::remove_file(dirs.file("a")).unwrap();
        let leg = dirs.file("b");
        let before = fs::read(&leg).unwrap();
        let listed = weir(&["rescue", "tank", "-d", text(&leg), "--json"]).json();
        assert_eq!(listed["volumes"][0]["name"], "tank/home", "{listed:#}");
        assert_eq!(listed["volumes"][0]["kind"], "filesystem", "{listed:#}");
        let (expected, copy) = (dirs.file("expected"), dirs.file("copy"));
        fs::create_dir(&expected).unwrap();
        populate(&expected);
        let words = ["rescue", "tank/home", "-d", text(&leg), "--to", text(&copy)];
        let said = weir(&words).ok().talk;
        assert!(said.contains("of filesystem tank/home copied to"), "{said}");
        fs::set_permissions(&expected, fs::metadata(&copy).unwrap().permissions()).unwrap();
        assert_same(&expected, &copy);
        let mut value = [0; 16];
        let bytes = rustix::fs::getxattr(copy.join("a/small"), "user.kind", &mut value).unwrap();
        assert_eq!(&value[..bytes], b"text");
        assert_eq!(fs::metadata(copy.join("a/small")).unwrap().nlink(), 2);
        assert!(fs::metadata(copy.join("a/sparse")).unwrap().blocks() < 1024, "a hole stays one");
        assert!(fs::read(&leg).unwrap() == before, "the leg was changed");
        weir(&words).fails(code::EXISTS, &["exists", "try: "]);
        let report = weir(&["check", "tank", "-d", text(&leg), "--json"]).json();
        assert_eq!(report["wrong_inodes"], serde_json::json!([]), "{report:#}");
    });
}

#[test]
fn damaged_files_are_named_and_the_others_are_rescued() {
    on_fuse(|| {
        let dirs = Dirs::new();
        killed(&dirs, "", &["a"], true);
        let disk = dirs.file("a");
        let content = large();
        spoil(&disk, &content[MIB as usize..][..4096]);
        let copy = dirs.file("copy");
        let ran = weir(&["rescue", "tank/home", "-d", text(&disk), "--to", text(&copy), "--json"]);
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        ran.fails(DATA_LOST, &["cannot be read from these disks"]);
        assert_eq!(report["damaged_parts"], 1, "{report:#}");
        assert_eq!(report["damaged"][0]["path"], "a/b/large", "{report:#}");
        let at = |name: &str| report["damaged"][0]["range"][name].as_u64().unwrap() as usize;
        let (start, end) = (at("start"), at("end"));
        assert!(start <= MIB as usize && end >= MIB as usize + 4096, "{report:#}");
        let rescued = fs::read(copy.join("a/b/large")).unwrap();
        assert!(rescued[..start] == content[..start] && rescued[end..] == content[end..]);
        assert!(rescued[start..end].iter().all(|byte| *byte == 0));
        assert_eq!(fs::read(copy.join("a/small")).unwrap(), b"small");
        assert_eq!(fs::read_dir(copy.join("many")).unwrap().count(), NAMES as usize);
        let ran = weir(&["check", "tank", "-d", text(&disk)]);
        ran.fails(DATA_LOST, &["blocks without a good copy"]);
    });
}

/// Creates directories below `top` until the path of the last one is longer than PATH_MAX, and a
/// file in the last one.
fn populate_deep(top: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut last = rustix::fs::open(top, flags, Mode::empty()).unwrap();
    for level in 0..DEEP_LEVELS {
        let name = format!("{level}{}", "d".repeat(240));
        rustix::fs::mkdirat(&last, &name, Mode::from_bits_retain(0o755)).unwrap();
        last = rustix::fs::openat(&last, &name, flags, Mode::empty()).unwrap();
    }
    let create = OFlags::WRONLY | OFlags::CREATE;
    let file = rustix::fs::openat(&last, "file", create, Mode::from_bits_retain(0o644)).unwrap();
    let mut file = File::from(file);
    file.write_all(b"deep").unwrap();
    file.sync_all().unwrap();
}

/// Contents of all files with the name `file` below a directory.
fn contents_below(path: &Path, found: &mut Vec<Vec<u8>>) {
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            contents_below(&path, found);
        } else if path.file_name() == Some(OsStr::new("file")) {
            found.push(fs::read(&path).unwrap());
        }
    }
}

// Regression: a path longer than PATH_MAX ended the rescue, and all later files were missing.
#[test]
fn inodes_behind_too_long_paths_are_rescued_to_lost_and_found() {
    on_fuse(|| {
        let dirs = Dirs::new();
        dirs.disk("a", GIB);
        let server = dirs.start();
        server.weir("pool create tank a").ok();
        server.weir("filesystem create tank/home").ok();
        let home = Place::new(&dirs, "home");
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        populate_deep(&home.at(""));
        fs::write(home.at("other"), b"other").unwrap();
        File::open(home.at("other")).unwrap().sync_all().unwrap();
        server.kill();
        let (disk, copy) = (dirs.file("a"), dirs.file("copy"));
        let ran = weir(&["rescue", "tank/home", "-d", text(&disk), "--to", text(&copy)]);
        ran.fails(DATA_LOST, &["the target refuses it", "lost+found"]);
        assert_eq!(fs::read(copy.join("other")).unwrap(), b"other");
        let mut found = Vec::new();
        contents_below(&copy.join("lost+found"), &mut found);
        assert_eq!(found, [b"deep"]);
    });
}
