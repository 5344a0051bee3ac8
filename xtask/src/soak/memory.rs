//! Runs programs with a limit on their memory, so that a leak fails them and not the machine.
//!
//! Not here: limits that Weir keeps to by itself (load.rs judges those).
//!
//! Invariant: some limit is always in force, and [`Limit::words`] says which.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Memory that all processes of one piece may have together: a quarter of a small machine of CI,
/// several times what any piece needs.
const GROUP_BYTES: u64 = 4 << 30;
/// Address space of each process, where there is no control group. Allocators reserve much more
/// than they use.
const ADDRESS_SPACE_KIB: u64 = 16 << 20;
/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The limit in force.
pub(super) enum Limit {
    /// A control group (cgroup v2) of this folder; removed when dropped.
    Group(PathBuf),
    /// `ulimit -v` for each process.
    AddressSpace,
}

impl Limit {
    /// The best limit that this machine and user allow.
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

    /// The command of a program that starts within the limit, as does all that it starts.
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
            // A process that cannot be killed keeps it; it costs nothing.
            fs::remove_dir(folder).ok();
        }
    }
}

/// Makes a control group with a limit below our own, which `/proc/self/cgroup` names.
fn group(mount: &Path, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    if !mount.join("cgroup.controllers").is_file() {
        return None;
    }
    let folder = mount.join(own).join(format!("weir-soak-{}", std::process::id()));
    fs::create_dir(&folder).ok()?;
    // The file is there only if our own group hands on the control of memory.
    let limit = folder.join("memory.max");
    if !limit.is_file() || fs::write(&limit, GROUP_BYTES.to_string()).is_err() {
        fs::remove_dir(&folder).ok();
        return None;
    }
    // Swap would hide a leak; a kernel without swap accounting has no such file.
    fs::write(folder.join("memory.swap.max"), "0").ok();
    Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_takes_too_much_fails() {
        let read = |bytes: u64| {
            let mut command = Limit::AddressSpace.command(Path::new("dd"));
            command.args(["if=/dev/zero", "of=/dev/null", "count=1", "iflag=count_bytes"]);
            // dd takes a buffer of one block.
            command.arg(format!("bs={bytes}")).output().unwrap().status.success()
        };
        assert!(!read((ADDRESS_SPACE_KIB << 10) + 1));
        assert!(read(1 << 20));
    }

    #[test]
    fn without_control_of_memory_there_is_no_group() {
        let mount = tempfile::tempdir().unwrap();
        assert_eq!(group(mount.path(), "4:memory:/a\n0::/\n"), None, "no cgroup v2");
        fs::write(mount.path().join("cgroup.controllers"), "cpu").unwrap();
        assert_eq!(group(mount.path(), "0::/\n"), None, "memory is not handed on");
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1, "nothing is left");
    }
}
