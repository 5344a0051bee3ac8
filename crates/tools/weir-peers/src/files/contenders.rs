//! Filesystems under test. `weir`, `passthrough` and `zfs_fuse` start the servers of three of them;
//! the fourth is ext4 itself.
//!
//! `visits` measures them.
//!
//! Invariant: all contenders have their data on the same filesystem: ext4, or tmpfs in tests.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use weir_command::command;
use weir_command::process::Process;

use super::passthrough::Passthrough;
use super::steps::Files;
use super::weir::Weir;
use super::zfs_fuse::{self, ZfsFuse};
use crate::mounted::{self, KernelCache};

/// Time limit for a server to become idle. If a server stays busy longer, its work distorts the
/// figures that are measured next.
const SETTLE_MAX: Duration = Duration::from_secs(15);

/// Kind of a filesystem under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ext4,
    Passthrough,
    ZfsFuse,
    Weir,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Ext4, Self::Passthrough, Self::ZfsFuse, Self::Weir];

    /// Name of this kind in options, samples and tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Passthrough => "passthrough_ll",
            Self::ZfsFuse => "zfs-fuse",
            Self::Weir => "Weir",
        }
    }

    /// True if the programs of this contender are on this machine.
    pub(super) fn is_installed(self) -> bool {
        match self {
            Self::Ext4 | Self::Weir => true,
            Self::Passthrough => Path::new(super::passthrough::SOURCE).exists(),
            Self::ZfsFuse => ["zfs-fuse", "zpool"].iter().all(|tool| command::find(tool).is_some()),
        }
    }
}

/// Running server of a contender.
enum Server {
    /// The kernel's own filesystem.
    Kernel,
    Passthrough(Passthrough),
    ZfsFuse(ZfsFuse),
    Weir(Weir),
}

/// A filesystem under test, with its server.
pub(super) struct Contender {
    kind: Kind,
    root: PathBuf,
    server: Server,
    /// True if the data is in memory; the benchmark does not call sync(2) or drop the caches of the
    /// kernel.
    is_in_memory: bool,
}

impl Contender {
    /// Starts a contender with an empty filesystem, whose data is below `base`.
    pub(super) fn start(
        kind: Kind,
        base: &Path,
        weir: Option<&Path>,
        is_in_memory: bool,
    ) -> Result<Self> {
        let dir = base.join(kind.name());
        fs::create_dir_all(&dir)?;
        let (root, server) = match kind {
            Kind::Ext4 => (dir, Server::Kernel),
            Kind::Passthrough => {
                let server = Passthrough::start(&dir)?;
                (server.root().to_owned(), Server::Passthrough(server))
            }
            Kind::ZfsFuse => {
                let server = ZfsFuse::start(&dir)?;
                (server.root().to_owned(), Server::ZfsFuse(server))
            }
            Kind::Weir => {
                let server = Weir::start(weir.context("no weir program")?, &dir)?;
                (server.root().to_owned(), Server::Weir(server))
            }
        };
        Ok(Self { kind, root, server, is_in_memory })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Root directory of the filesystem.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn process(&self) -> Option<&Process> {
        match &self.server {
            Server::Kernel => None,
            Server::Passthrough(server) => Some(server.process()),
            Server::ZfsFuse(server) => Some(server.process()),
            Server::Weir(server) => Some(server.process()),
        }
    }

    /// CPU time that the server has used so far; 0 without a server.
    pub(super) fn cpu(&self) -> Result<Duration> {
        self.process().map_or(Ok(Duration::ZERO), Process::cpu)
    }

    /// Writes out all changes, and waits until the server is idle.
    pub(super) fn settle(&self) -> Result<()> {
        // sync(2) does not reach a FUSE server.
        File::open(&self.root)?.sync_all()?;
        if !self.is_in_memory {
            rustix::fs::sync();
        }
        self.process().map_or(Ok(()), |process| process.wait_until_idle(SETTLE_MAX))
    }

    /// Drops caches of the kernel. False if the kernel still has them.
    pub(super) fn drop_caches(&self, which: KernelCache) -> bool {
        !self.is_in_memory && mounted::drop_caches(which)
    }

    /// Empties the caches of the server and of the kernel. False if the kernel keeps its caches.
    pub(super) fn empty_caches(&mut self) -> Result<bool> {
        self.settle()?;
        match &mut self.server {
            // passthrough_ll caches no data.
            Server::Kernel | Server::Passthrough(_) => {}
            Server::ZfsFuse(server) => server.import_again()?,
            Server::Weir(server) => server.restart()?,
        }
        Ok(self.drop_caches(KernelCache::All))
    }

    /// Bytes on disk that the files use, as far as the contender reports them. The figure counts
    /// one copy of a mirror.
    pub(super) fn stored_bytes(&mut self, files: &Files) -> Result<f64> {
        // An export of the pool commits all changes.
        self.empty_caches()?;
        match &self.server {
            // Blocks of the files, without inodes and directories.
            Server::Kernel | Server::Passthrough(_) => {
                let sectors = |path: PathBuf| Ok(fs::symlink_metadata(path)?.blocks());
                let sectors: Result<u64> = files.paths().map(sectors).sum();
                Ok(sectors? as f64 * 512.0)
            }
            Server::ZfsFuse(_) => zfs_fuse::used_bytes(),
            Server::Weir(server) => server.used_bytes(),
        }
    }
}
