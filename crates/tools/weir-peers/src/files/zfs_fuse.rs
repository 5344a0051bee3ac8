//! The peer zfs-fuse: a mirror of two files with checksums and compression.
//!
//! Invariant: the pool is in no cache file, so no other zfs-fuse imports it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use weir_command::command;
use weir_command::process::{Process, guarded};

use crate::mounted::Mounted;
use crate::place::wait;

const POOL: &str = "weirbench";
/// Size of each leg of the mirror; the legs are sparse files.
const LEG_BYTES: u64 = 16 << 30;

/// A running zfs-fuse with a mounted filesystem.
pub(super) struct ZfsFuse {
    // Dropped first, so that no server is left when the directory is unmounted.
    process: Process,
    mounted: Mounted,
    dir: PathBuf,
}

impl ZfsFuse {
    pub(super) fn start(dir: &Path) -> Result<Self> {
        let legs = ["leg-a.img", "leg-b.img"].map(|name| dir.join(name));
        for leg in &legs {
            File::create(leg)?.set_len(LEG_BYTES)?;
        }
        let mounted = Mounted::at(dir.join("mount"))?;
        let mut command = guarded("zfs-fuse");
        command.args(["--no-daemon", "--no-kstat-mount"]);
        let process = Process::launch(command, &dir.join("log"))?;
        wait("zfs-fuse", || tool("zpool", &["list"]).map(drop))?;
        let mount = mounted.path().display().to_string();
        let [a, b] = legs.map(|leg| leg.display().to_string());
        let options = ["create", "-o", "cachefile=none", "-O", "compression=on", "-m", &mount];
        tool("zpool", &[&options[..], &[POOL, "mirror", &a, &b]].concat())?;
        Ok(Self { process, mounted, dir: dir.to_owned() })
    }

    pub(super) fn root(&self) -> &Path {
        self.mounted.path()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Exports and imports the pool, which empties the server's cache.
    pub(super) fn import_again(&self) -> Result<()> {
        tool("zpool", &["export", POOL])?;
        let dir = self.dir.display().to_string();
        tool("zpool", &["import", "-o", "cachefile=none", "-d", &dir, POOL]).map(drop)
    }
}

/// Bytes that the pool uses. Counts one copy.
pub(super) fn used_bytes() -> Result<f64> {
    let used = tool("zfs", &["get", "-Hp", "-o", "value", "used", POOL])?;
    used.parse().with_context(|| used)
}

fn tool(name: &str, words: &[&str]) -> Result<String> {
    let program = command::find(name).with_context(|| format!("{name} is not installed"))?;
    command::output(Command::new(program).args(words))
}
