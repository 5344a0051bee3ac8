//! Idle time of the machine's cores: on a busy machine a test gets a longer time limit.
//!
//! Not here: the limit of a test (lists.rs), the end of a test at its limit (process.rs).
//!
//! Invariant: if the kernel reports no idle time, the machine counts as idle.

use std::fs;

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
        // Time in which a core waits for disks, or the hypervisor uses it, does not count as idle.
        let [_user, _nice, _system, idle, ..] = ticks[..] else { return None };
        // The last two columns, the time of guests, are a part of the first two columns.
        Some(Self { idle, total: ticks.iter().take(8).sum() })
    }

    /// Returns true if the cores had almost no idle time since `before`.
    pub(super) fn were_busy(self, before: Self) -> bool {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle);
        total > 0 && idle * 100 < total * IDLE_PCT_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(at(109, 1100).were_busy(at(100, 1000)));
        assert!(!at(110, 1100).were_busy(at(100, 1000)));
        assert!(!at(100, 1000).were_busy(at(100, 1000)), "no time passed");
    }
}
