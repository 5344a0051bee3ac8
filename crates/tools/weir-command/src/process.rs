//! Process of a server: CPU time, peak memory, and a guaranteed end.
//!
//! The CPU time excludes kernel threads that work for the server: the write-back of the page cache,
//! for example, belongs to no process.
//!
//! Invariants: the CPU time includes all threads, even ended threads; dropping a [`Process`] ends
//! the process.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::command;

/// Creates a command for a program that the kernel kills when this process ends, for whatever
/// reason.
pub fn guarded(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

/// A running server; dropping it ends the server.
pub struct Process {
    child: Child,
}

impl Process {
    /// Takes ownership of a child process.
    pub fn new(child: Child) -> Self {
        Self { child }
    }

    /// Starts a command whose output goes to a file.
    pub fn launch(mut command: Command, log: &Path) -> Result<Self> {
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let line = command::show(&command);
        Ok(Self::new(command.spawn().with_context(|| format!("cannot start `{line}`"))?))
    }

    /// User and system CPU time that the process has used so far.
    pub fn cpu(&self) -> Result<Duration> {
        cpu(&self.read("stat")?, rustix::param::clock_ticks_per_second())
    }

    /// Resets the peak resident memory of the process.
    pub fn reset_rss_max(&self) -> Result<()> {
        let file = self.file("clear_refs");
        fs::write(&file, "5").with_context(|| file.clone())
    }

    /// Peak resident memory of the process since the last reset.
    pub fn rss_bytes_max(&self) -> Result<u64> {
        bytes(&self.read("status")?, "VmHWM:")
    }

    /// Waits until the process uses almost no CPU time for half a second, at most for `max`.
    pub fn wait_until_idle(&self, max: Duration) -> Result<()> {
        let start = Instant::now();
        let mut quiet = 0;
        while quiet < 2 && start.elapsed() < max {
            let before = self.cpu()?;
            std::thread::sleep(Duration::from_millis(250));
            let used = self.cpu()?.saturating_sub(before);
            quiet = if used <= Duration::from_millis(10) { quiet + 1 } else { 0 };
        }
        Ok(())
    }

    /// Ends the process.
    pub fn kill(&mut self) {
        // The kill fails only if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// True if the process has ended by itself.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.child.id())
    }

    fn read(&self, name: &str) -> Result<String> {
        let file = self.file(name);
        fs::read_to_string(&file).with_context(|| format!("the server exited: {file}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Parses fields 14 and 15 of `/proc/PID/stat` (proc_pid_stat.5). The name in field 2 may contain
/// blanks.
fn cpu(stat: &str, ticks_per_second: u64) -> Result<Duration> {
    let (_, fields) = stat.rsplit_once(')').context("no process name in stat")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let [user, system] = fields.get(11..13).context("stat is too short")? else {
        bail!("stat is too short");
    };
    let ticks = user.parse::<u64>()? + system.parse::<u64>()?;
    Ok(Duration::from_millis(ticks * 1000 / ticks_per_second))
}

/// Resident memory of this process, in bytes.
pub fn own_rss_bytes() -> Result<u64> {
    bytes(&fs::read_to_string("/proc/self/status")?, "VmRSS:")
}

/// Parses a field of proc(5) `status`, whose unit is KiB, and returns bytes.
fn bytes(status: &str, field: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.with_context(|| format!("no {field} in status"))?.parse::<u64>()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 0 1 2 3 4 150 50 9 9 20 0";
        assert_eq!(cpu(stat, 100).unwrap(), Duration::from_secs(2));
        assert!(cpu("7 (a) S 1", 100).is_err());
        assert_eq!(bytes("VmPeak: 9 kB\nVmHWM:\t  12 kB\n", "VmHWM:").unwrap(), 12 << 10);
        assert!(bytes("Name: x\n", "VmHWM:").is_err());
        assert!(own_rss_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn drop_ends_the_process() {
        let process = Process::new(guarded("sleep").arg("600").spawn().unwrap());
        let folder = process.file("stat");
        assert!(process.cpu().is_ok());
        drop(process);
        assert!(fs::read_to_string(folder).is_err());
    }
}
