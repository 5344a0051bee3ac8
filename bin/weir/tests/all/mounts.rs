//! Mounted filesystems: programs on a mount, restarts, SIGKILL, snapshots, refused mounts, and dead
//! disks.
//!
//! Not here: operations against a model (weir-fs, weir-sim), units of the mount (weir-fuse).
//!
//! Invariants:
//! - a test ends within [`LIMIT`], although a call on a broken mount could wait for ever;
//! - no test leaves a mount behind.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::room::Room;
use crate::common::{Dirs, GIB, MIB, Ran, Server, WEIR, code, eventually, path, run, text, tool};

/// Maximum time of one test.
const LIMIT: Duration = Duration::from_mins(2);

/// Returns the reason why this machine cannot mount, if there is one.
pub(crate) fn no_fuse() -> Option<String> {
    // Capability of mount(2) (capabilities(7)).
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    if u64::from_str_radix(capabilities.trim(), 16).unwrap() & CAP_SYS_ADMIN == 0 {
        return Some("this user may not mount".to_owned());
    }
    let device = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

/// Runs a test, unless this machine has no FUSE. Fails if the test takes too long.
pub(crate) fn on_fuse(body: impl FnOnce() + Send + 'static) {
    on_fuse_within(LIMIT, body);
}

/// As [`on_fuse`], with another time limit.
pub(crate) fn on_fuse_within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    if let Some(why) = no_fuse() {
        eprintln!("skipped: {why}");
        return;
    }
    let (done, ended) = mpsc::channel();
    let name = std::thread::current().name().unwrap_or("mounts").to_owned();
    let test = std::thread::Builder::new().name(name).spawn(move || {
        body();
        done.send(()).unwrap();
    });
    let test = test.unwrap();
    match ended.recv_timeout(limit) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => {
            test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
    }
}

/// Directory for a mount; dropping the `Place` unmounts it.
pub(crate) struct Place(PathBuf);

impl Place {
    pub(crate) fn new(dirs: &Dirs, name: &str) -> Self {
        let path = dirs.file(name);
        fs::create_dir(&path).unwrap();
        Self(fs::canonicalize(path).unwrap())
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Number of mounts at this directory.
    pub(crate) fn mounts(&self) -> usize {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().filter(|line| line.split(' ').nth(4) == Some(self.text())).count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        while self.mounts() > 0 {
            let output = Command::new("umount").arg("--lazy").arg(&self.0).output().unwrap();
            if !output.status.success() {
                eprintln!("{} stays mounted: {}", self.0.display(), text(&output));
                return;
            }
        }
    }
}

/// Starts a server with a mounted filesystem, tank/home.
pub(crate) fn mounted(dirs: &Dirs) -> (Server, Place) {
    dirs.disk("disk-a", 2 * GIB);
    let server = dirs.start();
    server.weir("pool create tank disk-a").ok();
    server.weir("filesystem create tank/home").ok();
    let home = Place::new(dirs, "home");
    server.weir(&format!("mount tank/home {}", home.text())).ok();
    (server, home)
}

/// Adds the directory of the program under test to the search path of a command.
pub(crate) fn with_weir(mut command: Command) -> Command {
    let folder = Path::new(WEIR).parent().unwrap().display();
    command.env("PATH", format!("{folder}:{}", path()));
    command
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

#[test]
fn files_names_links_and_attributes_behave_as_on_a_local_disk() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        fs::create_dir_all(home.at("a/b")).unwrap();
        let file = home.at("a/file");
        fs::write(&file, b"first").unwrap();
        fs::hard_link(&file, home.at("a/b/second")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 2);
        symlink("a/file", home.at("link")).unwrap();
        assert_eq!(read(&home.at("link")), b"first");
        fs::rename(&file, home.at("moved")).unwrap();
        assert_eq!(errno(&fs::metadata(&file).unwrap_err()), 2);
        assert_eq!(errno(&fs::remove_dir(home.at("a")).unwrap_err()), 39, "ENOTEMPTY");

        let (one, two) = (home.at("moved"), home.at("two"));
        fs::write(&two, b"other").unwrap();
        let rename = |flags| rustix::fs::renameat_with(CWD, &one, CWD, &two, flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!((read(&one), read(&two)), (b"other".to_vec(), b"first".to_vec()));

        rustix::fs::setxattr(&one, "user.kind", b"text", XattrFlags::CREATE).unwrap();
        let again = rustix::fs::setxattr(&one, "user.kind", b"x", XattrFlags::CREATE);
        assert_eq!(again, Err(rustix::io::Errno::EXIST));
        let mut value = [0; 16];
        let bytes = rustix::fs::getxattr(&one, "user.kind", &mut value).unwrap();
        assert_eq!(&value[..bytes], b"text");
        let capability = rustix::fs::getxattr(&one, "security.capability", &mut value);
        assert_eq!(capability, Err(rustix::io::Errno::NODATA));
        // CAP_NET_RAW, permitted and effective, as setcap(8) stores it (capabilities(7)): version
        // 2, and the words of the permitted and inheritable capabilities.
        let words = [0x0200_0001_u32, 1 << 13, 0, 0, 0];
        let value: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let set = rustix::fs::setxattr(&one, "security.capability", &value, XattrFlags::empty());
        assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP), "a write would have to remove it");
        let mut names = [0; 256];
        let bytes = rustix::fs::listxattr(&one, &mut names).unwrap();
        assert_eq!(&names[..bytes], b"user.kind\0");
        // Set the smallest time of 64 bits, and times before 1970 with nanoseconds.
        let times = |seconds| Timestamps {
            last_access: Timespec { tv_sec: seconds, tv_nsec: 5 },
            last_modification: Timespec { tv_sec: -2, tv_nsec: 800_000_000 },
        };
        for seconds in [i64::MIN, -1, 1 << 33] {
            rustix::fs::utimensat(CWD, &one, &times(seconds), AtFlags::empty()).unwrap();
            let found = fs::metadata(&one).unwrap();
            // The kernel rounds the smallest time down to whole seconds.
            let nanos = if seconds == i64::MIN { 0 } else { 5 };
            assert_eq!((found.atime(), found.atime_nsec()), (seconds, nanos));
            assert_eq!((found.mtime(), found.mtime_nsec()), (-2, 800_000_000));
        }
        tool("touch", &[one.to_str().unwrap()]);
        let touched = fs::metadata(&one).unwrap().modified().unwrap();
        assert!(touched.elapsed().unwrap() < LIMIT, "touch(1) sets the time to now");
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn open_files_holes_and_set_id_bits_behave_as_on_a_local_disk() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        // A file without a name stays readable until its last close.
        let path = home.at("gone");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.write_all_at(b"still here", 0).unwrap();
        fs::remove_file(&path).unwrap();
        let mut content = String::new();
        (&file).read_to_string(&mut content).unwrap();
        assert_eq!((&*content, file.metadata().unwrap().nlink()), ("still here", 0));
        // A close of one of two descriptors does not close the file.
        let other = file.try_clone().unwrap();
        drop(file);
        other.write_all_at(b"and changed", 0).unwrap();
        let mut content = [0; 11];
        other.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(&content, b"and changed");
        drop(other);

        let sparse = home.at("sparse");
        let sparse = File::options().read(true).write(true).create_new(true).open(sparse).unwrap();
        sparse.set_len(1 << 40).unwrap();
        sparse.write_all_at(&[7; 4096], 1 << 30).unwrap();
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Data(0)).unwrap(), 1 << 30);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&sparse, punch, 1 << 30, 4096).unwrap();
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Data(0)), Err(rustix::io::Errno::NXIO));
        let collapse = rustix::fs::fallocate(&sparse, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
        assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
        assert_eq!(sparse.metadata().unwrap().len(), 1 << 40);

        // Locks without a request of their own, and a copy.
        rustix::fs::flock(&sparse, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        fs::write(home.at("source"), vec![3; 300_000]).unwrap();
        fs::copy(home.at("source"), home.at("target")).unwrap();
        assert_eq!(read(&home.at("target")), vec![3; 300_000]);
        let unnamed = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let unnamed = rustix::fs::open(&home.0, unnamed, rustix::fs::Mode::RUSR);
        assert_eq!(unnamed.err(), Some(rustix::io::Errno::OPNOTSUPP));

        let program = home.at("program");
        fs::write(&program, b"#!").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o6777)).unwrap();
        fs::set_permissions(&home.0, fs::Permissions::from_mode(0o777)).unwrap();
        // A user without CAP_FSETID appends to the program.
        let append = format!("echo x >> {}", program.display());
        let arguments = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &append];
        let output = run("setpriv", &arguments);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o7777, 0o777);
        drop(sparse);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn filesystem_that_was_mounted_after_the_start_of_a_receive_is_not_changed() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let send = |line: &str, name: &str| {
            let stream = File::create(dirs.file(name)).unwrap();
            let words: Vec<&str> = line.split(' ').collect();
            let sent = server.command(&words).stdout(stream).status().unwrap();
            assert!(sent.success(), "{line}");
        };
        fs::write(home.at("first"), b"1").unwrap();
        server.weir("snapshot create tank/home@one").ok();
        (0..60).for_each(|n| fs::write(home.at(&format!("later-{n}")), b"2").unwrap());
        server.weir("snapshot create tank/home@two").ok();
        send("send tank/home@one", "whole");
        send("send -i @one tank/home@two", "change");
        let whole = File::open(dirs.file("whole")).unwrap();
        assert!(server.command(&["receive", "tank/copy"]).stdin(whole).status().unwrap().success());

        // The receive has begun when the mount comes, but it has no data yet.
        let mut receive = server.command(&["receive", "tank/copy"]);
        let receive = receive.stdin(Stdio::piped()).stderr(Stdio::piped()).stdout(Stdio::piped());
        let mut receive = receive.spawn().unwrap();
        let streams = || server.weir("stream list --json").json()["streams"].clone();
        let has_begun = || streams().as_array().is_some_and(|streams| !streams.is_empty());
        eventually("the receive begins", Duration::from_secs(20), has_begun);
        let copy = Place::new(&dirs, "copy");
        server.weir(&format!("mount tank/copy {}", copy.text())).ok();
        let list = || fs::read_dir(&copy.0).unwrap().count();
        assert_eq!(list(), 1);
        let change = read(&dirs.file("change"));
        drop(receive.stdin.take().unwrap().write_all(&change));
        let refused = receive.wait_with_output().unwrap();
        assert!(!refused.status.success(), "{}", text(&refused));
        assert!(text(&refused).contains("weir unmount tank/copy"), "{}", text(&refused));
        fs::write(copy.at("mine"), b"3").unwrap();
        server.weir("unmount tank/copy").ok();
        server.weir(&format!("mount tank/copy {}", copy.text())).ok();
        assert_eq!(list(), 2);
        server.weir("unmount tank/copy").ok();

        let change = File::open(dirs.file("change")).unwrap();
        let again = server.command(&["receive", "-F", "tank/copy"]).stdin(change).output().unwrap();
        assert!(again.status.success(), "{}", text(&again));
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn mount_right_after_an_unmount_by_another_program_is_a_new_mount() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        for _ in 0..20 {
            // A program that looks up a path in the mount keeps it busy for a moment.
            let is_unmounted = || run("umount", &[home.text()]).status.success();
            eventually("unmounted", LIMIT, is_unmounted);
            server.weir(&format!("mount tank/home {}", home.text())).ok();
            assert_eq!(home.mounts(), 1);
        }
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn buffered_reads_never_get_old_data_after_asynchronous_direct_writes() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let (file, job) = (home.at("file"), dirs.file("direct.fio"));
        fs::write(&file, vec![0; 16 << 20]).unwrap();
        // While a program writes the file asynchronously with O_DIRECT, another one reads it.
        let text = format!(
            "[global]\nfilename={}\nsize=16M\ntime_based\nruntime=2\n\
             [write]\nrw=randwrite\nbs=4k\ndirect=1\nioengine=libaio\niodepth=8\n\
             [read]\nrw=read\nbs=64k\nioengine=psync\ninvalidate=0\nnumjobs=2\n",
            file.display()
        );
        fs::write(&job, text).unwrap();
        tool("fio", &["--output=/dev/null", job.to_str().unwrap()]);
        let buffered = read(&file);
        // The pages of the kernel end with the mount.
        server.weir("unmount tank/home").ok();
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        assert!(buffered == read(&file), "the kernel kept old pages");
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn allocations_beyond_the_space_are_refused() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let path = home.at("file");
        let file = File::options().write(true).create_new(true).open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().blksize(), 128 << 10, "the record size");
        for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
            let refused = rustix::fs::fallocate(&file, flags, 0, 100 * GIB);
            assert_eq!(refused, Err(rustix::io::Errno::NOSPC), "{flags:?}");
        }
        server.weir("filesystem quota tank/home --user 0 4MiB").ok();
        let refused = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 8 * MIB);
        assert_eq!(refused, Err(rustix::io::Errno::DQUOT));
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 * MIB).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 2 * MIB);
        drop(file);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn files_below_an_absent_mount_cause_an_event_and_are_not_hidden() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        server.stop_clean();
        fs::write(home.at("below"), b"while the mount is absent").unwrap();
        let server = dirs.start();
        assert_eq!(home.mounts(), 0);
        let events = server.weir("events --json").json();
        let said = |event: &Value| event["message"].as_str().unwrap().contains("is not mounted at");
        assert!(events["events"].as_array().unwrap().iter().any(said), "{events}");
        fs::remove_file(home.at("below")).unwrap();
        server.weir("mount tank/home").ok();
        assert_eq!(home.mounts(), 1);
        server.weir("unmount tank/home").ok();
    });
}

#[test]
fn mount_survives_a_restart_and_a_kill_of_the_server() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        fs::write(home.at("unsynced"), b"before the stop").unwrap();
        server.stop_clean();
        assert_eq!(home.mounts(), 0, "a clean stop unmounts");
        server = dirs.start();
        assert_eq!(read(&home.at("unsynced")), b"before the stop");

        let mut synced = File::create(home.at("synced")).unwrap();
        synced.write_all(&vec![9; 300_000]).unwrap();
        synced.sync_all().unwrap();
        server.kill();
        drop(synced);
        assert_eq!(errno(&fs::read_dir(&home.0).unwrap_err()), 107, "ENOTCONN");
        // The offline tools replay the log of the filesystem, too.
        let disks = dirs.file("").display().to_string();
        let offline = |words: &[&str]| {
            let output = Command::new(WEIR).args(words).args(["-d", &disks]).output().unwrap();
            Ran::of(&words.join(" "), &output)
        };
        offline(&["check", "tank"]).ok();
        let copy = dirs.file("copy").display().to_string();
        offline(&["rescue", "tank/home", "--to", &copy]).ok();
        assert_eq!(read(&Path::new(&copy).join("synced")), vec![9; 300_000]);
        server = dirs.start();
        assert_eq!(home.mounts(), 1, "the dead mount is replaced");
        assert_eq!(read(&home.at("synced")), vec![9; 300_000]);
        assert_eq!(read(&home.at("unsynced")), b"before the stop");

        // An unmount makes everything durable.
        for (name, by_weir) in [("one", true), ("two", false)] {
            fs::write(home.at(name), b"before the unmount").unwrap();
            if by_weir {
                server.weir("unmount tank/home").ok();
            } else {
                tool("umount", &[home.text()]);
                // The server accepts a new mount when the old one has ended.
                eventually("a new mount", LIMIT, || server.weir("mount tank/home").code == Some(0));
            }
            server.kill();
            server = dirs.start();
            assert_eq!(read(&home.at(name)), b"before the unmount", "{name}");
        }

        server.weir("set mountpoint=none tank/home").ok();
        server.stop_clean();
        server = dirs.start();
        assert_eq!(home.mounts(), 0);
        let shown = server.weir("filesystem show tank/home --json").json();
        assert_eq!(shown["mounts"].as_array().unwrap().len(), 0);
        server.assert_alive();
    });
}

#[test]
fn files_in_use_keep_a_mount_until_force() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        let mut file = File::create(home.at("file")).unwrap();
        server.weir("unmount tank/home").fails(code::BUSY, &["use files", "--force"]);
        server.weir("pool export tank").fails(code::BUSY, &["use files"]);
        file.write_all(b"works").unwrap();
        server.weir(&format!("unmount --force {}", home.text())).ok();
        assert_eq!(errno(&file.write_all(b"too late").unwrap_err()), 5, "EIO");
        drop(file);
        server.weir("unmount tank/home").fails(code::NOT_FOUND, &["tank/home"]);
        // Without a directory in the command, the server mounts the filesystem at its mountpoint.
        server.weir("mount tank/home").ok();
        assert_eq!(read(&home.at("file")), b"works");

        server.weir("pool export tank").ok();
        assert_eq!(home.mounts(), 0);
        server.weir("pool import -d . tank").ok();
        assert_eq!(read(&home.at("file")), b"works");

        // The server notices that umount(8) has unmounted, and mounts again.
        tool("umount", &[home.text()]);
        let shown = || server.weir("filesystem show tank/home --json").json();
        eventually("unmounted", LIMIT, || shown()["mounts"].as_array().unwrap().is_empty());
        server.weir("mount tank/home").ok();
        assert_eq!(read(&home.at("file")), b"works");

        // A stopping server detaches a mount that is in use, and commits earlier writes.
        let mut late = File::create(home.at("late")).unwrap();
        late.write_all(b"before the stop").unwrap();
        let (status, took) = server.stop(Signal::TERM);
        assert!(status.success() && took < Duration::from_secs(10), "{status} after {took:?}");
        drop(late);
        server = dirs.start();
        assert_eq!(read(&home.at("late")), b"before the stop");
        server.assert_alive();
    });
}

#[test]
fn snapshots_clones_and_rollback_work_for_filesystems() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let (old, copy) = (Place::new(&dirs, "old"), Place::new(&dirs, "copy"));
        fs::write(home.at("file"), b"monday").unwrap();
        server.weir("snapshot create tank/home@monday").ok();
        fs::write(home.at("file"), b"tuesday").unwrap();
        server.weir(&format!("mount tank/home@monday {}", old.text())).ok();
        assert_eq!(read(&old.at("file")), b"monday");
        assert_eq!(errno(&fs::write(old.at("file"), b"x").unwrap_err()), 30, "EROFS");
        for line in [
            "snapshot destroy tank/home@monday --yes",
            "snapshot rename tank/home@monday tank/home@m",
            "filesystem destroy -r tank/home --yes",
        ] {
            server.weir(line).fails(code::BUSY, &["is mounted at", "weir unmount tank/home"]);
        }
        let clone = server.weir("snapshot clone tank/home@monday tank/copy").ok();
        assert!(clone.talk.contains("filesystem tank/copy created"), "{}", clone.talk);
        server.weir(&format!("mount tank/copy {}", copy.text())).ok();
        fs::write(copy.at("own"), b"clone").unwrap();
        assert_eq!(read(&copy.at("file")), b"monday");
        assert_eq!(read(&home.at("file")), b"tuesday");
        let list = server.weir("list").ok().out;
        assert!(list.contains(&format!("mounted at {}", copy.text())), "{list}");

        server.weir("unmount tank/home@monday").ok();
        let stream = server.shell("weir send tank/home@monday | weir receive tank/received");
        let moved = with_weir(stream).output().unwrap();
        assert!(moved.status.success(), "{}", text(&moved));
        server.weir(&format!("mount tank/received {}", old.text())).ok();
        assert_eq!(read(&old.at("file")), b"monday");
        server.weir("unmount tank/received").ok();
        server.weir("filesystem destroy -r tank/received --yes").ok();
        server.weir("unmount tank/home").ok();
        server.weir("snapshot rollback tank/home@monday --yes").ok();
        server.weir("filesystem rename tank/home tank/users").ok();
        server.weir("mount tank/users").ok();
        assert_eq!(read(&home.at("file")), b"monday");
        server.weir("unmount tank/users").ok();
        server.weir("unmount tank/copy").ok();
        server.weir("filesystem destroy tank/copy --yes").ok();
        server.weir("filesystem destroy -r tank/users --yes").ok();
        assert_eq!(server.weir("filesystem list -H").ok().out, "");
    });
}

#[test]
fn wrong_mounts_and_wrong_kinds_are_refused() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (mut server, home) = mounted(&dirs);
        let place = Place::new(&dirs, "place");
        let inside = home.at("inside");
        fs::create_dir(&inside).unwrap();
        fs::create_dir_all(dirs.file("full/sub")).unwrap();
        server.weir("volume create tank/v 16MiB").ok();
        server.weir("filesystem create tank/other").ok();
        let mount = |what: &str, at: &str| server.weir(&format!("mount {what} {at}"));
        let free = place.text();
        mount("tank/v", free).fails(code::INVALID, &["is a volume", "weir export create nbd"]);
        mount("tank/absent", free).fails(code::NOT_FOUND, &["filesystem", "tank/absent"]);
        mount("tank/home@absent", free).fails(code::NOT_FOUND, &["tank/home@absent"]);
        mount("tank/home", free).fails(code::BUSY, &[home.text(), "weir unmount tank/home"]);
        mount("tank/other", home.text()).fails(code::EXISTS, &["tank/home is mounted at"]);
        let inside = inside.to_str().unwrap();
        mount("tank/other", inside).fails(code::INVALID, &["inside the mount of tank/home"]);
        mount("tank/other", "full").fails(code::INVALID, &["is not empty"]);
        mount("tank/other", "disk-a").fails(code::INVALID, &["is not a directory"]);
        mount("tank/other", "absent").fails(code::NOT_FOUND, &["does not exist", "mkdir -p"]);
        mount("tank/other", "/").fails(code::INVALID, &["root directory"]);
        mount("tank/other", "").fails(code::INVALID, &["no mountpoint"]);
        mount("tank/other -o ro -o rw", free).fails(code::INVALID, &["contradict"]);
        server.weir("unmount tank/other").fails(code::NOT_FOUND, &["tank/other"]);
        server.weir("unmount /").fails(code::NOT_FOUND, &["no filesystem"]);

        File::create(home.at("image")).unwrap().set_len(256 * MIB).unwrap();
        let image = home.at("image");
        let create = server.weir(&format!("pool create inner {}", image.display()));
        create.fails(code::INVALID, &["a file of tank/home"]);

        for line in [
            "volume show tank/home",
            "volume resize tank/home 1GiB",
            "volume rename tank/home tank/x",
            "volume destroy tank/home --yes",
            "volume copy tank/home tank/x",
            "volume advise tank/home",
            "export create nbd tank/home",
        ] {
            server.weir(line).fails(code::INVALID, &["tank/home is a filesystem"]);
        }
        server.weir("filesystem show tank/v").fails(code::INVALID, &["tank/v is a volume"]);
        server.weir("set mountpoint=/a tank/v").fails(code::INVALID, &["only filesystems"]);
        let taken = server.weir("filesystem create tank/v");
        taken.fails(code::EXISTS, &["tank/v"]);
        server.weir("filesystem destroy tank/home --yes").fails(code::BUSY, &["weir unmount"]);
        server.weir("filesystem rename tank/home tank/x").fails(code::BUSY, &["weir unmount"]);
        server.weir("pool destroy tank --yes").fails(code::BUSY, &["is mounted at"]);
        mount("tank/home", home.text()).ok();
        let volumes = server.weir("volume list -H -o name").ok().out;
        assert_eq!(volumes, "tank/v\n", "filesystems are not in the list of volumes");
        server.assert_alive();
        server.weir("unmount tank/home").ok();
        drop(place);
    });
}

#[test]
fn real_programs_work_on_a_mount() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let (server, home) = mounted(&dirs);
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
        let at = |name: &str| home.at(name).to_str().unwrap().to_owned();
        tool("cp", &["-a", source, &at("copy")]);
        tool("diff", &["-r", source, &at("copy")]);
        tool("tar", &["-C", &at("copy"), "-cf", &at("all.tar"), "."]);
        fs::create_dir(home.at("untar")).unwrap();
        tool("tar", &["-C", &at("untar"), "-xf", &at("all.tar")]);
        tool("diff", &["-r", &at("copy"), &at("untar")]);

        let git = |words: &[&str]| {
            let own = ["-c", "user.name=a", "-c", "user.email=a@b", "-C"];
            tool("git", &[&own[..], &[&at("copy")], words].concat())
        };
        git(&["init", "-q"]);
        git(&["add", "-A"]);
        git(&["commit", "-qm", "all"]);
        git(&["fsck", "--strict"]);
        assert_eq!(git(&["status", "--porcelain"]), "");

        let fio = |engine: &str, more: &[&str]| {
            let (engine, place) =
                (format!("--ioengine={engine}"), format!("--directory={}", home.text()));
            let all =
                ["--name=job", "--rw=randrw", "--size=16M", "--verify=crc32c", &engine, &place];
            let out = tool("fio", &[&all[..], &["--verify_state_save=0"], more].concat());
            assert!(out.contains("err= 0"), "{out}");
        };
        fio("psync", &["--bsrange=512-64k", "--bs_unaligned=1", "--fsync=32"]);
        fio("psync", &["--bs=4k", "--direct=1"]);
        fio("mmap", &["--bs=4k"]);
        server.weir("unmount tank/home").ok();
        server.weir("pool scrub --wait tank").ok();
        assert_eq!(server.status("tank")["state"], "online");
    });
}

#[test]
fn dead_disks_fail_requests_and_every_verb_still_answers() {
    on_fuse(|| {
        let dirs = Dirs::new();
        let room = Room::new(&dirs, 192 * MIB);
        room.disk("disk", GIB);
        fs::create_dir(room.file("home")).unwrap();
        let place = dirs.file("room/home");
        let mut server = room.start(&dirs);
        server.weir("pool create tank room/disk").ok();
        server.weir("filesystem create tank/home").ok();
        server.weir(&format!("mount tank/home {}", place.display())).ok();
        let file = File::create(room.file("home/file")).unwrap();
        file.write_all_at(b"synced", 0).unwrap();
        file.sync_all().unwrap();
        room.kill_disks(&["disk"]);
        file.write_all_at(&vec![1; MIB as usize], 0).ok();
        assert_eq!(errno(&file.sync_all().unwrap_err()), 5, "EIO");
        assert_eq!(errno(&file.sync_all().unwrap_err()), 5, "no retry succeeds");
        let another = File::open(room.file("home/file")).unwrap();
        assert_eq!(errno(&another.sync_all().unwrap_err()), 5, "nor does another program's");
        drop(another);
        for line in [
            "filesystem list",
            "filesystem show tank/home",
            "list",
            "get all tank/home",
            "filesystem create tank/other",
            "unmount tank/home",
            "pool status tank",
        ] {
            server.weir_within(line, Duration::from_secs(5));
        }
        server.weir("unmount --force tank/home").ok();
        assert_eq!(errno(&file.write_all_at(b"x", 0).unwrap_err()), 5, "EIO");
        drop(file);
        server.weir("pool export --force tank").ok();
        server.assert_alive();
    });
}
