//! A liar as a file, mounted by nbdfuse from its export.
//!
//! Not here: the export (nbd).
//!
//! Invariant: the drop ends nbdfuse and removes the mount, whatever the disk does; if the test is
//! killed, nbdfuse gets SIGTERM and unmounts by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::BYTES;
use crate::common::{eventually, path, run};

/// A mounted file.
pub(crate) struct Mount {
    nbdfuse: Child,
    at: PathBuf,
}

impl Mount {
    /// Mounts the export behind `socket` over the file `at`, which is created.
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
        // If nbdfuse is killed, the operations in flight fail and the mount remains.
        drop(self.nbdfuse.kill());
        drop(self.nbdfuse.wait());
        run("umount", &["--lazy", &self.at.display().to_string()]);
    }
}
