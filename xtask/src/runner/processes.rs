//! Reads processes from /proc and finds the processes that a test started.
//!
//! Not here: the start of tests (process.rs), stacks of hung processes (stacks.rs).
//!
//! Invariants:
//! - this program is a subreaper, so all processes of a test stay its descendants;
//! - a process belongs to a test if the process, or one of its ancestors, is the test's own
//!   process, is in its process group, or has its mark in the environment; concurrent tests have
//!   different groups and marks.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Time in which killed processes must exit. A process that hangs in the kernel takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Interval between two reads of the processes in `/proc`.
const PAUSE: Duration = Duration::from_millis(10);

/// A process and its state when `/proc` was read.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    parent: i32,
    group: i32,
    /// True if the process has exited and its parent has not yet reaped it.
    is_zombie: bool,
}

impl Process {
    /// Returns the command line, or the name of the process if the command line is empty.
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

/// Processes that one test started.
pub(super) struct Family {
    /// The test's own process, which leads the process group of the test.
    pub(super) root: Pid,
    /// Environment variable `NAME=VALUE` that only the processes of this test have.
    pub(super) mark: String,
}

impl Family {
    /// Returns all running processes of the test, including its own process.
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

    /// Waits up to `grace` for the test's descendants to exit; returns the processes still running.
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

    /// Kills all processes of the test. Returns the processes that are still alive after
    /// [`KILL_LIMIT`].
    pub(super) fn kill(&self) -> Vec<Process> {
        kill_until_gone(|| self.alive())
    }
}

/// Kills all descendants of this program and returns their command lines. Call it only while this
/// program waits for no child.
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
        // Read /proc again in each round: a process can fork while the runner kills it.
        let alive = list();
        if alive.is_empty() || Instant::now() > end {
            return alive;
        }
        for process in &alive {
            // The kill fails only if the process has exited since `/proc` was read.
            kill_process(process.pid, Signal::KILL).ok();
        }
        std::thread::sleep(PAUSE);
    }
}

/// Reaps an ended child, so that it leaves the process table.
fn reap(pid: Pid) {
    // The call fails if another thread has reaped the child.
    waitpid(Some(pid), WaitOptions::NOHANG).ok();
}

/// Returns the processes for which `is_meant` is true, with all their descendants.
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

/// Parses fields 1 and 3 to 5 of `/proc/PID/stat` (proc_pid_stat.5). The process name in field 2
/// may contain spaces.
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
    fn family_is_found_by_parents() {
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
