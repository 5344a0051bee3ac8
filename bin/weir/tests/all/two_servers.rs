//! Two servers and one disk: while the first server uses the disk, the second one is refused. The
//! second server finds the lock on the file behind a loop device or, if it cannot see the lock, the
//! owner slot in the labels.
//!
//! Not here: two machines (the simulator has two hosts with one disk), locks within one process.
//!
//! Invariant: the tests need root for loop devices; without root they fail and say so.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{Dirs, MIB, Ran, Server, WEIR, code, eventually, is_root, run, text};

/// A loop device over a file; dropping the `Loop` detaches the device.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Self {
        assert!(is_root(), "loop devices need root");
        let made = run("losetup", &["--find", "--show", file.to_str().unwrap()]);
        let device = text(&made).trim().to_owned();
        assert!(device.starts_with("/dev/loop"), "losetup made no loop device: {device}");
        // Use direct I/O, as the other server does for the file: with the page cache, the kernel
        // could fail to invalidate it, and the next flush would return EIO. Ignore an error,
        // because some file systems do not support direct I/O.
        drop(run("losetup", &["--direct-io=on", &device]));
        Self(device)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(run("losetup", &["--detach", &self.0]));
    }
}

fn second(dirs: &Dirs) -> Server {
    Server::start(dirs, "2", dirs.serve_as("2"))
}

// Regression: a lock on a file (flock) does not lock a loop device over the file. So `create -f` on
// one of the two destroyed a pool that was imported from the other.
#[test]
fn file_behind_a_loop_device_is_locked() {
    let dirs = Dirs::new();
    let file = dirs.disk("a", 256 * MIB);
    let mut first = dirs.start();
    first.weir("pool create tank a").ok();
    let device = Loop::over(&file);
    let other = second(&dirs);
    let device = &device.0;
    for line in [
        format!("pool create --force other {device}"),
        format!("pool import -d {device} tank"),
        format!("pool import --force -d {device} tank"),
    ] {
        let ran = other.weir(&line);
        assert_ne!(ran.code, Some(0), "weir {line}");
        assert!(ran.talk.contains("in use") || ran.talk.contains("not exist"), "{}", ran.talk);
    }
    // The server that has the pool also refuses the disk under its other path.
    first
        .weir(&format!("pool create --force other {device}"))
        .fails(code::BUSY, &["is a disk of pool tank"]);
    assert_eq!(first.status("tank")["state"], "online");
    first.assert_alive();
}

// Regression: `weir bench --destroy` overwrote a loop device whose file was a disk of an imported
// pool; and two runs of `weir bench` wrote to one directory.
#[test]
fn bench_refuses_disks_and_directories_in_use() {
    let dirs = Dirs::new();
    let file = dirs.disk("a", 256 * MIB);
    let first = dirs.start();
    first.weir("pool create tank a").ok();
    let device = Loop::over(&file);
    let bench = |target: &str| {
        let mut command = Command::new(WEIR);
        command.args(["bench", "run", "-p", "quick", "--scale", "smoke", "-o"]);
        command.arg(dirs.file("out")).args(["-t", target, "--destroy", target]);
        Ran::of(target, &command.output().unwrap())
    };
    let held = ["is in use by another program"];
    bench(&device.0).fails(code::BUSY, &held);
    bench(&file.display().to_string()).fails(code::BUSY, &held);
    first.stop_clean();
    // A `weir bench` run on the file takes this lock; the test takes it instead.
    let taken = File::open(&file).unwrap();
    rustix::fs::flock(&taken, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bench(&device.0).fails(code::BUSY, &held);
    let directory = dirs.file("files");
    std::fs::create_dir(&directory).unwrap();
    let other = File::open(&directory).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    bench(&format!("dir:{}", directory.display())).fails(code::BUSY, &held);
}

// Regression: a second server could import a pool in use without --force. The first server then
// suspended the pool, and reads of its volumes returned EIO.
#[test]
fn forced_import_takes_a_pool_over_from_a_live_server() {
    let dirs = Dirs::new();
    let file = dirs.disk("a", 256 * MIB);
    let mut first = dirs.start();
    first.weir("pool create tank a").ok();
    first.volume("tank/v", "16MiB");
    let mut client = first.client("tank/v");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    let device = Loop::over(&file);
    // Remove the file behind the loop device. The second server then cannot find its lock, just as
    // on another machine.
    std::fs::remove_file(&file).unwrap();
    let mut other = second(&dirs);
    let device = &device.0;
    let import = format!("pool import -d {device} tank");
    let pid = first.pid().to_string();
    other.weir(&import).fails(code::BUSY, &["in use by host", &pid, "--force"]);
    let create = format!("pool create --force other {device}");
    other.weir(&create).fails(code::BUSY, &["in use by host", &pid]);
    assert_eq!(first.status("tank")["state"], "online");
    client.write(4096, &[8; 4096]).unwrap();
    client.flush().unwrap();

    other.weir(&format!("pool import --force -d {device} tank")).ok();
    eventually("the first server stops", Duration::from_secs(20), || {
        first.status("tank")["state"] == "faulted"
    });
    let refused = client.write(0, &[9; 4096]).and_then(|()| client.flush());
    assert!(refused.is_err(), "the first server acknowledged a flush");
    other.weir("export create nbd tank/v").ok();
    let mut taken = other.client("tank/v");
    for (at, byte) in [(0, 7), (4096, 8)] {
        assert!(taken.read(at, 4096).unwrap().iter().all(|found| *found == byte), "at {at}");
    }
    drop((taken, client));
    first.assert_alive();
    other.assert_alive();
}

#[test]
fn pool_of_a_killed_server_is_imported_immediately() {
    let dirs = Dirs::new();
    dirs.disk("a", 256 * MIB);
    let first = dirs.start();
    first.weir("pool create tank a").ok();
    first.kill();
    let other = second(&dirs);
    other.weir("pool import -d a tank").ok();
    assert!(!other.talk().contains("checking the heartbeat"), "{}", other.talk());
    other.stop_clean();
    // Do the same again after the other server has exported the pool.
    let first = dirs.start();
    assert_eq!(first.status("tank")["state"], "online");
    assert!(!first.talk().contains("checking the heartbeat"), "{}", first.talk());
}

// Regression: a leg whose file was truncated while in use stayed ONLINE.
#[test]
fn leg_truncated_in_use_is_faulted() {
    let dirs = Dirs::new();
    let a = dirs.disk("a", 256 * MIB);
    dirs.disk("b", 256 * MIB);
    let mut server = dirs.start();
    server.weir("pool create tank mirror a b").ok();
    server.volume("tank/v", "16MiB");
    File::options().write(true).open(&a).unwrap().set_len(64 * MIB).unwrap();
    eventually("the short disk is faulted", Duration::from_secs(20), || {
        server.status("tank")["vdevs"][0]["disks"][0]["state"] == "faulted"
    });
    assert_eq!(std::fs::metadata(&a).unwrap().len(), 64 * MIB, "it was made longer");
    let mut client = server.client("tank/v");
    client.write(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    server.assert_alive();
}
