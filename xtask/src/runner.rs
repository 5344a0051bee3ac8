//! Test runner: runs each test as a separate process under a watchdog, several at a time.
//!
//! Not here: which tests a task runs (test.rs, check.rs, e2e.rs), and the code of the tests.
//!
//! Invariants:
//! - a test that has not ended within its limit ([`lists::limit`]), or three times the limit on a
//!   busy machine, fails, and the runner kills its processes;
//! - a process that outlives its test fails that test;
//! - the runner repeats a failed test only if the test measures time ([`lists::ALONE`]);
//! - the runner skips doc tests: the workspace has none, only drawings in `text` blocks.

mod build;
mod cores;
pub(crate) mod lists;
pub(crate) mod process;
mod processes;
pub(crate) mod report;
mod stacks;
#[cfg(test)]
mod tests;
mod times;

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use build::Case;
use cores::Cores;
use process::Job;
use report::{Ran, Verdict};
use times::Times;
use weir_command::command;

/// Number of concurrent unit tests: twice the number of cores of CI, because a third of the tests
/// wait for timers.
pub(crate) const UNIT_LANES: usize = 4;
/// Number of concurrent end-to-end tests: four times the number of cores of CI, because these tests
/// wait most of the time.
pub(crate) const E2E_LANES: usize = 8;
/// Number of concurrent tests of [`lists::PAIRED`].
const PAIR: usize = 2;
/// Maximum number of concurrent runs of one suite of tests.
const RUNS_MAX: usize = 9;
/// Maximum number of log lines that the runner prints for a failed test. The test's log file has
/// all lines.
const LOG_LINES: usize = 60;

/// A suite: the tests that one call of cargo builds.
pub(crate) struct Suite {
    /// Name of the log folder below `target/test-logs`.
    pub(crate) name: &'static str,
    /// Arguments of `cargo test --no-run`.
    pub(crate) arguments: Vec<String>,
    /// Number of tests that run concurrently.
    pub(crate) lanes: usize,
    /// Packages whose tests run; `None` runs the tests of all packages that cargo built.
    pub(crate) packages: Option<BTreeSet<String>>,
    /// Name of the test to run, or a part of the names of the tests to run.
    pub(crate) filter: Option<String>,
    /// Number of runs of each test.
    pub(crate) repeat: u32,
}

impl Suite {
    /// Creates a suite that runs all its tests once.
    pub(crate) fn new(name: &'static str, arguments: &str, lanes: usize) -> Self {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Self { name, arguments, lanes, packages: None, filter: None, repeat: 1 }
    }
}

/// Returns the folder of the logs and of `times.json`.
fn logs() -> PathBuf {
    command::target().join("test-logs")
}

/// Builds and runs a suite.
///
/// # Errors
/// cargo cannot build the tests, or the runner cannot run them. A failed test is a [`Verdict`].
pub(crate) fn run(suite: &Suite) -> Result<Vec<Ran>> {
    let cases = select(build::cases(suite)?, suite)?;
    process::begin()?;
    let (folder, _lock) = log_folder(suite.name)?;
    let times_path = logs().join("times.json");
    let mut times = Times::read(&times_path);
    let start = Instant::now();
    let ran = run_cases(cases, &folder, suite.lanes, &times);
    for ran in &ran {
        times.note(ran);
    }
    times.write(&times_path)?;
    println!("\n{}\n", report::closing_line(&ran, start.elapsed()));
    let left = processes::end_orphans();
    if !left.is_empty() {
        bail!("a test of {} left processes running: {}", suite.name, left.join("; "));
    }
    Ok(ran)
}

/// Creates an empty log folder for a suite, and a lock that reserves the folder. If a concurrent
/// run of the suite has locked the folder, uses the next number, up to [`RUNS_MAX`].
fn log_folder(suite: &str) -> Result<(PathBuf, File)> {
    fs::create_dir_all(logs()).with_context(|| logs().display().to_string())?;
    let others = (2..=RUNS_MAX).map(|run| format!("{suite}-{run}"));
    for name in std::iter::once(suite.to_owned()).chain(others) {
        let lock = File::create(logs().join(format!("{name}.lock")))?;
        if lock.try_lock().is_ok() {
            let folder = logs().join(name);
            if folder.exists() {
                fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
            }
            return Ok((folder, lock));
        }
    }
    bail!("{RUNS_MAX} runs of {suite} are already in progress")
}

/// Returns the tests that match the packages and the filter of the suite, each test `repeat` times.
fn select(mut cases: Vec<Case>, suite: &Suite) -> Result<Vec<Case>> {
    if let Some(packages) = &suite.packages {
        cases.retain(|case| packages.contains(&case.program.package));
    }
    if let Some(filter) = &suite.filter {
        let is_exact = cases.iter().any(|case| case.id() == *filter);
        cases.retain(
            |case| if is_exact { case.id() == *filter } else { case.id().contains(filter) },
        );
        if cases.is_empty() {
            bail!("no test of {} has {filter:?} in its name", suite.name);
        }
    }
    let rounds = 1..=suite.repeat;
    Ok(rounds.flat_map(|round| cases.iter().map(move |case| case.in_round(round))).collect())
}

/// Runs the concurrent tests, longest first. Then runs the tests of [`lists::ALONE`], some in pairs
/// and the others one by one.
fn run_cases(cases: Vec<Case>, folder: &Path, lanes: usize, times: &Times) -> Vec<Ran> {
    let (ignored, cases): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.is_ignored);
    let (alone, mut beside): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| lists::is_alone(&case.program.package, &case.name));
    let (mut paired, alone): (Vec<_>, Vec<_>) =
        alone.into_iter().partition(|case| lists::is_paired(&case.program.package, &case.name));
    // Tests without a recorded time start first, in descending order of their limits.
    let limit = |case: &Case| lists::limit(&case.program.package, &case.name);
    let seconds =
        |case: &Case| times.of(&case.id(), lists::usual_seconds(&case.program.package, &case.name));
    for cases in [&mut beside, &mut paired] {
        cases.sort_by(|a, b| {
            seconds(b).total_cmp(&seconds(a)).then_with(|| limit(b).cmp(&limit(a)))
        });
    }
    let all = beside.len() + paired.len() + alone.len();
    println!("running {all} tests, {} of them in pairs and {} alone", paired.len(), alone.len());
    let mut done: Vec<_> =
        ignored.iter().map(|case| Ran::of(case, folder, Verdict::Ignored)).collect();
    done.extend(run_concurrently("concurrent tests", beside, lanes, |case| {
        let ran = run_case(&case, folder);
        tell(&ran);
        ran
    }));
    let pairs = run_concurrently("tests in pairs", paired, PAIR, |case| {
        let ran = run_case(&case, folder);
        if ran.verdict == Verdict::Passed {
            tell(&ran);
        }
        (case, ran)
    });
    let (phase, has_alone) = (Phase::begin(), !alone.is_empty());
    for (case, first) in pairs {
        if first.verdict == Verdict::Passed {
            done.push(first);
            continue;
        }
        let ran = run_again(&case, &first, folder);
        tell(&ran);
        done.push(ran);
    }
    for case in alone {
        let mut ran = run_case(&case, folder);
        if ran.verdict != Verdict::Passed {
            ran = run_again(&case, &ran, folder);
        }
        tell(&ran);
        done.push(ran);
    }
    if has_alone {
        phase.tell("tests alone");
    }
    done
}

/// Calls `run` for each test, in up to `lanes` threads; prints the time of all calls. Returns the
/// results in the order of their ends.
fn run_concurrently<T: Send>(
    what: &str,
    cases: Vec<Case>,
    lanes: usize,
    run: impl Fn(Case) -> T + Sync,
) -> Vec<T> {
    let (queue, done) = (Mutex::new(VecDeque::from(cases)), Mutex::new(Vec::new()));
    let lane = || {
        loop {
            let Some(case) = lock(&queue).pop_front() else { return };
            let result = run(case);
            lock(&done).push(result);
        }
    };
    let phase = Phase::begin();
    std::thread::scope(|scope| {
        for _ in 0..lanes.max(1) {
            scope.spawn(lane);
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !done.is_empty() {
        phase.tell(what);
    }
    done
}

/// A part of the runner's run, such as the build: its start time and core use. When the part ends,
/// the runner prints how busy the cores were, so that a reader sees whether the part waited or
/// needed more processor time.
struct Phase {
    start: Instant,
    cores: Option<Cores>,
}

impl Phase {
    fn begin() -> Self {
        Self { start: Instant::now(), cores: Cores::now() }
    }

    fn tell(&self, what: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        if let Some((before, now)) = self.cores.zip(Cores::now()) {
            println!("{what}: {seconds:.1} s, cores {} % busy", now.busy_pct(before));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a failed test that measures time once more, without concurrent tests: other load may have
/// slowed it down.
fn run_again(case: &Case, first: &Ran, folder: &Path) -> Ran {
    if let Verdict::Failed(why) = &first.verdict {
        println!("{} failed and measures time, so it runs once more: {why}", first.id);
    }
    println!("{}", tail(&first.log, LOG_LINES));
    // If the rename fails, the log of the first run is overwritten; the lines printed above remain.
    fs::rename(&first.log, first.log.with_extension("first.log")).ok();
    let mut again = run_case(case, folder);
    if again.verdict == Verdict::Passed {
        again.verdict = Verdict::Unsteady;
    }
    again
}

fn run_case(case: &Case, folder: &Path) -> Ran {
    let mut ran = Ran::of(case, folder, Verdict::Passed);
    let job = Job {
        command: case.command(),
        log: &ran.log,
        limit: Duration::from_secs(lists::limit(&case.program.package, &case.name)),
    };
    let failure = match process::run(job) {
        Ok(end) => {
            (ran.time, ran.cpu) = (end.time, end.cpu);
            end.failure
        }
        Err(error) => Some(format!("cannot be run: {error:#}")),
    };
    if let Some(why) = failure {
        ran.verdict = Verdict::Failed(why);
    }
    ran
}

/// Prints the result of a test, and the end of its log if it failed. A single call prints both, so
/// that lines of other tests cannot come between them.
fn tell(ran: &Ran) {
    let mut text = ran.line();
    if let Verdict::Failed(why) = &ran.verdict {
        let log = tail(&ran.log, LOG_LINES);
        text = format!("{text}\n---- {}: {why}; the last lines of its log:\n{log}\n----", ran.id);
    }
    println!("{text}");
}

/// Returns the last `lines` lines of a file as text.
fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_else(|error| error.to_string().into_bytes());
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
