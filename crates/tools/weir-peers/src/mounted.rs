//! Namespaces and mounts of the benchmarks of files: they are private to this process and its
//! children.
//!
//! The contenders have the mount commands.
//!
//! Invariant: all mounts and loop devices end with this process and its children, however they end.
//! The mounts are in a mount namespace of their own (mount_namespaces(7)); a loop device of
//! mount(8) detaches itself after its last use. Servers in the network namespace use well-known
//! ports, and disturb no server of the machine.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use rustix::mount::UnmountFlags;
use weir_command::command;

/// Option with which [`into_own_namespace`] starts this program again.
const IN_NAMESPACE: &str = "--in-namespace";

/// Magic number of ext4 (statfs(2)).
const EXT4_SUPER_MAGIC: i64 = 0xef53;
/// Size of the ext4 filesystem on a loop device; its file is sparse.
const LOOP_BYTES: u64 = 64 << 30;
/// File that drops caches of the kernel (proc_sys_vm(5)).
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Starts this program again in a mount namespace and a network namespace of its own, in place of
/// this process, with further arguments. Returns only an error.
pub(crate) fn into_own_namespace(further: &[OsString]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("the benchmark mounts filesystems and needs the ports of NFS: run it as root");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--propagation", "private", "--"]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1)).args(further);
    Err(command.arg(IN_NAMESPACE).exec()).context("cannot start unshare")
}

/// Starts the loopback interface of the network namespace, and replaces /run by an empty folder, in
/// which rpcbind and Ganesha have their sockets. zfs-fuse has its lock file in /var/lock, a link to
/// /run/lock.
pub(crate) fn prepare_network() -> Result<()> {
    command::output(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    command::output(Command::new("mount").args(["-t", "tmpfs", "run", "/run"]))?;
    fs::create_dir("/run/lock").context("cannot create /run/lock")
}

/// Directory with mounts; dropping it unmounts them.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    /// Creates the directory.
    pub(crate) fn at(directory: PathBuf) -> Result<Self> {
        fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Fails with EINVAL after the last mount.
        while rustix::mount::unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

/// Directory for the data of all contenders, on ext4 or in memory.
pub(crate) enum Base {
    Directory(PathBuf),
    /// A new filesystem: ext4 on a loop device, or tmpfs.
    New(Mounted),
}

impl Base {
    /// Uses the folder itself if it is on ext4; otherwise creates an ext4 filesystem in a file.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        if is_ext4(folder)? {
            return Ok(Self::Directory(folder.to_owned()));
        }
        let image = folder.join("ext4.img");
        File::create(&image)?.set_len(LOOP_BYTES)?;
        command::output(Command::new("mke2fs").args(["-q", "-t", "ext4"]).arg(&image))?;
        let mounted = Mounted::at(folder.join("ext4"))?;
        command::output(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&mounted.0))?;
        Ok(Self::New(mounted))
    }

    /// Mounts a tmpfs (tmpfs(5)) in the folder.
    pub(crate) fn in_memory(folder: &Path) -> Result<Self> {
        let mounted = Mounted::at(folder.join("memory"))?;
        command::output(Command::new("mount").args(["-t", "tmpfs", "memory"]).arg(&mounted.0))?;
        Ok(Self::New(mounted))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::New(mounted) => mounted.path(),
        }
    }
}

/// True for a folder on ext4.
pub(crate) fn is_ext4(folder: &Path) -> Result<bool> {
    Ok(rustix::fs::statfs(folder)?.f_type == EXT4_SUPER_MAGIC)
}

/// Caches of the kernel.
#[derive(Clone, Copy)]
pub(crate) enum KernelCache {
    /// Names and inodes, with the pages of these inodes.
    Names,
    All,
}

/// Writes out dirty pages and drops clean caches of the kernel. False if the machine does not allow
/// it.
pub(crate) fn drop_caches(which: KernelCache) -> bool {
    rustix::fs::sync();
    let value = match which {
        KernelCache::Names => "2",
        KernelCache::All => "3",
    };
    fs::write(DROP_CACHES, value).is_ok()
}
