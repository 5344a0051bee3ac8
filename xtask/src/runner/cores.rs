//! Idle time of the machine's cores, and processor time of a test. The runner gives a test more
//! time on a busy machine.
//!
//! Not here: the limit of a test (lists.rs), the end of a test at its limit (process.rs).
//!
//! Invariant: if the kernel reports no idle time, the machine counts as idle.

use std::fs;
use std::time::Duration;

/// Minimum idle time of the cores in percent; below it the machine counts as busy.
const IDLE_PCT_MIN: u64 = 10;

/// Time of all cores since the machine started, in ticks (proc(5), `/proc/stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    idle: u64,
    total: u64,
}

impl Cores {
    /// Reads the current times of the cores.
    pub(super) fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // Count only the column "idle". Time in which a core waits for disks, or in which the
        // hypervisor uses it, is not idle.
        let [_user, _nice, _system, idle, ..] = ticks[..] else { return None };
        // Add only the first eight columns: the last two, the time of guests, are a part of the
        // first two.
        Some(Self { idle, total: ticks.iter().take(8).sum() })
    }

    /// Returns the busy time since `before` in percent of all time.
    pub(super) fn busy_pct(self, before: Self) -> u64 {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle);
        100 - (idle * 100).checked_div(total).unwrap_or(100).min(100)
    }

    /// Returns true if the cores had almost no idle time since `before`.
    pub(super) fn were_busy(self, before: Self) -> bool {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle);
        total > 0 && idle * 100 < total * IDLE_PCT_MIN
    }
}

/// Number of ticks in a second of `/proc`, on every machine with Linux.
const TICKS: u64 = 100;

/// Returns the processor time of a process and of the children that it waited for; 0 if the kernel
/// does not report the time.
pub(super) fn process_time(pid: i32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain blanks. The fields after it start with the state.
    let fields = text.rsplit(") ").next().unwrap_or_default().split_whitespace();
    let ticks = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Duration::from_millis(ticks * 1000 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_time_counts_children() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = process_time(own);
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        assert!(std::process::Command::new("sh").args(["-c", script]).status().unwrap().success());
        assert!(process_time(own) > before, "a loop takes processor time");
        assert_eq!(process_time(-1), Duration::ZERO);
    }

    #[test]
    fn kernel_figures_are_parsed() {
        let now = Cores::now().expect("Linux has /proc/stat");
        assert!(now.total > now.idle && now.idle > 0, "{now:?}");
        assert_eq!(Cores::parse("cpu0 1 2 3 4\n"), None);
        let parsed = Cores::parse("cpu  10 1 5 80 3 0 1 0 9 9\nintr 1\n");
        assert_eq!(parsed, Some(Cores { idle: 80, total: 100 }));
    }

    #[test]
    fn machine_without_idle_time_is_busy() {
        let at = |idle, total| Cores { idle, total };
        assert_eq!(at(125, 1100).busy_pct(at(100, 1000)), 75);
        assert_eq!(at(100, 1000).busy_pct(at(100, 1000)), 0, "no time passed");
        assert!(at(109, 1100).were_busy(at(100, 1000)));
        assert!(!at(110, 1100).were_busy(at(100, 1000)));
        assert!(!at(100, 1000).were_busy(at(100, 1000)), "no time passed");
    }
}
