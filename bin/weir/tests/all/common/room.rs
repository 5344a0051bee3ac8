//! Disks that a test can make fail without root: files in a small file system in RAM.
//!
//! Not here: the tests with such disks.
//!
//! Invariant: only the processes of one test see the file system; dropping its guard unmounts it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{Dirs, Server, is_root};

/// A small file system in RAM that only the processes of this test see. Dropping the `Room`
/// unmounts the file system.
pub(crate) struct Room {
    holder: Child,
    path: PathBuf,
}

impl Room {
    pub(crate) fn new(dirs: &Dirs, bytes: u64) -> Self {
        let path = dirs.file("room");
        fs::create_dir(&path).unwrap();
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = r#"mount -t tmpfs -o size="$1" room "$2" && echo mounted && exec cat"#;
        command.args(["--mount", "sh", "-c", script, "sh", &bytes.to_string()]).arg(&path);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().expect("unshare of util-linux");
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n", "a small file system needs root or user namespaces");
        Self { holder, path }
    }

    /// Returns the path of a file in the file system. Processes outside the mount namespace can use
    /// this path too.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.path.strip_prefix("/").unwrap()).join(name)
    }

    pub(crate) fn disk(&self, name: &str, bytes: u64) {
        File::create(self.file(name)).unwrap().set_len(bytes).unwrap();
    }

    /// Uses up this many bytes of the file system's free space.
    pub(crate) fn fill(&self, bytes: u64) {
        fs::write(self.file("ballast"), vec![1; bytes as usize]).unwrap();
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.file("ballast")).unwrap();
    }

    /// Makes all reads and writes of these disks fail: empties their files, and fills the file
    /// system.
    pub(crate) fn kill_disks(&self, names: &[&str]) {
        for name in names {
            // Reads fail, because an empty file has no bytes. Writes fail after the loop below has
            // used up the space.
            File::create(self.file(name)).unwrap();
        }
        self.fill_up();
    }

    /// Uses up the free space of the file system: writes to new blocks of a disk fail.
    pub(crate) fn fill_up(&self) {
        let mut ballast = File::create(self.file("ballast")).unwrap();
        let mut bytes = 1 << 20;
        while bytes >= 4096 {
            match ballast.write(&vec![1; bytes]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => bytes /= 2,
                Err(error) => panic!("no ballast: {error}"),
            }
        }
    }

    /// Starts a server inside the mount namespace.
    pub(crate) fn start(&self, dirs: &Dirs) -> Server {
        Server::start(dirs, "", self.inside(&dirs.serve()))
    }

    /// Returns a command that runs the program of `command` with its arguments inside the mount
    /// namespace.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--target={}", self.holder.id())).arg("--mount");
        if !is_root() {
            inside.args(["--user", "--preserve-credentials"]);
        }
        inside.arg(command.get_program()).args(command.get_args());
        inside
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        drop(self.holder.kill());
        drop(self.holder.wait());
    }
}
