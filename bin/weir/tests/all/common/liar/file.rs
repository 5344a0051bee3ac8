//! A liar as a file: nbdfuse mounts the liar's NBD export.
//!
//! Not here: the NBD export (nbd).
//!
//! Invariant: dropping the guard ends nbdfuse and removes the mount, whatever the disk does. If the
//! test program is killed, nbdfuse gets SIGTERM and removes the mount itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::BYTES;
use crate::common::{eventually, path, run};

/// A mounted file and the nbdfuse process that serves it; dropping the value removes the mount.
pub(crate) struct Mount {
    nbdfuse: Child,
    at: PathBuf,
}

impl Mount {
    /// Creates the file `at`, and mounts the NBD export on `socket` over it.
    pub(crate) fn new(socket: &Path, at: PathBuf) -> Self {
        fs::write(&at, "").unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "nbdfuse"]).arg(&at).arg("--unix").arg(socket);
        command.env("PATH", path()).stdin(Stdio::null());
        let nbdfuse = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mount = Self { nbdfuse, at };
        eventually("nbdfuse has mounted the file (as root)", Duration::from_secs(20), || {
            fs::metadata(&mount.at).is_ok_and(|file| file.len() == BYTES as u64)
        });
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Killing nbdfuse makes the operations in flight fail, but leaves the mount, which is
        // removed below.
        drop(self.nbdfuse.kill());
        drop(self.nbdfuse.wait());
        run("umount", &["--lazy", &self.at.display().to_string()]);
    }
}
