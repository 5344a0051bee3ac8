//! Snapshots below `.weir/snapshot` of a mount and of a share: restores, changes of the snapshots,
//! restarts.
//!
//! Not here: mounts of snapshots (`mounts`), the kernel of Linux as a client (`shares_kernel`).
//!
//! Invariant: a test ends within the limit of `mounts`, although a call on a broken mount could
//! wait for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Dirs, Server, text, tool};
use crate::mounts::{Place, mounted, on_fuse};
use crate::shares::Served;

const EROFS: i32 = 30;
const ENOENT: i32 = 2;
const EEXIST: i32 = 17;

fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or_default()
}

/// Path in a snapshot, as programs on the mount see it.
fn in_snapshot(home: &Place, name: &str) -> PathBuf {
    home.at(&format!(".weir/snapshot/{name}"))
}

fn names(directory: &Path) -> BTreeSet<String> {
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    fs::read_dir(directory).unwrap().map(name).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// Inode numbers of everything below a directory.
fn numbers(directory: &Path) -> BTreeMap<PathBuf, u64> {
    let listed = tool("find", &[directory.to_str().unwrap(), "-printf", "%i %p\n"]);
    let line = |line: &str| {
        let (number, path) = line.split_once(' ').unwrap();
        (PathBuf::from(path), number.parse().unwrap())
    };
    listed.lines().map(line).collect()
}

fn threads(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().count()
}

#[test]
fn deleted_file_is_copied_back_from_a_snapshot() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let content: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        fs::create_dir(home.at("docs")).unwrap();
        fs::write(home.at("docs/report"), &content).unwrap();
        tool("touch", &["-d", "2020-01-02 03:04:05", home.at("docs/report").to_str().unwrap()]);
        let before = fs::metadata(home.at("docs/report")).unwrap();
        server.weir("snapshot create tank/home@monday").ok();
        fs::remove_file(home.at("docs/report")).unwrap();
        fs::write(home.at("docs/new"), b"tuesday").unwrap();
        server.weir("snapshot create tank/home@tuesday").ok();

        assert_eq!(names(&home.at("")), set(["docs"]), "hidden");
        assert_eq!(names(&home.at(".weir")), set(["snapshot"]));
        assert_eq!(names(&home.at(".weir/snapshot")), set(["monday", "tuesday"]));
        let (monday, docs) = (in_snapshot(&home, "monday"), home.at("docs"));
        assert_eq!(names(&monday.join("docs")), set(["report"]));
        let (old, docs) = (monday.join("docs/report"), docs.to_str().unwrap());
        tool("cp", &["-a", old.to_str().unwrap(), docs]);
        let restored = fs::metadata(home.at("docs/report")).unwrap();
        assert_eq!(fs::read(home.at("docs/report")).unwrap(), content);
        assert_eq!((restored.mtime(), restored.mode()), (before.mtime(), before.mode()));

        // Programs that read whole trees.
        let copy = dirs.file("copy");
        let (monday_text, copy_text) = (monday.to_str().unwrap(), copy.to_str().unwrap());
        tool("rsync", &["-a", &format!("{monday_text}/"), copy_text]);
        assert_eq!(fs::read(copy.join("docs/report")).unwrap(), content);
        let used = tool("du", &["-s", "--block-size=1", monday_text]);
        assert!(used.split('\t').next().unwrap().parse::<u64>().unwrap() >= 300_000, "{used}");
        tool("df", &[monday_text]);
        let found = tool("find", &[home.text(), "-name", "report"]);
        assert_eq!(found.lines().count(), 1, "find does not enter a hidden directory: {found}");
        let all = numbers(&home.at("")).into_iter().chain(numbers(&home.at(".weir")));
        let all: Vec<u64> = all.map(|(_, number)| number).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "{all:?}");

        server.weir("set snapdir=visible tank/home").ok();
        assert_eq!(names(&home.at("")), set([".weir", "docs"]));
        let found = tool("find", &[home.text(), "-name", "report"]);
        assert_eq!(found.lines().count(), 2, "{found}");
        server.weir("set snapdir=hidden tank/home").ok();
        assert_eq!(names(&home.at("")), set(["docs"]));
        server.weir("volume create tank/v 16MiB").ok();
        let refused = server.weir("set snapdir=visible tank/v");
        assert!(refused.talk.contains("only filesystems have a snapdir"), "{}", refused.talk);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn snapshots_and_their_directories_refuse_changes() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        fs::create_dir(home.at("d")).unwrap();
        fs::write(home.at("file"), b"monday").unwrap();
        server.weir("snapshot create tank/home@monday").ok();
        let monday = in_snapshot(&home, "monday");
        let file = monday.join("file");
        let opened = |options: &mut OpenOptions| errno(options.open(&file));
        assert_eq!(opened(OpenOptions::new().write(true)), EROFS);
        assert_eq!(opened(OpenOptions::new().append(true)), EROFS);
        assert_eq!(opened(OpenOptions::new().read(true).write(true).truncate(true)), EROFS);
        let mode = fs::metadata(&file).unwrap().permissions();
        assert_eq!(errno(fs::set_permissions(&file, mode)), EROFS);
        let xattr = rustix::fs::setxattr(&file, "user.a", b"1", rustix::fs::XattrFlags::empty());
        assert_eq!(xattr, Err(rustix::io::Errno::ROFS));
        assert_eq!(errno(fs::hard_link(&file, home.at("link"))), 18, "EXDEV");
        for directory in [monday.clone(), home.at(".weir"), home.at(".weir/snapshot")] {
            assert_eq!(errno(File::create(directory.join("new"))), EROFS);
            assert_eq!(errno(fs::create_dir(directory.join("new"))), EROFS);
            assert_eq!(errno(fs::rename(home.at("file"), directory.join("new"))), EROFS);
        }
        assert_eq!(errno(fs::remove_file(&file)), EROFS);
        assert_eq!(errno(fs::remove_dir(&monday)), EROFS);
        assert_eq!(errno(fs::rename(&monday, home.at(".weir/snapshot/other"))), EROFS);
        assert_eq!(errno(fs::rename(&file, home.at("moved"))), EROFS);
        assert_eq!(errno(fs::create_dir(home.at(".weir"))), EEXIST);
        assert_eq!(errno(fs::remove_dir(home.at(".weir"))), EROFS);
        assert_eq!(errno(fs::rename(home.at(".weir"), home.at("moved"))), EROFS);
        assert_eq!(errno(fs::rename(home.at("d"), home.at(".weir"))), EROFS);
        assert_eq!(errno(fs::metadata(in_snapshot(&home, "absent"))), ENOENT);
        assert_eq!(errno(fs::metadata(home.at(".weir/absent"))), ENOENT);
        assert_eq!(fs::read(&file).unwrap(), b"monday");
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn tar_of_a_snapshot_is_complete_while_files_change() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let file = |number: u8| home.at(&format!("file-{number}"));
        for number in 0..200_u8 {
            fs::write(file(number), vec![number; 10_000]).unwrap();
        }
        server.weir("snapshot create tank/home@monday").ok();
        let (stop, archive) = (AtomicBool::new(false), dirs.file("monday.tar"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (0..200_u8).cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    drop(fs::remove_file(file(number)));
                    fs::write(file(number), b"changed").unwrap();
                }
            });
            let monday = in_snapshot(&home, "monday");
            let words = ["-C", monday.to_str().unwrap(), "-cf", archive.to_str().unwrap(), "."];
            tool("tar", &words);
            stop.store(true, Ordering::Relaxed);
        });
        let copy = dirs.file("copy");
        fs::create_dir(&copy).unwrap();
        tool("tar", &["-C", copy.to_str().unwrap(), "-xf", archive.to_str().unwrap()]);
        for number in 0..200_u8 {
            let restored = fs::read(copy.join(format!("file-{number}"))).unwrap();
            assert_eq!(restored, vec![number; 10_000], "{number}");
        }
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn snapshot_with_programs_in_it_is_renamed_and_destroyed() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        fs::write(home.at("file"), vec![1; 3_000_000]).unwrap();
        fs::write(home.at("other"), b"not read before").unwrap();
        server.weir("snapshot create tank/home@monday").ok();
        let monday = in_snapshot(&home, "monday");
        let open = File::open(monday.join("file")).unwrap();
        let mut shell = Command::new("sh")
            .args(["-c", "echo here; read line; cat other; echo status $?; ls; echo status $?"])
            .current_dir(&monday)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");

        server.weir("snapshot rename tank/home@monday tank/home@kept").ok();
        assert_eq!(errno(fs::metadata(&monday)), ENOENT);
        let mut content = [0; 4];
        open.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(fs::read(in_snapshot(&home, "kept").join("file")).unwrap().len(), 3_000_000);

        server.weir("snapshot destroy tank/home@kept --yes").ok();
        assert_eq!(names(&home.at(".weir/snapshot")), set([]));
        assert_eq!(errno(fs::metadata(in_snapshot(&home, "kept"))), ENOENT);
        shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let end = shell.wait_with_output().unwrap();
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut output, &mut rest).unwrap();
        let failed = rest.lines().filter(|line| line.starts_with("status ")).collect::<Vec<_>>();
        assert_eq!(failed.len(), 2, "{rest}{}", text(&end));
        assert!(failed.iter().all(|line| *line != "status 0"), "{rest}{}", text(&end));
        // A page that the kernel has may still be read; it does not have all of them.
        drop(open.read_exact_at(&mut content, 2_900_000));

        // A new snapshot with the name of the old one has its own content.
        fs::write(home.at("file"), b"second").unwrap();
        server.weir("snapshot create tank/home@kept").ok();
        assert_eq!(fs::read(in_snapshot(&home, "kept").join("file")).unwrap(), b"second");
        drop(open);
        server.assert_alive();
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn hundred_snapshots_are_read_and_destroyed_while_programs_read_them() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        let before = threads(&server);
        for number in 0..100 {
            fs::write(home.at("file"), format!("{number}")).unwrap();
            server.weir(&format!("snapshot create tank/home@s{number}")).ok();
        }
        let content = |number: usize| {
            fs::read_to_string(in_snapshot(&home, &format!("s{number}")).join("file"))
        };
        let order = || (0..100).chain((0..100).rev()).chain((0..100).map(|n| n * 37 % 100));
        for number in order() {
            assert_eq!(content(number).unwrap(), number.to_string());
        }
        let listed = numbers(&home.at(".weir"));
        assert_eq!(listed.len(), 2 + 2 * 100);
        assert_eq!(listed.values().collect::<BTreeSet<_>>().len(), listed.len());
        assert!(threads(&server) < before + 16, "an open snapshot has no thread");

        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for number in order().cycle().take_while(|_| !stop.load(Ordering::Relaxed))
                        {
                            if let Ok(content) = content(number) {
                                assert_eq!(content, number.to_string());
                            }
                        }
                    })
                })
                .collect();
            server.weir("snapshot destroy tank/home@s0%s49 --yes").ok();
            for number in 50..60 {
                server.weir(&format!("snapshot destroy tank/home@s{number} --yes")).ok();
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().unwrap());
        });
        assert_eq!(names(&home.at(".weir/snapshot")).len(), 40);
        assert!((0..60).all(|number| content(number).is_err()));
        assert!((60..100).all(|number| content(number).is_ok()));
        server.assert_alive();
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn snapshots_that_were_read_hinder_no_call() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        let write = |content: &str| fs::write(home.at("file"), content).unwrap();
        let read = |name: &str| fs::read_to_string(in_snapshot(&home, name).join("file"));
        for name in ["a", "b", "c"] {
            write(name);
            server.weir(&format!("snapshot create tank/home@{name}")).ok();
        }
        let numbers_of = || numbers(&home.at(".weir"));
        let before = numbers_of();
        server.stop_clean();
        server = dirs.start();
        assert_eq!(numbers_of(), before, "inode numbers survive a restart");
        server.kill();
        server = dirs.start();
        assert_eq!(numbers_of(), before);
        assert_eq!(read("b").unwrap(), "b");

        server.weir("unmount tank/home").ok();
        server.weir("snapshot rollback -r tank/home@b --yes").ok();
        server.weir("mount tank/home").ok();
        assert_eq!(names(&home.at(".weir/snapshot")), set(["a", "b"]));
        assert_eq!((read("a").unwrap(), read("b").unwrap()), ("a".to_owned(), "b".to_owned()));
        write("after");

        server.weir("pool export tank").ok();
        server.weir("pool import -d . tank").ok();
        assert_eq!((read("a").unwrap(), read("b").unwrap()), ("a".to_owned(), "b".to_owned()));
        // A mount of the snapshot and the directory use one open snapshot.
        let other = Place::new(&dirs, "other");
        server.weir(&format!("mount tank/home@a {}", other.text())).ok();
        assert_eq!(errno(fs::metadata(other.at(".weir"))), ENOENT);
        assert_eq!(fs::read(other.at("file")).unwrap(), b"a");
        assert_eq!(read("a").unwrap(), "a");
        server.weir("unmount tank/home@a").ok();

        server.weir("snapshot clone tank/home@b tank/copy").ok();
        let copy = Place::new(&dirs, "copy");
        server.weir(&format!("mount tank/copy {}", copy.text())).ok();
        assert_eq!(read("b").unwrap(), "b");
        assert_eq!(names(&copy.at(".weir/snapshot")), set([]));
        server.weir("unmount tank/copy").ok();
        server.weir("filesystem destroy tank/copy --yes").ok();
        server.weir("unmount tank/home").ok();
        server.weir("filesystem rename tank/home tank/users").ok();
        server.weir("mount tank/users").ok();
        assert_eq!(read("b").unwrap(), "b");
        server.weir("unmount tank/users").ok();
        server.weir("filesystem destroy -r tank/users --yes").ok();
        server.assert_alive();
    });
}

#[test]
fn clients_of_a_share_read_snapshots_that_can_be_destroyed() {
    let served = Served::new();
    let (server, content) = (&served.server, |path: &str| {
        let read = served.read(path);
        (read.status.success(), String::from_utf8_lossy(&read.stdout).into_owned())
    });
    served.share();
    assert!(served.write("/tank/home/f", "monday").status.success());
    server.weir("snapshot create tank/home@monday").ok();
    assert!(served.write("/tank/home/g", "tuesday").status.success());
    server.weir("snapshot create tank/home@tuesday").ok();
    assert_eq!(served.names("/tank/home"), ["f", "g"]);
    assert_eq!(served.names("/tank/home/.weir"), ["snapshot"]);
    assert_eq!(served.names("/tank/home/.weir/snapshot"), ["monday", "tuesday"]);
    assert_eq!(served.names("/tank/home/.weir/snapshot/monday"), ["f"]);
    assert_eq!(content("/tank/home/.weir/snapshot/monday/f"), (true, "monday".to_owned()));
    assert!(!served.write("/tank/home/.weir/snapshot/monday/new", "x").status.success());
    server.weir("set snapdir=visible tank/home").ok();
    assert_eq!(served.names("/tank/home"), [".weir", "f", "g"]);

    server.weir("snapshot rename tank/home@monday tank/home@first").ok();
    assert_eq!(content("/tank/home/.weir/snapshot/first/f"), (true, "monday".to_owned()));
    assert_eq!(content("/tank/home/.weir/snapshot/tuesday/g"), (true, "tuesday".to_owned()));
    server.weir("snapshot rollback -r tank/home@first --yes").ok();
    assert_eq!(served.names("/tank/home/.weir/snapshot"), ["first"]);
    assert!(!content("/tank/home/.weir/snapshot/tuesday/g").0);
    assert_eq!(content("/tank/home/.weir/snapshot/first/f"), (true, "monday".to_owned()));
    server.weir("snapshot destroy tank/home@first --yes").ok();
    assert_eq!(served.names("/tank/home/.weir/snapshot"), [""; 0]);
    assert_eq!(content("/tank/home/f"), (true, "monday".to_owned()));
    server.weir("share delete tank/home").ok();
    server.weir("filesystem destroy tank/home --yes").ok();
}
