//! Runs crash scenarios from a first seed until it has checked enough recoveries or the time is
//! over.
//!
//! Not here: the scenarios themselves (the library).
//!
//! Invariants:
//! - the exit code is 0 only if no scenario violated a guarantee and, without `--seconds`, the run
//!   reached the requested number of recoveries;
//! - the scenarios free all memory that they allocated. In a run of at least [`MEMORY_JUDGED`]
//!   recoveries, the median of resident memory over the last [`MEMORY_WINDOW`] recoveries is at
//!   most [`MEMORY_GROWTH_MAX`] times its median after [`MEMORY_WARM_UP`].

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use weir_pool::PlantedBug;
use weir_sim::{
    Coverage, CoveragePoint, Effort, FaultPlan, Report, Scenario, Violation, enumerate,
};

/// Page size on x86-64 and on most arm64 machines: the unit of memory in `/proc/self/statm`.
const STATM_BYTES: u64 = 4096;
/// Maximum memory that is still allocated after all scenarios: tables and counters of the process.
/// A leak of 16 bytes in each recovery exceeds it after 20,000 recoveries.
const LEFT_BYTES_MAX: u64 = 256 << 10;
/// Number of recoveries after which the pools of the allocator hardly grow. In a run of 30,000
/// recoveries, resident memory grew from 200 to 400 MiB over the first 10,000 and to 430 MiB over
/// the others.
const MEMORY_WARM_UP: u64 = 12_000;
/// Number of recoveries over which the run takes a median of resident memory.
const MEMORY_WINDOW: u64 = 5_000;
/// Minimum number of recoveries in a run whose growth of resident memory is judged. In a shorter
/// run, the growth depends on the memory that single scenarios need.
const MEMORY_JUDGED: u64 = 50_000;
/// Maximum ratio of the last median of resident memory to the first. With larger growth, a long run
/// would reach its memory limit.
const MEMORY_GROWTH_MAX: f64 = 1.2;

/// Cut the power of simulated pools and check the recovered data.
#[derive(Parser)]
struct Args {
    /// First seed; each scenario uses the next one
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replay only the scenario of --seed, then cut it at every tenth step
    #[arg(long)]
    only: bool,
    /// Stop after this many recoveries
    #[arg(long, default_value_t = 100_000)]
    recoveries: u64,
    /// Stop after this many seconds, even with fewer recoveries
    #[arg(long)]
    seconds: Option<u64>,
    /// Number of threads; each takes the next seed
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Statistics of the run so far.
#[derive(Default)]
struct Tally {
    /// Numbers of scenarios and recoveries by layout and injected fault.
    kinds: BTreeMap<(String, String), (u64, u64)>,
    /// Number of scenarios that reached each coverage point.
    coverage: Coverage,
}

impl Tally {
    fn add(&mut self, scenario: &Scenario, report: &Report) {
        let trouble = match scenario.trouble {
            FaultPlan::Fault(fault) => format!("{fault:?}"),
            other => format!("{other:?}"),
        };
        let kind = (format!("{:?}", scenario.layout), trouble);
        let (scenarios, recoveries) = self.kinds.entry(kind).or_default();
        *scenarios += 1;
        *recoveries += report.recoveries;
        self.coverage.add_met(&report.coverage);
    }

    fn print(&self) {
        eprintln!("{:10} {:18} {:>9} {:>10}", "layout", "trouble", "scenarios", "recoveries");
        for ((layout, trouble), (scenarios, recoveries)) in &self.kinds {
            eprintln!("{layout:10} {trouble:18} {scenarios:9} {recoveries:10}");
        }
        eprintln!("\nscenarios that reached ...");
        for met in CoveragePoint::ALL {
            eprintln!("{:18} {:9}", format!("{met:?}"), self.coverage.count(met));
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.only {
        return only(args.seed);
    }
    let start = Instant::now();
    let bar = progress(&args);
    let out_of_time =
        || args.seconds.is_some_and(|limit| start.elapsed() >= Duration::from_secs(limit));
    let (next, recoveries) = (AtomicU64::new(args.seed), AtomicU64::new(0));
    let broken: Mutex<Option<Box<Violation>>> = Mutex::new(None);
    let tally: Mutex<Tally> = Mutex::default();
    let memory: Mutex<Vec<Sample>> = Mutex::default();
    let before = weir_sim::used_bytes();
    std::thread::scope(|scope| {
        let start_thread = |_| {
            scope.spawn(|| {
                while recoveries.load(Ordering::Relaxed) < args.recoveries
                    && !out_of_time()
                    && broken.lock().is_none()
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let scenario = Scenario::of_seed(seed, PlantedBug::None);
                    match enumerate(scenario, Effort::default()) {
                        Ok(report) => {
                            let before = recoveries.fetch_add(report.recoveries, Ordering::Relaxed);
                            memory.lock().push(Sample {
                                recoveries: before + report.recoveries,
                                bytes: resident_bytes(),
                            });
                            tally.lock().add(&scenario, &report);
                            bar.inc(if args.seconds.is_some() { 0 } else { report.recoveries });
                            bar.set_message(format!("seed {seed}"));
                        }
                        Err(violation) => *broken.lock() = Some(violation),
                    }
                    if args.seconds.is_some() {
                        bar.set_position(start.elapsed().as_secs());
                    }
                }
            })
        };
        let threads: Vec<_> = (0..args.threads).map(start_thread).collect();
        // Unlike the end of the scope, a join waits until the thread has freed its thread-locals.
        threads.into_iter().for_each(|thread| thread.join().expect("a scenario does not panic"));
    });
    bar.finish_and_clear();
    let (scenarios, recoveries) = (next.into_inner() - args.seed, recoveries.into_inner());
    tally.lock().print();
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("\n{scenarios} scenarios, {recoveries} recoveries in {seconds:.0} s");
    let flat = is_flat(before, &memory.into_inner());
    match broken.into_inner() {
        Some(violation) => fail(&violation),
        None if !flat => ExitCode::FAILURE,
        None if recoveries < args.recoveries && args.seconds.is_none() => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

/// Resident memory after a scenario.
struct Sample {
    /// Number of recoveries of the run so far.
    recoveries: u64,
    bytes: u64,
}

/// Prints the growth of memory. Returns false if the scenarios leaked memory, or if resident memory
/// grew too much over a long run.
fn is_flat(before: u64, samples: &[Sample]) -> bool {
    let left = weir_sim::used_bytes().saturating_sub(before);
    eprintln!("memory: the scenarios left {} KiB allocated", left >> 10);
    if left > LEFT_BYTES_MAX {
        eprintln!("LEAK: at most {} KiB may be left", LEFT_BYTES_MAX >> 10);
    }
    left <= LEFT_BYTES_MAX && is_resident_flat(samples)
}

/// Returns false if resident memory grew too much over a long run. Compares medians, because
/// scenarios need very different amounts of memory.
fn is_resident_flat(samples: &[Sample]) -> bool {
    let end = samples.iter().map(|sample| sample.recoveries).max().unwrap_or_default();
    let median = |window: Range<u64>| {
        let is_in = |sample: &&Sample| window.contains(&sample.recoveries);
        let mut bytes: Vec<u64> = samples.iter().filter(is_in).map(|s| s.bytes).collect();
        bytes.sort_unstable();
        bytes.get(bytes.len() / 2).copied()
    };
    let first = median(MEMORY_WARM_UP..MEMORY_WARM_UP + MEMORY_WINDOW);
    let last = median(end.saturating_sub(MEMORY_WINDOW)..end + 1);
    let (Some(first), Some(last)) = (first, last) else { return true };
    let growth = last as f64 / first as f64;
    let (before, after) = (first >> 20, last >> 20);
    eprintln!(
        "resident memory: {before} MiB after {MEMORY_WARM_UP} recoveries, {after} MiB at the end: \
         {growth:.2} times"
    );
    let grew = end >= MEMORY_JUDGED && growth > MEMORY_GROWTH_MAX;
    if grew {
        eprintln!("LEAK: resident memory may grow {MEMORY_GROWTH_MAX} times");
    }
    !grew
}

/// Resident memory of this process (proc(5), statm).
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let resident = statm.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
    resident.expect("Linux tells each process its memory") * STATM_BYTES
}

/// Progress line with the time left on a terminal; hidden elsewhere.
fn progress(args: &Args) -> ProgressBar {
    let (len, unit) = args.seconds.map_or((args.recoveries, "recoveries"), |s| (s, "s"));
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let template = format!("{{wide_bar}} {{pos}}/{{len}} {unit}, {{eta}} left, {{msg}}");
    let style = ProgressStyle::with_template(&template).expect("the template is a constant");
    ProgressBar::with_draw_target(Some(len), target).with_style(style)
}

fn only(seed: u64) -> ExitCode {
    let scenario = Scenario::of_seed(seed, PlantedBug::None);
    eprintln!("{scenario:?}");
    weir_sim::listen();
    let thorough = Effort { steps_per_million: 100_000, ..Effort::default() };
    for effort in [Effort::default(), thorough] {
        match enumerate(scenario, effort) {
            Ok(Report { recoveries, steps, coverage }) => {
                let met = CoveragePoint::ALL.into_iter().filter(|met| coverage.count(*met) > 0);
                let met: Vec<CoveragePoint> = met.collect();
                eprintln!("{recoveries} recoveries of {steps} steps; reached {met:?}");
            }
            Err(violation) => {
                weir_sim::said().iter().for_each(|line| eprintln!("{line}"));
                return fail(&violation);
            }
        }
    }
    ExitCode::SUCCESS
}

fn fail(violation: &Violation) -> ExitCode {
    eprintln!("BROKEN: {violation}\nreplay: make sim SEED={}", violation.scenario.seed);
    ExitCode::FAILURE
}
