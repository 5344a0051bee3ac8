//! Searches for a limit of the target by varying the offered rate: latency curves and knees.
//!
//! `run` measures one rate.
//!
//! Invariants:
//! - every measurement becomes a point of the result; after `POINTS_MAX` points, a search tries no
//!   new rate, except in the refinement of a curve;
//! - a rate of a knee search is met only if two consecutive runs or one prolonged run meet it;
//! - a knee search prolongs a run that decides nothing, and repeats a missed run with a single
//!   stall once, so that neither a burst nor a stall ends the search;
//! - `docs/bench.md` describes the search and gives the reasons for its thresholds.

use super::MeasureError;
use crate::queue;
use crate::requirement;
use crate::result::{CellRun, CurvePoint};
use crate::spec::{Arrival, Requirement, SearchSpec};
use crate::stats;
use crate::summary::{CellSummary, RunFigures, whole_intervals};

/// Maximum number of points. A search that has this number of points tries no further rate.
const POINTS_MAX: usize = 64;
/// Number of consecutive runs at a rate that must meet the bounds before a knee search accepts the
/// rate.
const KNEE_TIMES: u32 = 2;
/// If the target completes less than this percentage of a rate, the rate is missed.
const REACHED_PCT: f64 = 99.0;
/// Length of the run with which a knee search decides a doubtful rate, as a multiple of the usual
/// length.
const PROLONGED: u32 = 3;
/// A target still meets a rate if it falls behind the rate (`queue::shortfall`) by at most this
/// fraction of the search's tolerance.
const BEHIND_PART: f64 = 0.25;
/// A short run proves overload only if the target falls behind the rate by this multiple of the
/// search's tolerance.
const OVERLOAD_TIMES: f64 = 2.0;
/// Number of due operations that even the fastest target has not answered at the end of a run: an
/// operation that became due at the end, and an operation that was sent shortly before.
const BEHIND_OPS: f64 = 2.0;
/// If the target falls behind by more than this percentage of the offered operations, it was never
/// idle, so that the rate of its completions is its capacity.
const SATURATED_PCT: f64 = 4.0;
/// If a latency is at most this multiple of its bound, a longer run measures it again.
const LATENCY_DOUBT: f64 = 1.5;
/// Smallest distance from the needed rate that a search can resolve, in percent.
const RESOLUTION_PCT_MIN: f64 = 0.1;

/// Expected number of measurements in a search, for the estimate of its duration.
pub(super) fn runs_expected(search: &SearchSpec) -> u32 {
    match search {
        SearchSpec::Curve { .. } => 20,
        // A knee search measures most rates in two runs or in one prolonged run.
        SearchSpec::Knee { .. } => 24,
    }
}

/// Function that measures one rate for a multiple of the usual time; returns `None` if the run is
/// being stopped.
pub(crate) type Try<'a> = dyn FnMut(f64, u32) -> Result<Option<CellRun>, MeasureError> + 'a;

/// Judgement of one run at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Met,
    Missed,
    /// The figures are near a bound, so a longer run must decide.
    Doubtful,
}

impl Found {
    fn met_if(met: bool) -> Self {
        if met { Self::Met } else { Self::Missed }
    }
}

/// True if a run of `seconds` reached `pct` percent of `rate`. With Poisson arrivals, `iops` may be
/// lower by three standard deviations, which happens by chance in one case of a thousand.
pub(crate) fn reaches(seconds: f64, iops: f64, rate: f64, pct: f64, arrival: Arrival) -> bool {
    let chance = match arrival {
        Arrival::Poisson => stats::CHANCE_DEVIATIONS * (rate / seconds.max(1e-3)).sqrt(),
        // The first operation is due only after one interval between arrivals, so the run may have
        // one operation less.
        Arrival::Constant => 1.0 / seconds.max(1e-3),
    };
    iops >= rate * pct / 100.0 - chance
}

/// True if the backlog grew. Uses the median slope between the two halves of the run, so that a
/// stall in a single second does not count.
fn backlog_grows(run: &CellRun) -> bool {
    let waiting: Vec<f64> = whole_intervals(run).map(|second| second.backlog as f64).collect();
    stats::middle_slope(&waiting).is_some_and(|slope| slope > 0.0)
}

/// Maximum number of due operations without a completion at the end of a run if the target sustains
/// `rate`, in addition to the usual number in flight.
fn behind_ops(rate: f64, arrival: Arrival) -> f64 {
    BEHIND_OPS
        + match arrival {
            Arrival::Constant => 0.0,
            // `queue::of_arrivals` corrects for the number of arrivals in each second. But within
            // the last second, many operations may by chance arrive shortly before the end.
            Arrival::Poisson => 2.0 * rate.sqrt(),
        }
}

/// Smallest difference, in percent, between `rate` and the highest rate of the target that a
/// prolonged run can resolve. The normal runs of the search last `seconds`. At this difference, the
/// target falls behind by four times [`behind_ops`].
fn resolution_pct(rate: f64, seconds: f64, arrival: Arrival) -> f64 {
    let operations = rate * seconds * f64::from(PROLONGED);
    let pct = 100.0 * behind_ops(rate, arrival) / BEHIND_PART / operations.max(1.0);
    pct.max(RESOLUTION_PCT_MIN)
}

/// Length of the runs (in seconds) with which a search can resolve a distance of `pct` percent from
/// `rate`; `None` if no search can.
pub(crate) fn seconds_to_resolve(rate: f64, pct: f64, arrival: Arrival) -> Option<f64> {
    let operations = 100.0 * behind_ops(rate, arrival) / BEHIND_PART / pct.max(1e-9);
    (pct >= RESOLUTION_PCT_MIN).then(|| operations / (rate * f64::from(PROLONGED)))
}

/// Capacity of the target: its completions per second in a run that kept the target busy all the
/// time. `None` if the target was sometimes idle, or if its queue was too short to show that the
/// target was always busy.
pub(crate) fn capacity(run: &CellRun, arrival: Arrival) -> Option<f64> {
    let due = run.due as f64;
    let needed = due * SATURATED_PCT / 100.0 + behind_ops(run.offered_iops?, arrival);
    if due < 1.0 || queue::shortfall(run, arrival) < needed {
        return None;
    }
    // Skip the first second, in which the queue begins to grow.
    let busy: Vec<f64> = whole_intervals(run).skip(1).map(|second| second.ops as f64).collect();
    stats::mean(&busy).or_else(|| Some(RunFigures::of(run).all_iops()))
}

/// Judges one run of a knee search.
fn judge_rate(
    slo: &Requirement,
    tolerance_pct: f64,
    arrival: Arrival,
    rate: f64,
    run: &CellRun,
) -> Found {
    let tolerated = rate * run.seconds * tolerance_pct / 100.0;
    let behind = queue::shortfall(run, arrival) - behind_ops(rate, arrival);
    if run.overloaded || behind > tolerated * OVERLOAD_TIMES {
        return Found::Missed;
    }
    if !requirement::keeps_latencies(slo, run) {
        let mut loose = slo.clone();
        loose.latency.iter_mut().for_each(|bound| bound.max_us *= LATENCY_DOUBT);
        let near = requirement::keeps_latencies(&loose, run);
        return if near { Found::Doubtful } else { Found::Missed };
    }
    let is_met = behind <= tolerated * BEHIND_PART
        && run.keeps_up(REACHED_PCT, arrival)
        && reaches(run.seconds, RunFigures::of(run).all_iops(), rate, REACHED_PCT, arrival)
        && !backlog_grows(run);
    if is_met { Found::Met } else { Found::Doubtful }
}

/// Runs the search. Returns a point for every rate that was tried, in ascending order.
pub(crate) fn points(
    start: f64,
    search: &SearchSpec,
    arrival: Arrival,
    measure: &mut Try<'_>,
) -> Result<Vec<CurvePoint>, MeasureError> {
    let mut points = Vec::new();
    match search {
        SearchSpec::Curve { step, refine, achieved_below_pct, p99_above_us } => {
            let judge = |rate: f64, run: &CellRun| {
                let figures = RunFigures::of(run);
                let p99 = figures.latency.p99_us.unwrap_or(figures.latency.max_us);
                Found::met_if(
                    !run.overloaded
                        && run.keeps_up(*achieved_below_pct, arrival)
                        && reaches(
                            run.seconds,
                            figures.all_iops(),
                            rate,
                            *achieved_below_pct,
                            arrival,
                        )
                        && p99 <= *p99_above_us,
                )
            };
            let rule = Rule { judge: &judge, times: 1, length: 1 };
            let bounds = climb(start, step.max(1.01), &rule, &mut points, measure)?;
            if let Some((reached, missed)) = bounds {
                for part in 1..=*refine {
                    let rate =
                        reached + (missed - reached) * f64::from(part) / f64::from(refine + 1);
                    if !rule.try_one(rate, &mut points, measure)?.unwrap_or(false) {
                        break;
                    }
                }
            }
        }
        SearchSpec::Knee { tolerance_pct, slo } => {
            let judge =
                |rate: f64, run: &CellRun| judge_rate(slo, *tolerance_pct, arrival, rate, run);
            let rule = Rule { judge: &judge, times: KNEE_TIMES, length: 1 };
            let mut bounds = climb(start, 2.0, &rule, &mut points, measure)?;
            while let Some((reached, missed)) = bounds {
                let near =
                    (missed - reached) / 2.0 <= missed * tolerance_pct / 100.0 * (1.0 + 1e-9);
                if near || points.len() >= POINTS_MAX {
                    break;
                }
                let rate = next_rate(reached, missed, *tolerance_pct, &points, arrival);
                bounds = narrowed(bounds, rate, &rule, &mut points, measure)?;
            }
            if let (Some(need), Some(first)) = (slo.iops, points.first()) {
                let pct = resolution_pct(need, first.run.seconds, arrival).min(*tolerance_pct);
                let judge = |rate: f64, run: &CellRun| judge_rate(slo, pct, arrival, rate, run);
                let rule = Rule { judge: &judge, times: KNEE_TIMES, length: PROLONGED };
                decide_need(need, pct, bounds, &rule, &mut points, measure)?;
            }
        }
    }
    points.sort_by(|a, b| a.offered_iops.total_cmp(&b.offered_iops));
    Ok(points)
}

/// Chooses the next rate of a knee search between the bounds: half a tolerance below the measured
/// capacity or one tolerance above it, or the middle of the bounds if no capacity was measured.
fn next_rate(
    reached: f64,
    missed: f64,
    tolerance_pct: f64,
    points: &[CurvePoint],
    arrival: Arrival,
) -> f64 {
    let is_missed = |point: &&CurvePoint| !point.met && point.offered_iops >= missed;
    let mut newest = points.iter().rev().filter(is_missed);
    let found = newest.find_map(|point| capacity(&point.run, arrival));
    let near = |capacity: f64| [-0.5, 1.0].map(|to| capacity * (1.0 + to * tolerance_pct / 100.0));
    let mut rates = found.into_iter().flat_map(near);
    rates.find(|rate| reached < *rate && *rate < missed).unwrap_or(f64::midpoint(reached, missed))
}

/// Bounds of a search: the highest rate that was met and the lowest rate that was missed. `None`
/// ends the search.
type Bounds = Option<(f64, f64)>;

/// Measures a rate between the bounds; the rate then replaces one of the bounds.
fn narrowed(
    bounds: Bounds,
    rate: f64,
    rule: &Rule<'_>,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<Bounds, MeasureError> {
    let Some((reached, missed)) = bounds else { return Ok(None) };
    Ok(match rule.try_one(rate, points, measure)? {
        Some(true) => Some((rate, missed.max(rate))),
        Some(false) => Some((reached, missed.min(rate))),
        None => None,
    })
}

/// If the search left open whether the target sustains the needed rate, tries rates `pct` percent
/// above and below it. A met upper rate proves PASS; a missed lower rate proves FAIL. A miss of the
/// lower rate is repeated, because delays on a busy machine can make a target miss a rate.
fn decide_need(
    need: f64,
    pct: f64,
    bounds: Bounds,
    rule: &Rule<'_>,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<(), MeasureError> {
    let (above, below) = (need * (1.0 + pct / 100.0), need * (1.0 - pct / 100.0));
    let Some((reached, missed)) = bounds.filter(|(low, high)| (*low..*high).contains(&need)) else {
        return Ok(());
    };
    if above < missed && rule.try_one(above, points, measure)? != Some(false) {
        return Ok(());
    }
    if below > reached && rule.try_one(below, points, measure)? == Some(false) {
        rule.try_one(below, points, measure)?;
    }
    Ok(())
}

/// Rule that decides whether a rate is met or missed.
struct Rule<'a> {
    /// Function that judges a single run.
    judge: &'a dyn Fn(f64, &CellRun) -> Found,
    /// Number of consecutive runs that must meet the rate. One prolonged run is enough.
    times: u32,
    /// Length of the first run at a rate, as a multiple of the usual length.
    length: u32,
}

impl Rule<'_> {
    /// Measures a rate until it is met or missed; `None` if the run is being stopped before that.
    fn try_one(
        &self,
        rate: f64,
        points: &mut Vec<CurvePoint>,
        measure: &mut Try<'_>,
    ) -> Result<Option<bool>, MeasureError> {
        let (mut reached, mut may_repeat, mut length) = (Vec::new(), true, self.length);
        let met = loop {
            let Some(run) = measure(rate, length)? else { break None };
            let found = (self.judge)(rate, &run);
            let is_repeated = found != Found::Met && may_repeat && has_one_stall(&run);
            points.push(CurvePoint { offered_iops: rate, run, met: false });
            if is_repeated {
                may_repeat = false;
                continue;
            }
            match found {
                Found::Doubtful if length < PROLONGED => {
                    length = PROLONGED;
                    continue;
                }
                Found::Doubtful | Found::Missed => break Some(false),
                Found::Met => reached.push(points.len() - 1),
            }
            if length >= PROLONGED || reached.len() as u32 >= self.times {
                break Some(true);
            }
        };
        // Mark the runs at this rate as met only if the rate as a whole is met.
        reached.iter().for_each(|index| points[*index].met = met == Some(true));
        Ok(met)
    }
}

/// True if the target stalled exactly once in the run.
fn has_one_stall(run: &CellRun) -> bool {
    CellSummary::of_runs(std::slice::from_ref(run)).stalls.count == 1
}

/// Raises the rate until the target misses a rate. Returns the last rate that was met (0 if none
/// was) and the first rate that was missed.
fn climb(
    start: f64,
    step: f64,
    rule: &Rule<'_>,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<Bounds, MeasureError> {
    let (mut rate, mut reached) = (start, 0.0);
    while points.len() < POINTS_MAX {
        match rule.try_one(rate, points, measure)? {
            Some(true) => (reached, rate) = (rate, rate * step),
            Some(false) => return Ok(Some((reached, rate))),
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::spec::{LatencyBound, LatencyFigure, Requirement};

    /// Simulates a target that completes up to 6,000 operations per second in 1 ms each. At a
    /// higher rate, an operation takes 1 s.
    fn simulated(rate: f64) -> CellRun {
        let us = if rate <= 6_000.0 { 1_000 } else { 1_000_000 };
        fixture::closed_run(crate::content::whole(rate), 1, 100, us, us)
    }

    #[test]
    fn knee_search_is_within_its_tolerance() {
        let bound =
            LatencyBound { stream: None, op: None, figure: LatencyFigure::P99, max_us: 50_000.0 };
        let slo = Requirement { latency: vec![bound], ..Requirement::default() };
        for (start, tolerance_pct) in [(1_000.0, 3.0), (4_000.0, 1.0), (20_000.0, 0.2)] {
            let search = SearchSpec::Knee { tolerance_pct, slo: slo.clone() };
            let mut measure = |rate: f64, _| Ok(Some(simulated(rate)));
            let points = points(start, &search, Arrival::Poisson, &mut measure).unwrap();
            let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
            let best = met.fold(0.0, f64::max);
            let off_pct = 100.0 * (best / 6_000.0 - 1.0);
            assert!(off_pct <= 0.0 && off_pct >= -2.0 * tolerance_pct, "{best}");
            let missed = points.iter().filter(|point| !point.met);
            assert!(missed.map(|point| point.offered_iops).all(|rate| rate > 6_000.0));
        }
    }

    /// Returns the highest rate that a knee search accepts for a target, and all points that it
    /// measured.
    fn knee(mut target: impl FnMut(f64) -> CellRun) -> (f64, Vec<CurvePoint>) {
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let points =
            points(1_000.0, &search, Arrival::Poisson, &mut |rate, _| Ok(Some(target(rate))))
                .unwrap();
        let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
        (met.fold(0.0, f64::max), points)
    }

    #[test]
    fn knee_rate_needs_two_consecutive_good_runs() {
        // Above 3,000 operations per second, every second run fails, starting with the second run
        // at each rate.
        let mut runs = 0;
        let (best, points) = knee(|rate| {
            runs += 1;
            let mut run = simulated(rate);
            run.overloaded = rate > 3_000.0 && runs % 2 == 0;
            run
        });
        assert!(best <= 3_000.0, "{best}");
        for point in &points {
            let off = |other: &CurvePoint| (other.offered_iops - point.offered_iops).abs();
            let same = points.iter().filter(|other| off(other) < 1e-9);
            let met: Vec<bool> = same.map(|other| other.met).collect();
            assert!(met == [true; 2] || met.iter().all(|met| !met), "{met:?}");
        }
        let once = points.iter().filter(|point| point.offered_iops > 3_000.0);
        assert!(once.clone().count() > 0 && once.clone().all(|point| !point.met));
    }

    /// Returns a run at 1,000 operations per second with these numbers of unanswered operations at
    /// the end of each of its last four seconds.
    fn behind(unanswered: [u64; 4], seconds: u32) -> CellRun {
        let mut run = fixture::closed_run(1_000, seconds, 100, 100, 100);
        run.offered_iops = Some(1_000.0);
        run.due = 1_000 * u64::from(seconds);
        run.answered = run.due - unanswered[3];
        let last = run.intervals.iter_mut().skip(seconds as usize - 4);
        last.zip(unanswered).for_each(|(second, left)| second.in_flight = left);
        run
    }

    #[test]
    fn shortfall_decides_whether_a_rate_is_met() {
        let judged = |unanswered, seconds| {
            let run = behind(unanswered, seconds);
            judge_rate(&Requirement::default(), 1.0, Arrival::Constant, 1_000.0, &run)
        };
        // A shortfall of a quarter of 1 % of 4,000 operations (10) is allowed, and 2 more
        // operations may be in flight.
        assert_eq!(judged([3, 6, 9, 12], 4), Found::Met);
        assert_eq!(judged([5, 10, 15, 20], 4), Found::Doubtful);
        assert_eq!(judged([10, 20, 30, 40], 4), Found::Doubtful, "1 % too slow");
        assert_eq!(judged([30, 60, 90, 120], 4), Found::Missed, "3 % too slow");
        // The run is longer, so 20 unanswered operations are less than a quarter of 1 % of its
        // operations.
        assert_eq!(judged([5, 10, 15, 20], 12), Found::Met);
        assert_eq!(judged([30, 60, 90, 120], 12), Found::Doubtful, "1 % too slow");
        // A short stall at the end of a run leaves few operations unanswered, so the rate is met.
        // After a long stall, a longer run must decide.
        assert_eq!(judged([2, 2, 2, 30], 4), Found::Met);
        assert_eq!(judged([2, 2, 2, 100], 4), Found::Doubtful);
    }

    #[test]
    fn run_that_decides_nothing_is_prolonged() {
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let tries = |long: fn() -> CellRun| {
            let mut lengths = Vec::new();
            let mut measure = |rate: f64, times| {
                lengths.push(times);
                let mut run = if times == 1 { behind([5, 10, 15, 20], 4) } else { long() };
                run.overloaded = rate > 1_500.0;
                Ok(Some(run))
            };
            let found = points(1_000.0, &search, Arrival::Constant, &mut measure).unwrap();
            let met: Vec<bool> = found.iter().take(2).map(|point| point.met).collect();
            (lengths[..3].to_vec(), met)
        };
        assert_eq!(tries(|| behind([5, 10, 15, 20], 12)), (vec![1, 3, 1], vec![false, true]));
        let missed = tries(|| behind([30, 60, 90, 120], 12));
        assert_eq!((&missed.0[..2], missed.1), (&[1, 3][..], vec![false, false]));
    }

    #[test]
    fn latency_near_its_bound_is_measured_again() {
        let bound =
            LatencyBound { stream: None, op: None, figure: LatencyFigure::Mean, max_us: 90.0 };
        let judged = |max_us| {
            let slo = Requirement {
                latency: vec![LatencyBound { max_us, ..bound.clone() }],
                ..Requirement::default()
            };
            judge_rate(&slo, 1.0, Arrival::Constant, 1_000.0, &behind([0; 4], 4))
        };
        assert_eq!([110.0, 90.0, 60.0].map(judged), [Found::Met, Found::Doubtful, Found::Missed]);
    }

    #[test]
    fn capacity_is_the_rate_of_a_busy_target() {
        let mut run = behind([100, 200, 300, 400], 4);
        run.intervals.iter_mut().for_each(|second| second.ops = 900);
        // In the first second the target completes more operations, because its queue is still
        // short. The capacity must not include this second.
        run.intervals[0].ops = 950;
        assert_eq!(capacity(&run, Arrival::Constant), Some(900.0));
        assert_eq!(
            capacity(&behind([10, 20, 30, 40], 4), Arrival::Constant),
            None,
            "idle at times"
        );
    }

    // Regression: a single stall ended the search at the rate before the stall.
    #[test]
    fn run_with_one_stall_that_misses_a_rate_is_repeated_once() {
        let stalled = |all: bool| {
            let mut runs = 0;
            knee(move |rate| {
                runs += 1;
                let mut run = simulated(rate);
                run.overloaded = rate > 6_000.0;
                if rate > 1_500.0 && (all || runs == 3) {
                    run.stalls.record_ns(400_000_000);
                    run.overloaded = true;
                }
                run
            })
        };
        let (best, points) = stalled(false);
        assert!(best > 5_900.0, "{best}");
        let missed = points.iter().filter(|point| !point.met && point.offered_iops < 6_000.0);
        assert_eq!(missed.count(), 1, "the point with the stall stays");
        assert!(stalled(true).0 <= 1_500.0, "a stall in each run is the target's");
    }

    #[test]
    fn constant_arrivals_have_no_allowance_of_chance() {
        assert!(reaches(1.0, 75.0, 100.0, 99.0, Arrival::Poisson));
        assert!(!reaches(1.0, 97.0, 100.0, 99.0, Arrival::Constant));
        assert!(reaches(1.0, 98.0, 100.0, 99.0, Arrival::Constant));
    }

    #[test]
    fn rate_with_a_growing_backlog_is_missed() {
        // The backlog grows so slowly that neither the rate nor the latency shows the growth.
        let waits = |each: fn(u64) -> u64| {
            knee(move |rate| {
                let mut run = fixture::closed_run(crate::content::whole(rate), 10, 100, 10, 10);
                for (second, interval) in (0..).zip(&mut run.intervals) {
                    interval.backlog = if rate > 4_500.0 { each(second) } else { 0 };
                }
                run.overloaded = rate > 20_000.0;
                run
            })
            .0
        };
        assert!((4_400.0..=4_500.0).contains(&waits(|second| second * 5)));
        // A constant backlog has no slope, and neither has a stall in the last second.
        assert!(waits(|_| 40) > 15_000.0);
        assert!(waits(|second| if second == 9 { 900 } else { 0 }) > 15_000.0);
    }

    #[test]
    fn stopped_search_keeps_its_points() {
        let mut left = 3;
        let mut measure = |rate: f64, _| {
            left -= 1;
            Ok((left >= 0).then(|| simulated(rate)))
        };
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let points = points(1_000.0, &search, Arrival::Poisson, &mut measure).unwrap();
        let met: Vec<bool> = points.iter().map(|point| point.met).collect();
        assert_eq!(met, [true, true, false], "the third rate was not seen a second time");
    }
}
