//! Processes of this machine as /proc shows them, and which of them a test started.
//!
//! Not here: starting tests (process.rs), what a hung process was doing (stacks.rs).
//!
//! Invariants:
//! - this program is a subreaper, so whatever a test starts stays below this program;
//! - a process belongs to a test if it or an ancestor is the test's own process, is in its process
//!   group, or has its mark in the environment; tests that run at the same time never share one.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// How long killed processes may take to end. One that is stuck in the kernel takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two looks at /proc.
const PAUSE: Duration = Duration::from_millis(10);

/// A process at the moment of reading.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    group: i32,
    /// It ended, and its parent has not asked for its status.
    is_zombie: bool,
}

impl Process {
    /// Its command line, or its name where it has none.
    pub(super) fn command_line(&self) -> String {
        let pid = self.pid.as_raw_nonzero();
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.trim().is_empty() {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return format!("[{}]", name.trim());
        }
        line.trim().to_owned()
    }

    fn has_in_environment(&self, mark: &str) -> bool {
        let pid = self.pid.as_raw_nonzero();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    }
}

/// Everything that one test started.
pub(super) struct Family {
    /// The test's own process, which leads its process group.
    pub(super) root: Pid,
    /// `NAME=VALUE` that only this test has in its environment.
    pub(super) mark: String,
}

impl Family {
    /// All that run, the test's own process included.
    pub(super) fn alive(&self) -> Vec<Process> {
        let own = rustix::process::getpid();
        let all = all();
        let root = self.root.as_raw_nonzero().get();
        let is_own = |process: &Process| {
            process.pid == self.root
                || process.group == root
                || process.parent == own.as_raw_nonzero().get()
                    && process.has_in_environment(&self.mark)
        };
        let mut members = below(&all, |process| process.pid != own && is_own(process));
        for orphan in members.iter().filter(|process| process.is_zombie) {
            if orphan.pid != self.root && orphan.parent == own.as_raw_nonzero().get() {
                reap(orphan.pid);
            }
        }
        members.retain(|process| !process.is_zombie);
        members
    }

    /// Those beside the test's own process that run on for this long after it ended.
    pub(super) fn outlasting(&self, grace: Duration) -> Vec<Process> {
        let end = Instant::now() + grace;
        loop {
            let mut left = self.alive();
            left.retain(|process| process.pid != self.root);
            if left.is_empty() || Instant::now() > end {
                return left;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Kills all; those that do not end.
    pub(super) fn kill(&self) -> Vec<Process> {
        kill_until_gone(|| self.alive())
    }
}

/// Ends everything that is left below this program; what it was, by command line. For moments in
/// which this program waits for no child.
pub(super) fn end_orphans() -> Vec<String> {
    let own = rustix::process::getpid();
    let below_own = || {
        let all = all();
        let mut orphans = below(&all, |process| process.parent == own.as_raw_nonzero().get());
        for zombie in orphans.iter().filter(|process| process.is_zombie) {
            reap(zombie.pid);
        }
        orphans.retain(|process| !process.is_zombie);
        orphans
    };
    let left = below_own().iter().map(Process::command_line).collect();
    kill_until_gone(below_own);
    left
}

fn kill_until_gone(list: impl Fn() -> Vec<Process>) -> Vec<Process> {
    let end = Instant::now() + KILL_LIMIT;
    loop {
        // Again and again: a process may start another while it is killed.
        let alive = list();
        if alive.is_empty() || Instant::now() > end {
            return alive;
        }
        for process in &alive {
            // Fails only where it ended meanwhile.
            kill_process(process.pid, Signal::KILL).ok();
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes the status of an ended child, so that it leaves the table of processes.
fn reap(pid: Pid) {
    // Fails where another thread was faster.
    waitpid(Some(pid), WaitOptions::NOHANG).ok();
}

/// The processes that are meant, and all below them.
fn below(all: &[Process], is_meant: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut members = BTreeSet::new();
    loop {
        let before = members.len();
        for process in all {
            if is_member(&members, process.parent) || is_meant(process) {
                members.insert(process.pid.as_raw_nonzero().get());
            }
        }
        if members.len() == before {
            break;
        }
    }
    let is_in = |process: &&Process| is_member(&members, process.pid.as_raw_nonzero().get());
    all.iter().filter(is_in).cloned().collect()
}

fn is_member(members: &BTreeSet<i32>, pid: i32) -> bool {
    members.contains(&pid)
}

fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let read = |pid| parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    pids.filter_map(read).collect()
}

/// Fields 1 and 3 to 5 of `/proc/PID/stat` (proc_pid_stat.5); the name in field 2 may hold blanks.
fn parse(stat: &str) -> Option<Process> {
    let (head, fields) = stat.rsplit_once(')')?;
    let pid = Pid::from_raw(head.split_whitespace().next()?.parse().ok()?)?;
    let mut fields = fields.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Process { pid, parent, group, is_zombie })
}

#[cfg(test)]
mod tests {
    use super::{below, parse};

    #[test]
    fn a_family_is_found_by_parents() {
        let stats = ["9 (a) S 1 9 9", "10 (b (c) d) S 9 9 9", "11 (e) Z 10 11 9", "12 (f) S 1 1 1"];
        let all: Vec<_> = stats.iter().map(|stat| parse(stat).unwrap()).collect();
        assert!(all[2].is_zombie && !all[1].is_zombie);
        assert_eq!((all[1].parent, all[1].group), (9, 9));
        let family = below(&all, |process| process.pid.as_raw_nonzero().get() == 9);
        let pids: Vec<_> =
            family.iter().map(|process| process.pid.as_raw_nonzero().get()).collect();
        assert_eq!(pids, [9, 10, 11]);
    }
}
