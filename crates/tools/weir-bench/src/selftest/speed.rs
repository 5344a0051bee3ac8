//! Checks the cost of the generator, and the latencies and rates that it measures on targets for
//! which the true values are known.
//!
//! `calibrate` compares the cost of the generator with the cost of another program.
//!
//! Theory of the stall: a target freezes for 1 s in every 5 s. An operation that is due at a random
//! time waits for longer than x s with probability (1 - x) / 5; this is 1 % at x = 0.95 s, the 99th
//! percentile.
//!
//! Invariant: a busy machine can make each figure worse, but never better.

use std::time::Duration;

use super::kit::{Kit, cell, closed, open, stream, whole_run};
use super::{Item, Seen};
use crate::report;
use crate::run::RunError;
use crate::selftest::Scale;
use crate::spec::{
    Access, CellSpec, LatencyBound, LatencyFigure, LoadSpec, Requirement, SearchSpec,
};
use crate::summary::{CellSummary, RunFigures};
use crate::target;
use crate::target::shaped::Shaped;
use crate::verdict::JudgedRun;
use crate::words;

const NULL_OPS_S_MIN: f64 = 1e6;
const MEAN_PCT: f64 = 2.0;
const P99_PCT: f64 = 5.0;
const STALL_P99_US: f64 = 950_000.0;
const STALL_PCT: f64 = 10.0;
/// Limit of the target in the knee search, in operations per second. The bisection never tries
/// exactly this rate.
const KNEE_RATE: f64 = 5_300.0;
const KNEE_PCT: f64 = 3.0;

pub(super) fn items() -> Vec<Item> {
    vec![
        Item::new(
            "null target, reads",
            "at least 1,000,000 operations per second of one worker, 4 KiB, 32 in flight",
            |scale| null(100.0, scale),
        )
        .by_time(),
        Item::new(
            "null target, writes",
            "at least 1,000,000 operations per second of one worker, new content for every block",
            |scale| null(0.0, scale),
        )
        .by_time(),
        Item::new(
            "known latency",
            "mean within 2 %, 99th percentile within 5 % of 20 ms (full form: of 2 ms)",
            |scale| known_latency(scale.pick(20, 2), scale),
        )
        .by_time(),
        Item::new(
            "stall of 1 s in every 5 s",
            "99th percentile of an open loop at 1,000 per second within 10 % of 950 ms; a closed \
             loop does not see the stall, and its report says \"service time only\"",
            stall,
        )
        .by_time(),
        Item::new(
            "knee of 5,300 operations per second",
            "the highest rate within 15 ms is found within 3 %",
            |_| knee(),
        )
        .by_time(),
    ]
}

fn null(read_pct: f64, scale: Scale) -> Result<Seen, RunError> {
    let time = Duration::from_millis(scale.pick(700, 10_000));
    let stream = stream(read_pct, Access::Random);
    let run = Kit::new().offer(&target::null(), stream, closed(32), Some(time))?;
    let summary = CellSummary::of_runs(std::slice::from_ref(&run));
    let (rate, cpu_ns) = (summary.iops.median, summary.cpu_us_per_op * 1000.0);
    let wall_ns = 1e9 / rate.max(1.0);
    let found = format!(
        "{} per second: {wall_ns:.0} ns each, {cpu_ns:.0} ns of CPU time",
        words::number(rate)
    );
    Ok(Seen { passed: rate >= NULL_OPS_S_MIN, found, off: 1e9 / rate.max(1.0) })
}

fn known_latency(latency_ms: u32, scale: Scale) -> Result<Seen, RunError> {
    let latency = Duration::from_millis(u64::from(latency_ms));
    let wanted_us = latency.as_secs_f64() * 1e6;
    // A 99th percentile needs a thousand operations, and the run has several thousand.
    let time = scale.pick(Duration::from_secs(1), Duration::from_secs(20));
    let depth = latency_ms * 4;
    let stream = stream(100.0, Access::Random);
    let run = Kit::new().offer(&Shaped::latency(latency), stream, closed(depth), Some(time))?;
    let found = RunFigures::of(&run).latency;
    let Some(p99_us) = found.p99_us else {
        return Ok(Seen::of(false, format!("{} operations are too few", found.count)));
    };
    let off_pct = |us: f64| 100.0 * (us / wanted_us - 1.0);
    let (mean, p99) = (off_pct(found.mean_us), off_pct(p99_us));
    let text = format!(
        "mean {} ms ({mean:+.2} %), 99th percentile {} ms ({p99:+.2} %)",
        words::ms(found.mean_us),
        words::ms(p99_us)
    );
    let off = (mean.abs() / MEAN_PCT).max(p99.abs() / P99_PCT);
    Ok(Seen { passed: off <= 1.0, found: text, off })
}

fn stall(scale: Scale) -> Result<Seen, RunError> {
    // The run lasts for whole periods of the stall, so that the phase of the stall does not matter.
    let duration_ms = scale.pick(5_000, 60_000);
    let run = |load: LoadSpec| {
        let period = Duration::from_secs(5);
        let target = Shaped::stalls(Duration::from_micros(500), period, Duration::from_secs(1));
        let spec = cell(100.0, load, duration_ms, 1);
        Ok::<_, RunError>(JudgedRun::of(whole_run(spec, &target)?))
    };
    // Both loops sleep nearly all the time, so they can run concurrently.
    let (opened, waited) = std::thread::scope(|scope| {
        let opened = scope.spawn(|| run(open(1_000.0, 2_000, 100_000)));
        let waited = run(closed(1));
        (opened.join().expect("it does not panic"), waited)
    });
    let (opened, waited) = (opened?, waited?);
    let p99 = |run: &JudgedRun| run.cells().first().and_then(|cell| cell.summary.latency.p99_us);
    let (Some(open_us), Some(closed_us)) = (p99(&opened), p99(&waited)) else {
        return Ok(Seen::of(false, "too few operations for a 99th percentile"));
    };
    let is_labelled = |run: &JudgedRun| report::markdown(run).contains("service time only");
    let labels_fit = is_labelled(&waited) && !is_labelled(&opened);
    let off = 100.0 * (open_us / STALL_P99_US - 1.0);
    let label = if labels_fit { "labelled" } else { "wrong label" };
    let found = format!(
        "open loop {} ms ({off:+.1} %); closed loop {} ms, {label}",
        words::ms(open_us),
        words::ms(closed_us)
    );
    Ok(Seen { passed: off.abs() <= STALL_PCT && labels_fit, found, off: off.abs() })
}

fn knee() -> Result<Seen, RunError> {
    let latency =
        LatencyBound { stream: None, op: None, figure: LatencyFigure::P99, max_us: 15_000.0 };
    let slo = Requirement { latency: vec![latency], ..Requirement::default() };
    // At 1.5 % above the limit, the load of one second ends 15 ms late. Longer runs would be more
    // precise.
    let spec = CellSpec {
        search: Some(SearchSpec::Knee { tolerance_pct: 1.0, slo }),
        ..cell(100.0, open(4_000.0, 256, 100_000), 1_000, 1)
    };
    let result = whole_run(spec, &Shaped::rate(KNEE_RATE))?;
    let points = &result.cells[0].points;
    let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
    let best = met.fold(0.0, f64::max);
    let off = 100.0 * (best / KNEE_RATE - 1.0);
    let found = format!("{} ({off:+.1} %) after {} rates", words::number(best), points.len());
    Ok(Seen { passed: off.abs() <= KNEE_PCT, found, off: off.abs() })
}
