//! Tests that run complete validations of simulated targets in virtual time, with hundreds of
//! seeds.
//!
//! `tests` evaluates requirements on fixed figures.
//!
//! Theory. The target completes exactly `capacity` operations per second, one after the other.
//! Other programs on a busy core delay sends and completions at random. Such delays can only lower
//! the capacity that a generator measures.
//!
//! Invariant: no test reads a clock, so the speed of the machine has no effect.

use std::collections::BTreeSet;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Exp1};

use super::{Outcome, assess, validation};
use crate::fixture;
use crate::histogram::Latencies;
use crate::profile::{self, Options};
use crate::result::{CellResult, CellRun, Interval, RunResult};
use crate::run::search;
use crate::spec::{Arrival, LatencyBound, LatencyFigure, LoadSpec, Requirement, RunSpec, Scale};
use crate::stats;
use crate::verdict::JudgedRun;

/// Rate that every validation needs, in operations per second.
const NEED: f64 = 216.0;
/// Length of a run at the needed rate, in seconds.
const RUN_S: u32 = 8;
/// Length of a run of the search, in seconds.
const RATE_S: u32 = 4;
/// Number of seeds for each capacity.
const SEEDS: u64 = 200;
/// Number of delays per second on a busy core, and mean length of a delay in seconds.
const DELAYS_PER_S: f64 = 3.0;
const DELAY_S: f64 = 0.004;

/// Simulated target with a known capacity, and the random numbers of its clients.
struct Simulated {
    capacity: f64,
    rng: SmallRng,
}

impl Simulated {
    fn new(share_of_need: f64, seed: u64) -> Self {
        Self { capacity: NEED * share_of_need, rng: SmallRng::seed_from_u64(seed) }
    }

    fn exp(&mut self) -> f64 {
        Exp1.sample(&mut self.rng)
    }

    /// Returns the delays of a busy core, each with its start and end in seconds.
    fn delays(&mut self, seconds: f64) -> Vec<(f64, f64)> {
        let (mut delays, mut at) = (Vec::new(), 0.0);
        loop {
            at += self.exp() / DELAYS_PER_S;
            if at > seconds {
                return delays;
            }
            let start = at;
            at += self.exp() * DELAY_S;
            delays.push((start, at));
        }
    }

    /// Simulates one run of an open loop.
    fn run(&mut self, rate: f64, seconds: u32, arrival: Arrival) -> CellRun {
        let end = f64::from(seconds);
        let (sends, completions) = (self.delays(end), self.delays(end));
        let later = |delays: &[(f64, f64)], at: f64| {
            let index = delays.partition_point(|(start, _)| *start <= at);
            index.checked_sub(1).map_or(at, |index| at.max(delays[index].1))
        };
        let gap = |sim: &mut Self| match arrival {
            Arrival::Constant => 1.0 / rate,
            Arrival::Poisson => sim.exp() / rate,
        };
        let (mut due, mut free_at) = (gap(self), 0.0_f64);
        let mut run = fixture::closed_run(4, 1, 75, 1, 1);
        (run.seconds, run.offered_iops, run.cpu_s) = (end, Some(rate), (0.01, 0.01));
        run.classes.iter_mut().for_each(|class| {
            (class.ops, class.bytes, class.latency) = (0, 0, Latencies::default());
        });
        let new = |second| (Interval { second, ..Interval::default() }, Vec::new());
        let mut seconds: Vec<(Interval, Vec<f64>)> = (0..seconds).map(new).collect();
        while due < end {
            free_at = free_at.max(later(&sends, due)) + 1.0 / self.capacity;
            let at = later(&completions, free_at);
            let ns = whole((at - due) * 1e9);
            let kind = usize::from(run.due % 4 == 3);
            run.due += 1;
            run.classes[kind].latency.record_ns(ns);
            if at < end {
                run.answered += 1;
                run.classes[kind].ops += 1;
                let (second, latencies) = &mut seconds[whole(at) as usize];
                second.ops += 1;
                latencies.push(ns as f64 / 1e3);
            }
            let ends = seconds.iter_mut().take(whole(at) as usize).skip(whole(due) as usize);
            ends.for_each(|(second, _)| second.in_flight += 1);
            due += gap(self);
        }
        run.intervals = seconds
            .into_iter()
            .map(|(second, latencies)| Interval {
                p50_us: stats::median(&latencies).unwrap_or(0.0),
                ..second
            })
            .collect();
        run
    }
}

fn whole(value: f64) -> u64 {
    crate::content::whole(value)
}

/// Returns the spec that validates `need`, as `weir bench` prepares it.
fn spec(need: &Requirement) -> RunSpec {
    let spec = profile::load("quick", &Options::default()).expect("it comes along");
    let spec = RunSpec { scale: Scale::Standard, ..spec };
    validation(spec, Some(need.clone())).expect("the need is right")
}

/// Runs a validation of `need` on a simulated target.
fn validated(need: &Requirement, target: &mut Simulated) -> RunResult {
    let spec = spec(need);
    let cells = spec.cells.iter().map(|cell| {
        let LoadSpec::Open { rate, arrival, .. } = cell.load else { panic!("an open loop") };
        let mut found = fixture::cell(&cell.name, Vec::new());
        (found.spec.load, found.spec.search) = (cell.load, cell.search.clone());
        match &cell.search {
            None => found.runs = (0..3).map(|_| target.run(rate, RUN_S, arrival)).collect(),
            Some(search) => {
                let mut measure = |rate, times| Ok(Some(target.run(rate, RATE_S * times, arrival)));
                found.points = search::points(rate, search, arrival, &mut measure).expect("runs");
            }
        }
        found
    });
    let mut result = fixture::result(cells.collect::<Vec<CellResult>>());
    result.spec.require = Some(need.clone());
    result
}

/// Outcomes of many validations with different seeds.
#[derive(Debug, Default)]
struct Outcomes {
    pass: u32,
    not_proven: u32,
    fail: u32,
    /// Lowest and highest measured capacity, in percent of the true capacity.
    range_pct: (f64, f64),
    /// Measured time of the longest validation, in seconds.
    longest_s: f64,
    reasons: BTreeSet<String>,
}

fn outcomes(need: &Requirement, share_of_need: f64, seeds: u64) -> Outcomes {
    let mut all = Outcomes { range_pct: (f64::INFINITY, 0.0), ..Outcomes::default() };
    for seed in 0..seeds {
        let mut target = Simulated::new(share_of_need, seed);
        let result = validated(need, &mut target);
        let measured = result.cells.iter().flat_map(CellResult::measured);
        all.longest_s = all.longest_s.max(measured.map(|run| run.seconds).sum());
        let found = assess(&JudgedRun::of(result)).expect("a requirement");
        *match found.outcome {
            Outcome::Pass => &mut all.pass,
            Outcome::NotProven => &mut all.not_proven,
            Outcome::Fail => &mut all.fail,
        } += 1;
        let got = found.cells[1].criteria[0].got.expect("a rate");
        let (low, high) = all.range_pct;
        let pct = 100.0 * got / target.capacity;
        all.range_pct = (low.min(pct), high.max(pct));
        all.reasons.extend(found.cells.into_iter().filter_map(|cell| cell.reason));
    }
    all
}

#[test]
fn target_below_the_need_never_passes() {
    let need = Requirement { iops: Some(NEED), ..Requirement::default() };
    for share in [0.9, 0.99, 0.998] {
        let found = outcomes(&need, share, SEEDS);
        assert_eq!(found.pass, 0, "{share}: {found:?}");
        assert!(found.range_pct.0 >= 98.0 && found.range_pct.1 <= 100.5, "{share}: {found:?}");
        assert!(share > 0.95 || found.fail == SEEDS as u32, "{share}: {found:?}");
    }
}

#[test]
fn target_above_the_need_passes() {
    let need = Requirement { iops: Some(NEED), ..Requirement::default() };
    for share in [1.02, 1.05, 1.25] {
        let found = outcomes(&need, share, SEEDS);
        assert_eq!(found.fail, 0, "{share}: {found:?}");
        // If the rate is near the target's capacity, the effect of a delay lasts long enough to
        // make the latency unsteady.
        let unproven_max = if share < 1.05 { SEEDS as u32 / 20 } else { 0 };
        assert!(found.not_proven <= unproven_max, "{share}: {found:?}");
        assert!(found.range_pct.0 >= 98.0 && found.range_pct.1 <= 100.5, "{share}: {found:?}");
        assert!(found.longest_s <= 90.0, "{share}: {found:?}");
    }
}

#[test]
fn need_at_the_capacity_is_not_proven_and_names_the_time_that_decides() {
    let need = Requirement { iops: Some(NEED), ..Requirement::default() };
    let found = outcomes(&need, 1.0, SEEDS);
    assert!(found.fail <= SEEDS as u32 / 100 && found.pass == 0, "{found:?}");
    let found = outcomes(&need, 1.004, 50);
    assert!(found.fail == 0, "{found:?}");
    let says = |text: &str| found.reasons.iter().any(|reason| reason.contains(text));
    assert!(says("the limit is between 21") && says(" s decides"), "{found:?}");
}

#[test]
fn random_arrivals_below_the_capacity_are_no_overload() {
    let figure = LatencyFigure::Mean;
    let latency = vec![LatencyBound { stream: None, op: None, figure, max_us: 5e6 }];
    let need = Requirement { iops: Some(NEED), latency, ..Requirement::default() };
    for share in [0.9, 0.98, 1.05, 1.25] {
        let found = outcomes(&need, share, 60);
        assert!(share >= 1.0 || found.pass == 0, "{share}: {found:?}");
        assert!(share < 1.05 || found.fail <= 1, "{share}: {found:?}");
        assert!(share < 1.25 || found.pass >= 58, "{share}: {found:?}");
    }
}
