//! Filesystems on a disk that stops answering: every verb returns, programs wait, and everything
//! continues when the disk answers again.
//!
//! Not here: disks that fail (dead_disks, mounts), frozen disks below volumes (weir-server's
//! monitor/unresponsive/tests.rs).
//!
//! Invariants:
//! - every call returns within [`BOUND`], with success or an error;
//! - an fsync that returned is never lost.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::stuck::StuckDisk;
use crate::common::{Dirs, Ran, Server, code, eventually};
use crate::mounts::{Place, on_fuse};

/// Time within which every call must return: the limit of the server, and the start of the command.
const BOUND: Duration = Duration::from_secs(6);
/// Time within which programs and calls must continue on a busy machine.
const SOON: Duration = Duration::from_secs(20);
/// Time after SIGTERM within which the server must end.
const END_BOUND: Duration = Duration::from_secs(14);
const DISK_MIB: u64 = 256;
const LARGE_BYTES: usize = 24 << 20;

/// Runs one command line, which must end within [`BOUND`].
fn timely(server: &Server, line: &str) -> Ran {
    server.weir_within(line, BOUND)
}

/// Runs a call of this process on the mount, which must return within [`BOUND`].
fn returns<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = channel();
    std::thread::spawn(move || done.send(call()));
    ended.recv_timeout(BOUND).unwrap_or_else(|_| panic!("{what} does not return"))
}

/// A program that appends numbers to a file with fsync, one after the other.
struct Writer {
    synced: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Writer {
    fn start(path: PathBuf) -> Self {
        let (synced, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (number, ends) = (Arc::clone(&synced), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let file = File::create(path)?;
            for next in 0_u64.. {
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                file.write_all_at(&next.to_le_bytes(), next * 8)?;
                file.sync_all()?;
                number.store(next + 1, Ordering::Relaxed);
            }
            Ok(())
        });
        Self { synced, stop, thread }
    }

    fn synced(&self) -> u64 {
        self.synced.load(Ordering::Relaxed)
    }

    /// Ends the program; returns the number of synced numbers.
    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap();
        self.synced.load(Ordering::Relaxed)
    }
}

/// Asserts that the file of a [`Writer`] has all synced numbers.
fn assert_synced(path: &Path, synced: u64) {
    let content = fs::read(path).unwrap();
    let numbers: Vec<u64> = content
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
        .collect();
    assert!(numbers.len() as u64 >= synced, "{} of {synced} numbers", numbers.len());
    assert!(numbers.iter().zip(0..).all(|(number, expected)| *number == expected));
}

/// Starts a server with a filesystem on the disk, with an idle file and a large file. Each test has
/// its own name of the pool: a starting server looks for dead mounts of its pools, and would wait
/// for the stuck mount of the other test.
fn mounted(dirs: &Dirs, disk: &StuckDisk, pool: &str) -> (Server, Place) {
    let server = dirs.start();
    server.weir(&format!("pool create {pool} {}", disk.path().display())).ok();
    server.weir(&format!("filesystem create {pool}/home")).ok();
    server.weir(&format!("filesystem create {pool}/idle")).ok();
    server.weir(&format!("snapshot create {pool}/home@before")).ok();
    let home = Place::new(dirs, "home");
    server.weir(&format!("mount {pool}/home {}", home.text())).ok();
    fs::write(home.at("small"), b"small").unwrap();
    let noise = (0..LARGE_BYTES as u32 / 4).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes());
    fs::write(home.at("large"), noise.collect::<Vec<u8>>()).unwrap();
    File::open(home.at("large")).unwrap().sync_all().unwrap();
    (server, home)
}

/// A program that waits on the mount: it writes and syncs.
fn waiting_program(home: &Place) -> Child {
    let mut command = Command::new("dd");
    let target = format!("of={}", home.at("by dd").display());
    command.args(["if=/dev/zero", &target, "bs=4k", "count=4", "conv=fsync", "status=none"]);
    command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Command lines that change nothing, and must succeed.
const READS: &[&str] = &[
    "list",
    "pool list",
    "pool status tank",
    "pool history tank",
    "filesystem list",
    "filesystem show tank/home",
    "filesystem show tank/idle",
    "filesystem usage tank/home",
    "get all tank/home",
    "snapshot list tank/home",
    "events",
    "status",
];

/// Command lines that change the pool. They return an error, and continue when the disk answers.
const CHANGES: &[&str] = &[
    "snapshot create tank/home@stuck",
    "filesystem quota tank/home --user 7 1GiB",
    "set compression=off tank/home",
    "set quota=100MiB tank/home",
    "filesystem create tank/other",
    "filesystem destroy --yes tank/idle",
    "filesystem rename tank/idle tank/lazy",
];

/// Asserts that cached names, attributes and contents are still readable.
fn assert_cached(home: &Place) {
    let (small, top) = (home.at("small"), home.at(""));
    let size = returns("stat", move || fs::metadata(small).map(|file| file.len()));
    assert_eq!(size.unwrap(), 5);
    let small = home.at("small");
    assert_eq!(returns("read", move || fs::read(small)).unwrap(), b"small");
    returns("listing", move || fs::read_dir(top).map(Iterator::count)).unwrap();
}

#[test]
fn verbs_return_while_the_disk_is_stuck_and_programs_continue_afterwards() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let disk = StuckDisk::new(&dirs, "disk", DISK_MIB);
        let (mut server, home) = mounted(&dirs, &disk, "tank");
        let writer = Writer::start(home.at("numbers"));
        eventually("the writer works", SOON, || writer.synced() > 3);
        let stopped = disk.stop();
        std::thread::sleep(Duration::from_millis(500));
        let stuck_at = writer.synced();
        let mut program = waiting_program(&home);
        // The unmount finds this file in use.
        let used = File::open(home.at("small")).unwrap();
        for line in READS {
            timely(&server, line).ok();
        }
        std::thread::scope(|scope| {
            let calls = CHANGES.iter().map(|line| scope.spawn(|| timely(&server, line)));
            for call in calls.collect::<Vec<_>>() {
                let ran = call.join().unwrap();
                assert_eq!(ran.code, Some(code::UNAVAILABLE), "{}", ran.talk);
                assert!(ran.talk.contains("does not answer"), "{}", ran.talk);
            }
        });
        // The mount is in use, and the directory is not empty. Both checks come after the lock of
        // the pool, for which the calls may wait.
        let unmount = timely(&server, "unmount tank/home");
        let message = match unmount.code {
            Some(code::BUSY) => "programs use files",
            Some(code::UNAVAILABLE) => "does not answer",
            _ => panic!("{}", unmount.talk),
        };
        assert!(unmount.talk.contains(message), "{}", unmount.talk);
        let mount = timely(&server, "mount tank/home@before .");
        assert!([Some(code::INVALID), Some(code::UNAVAILABLE)].contains(&mount.code));
        assert_cached(&home);
        let status = timely(&server, "pool status tank").ok().out;
        assert!(status.contains("unresponsive"), "{status}");
        assert_eq!(writer.synced(), stuck_at, "an fsync returned without the disk");
        // The kernel lets a program with a request in the server end only after the answer.
        program.kill().unwrap();
        timely(&server, "list").ok();

        drop(stopped);
        eventually("the killed program ends", SOON, || program.try_wait().unwrap().is_some());
        eventually("the writer continues", SOON, || writer.synced() > stuck_at + 3);
        eventually("the calls take effect", SOON, || {
            let list = server.weir("filesystem list tank").ok().out;
            let history = server.weir("pool history tank").ok().out;
            let is_created = list.contains("tank/other") && !list.contains("tank/idle");
            // The unmount must end while the file is open.
            is_created && history.contains("unmount tank/home")
        });
        drop(used);
        server.assert_alive();
        let synced = writer.end();
        let status = timely(&server, "pool status tank --json").ok().json();
        assert_eq!(status["state"], "online", "{status:#}");
        assert_synced(&home.at("numbers"), synced);
        server.kill();
        let server = dirs.start();
        eventually("the filesystem is mounted again", SOON, || home.mounts() == 1);
        assert_synced(&home.at("numbers"), synced);
        server.stop_clean();
    });
}

#[test]
fn forced_export_ends_programs_that_wait_for_a_stuck_disk() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let disk = StuckDisk::new(&dirs, "disk", DISK_MIB);
        let (mut server, home) = mounted(&dirs, &disk, "forced");
        let writer = Writer::start(home.at("numbers"));
        eventually("the writer works", SOON, || writer.synced() > 3);
        let stopped = disk.stop();
        std::thread::sleep(Duration::from_millis(500));
        let mut program = waiting_program(&home);
        std::thread::sleep(Duration::from_millis(200));
        program.kill().unwrap();
        timely(&server, "pool export --force forced").ok();
        eventually("the killed program ends", SOON, || program.try_wait().unwrap().is_some());
        eventually("the writer gets an error", SOON, || writer.thread.is_finished());
        let synced = writer.synced();
        assert_eq!(writer.thread.join().unwrap().unwrap_err().raw_os_error(), Some(5), "EIO");
        timely(&server, "list").ok();
        server.assert_alive();
        drop(stopped);
        let folder = disk.path().parent().unwrap().display().to_string();
        eventually("the pool is imported", SOON, || {
            server.weir(&format!("pool import -d {folder} forced")).code == Some(0)
        });
        assert_synced(&home.at("numbers"), synced);
        server.stop_clean();
    });
}

#[test]
fn server_with_a_stuck_disk_ends_in_time_and_loses_nothing() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let disk = StuckDisk::new(&dirs, "disk", DISK_MIB);
        let (mut server, home) = mounted(&dirs, &disk, "ended");
        let writer = Writer::start(home.at("numbers"));
        eventually("the writer works", SOON, || writer.synced() > 3);
        let stopped = disk.stop();
        std::thread::sleep(Duration::from_millis(500));
        let start = Instant::now();
        server.signal(Signal::TERM);
        let status = server.wait_end(END_BOUND);
        eprintln!("the server ends after {:?} with {status}", start.elapsed());
        assert!(status.code().is_some_and(|code| code != 0), "{status}: the disk has no changes");
        // The fsync of the writer fails, because its mount is gone.
        eventually("the writer ends", SOON, || writer.thread.is_finished());
        let synced = writer.synced();
        writer.thread.join().unwrap().unwrap_err();
        drop(stopped);
        let server = dirs.start();
        eventually("the filesystem is mounted again", SOON, || {
            home.mounts() == 1 && fs::metadata(home.at("numbers")).is_ok()
        });
        assert_synced(&home.at("numbers"), synced);
        assert_eq!(fs::read(home.at("large")).unwrap().len(), LARGE_BYTES);
        server.stop_clean();
    });
}
