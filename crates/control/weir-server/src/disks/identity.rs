//! This process as owner slots on disks name it, and whether another process still runs.
//!
//! Not here: what follows from that (weir-pool).
//!
//! Invariant: what the system does not tell is left empty or zero, and then never taken for a
//! proof that another owner is gone.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::LazyLock;

use weir_pool::Identity;

/// This process.
pub(crate) static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let line = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().chars().take(100).collect::<String>()
    };
    let pid = std::process::id();
    let boot = line("/proc/sys/kernel/random/boot_id");
    // Copies of a virtual machine have one machine-id and, mostly, different product ids.
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

/// When a process started, in ticks since the boot; `None` once it has ended, reaped or not.
fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, parentheses included.
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
    fn this_process_runs_and_a_later_one_of_its_number_does_not_count() {
        assert!(IDENTITY.pid_start > 0 && !IDENTITY.boot.is_empty());
        assert!((IDENTITY.runs)(IDENTITY.pid, IDENTITY.pid_start));
        assert!(!(IDENTITY.runs)(IDENTITY.pid, IDENTITY.pid_start + 1));
    }

    #[test]
    fn child_that_ended_and_was_not_waited_for_is_gone() {
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
