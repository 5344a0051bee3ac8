//! Servers under test: starts each server and waits for its first response.
//!
//! `fio` generates the load.
//!
//! Invariant: every server exports one writable volume of the same size on a unix socket; all
//! volumes are files in the same folder.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use weir_command::command;
use weir_command::process::{Process, guarded};

/// Size of each server's volume: it fits into every cache, so that reads measure the server instead
/// of the disk.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;

/// Memory of the Weir server: its default on a machine of 24 GiB. The other servers use the page
/// cache of the kernel without a limit.
pub(super) const WEIR_MEMORY_BYTES: u64 = 6 << 30;

/// Size of each leg of Weir's mirror. The legs are sparse files, with space for overwritten blocks.
const WEIR_LEG_BYTES: u64 = 40 << 30;

/// Time limit for the first response of a server.
const START_MAX: Duration = Duration::from_secs(20);

/// Time limit for a server to become idle after a flush. If a server stays busy longer, its work
/// distorts the figures that are measured next.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// Kind of a server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    QemuWriteback,
    QemuNone,
    Nbdkit,
    Weir,
}

impl Kind {
    pub(super) const ALL: [Self; 4] =
        [Self::QemuWriteback, Self::QemuNone, Self::Nbdkit, Self::Weir];

    /// Name of this kind in options and samples.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::QemuWriteback => "qemu-writeback",
            Self::QemuNone => "qemu-none",
            Self::Nbdkit => "nbdkit",
            Self::Weir => "weir",
        }
    }

    /// Name of this kind in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::QemuWriteback => "qemu-nbd writeback",
            Self::QemuNone => "qemu-nbd none",
            Self::Nbdkit => "nbdkit file",
            Self::Weir => "Weir",
        }
    }
}

/// A running server with its exported volume.
pub(super) struct Server {
    kind: Kind,
    process: Process,
    uri: String,
    dir: PathBuf,
}

impl Server {
    /// Starts a server with a new volume in its own folder below `data`.
    pub(super) fn start(kind: Kind, weir: Option<&Path>, data: &Path) -> Result<Self> {
        let dir = data.join(kind.name());
        std::fs::create_dir_all(&dir)?;
        match kind {
            Kind::QemuWriteback => Self::qemu(kind, &dir, "writeback", "threads"),
            Kind::QemuNone => Self::qemu(kind, &dir, "none", "native"),
            Kind::Nbdkit => Self::nbdkit(dir),
            Kind::Weir => {
                let program = weir.context("no weir program")?;
                let mut server = Self::weir(program, dir)?;
                server.create_pool(program)?;
                server.wait_for_export()?;
                Ok(server)
            }
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn uri(&self) -> &str {
        &self.uri
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts qemu-nbd with io_uring if its build supports it, otherwise with `fallback`.
    fn qemu(kind: Kind, dir: &Path, cache: &str, fallback: &str) -> Result<Self> {
        let file = dir.join("volume.raw");
        File::create(&file)?.set_len(VOLUME_BYTES)?;
        let socket = dir.join("nbd.sock");
        let start = |aio: &str| {
            let mut command = guarded("qemu-nbd");
            command.args(["--format=raw", "--export-name=bench", "--persistent", "--shared=4"]);
            command.args(["--discard=unmap", &format!("--cache={cache}"), &format!("--aio={aio}")]);
            command.arg("--socket").arg(&socket).arg(&file);
            let uri = format!("nbd+unix:///bench?socket={}", socket.display());
            Self::spawn(kind, command, uri, dir.to_owned())
        };
        start("io_uring").or_else(|_| start(fallback))
    }

    fn nbdkit(dir: PathBuf) -> Result<Self> {
        let file = dir.join("volume.raw");
        File::create(&file)?.set_len(VOLUME_BYTES)?;
        let socket = dir.join("nbd.sock");
        let mut command = guarded("nbdkit");
        command.args(["--foreground", "--unix"]).arg(&socket).arg("file").arg(&file);
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        Self::spawn(Kind::Nbdkit, command, uri, dir)
    }

    /// Starts Weir. Does not wait for an export, because a new server has none.
    fn weir(program: &Path, dir: PathBuf) -> Result<Self> {
        let socket = |name: &str| format!("unix:{}", dir.join(name).display());
        let mut command = guarded(&program.display().to_string());
        command.arg("serve").arg("--state").arg(dir.join("state"));
        command.args(["--nbd", &socket("nbd.sock"), "--api", &socket("api.sock")]);
        command.args(["--memory", &WEIR_MEMORY_BYTES.to_string(), "--log", "warn"]);
        let process = Process::launch(command, &dir.join("log"))?;
        let uri = format!("nbd+unix:///bench/v?socket={}", dir.join("nbd.sock").display());
        Ok(Self { kind: Kind::Weir, process, uri, dir })
    }

    /// Creates a mirror of two sparse files, one thin volume and one export.
    fn create_pool(&mut self, program: &Path) -> Result<()> {
        let legs = ["leg-a.img", "leg-b.img"].map(|name| self.dir.join(name).display().to_string());
        for leg in &legs {
            File::create(leg)?.set_len(WEIR_LEG_BYTES)?;
        }
        let api = format!("unix:{}", self.dir.join("api.sock").display());
        let verb = |args: &[&str]| {
            command::output(Command::new(program).env("WEIR_API", &api).args(args)).map(|_| ())
        };
        self.wait(|| verb(&["pool", "list"]))?;
        verb(&["pool", "create", "bench", "mirror", &legs[0], &legs[1]])?;
        verb(&["volume", "create", "bench/v", "--size", &VOLUME_BYTES.to_string()])?;
        verb(&["export", "create", "nbd", "bench/v"])
    }

    /// Starts Weir again on its pool, and waits until the volume is exported.
    pub(super) fn weir_again(program: &Path, dir: PathBuf) -> Result<Self> {
        let mut server = Self::weir(program, dir)?;
        server.wait_for_export()?;
        Ok(server)
    }

    fn spawn(kind: Kind, command: Command, uri: String, dir: PathBuf) -> Result<Self> {
        let process = Process::launch(command, &dir.join("log"))?;
        let mut server = Self { kind, process, uri, dir };
        server.wait_for_export()?;
        Ok(server)
    }

    fn wait_for_export(&mut self) -> Result<()> {
        let answers = |uri: &str| command::output(Command::new("nbdinfo").args(["--size", uri]));
        let uri = self.uri.clone();
        self.wait(|| answers(&uri).map(|_| ()))
    }

    /// Retries `try_once` until it succeeds, the server ends, or the time limit is reached.
    fn wait(&mut self, try_once: impl Fn() -> Result<()>) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = try_once() else { return Ok(()) };
            let ended = self.process.has_ended()?;
            if ended || start.elapsed() > START_MAX {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                let state = if ended { "ended at once" } else { "does not answer" };
                let title = self.kind.title();
                return Err(error.context(format!("{title} {state}: {}", log.trim())));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Flushes all writes to disk, and waits until the server is idle.
    pub(super) fn settle(&self) -> Result<()> {
        let flush = ["--format=raw", "--cmd=flush", &self.uri];
        command::output(Command::new("qemu-io").args(flush))?;
        rustix::fs::sync();
        self.process.wait_until_idle(SETTLE_MAX)
    }
}
