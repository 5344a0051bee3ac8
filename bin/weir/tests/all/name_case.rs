//! Case-insensitive filesystems: names on a mount, snapshots, clones, streams, SIGKILL and disks
//! without a server.
//!
//! Not here: the rules for equal names (weir-fs), operations against a model (weir-sim).

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

use crate::common::{Dirs, GIB, Ran, Server, WEIR, code, run, text};
use crate::mounts::{Place, on_fuse, with_weir};

/// Exit code of a command line that the grammar refuses.
const USAGE: i32 = 2;
/// The Kelvin sign, of three bytes, which equals k.
const KELVIN: &str = "\u{212a}";

/// Starts a server with a mounted case-insensitive filesystem, tank/home.
fn mounted(dirs: &Dirs) -> (Server, Place) {
    dirs.disk("disk-a", 2 * GIB);
    let server = dirs.start();
    server.weir("pool create tank disk-a").ok();
    server.weir("filesystem create tank/home --case insensitive").ok();
    let home = Place::new(dirs, "home");
    server.weir(&format!("mount tank/home {}", home.text())).ok();
    (server, home)
}

/// Names in a directory, sorted.
fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// True if a label at the start of a disk has the flag of case-insensitive filesystems.
fn has_flag(disk: &Path) -> bool {
    let mut label = vec![0; 64 << 10];
    File::open(disk).unwrap().read_exact_at(&mut label, 0).unwrap();
    let text = b"case-insensitive filesystems; needs weir";
    label.windows(text.len()).any(|window| window == text)
}

#[track_caller]
fn assert_absent(place: &Place, spellings: &[&str]) {
    for name in spellings {
        let found = fs::symlink_metadata(place.at(name));
        assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
}

fn inode(place: &Place, name: &str) -> u64 {
    fs::symlink_metadata(place.at(name)).unwrap_or_else(|error| panic!("{name}: {error}")).ino()
}

#[test]
fn kernel_follows_changes_by_any_spelling_of_a_name() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        assert_absent(&home, &["a", "A"]);
        fs::write(home.at("a"), b"1").unwrap();
        assert_eq!(inode(&home, "A"), inode(&home, "a"));
        fs::write(home.at("A"), b"22").unwrap();
        assert_eq!(fs::read(home.at("a")).unwrap(), b"22");
        fs::remove_file(home.at("A")).unwrap();
        assert_absent(&home, &["a", "A"]);

        // The kernel has entries of several spellings when the file moves away.
        fs::write(home.at("k"), b"3").unwrap();
        assert_eq!(
            (inode(&home, "K"), inode(&home, KELVIN)),
            (inode(&home, "k"), inode(&home, "k"))
        );
        fs::rename(home.at(KELVIN), home.at("moved")).unwrap();
        assert_absent(&home, &["k", "K", KELVIN]);
        fs::write(home.at("K"), b"4").unwrap();
        assert_ne!(inode(&home, "k"), inode(&home, "Moved"));
        assert_eq!(names(&home.at("")), ["K", "moved"]);

        // A hard link and its file have one inode, and each unlink takes one name.
        fs::hard_link(home.at("MOVED"), home.at("Second")).unwrap();
        assert_eq!(fs::metadata(home.at("moveD")).unwrap().nlink(), 2);
        fs::remove_file(home.at("SECOND")).unwrap();
        assert_eq!(fs::metadata(home.at("moved")).unwrap().nlink(), 1);
        assert_absent(&home, &["second", "Second"]);

        // Directories on the way to a file.
        fs::create_dir_all(home.at("Docs/Work")).unwrap();
        fs::write(home.at("docs/work/plan"), b"5").unwrap();
        let held = File::open(home.at("DOCS/Work")).unwrap();
        assert_eq!(fs::read(home.at("Docs/WORK/Plan")).unwrap(), b"5");
        assert_eq!(
            fs::remove_dir(home.at("docs")).unwrap_err().kind(),
            ErrorKind::DirectoryNotEmpty
        );
        fs::rename(home.at("DOCS/work"), home.at("w")).unwrap();
        assert_absent(&home, &["Docs/Work", "docs/work", "DOCS/Work"]);
        assert_eq!(fs::read(home.at("W/PLAN")).unwrap(), b"5");
        assert_eq!(held.metadata().unwrap().ino(), inode(&home, "w"));
        drop(held);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn no_operation_creates_a_second_spelling() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        fs::write(home.at("readme"), b"1").unwrap();
        for spelling in ["README", "ReadMe", "readme"] {
            let path = home.at(spelling);
            let exists = |done: std::io::Result<()>| {
                assert_eq!(done.unwrap_err().kind(), ErrorKind::AlreadyExists, "{spelling}");
            };
            exists(File::create_new(&path).map(drop));
            exists(fs::create_dir(&path));
            exists(symlink("x", &path));
            exists(fs::hard_link(home.at("readme"), &path));
        }
        fs::write(home.at("other"), b"2").unwrap();
        let (other, readme) = (home.at("OTHER"), home.at("ReadMe"));
        let renamed = rustix::fs::renameat_with(CWD, &other, CWD, &readme, RenameFlags::NOREPLACE);
        assert_eq!(renamed, Err(rustix::io::Errno::EXIST));
        rustix::fs::renameat_with(CWD, &other, CWD, &readme, RenameFlags::EXCHANGE).unwrap();
        assert_eq!(names(&home.at("")), ["other", "readme"], "an exchange keeps the spellings");
        assert_eq!(fs::read(home.at("README")).unwrap(), b"2");
        fs::rename(&readme, &other).unwrap();
        assert_eq!(names(&home.at("")), ["OTHER"], "a replaced name has the new spelling");
        assert_absent(&home, &["readme", "ReadMe"]);

        // Linux returns success for a rename between two spellings without a request to the
        // mount, because both have one inode. Two renames change the spelling.
        fs::rename(home.at("OTHER"), home.at("Other")).unwrap();
        assert_eq!(names(&home.at("")), ["OTHER"]);
        fs::rename(home.at("other"), home.at("between")).unwrap();
        fs::rename(home.at("between"), home.at("Other")).unwrap();
        assert_eq!(names(&home.at("")), ["Other"]);

        let no_text = home.at("").join(OsStr::from_bytes(b"\xff"));
        for refused in [fs::write(&no_text, b"x"), fs::create_dir(&no_text)] {
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(84), "EILSEQ");
        }
        fs::write(home.at(&KELVIN.repeat(85)), b"3").unwrap();
        assert_eq!(fs::read(home.at(&"k".repeat(85))).unwrap(), b"3");
        let too_long = fs::write(home.at(&KELVIN.repeat(86)), b"x").unwrap_err();
        assert_eq!(too_long.raw_os_error(), Some(36), "ENAMETOOLONG");
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn clones_streams_and_crashes_keep_the_comparison_of_names() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let other = Place::new(&dirs, "other");
        fs::write(home.at("Caf\u{e9}"), b"1").unwrap();
        server.weir("snapshot create tank/home@one").ok();
        server.weir("snapshot clone tank/home@one tank/copy").ok();
        // The receive flags the labels of its pool, so that an older weir refuses the pool.
        let spare = dirs.disk("disk-b", GIB);
        server.weir("pool create backup disk-b").ok();
        assert!(!has_flag(&spare));
        let stream = server.shell("weir send tank/home@one | weir receive backup/received");
        let moved = with_weir(stream).output().unwrap();
        assert!(moved.status.success(), "{}", text(&moved));
        assert!(has_flag(&spare));
        for name in ["tank/copy", "backup/received", "tank/home@one"] {
            server.weir(&format!("mount {name} {}", other.text())).ok();
            let found = fs::read(other.at("CAFE\u{301}")).unwrap();
            assert_eq!(found, b"1", "{name}");
            assert_eq!(names(&other.at("")), ["Caf\u{e9}"], "{name}");
            server.weir(&format!("unmount {name}")).ok();
            let value = server.weir(&format!("get -H -o value case {name}")).ok().out;
            assert_eq!(value.trim(), "insensitive", "{name}");
        }
        fs::write(home.at("late"), b"2").unwrap();
        File::open(home.at("LATE")).unwrap().sync_all().unwrap();
        server.kill();
        let server = dirs.start();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert_eq!(fs::read(home.at("Late")).unwrap(), b"2");
        server.weir("unmount tank/home").ok();
        server.weir("pool scrub --wait tank").ok();
        server.stop_clean();
        let (disk, copy) = (dirs.file("disk-a"), dirs.file("rescued"));
        let (disk, to) = (disk.to_str().unwrap(), copy.to_str().unwrap());
        let weir = |words: &[&str]| Ran::of(&words.join(" "), &run(WEIR, words));
        let report = weir(&["check", "tank", "-d", disk, "--json"]).json();
        assert_eq!(report["wrong_inodes"], serde_json::json!([]), "{report:#}");
        weir(&["rescue", "tank/home", "-d", disk, "--to", to]).ok();
        assert_eq!(names(&copy), ["Caf\u{e9}", "late"]);
    });
}

#[test]
fn comparison_of_names_is_chosen_at_the_creation_only() {
    let dirs = Dirs::new();
    dirs.disk("disk-a", 2 * GIB);
    let server = dirs.start();
    server.weir("pool create tank disk-a").ok();
    server
        .weir("filesystem create tank/home --case purple")
        .fails(USAGE, &["purple", "sensitive, insensitive"]);
    server.weir("filesystem create tank/plain").ok();
    server.weir("filesystem create tank/office --case insensitive").ok();
    server.weir("volume create tank/v 1GiB").ok();
    for (name, case) in [("plain", "sensitive"), ("office", "insensitive")] {
        let shown = server.weir(&format!("filesystem show tank/{name} --json")).json();
        assert_eq!(shown["case"], case, "{shown:#}");
        let shown = server.weir(&format!("filesystem show tank/{name}")).ok().out;
        let line = shown.lines().find(|line| line.trim_start().starts_with("case")).unwrap();
        assert_eq!(line.split_whitespace().last(), Some(case), "{shown}");
    }
    assert_eq!(server.weir("get -H -o value case tank/v").ok().out.trim(), "-");
    for line in ["set case=insensitive tank/plain", "inherit case tank/office"] {
        server.weir(line).fails(code::INVALID, &["case", "weir filesystem create --case"]);
    }
    server.stop_clean();
}
