//! Weir as a contender: a mirror of two files with checksums and lz4, and a filesystem that the
//! server mounts with its default options.
//!
//! Invariant: the server ends with this process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;
use weir_command::command;
use weir_command::process::{Process, guarded};

use crate::mounted::Mounted;
use crate::place::wait;

/// Size of each leg of the mirror; the legs are sparse files.
const LEG_BYTES: u64 = 16 << 30;

/// A running Weir server with a mounted filesystem.
pub(super) struct Weir {
    // Dropped first, so that no server is left when the directory is unmounted.
    process: Process,
    mounted: Mounted,
    program: PathBuf,
    dir: PathBuf,
}

impl Weir {
    pub(super) fn start(program: &Path, dir: &Path) -> Result<Self> {
        let legs = ["leg-a.img", "leg-b.img"].map(|name| dir.join(name));
        for leg in &legs {
            File::create(leg)?.set_len(LEG_BYTES)?;
        }
        let mounted = Mounted::at(dir.join("mount"))?;
        let process = serve(program, dir)?;
        let (program, dir) = (program.to_owned(), dir.to_owned());
        let server = Self { process, mounted, program, dir };
        server.wait()?;
        let [a, b] = legs.map(|leg| leg.display().to_string());
        server.weir(&["pool", "create", "bench", "mirror", &a, &b])?;
        server.weir(&["filesystem", "create", "bench/files"])?;
        server.weir(&["mount", "bench/files", &server.root().display().to_string()])?;
        Ok(server)
    }

    pub(super) fn root(&self) -> &Path {
        self.mounted.path()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Starts the server again, which empties its caches, and mounts the filesystem again.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.weir(&["pool", "export", "bench"])?;
        self.process.kill();
        self.process = serve(&self.program, &self.dir)?;
        self.wait()?;
        let dir = self.dir.display().to_string();
        self.weir(&["pool", "import", "-d", &dir, "bench"]).map(drop)
    }

    /// Bytes that the pool uses. Counts one copy.
    pub(super) fn used_bytes(&self) -> Result<f64> {
        let status = self.weir(&["pool", "status", "bench", "--json"])?;
        let status: Value = serde_json::from_str(&status)?;
        status["allocated_bytes"].as_f64().context("a pool without allocated_bytes")
    }

    fn wait(&self) -> Result<()> {
        wait("weir", || self.weir(&["pool", "list"]).map(drop))
    }

    /// Runs a command of `weir` on the server.
    fn weir(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command::output(command.env("WEIR_API", socket(&self.dir)).args(words))
    }
}

/// Address of the server's API.
fn socket(dir: &Path) -> String {
    format!("unix:{}", dir.join("api.sock").display())
}

fn serve(program: &Path, dir: &Path) -> Result<Process> {
    let mut command = guarded(&program.display().to_string());
    command.arg("serve").arg("--state").arg(dir.join("state"));
    command.args(["--api", &socket(dir), "--log", "warn"]);
    command.args(["--nbd", &format!("unix:{}", dir.join("nbd.sock").display())]);
    Process::launch(command, &dir.join("log"))
}
