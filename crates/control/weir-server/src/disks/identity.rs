//! Identity of this process, which weir-pool writes to the labels of disks; and the check whether
//! the process of another such identity still runs.
//!
//! weir-pool decides which process owns a pool.
//!
//! Invariant: a part of the identity that is unknown is empty or zero, and weir-pool never takes
//! such a part as proof that another owner has ended.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use weir_pool::Identity;

/// Identity of this process.
pub(crate) static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let line = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().chars().take(100).collect::<String>()
    };
    let pid = std::process::id();
    let boot = line("/proc/sys/kernel/random/boot_id");
    // Clones of a virtual machine share the machine-id but usually have different product ids.
    let ids = [line("/etc/machine-id"), line("/sys/class/dmi/id/product_uuid")];
    let machine = if ids[0].is_empty() { boot.clone() } else { ids.join(" ") };
    Identity {
        machine,
        host: line("/proc/sys/kernel/hostname"),
        boot,
        pid_namespace: fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino()),
        pid,
        pid_start: start_of(pid).unwrap_or_default(),
        runs: |pid, start| start_of(pid).is_some_and(|now| now == start || start == 0),
    }
});

/// Returns the start time of a process in ticks since boot; `None` for a process that has ended,
/// including a zombie.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name in parentheses may contain any character, also parentheses, so split at the
    // last one.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_process_is_recognized_by_pid_and_start_time() {
        assert!(IDENTITY.pid_start > 0 && !IDENTITY.boot.is_empty());
        assert!((IDENTITY.runs)(IDENTITY.pid, IDENTITY.pid_start));
        assert!(!(IDENTITY.runs)(IDENTITY.pid, IDENTITY.pid_start + 1));
    }

    #[test]
    fn zombie_process_counts_as_ended() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        for _ in 0..1000 {
            if start_of(pid).is_none() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(start_of(pid), None);
        child.wait().unwrap();
    }
}
