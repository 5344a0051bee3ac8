//! CPU time of the machine and of single processes.
//!
//! Invariant: a figure of /proc that cannot be read counts as zero.

/// Unit in which every Linux kernel reports CPU time (`USER_HZ`).
const TICKS_PER_S: f64 = 100.0;

/// CPU time of all cores since boot, in seconds (proc(5), stat); zeros if the file cannot be read.
#[derive(Default)]
pub(crate) struct MachineCpu {
    total: f64,
    idle: f64,
    stolen: f64,
}

impl MachineCpu {
    pub(crate) fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = stat.lines().next().unwrap_or_default();
        // The fields are user nice system idle iowait irq softirq steal; user and nice include
        // guest time.
        let fields: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(|ticks| ticks.parse().unwrap_or(0.0) / TICKS_PER_S)
            .collect();
        let at = |index: usize| fields.get(index).copied().unwrap_or(0.0);
        Self { total: fields.iter().sum(), idle: at(3) + at(4), stolen: at(7) }
    }

    /// Shares of the machine's CPU time since `before`, in percent: the steal time, and the CPU
    /// time of all other processes. This process used `own_s` seconds.
    pub(crate) fn since(&self, before: &Self, own_s: f64) -> (f64, f64) {
        let total = (self.total - before.total).max(1e-9);
        let stolen = self.stolen - before.stolen;
        let others = total - (self.idle - before.idle) - stolen - own_s;
        let pct = |part: f64| (100.0 * part / total).clamp(0.0, 100.0);
        (pct(stolen), pct(others))
    }
}

/// User and system CPU time that this process has used so far, in seconds.
pub fn process_cpu_s() -> (f64, f64) {
    cpu_s_of("self").unwrap_or_default()
}

/// CPU time that another process has used so far, in seconds; `None` if /proc does not show the
/// process.
pub(crate) fn other_process_cpu_s(process: u32) -> Option<f64> {
    cpu_s_of(&process.to_string()).map(|(user, system)| user + system)
}

/// User and system CPU time of a process, from its entry in /proc (proc(5), stat).
fn cpu_s_of(process: &str) -> Option<(f64, f64)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    let seconds = |index| {
        let ticks = after_name.split_whitespace().nth(index)?.parse::<f64>().ok()?;
        Some(ticks / TICKS_PER_S)
    };
    Some((seconds(11)?, seconds(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_and_missing_process_has_none() {
        let own = || other_process_cpu_s(std::process::id()).expect("/proc shows this process");
        let before = own();
        while own() < before + 0.02 {
            std::hint::spin_loop();
        }
        assert_eq!(other_process_cpu_s(u32::MAX), None);
    }
}
