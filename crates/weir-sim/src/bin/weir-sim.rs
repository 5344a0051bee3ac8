//! Runs crash scenarios from a seed on, until enough recoveries were judged or time is up.
//!
//! Not here: the scenarios themselves (the library).
//!
//! Invariants: exit code 0 only if no promise was broken and the wanted number was reached.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use parking_lot::Mutex;
use weir_pool::PlantedBug;
use weir_sim::{Effort, Scenario, Violation, enumerate};

/// Cuts the power of simulated pools and checks what is left.
#[derive(Parser)]
struct Args {
    /// First seed; each scenario takes the next one.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run just the scenario of --seed, and cut at every step.
    #[arg(long)]
    only: bool,
    /// Stop after this many recoveries.
    #[arg(long, default_value_t = 100_000)]
    recoveries: u64,
    /// Stop after this many seconds, whatever was reached.
    #[arg(long)]
    seconds: Option<u64>,
    /// Threads; every one takes scenarios in turn.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.only {
        return only(args.seed);
    }
    let start = Instant::now();
    let out_of_time =
        || args.seconds.is_some_and(|limit| start.elapsed() >= Duration::from_secs(limit));
    let (next, recoveries) = (AtomicU64::new(args.seed), AtomicU64::new(0));
    let broken: Mutex<Option<Box<Violation>>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                while recoveries.load(Ordering::Relaxed) < args.recoveries
                    && !out_of_time()
                    && broken.lock().is_none()
                {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match enumerate(Scenario::of_seed(seed, PlantedBug::None), Effort::default()) {
                        Ok(report) => {
                            recoveries.fetch_add(report.recoveries, Ordering::Relaxed);
                        }
                        Err(violation) => *broken.lock() = Some(violation),
                    }
                }
            });
        }
    });
    let (scenarios, recoveries) = (next.into_inner() - args.seed, recoveries.into_inner());
    let seconds = start.elapsed().as_secs_f64();
    eprintln!("{scenarios} scenarios, {recoveries} recoveries in {seconds:.0} s");
    match broken.into_inner() {
        Some(violation) => fail(&violation),
        None if recoveries < args.recoveries && args.seconds.is_none() => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

fn only(seed: u64) -> ExitCode {
    let effort = Effort { steps_per_million: 1_000_000, ..Effort::default() };
    match enumerate(Scenario::of_seed(seed, PlantedBug::None), effort) {
        Ok(report) => {
            eprintln!("seed {seed}: {report:?}");
            ExitCode::SUCCESS
        }
        Err(violation) => fail(&violation),
    }
}

fn fail(violation: &Violation) -> ExitCode {
    eprintln!("BROKEN: {violation}\nreplay: make sim SEED={}", violation.scenario.seed);
    ExitCode::FAILURE
}
