//! A disk that a test can make stop answering: nbdkit serves a disk in memory, nbdfuse mounts it as
//! a file, and a stopped nbdkit answers no request.
//!
//! Not here: disks that return errors (room), or wrong data (liar).
//!
//! Invariant: dropping the guard lets the disk answer again, ends both programs and removes the
//! mount.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::{Dirs, accepts, eventually, path, run};

/// A disk; needs root.
pub(crate) struct StuckDisk {
    nbdkit: Child,
    nbdfuse: Child,
    at: PathBuf,
}

impl StuckDisk {
    /// Creates the file `name` in its own directory, so that a search for pools finds only it.
    pub(crate) fn new(dirs: &Dirs, name: &str, mebibytes: u64) -> Self {
        let socket = dirs.short(&format!("{name}.nbd"));
        let folder = dirs.file(&format!("{name}.dir"));
        fs::create_dir(&folder).unwrap();
        let at = folder.join(name);
        fs::write(&at, "").unwrap();
        let mut command = Command::new("nbdkit");
        command.env("PATH", path()).args(["-f", "--exit-with-parent", "-U"]).arg(&socket);
        command.args(["memory", &format!("{mebibytes}M")]).process_group(0);
        let nbdkit = quiet(command);
        eventually("nbdkit listens", Duration::from_secs(20), || accepts(&socket));
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "nbdfuse"]).arg(&at).arg("--unix").arg(&socket);
        command.env("PATH", path());
        let disk = Self { nbdkit, nbdfuse: quiet(command), at };
        eventually("nbdfuse has mounted the file (as root)", Duration::from_secs(20), || {
            fs::metadata(&disk.at).is_ok_and(|file| file.len() == mebibytes << 20)
        });
        disk
    }

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// From now on the disk answers no request, until the guard is dropped. Declare the guard after
    /// the server: a process with a request to the disk cannot end.
    pub(crate) fn stop(&self) -> Stopped<'_> {
        self.signal(Signal::STOP);
        Stopped(self)
    }

    /// The disk answers again, also to the requests that wait.
    fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.nbdkit.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

/// A disk that answers no request.
pub(crate) struct Stopped<'d>(&'d StuckDisk);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

fn quiet(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

impl Drop for StuckDisk {
    fn drop(&mut self) {
        self.resume();
        run("umount", &["--lazy", &self.at.display().to_string()]);
        for child in [&mut self.nbdfuse, &mut self.nbdkit] {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
