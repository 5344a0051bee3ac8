//! Runs one test as a separate process and kills all processes that it started.
//!
//! Not here: how the processes of a test are found (processes.rs), the order of tests (runner.rs).
//!
//! Invariants:
//! - after a run no process of the test is alive, or the failure names that process;
//! - the log holds the complete output of the test and, for a hung test, the stacks of its
//!   processes.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weir_command::command;

use super::cores::{self, Cores};
use super::processes::{self, Family, Process};
use super::stacks;

/// Environment variable that marks all processes of a test.
const MARK: &str = "WEIR_TEST_RUN";
/// Time after the end of a test in which processes that the test killed or stopped must exit.
const GRACE: Duration = Duration::from_secs(1);
/// Time that the process of the test has to exit after SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Factor by which the limit grows if the cores had no idle time. For example, if two developers
/// run all end-to-end tests on one machine, each run takes twice as long.
const BUSY_FACTOR: u32 = 3;
/// Exit code of libtest after a failed test.
const TEST_FAILED: i32 = 101;

/// A test to run.
pub(crate) struct Job<'a> {
    pub(crate) command: Command,
    /// File for standard output and standard error of the test.
    pub(crate) log: &'a Path,
    /// Time until the test counts as hung, on a machine with idle cores.
    pub(crate) limit: Duration,
}

/// Result of a test process.
pub(crate) struct End {
    pub(crate) time: Duration,
    /// Processor time of the test and of the processes that it waited for.
    pub(crate) cpu: Duration,
    /// Reason of the failure; `None` if the test passed.
    pub(crate) failure: Option<String>,
}

/// Runs a test until it exits or reaches its limit.
pub(crate) fn run(job: Job<'_>) -> Result<End> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let Job { mut command, log, limit } = job;
    let folder = log.parent().expect("a log lies in a folder");
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let run = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    command.env(MARK, &run).process_group(0);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let (start, before) = (Instant::now(), Cores::now());
    let mut child =
        command.spawn().with_context(|| format!("cannot start `{}`", command::show(&command)))?;
    let family = Family { root: Pid::from_child(&child), mark: format!("{MARK}={run}") };
    // Only `wait` below reaps the process, so the kernel cannot reuse the id of the process
    // earlier.
    let mut has_ended = ends_within(family.root, limit)?;
    if !has_ended && before.zip(Cores::now()).is_some_and(|(before, now)| now.were_busy(before)) {
        has_ended = ends_within(family.root, limit * (BUSY_FACTOR - 1))?;
    }
    let time = start.elapsed();
    // The process was not reaped, so the kernel still reports its processor time.
    let cpu = cores::process_time(family.root.as_raw_nonzero().get());
    let mut failures = Vec::new();
    if has_ended {
        let left = family.outlasting(GRACE);
        failures.extend(left.iter().map(left_behind));
    } else {
        let failure = format!("no exit after {} s", time.as_secs());
        let text = format!("\n{failure}: {}\n{}", log.display(), stacks::describe(&family.alive()));
        println!("{text}");
        OpenOptions::new().append(true).open(log)?.write_all(text.as_bytes())?;
        failures.push(failure);
    }
    let stuck = if failures.is_empty() { Vec::new() } else { family.kill() };
    failures.extend(stuck.iter().map(|process| format!("cannot be killed: {}", name(process))));
    if has_ended || ends_within(family.root, KILL_LIMIT)? {
        let status = child.wait()?;
        if has_ended && !status.success() {
            failures.insert(0, words(status));
        }
    }
    let failure = (!failures.is_empty()).then(|| failures.join("; "));
    Ok(End { time, cpu, failure })
}

/// Makes this program a subreaper of all test processes, and kills them if a signal ends this
/// program.
pub(crate) fn begin() -> Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    end_all_on_signals()
}

/// Kills the processes of all tests on SIGHUP, SIGINT or SIGTERM. Each test has its own process
/// group, so Ctrl-C in a terminal does not reach its processes.
fn end_all_on_signals() -> Result<()> {
    static ONCE: Once = Once::new();
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    ONCE.call_once(|| {
        std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                eprintln!("xtask: stopping the tests after signal {signal}");
                processes::end_orphans();
                std::process::exit(128 + signal);
            }
        });
    });
    Ok(())
}

/// Returns true if a child exits within the limit. The child remains a zombie.
fn ends_within(pid: Pid, limit: Duration) -> Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process")?;
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("a limit is far too long")?;
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) if left.is_zero() => return Ok(false),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error).context("cannot wait for a process"),
        }
    }
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(TEST_FAILED), _) => "a panic".to_owned(),
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

fn left_behind(process: &Process) -> String {
    format!("left a process behind: {}", name(process))
}

fn name(process: &Process) -> String {
    format!("{} ({})", process.command_line(), process.pid.as_raw_nonzero())
}
