//! Runs programs under a memory limit: a leak then ends the program, while the machine stays up.
//!
//! Not here: memory limits that Weir itself observes (load.rs checks them).
//!
//! Invariant: one of the two kinds of [`Limit`] is always in force, and [`Limit::words`] names it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Memory limit for all processes of one piece of the soak together: a quarter of the memory of a
/// small CI machine, and several times the memory that any piece needs.
const GROUP_BYTES: u64 = 4 << 30;
/// Address space limit of each process on machines without a usable control group. Allocators
/// reserve much more address space than they use.
const ADDRESS_SPACE_KIB: u64 = 16 << 20;
/// Mount point of the control groups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The memory limit that is in force.
pub(super) enum Limit {
    /// A control group (cgroup v2) with this folder; dropping the value removes the folder.
    Group(PathBuf),
    /// The limit `ulimit -v` for each process.
    AddressSpace,
}

impl Limit {
    /// Chooses the control group if the machine and the user's rights allow it, else the limit of
    /// the address space.
    pub(super) fn new() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = group(Path::new(CGROUPS), &own);
        group.map_or(Self::AddressSpace, Self::Group)
    }

    pub(super) fn words(&self) -> String {
        match self {
            Self::Group(_) => format!("cgroup v2, {} MiB in all", GROUP_BYTES >> 20),
            Self::AddressSpace => {
                format!("ulimit -v, {} MiB of addresses per process", ADDRESS_SPACE_KIB >> 10)
            }
        }
    }

    /// Returns the command that starts a program under the limit. The limit also covers the
    /// program's child processes.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        match self {
            Self::Group(folder) => {
                command.args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec "$@""#]).arg(folder);
            }
            Self::AddressSpace => {
                command.args(["-c", r#"ulimit -v "$0" && exec "$@""#]);
                command.arg(ADDRESS_SPACE_KIB.to_string());
            }
        }
        command.arg(program);
        command
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Self::Group(folder) = self {
            // The removal fails if a process of the group cannot be killed. Ignore the error,
            // because a group without load uses no resources.
            fs::remove_dir(folder).ok();
        }
    }
}

/// Creates a control group with a memory limit, below the group of this process that
/// `/proc/self/cgroup` names.
fn group(mount: &Path, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    if !mount.join("cgroup.controllers").is_file() {
        return None;
    }
    let folder = mount.join(own).join(format!("weir-soak-{}", std::process::id()));
    fs::create_dir(&folder).ok()?;
    // This file exists only if the parent group delegates the memory controller.
    let limit = folder.join("memory.max");
    if !limit.is_file() || fs::write(&limit, GROUP_BYTES.to_string()).is_err() {
        fs::remove_dir(&folder).ok();
        return None;
    }
    // Forbid swap, which would hide a leak. A kernel without swap accounting has no such file.
    fs::write(folder.join("memory.swap.max"), "0").ok();
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_above_the_memory_limit_fails() {
        let read = |bytes: u64| {
            let mut command = Limit::AddressSpace.command(Path::new("dd"));
            command.args(["if=/dev/zero", "of=/dev/null", "count=1", "iflag=count_bytes"]);
            // dd allocates a buffer of one block.
            command.arg(format!("bs={bytes}")).output().unwrap().status.success()
        };
        assert!(!read((ADDRESS_SPACE_KIB << 10) + 1));
        assert!(read(1 << 20));
    }

    #[test]
    fn control_group_needs_the_memory_controller() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(group(mount.path(), "4:memory:/a\n0::/\n"), None, "no cgroup v2");
        fs::write(mount.path().join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(group(mount.path(), "0::/\n"), None, "memory is not handed on");
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1, "nothing is left");
    }
}
