//! Searches for a limit by varying the offered rate: latency curves and knees.
//!
//! Not here: measuring one rate (run).
//!
//! Invariants:
//! - every measurement is a point of the result; a search tries no new rate after `POINTS_MAX`
//!   points, except in the refinement of a curve;
//! - a rate of a knee is met only if two consecutive runs meet it: one good run proves little near
//!   the limit;
//! - a run with one stall that misses a rate is repeated once, so that a single stall does not end
//!   the search.

use super::MeasureError;
use crate::requirement;
use crate::result::{CellRun, CurvePoint};
use crate::spec::{Arrival, SearchSpec};
use crate::stats;
use crate::summary::{CellSummary, RunFigures, whole_intervals};

/// Maximum number of points; a search with this number of points tries no further rate.
const POINTS_MAX: usize = 64;
/// Number of consecutive runs that must meet a rate before a knee search accepts it.
const KNEE_TIMES: u32 = 2;
/// A rate is missed if the target completes less than this percentage of it.
const REACHED_PCT: f64 = 99.0;

/// Expected number of measurements of a search, for the estimate of its duration.
pub(super) fn runs_expected(search: &SearchSpec) -> u32 {
    match search {
        SearchSpec::Curve { .. } => 20,
        // A knee search measures most rates twice.
        SearchSpec::Knee { .. } => 30,
    }
}

/// Measures one rate; `None`: the run is being stopped.
type Try<'a> = dyn FnMut(f64) -> Result<Option<CellRun>, MeasureError> + 'a;

/// Whether a run of `seconds` achieved `pct` percent of a rate. Poisson arrivals may fall short by
/// three standard deviations, which happens by chance in one case of a thousand.
pub(crate) fn reaches(seconds: f64, iops: f64, rate: f64, pct: f64, arrival: Arrival) -> bool {
    let chance = match arrival {
        Arrival::Poisson => stats::CHANCE_DEVIATIONS * (rate / seconds.max(1e-3)).sqrt(),
        // The first operation is due only after one interval.
        Arrival::Constant => 1.0 / seconds.max(1e-3),
    };
    iops >= rate * pct / 100.0 - chance
}

/// Whether the backlog grew: the median slope between the two halves of the run, so that a stall in
/// a single second does not count.
fn backlog_grows(run: &CellRun) -> bool {
    let waiting: Vec<f64> = whole_intervals(run).map(|second| second.backlog as f64).collect();
    stats::middle_slope(&waiting).is_some_and(|slope| slope > 0.0)
}

/// Runs the search; returns a point for every rate tried, ascending.
pub(super) fn points(
    start: f64,
    search: &SearchSpec,
    arrival: Arrival,
    measure: &mut Try<'_>,
) -> Result<Vec<CurvePoint>, MeasureError> {
    let mut points = Vec::new();
    match search {
        SearchSpec::Curve { step, refine, achieved_below_pct, p99_above_us } => {
            let met = |rate: f64, run: &CellRun| {
                let figures = RunFigures::of(run);
                let p99 = figures.latency.p99_us.unwrap_or(figures.latency.max_us);
                !run.overloaded
                    && run.keeps_up(*achieved_below_pct, arrival)
                    && reaches(run.seconds, figures.iops, rate, *achieved_below_pct, arrival)
                    && p99 <= *p99_above_us
            };
            let rule = Rule { met: &met, times: 1 };
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
            let met = |rate: f64, run: &CellRun| {
                !run.overloaded
                    && run.keeps_up(REACHED_PCT, arrival)
                    && reaches(run.seconds, RunFigures::of(run).iops, rate, REACHED_PCT, arrival)
                    && !backlog_grows(run)
                    && requirement::keeps_latencies(slo, run)
            };
            let rule = Rule { met: &met, times: KNEE_TIMES };
            let mut bounds = climb(start, 2.0, &rule, &mut points, measure)?;
            while let Some((reached, missed)) = bounds {
                let near = (missed - reached) / 2.0 <= missed * tolerance_pct / 100.0;
                if near || points.len() >= POINTS_MAX {
                    break;
                }
                let middle = f64::midpoint(reached, missed);
                bounds = match rule.try_one(middle, &mut points, measure)? {
                    Some(true) => Some((middle, missed)),
                    Some(false) => Some((reached, middle)),
                    None => None,
                };
            }
        }
    }
    points.sort_by(|a, b| a.offered_iops.total_cmp(&b.offered_iops));
    Ok(points)
}

/// Rule that decides whether a rate is met.
struct Rule<'a> {
    /// Condition on a single run.
    met: &'a dyn Fn(f64, &CellRun) -> bool,
    /// Number of consecutive runs that must satisfy the condition.
    times: u32,
}

impl Rule<'_> {
    /// Measures a rate until it is met or missed; `None`: the run is being stopped before that is
    /// known.
    fn try_one(
        &self,
        rate: f64,
        points: &mut Vec<CurvePoint>,
        measure: &mut Try<'_>,
    ) -> Result<Option<bool>, MeasureError> {
        let (mut reached, mut may_repeat) = (Vec::new(), true);
        let met = loop {
            let Some(run) = measure(rate)? else { break None };
            let is_met = (self.met)(rate, &run);
            let is_repeated = !is_met && may_repeat && has_one_stall(&run);
            points.push(CurvePoint { offered_iops: rate, run, met: false });
            if is_repeated {
                may_repeat = false;
                continue;
            }
            if !is_met {
                break Some(false);
            }
            reached.push(points.len() - 1);
            if reached.len() as u32 >= self.times {
                break Some(true);
            }
        };
        // Runs of a rate count as met only if the rate itself is met.
        reached.iter().for_each(|index| points[*index].met = met == Some(true));
        Ok(met)
    }
}

/// Whether the target stalled exactly once.
fn has_one_stall(run: &CellRun) -> bool {
    CellSummary::of_runs(std::slice::from_ref(run)).stalls.count == 1
}

/// Raises the rate until the target misses one. Returns the last rate met (0: none) and the first
/// rate missed.
fn climb(
    start: f64,
    step: f64,
    rule: &Rule<'_>,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<Option<(f64, f64)>, MeasureError> {
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

    /// A target that completes up to 6,000 operations per second in 1 ms each; above that rate an
    /// operation takes 1 s.
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
            let mut measure = |rate: f64| Ok(Some(simulated(rate)));
            let points = points(start, &search, Arrival::Poisson, &mut measure).unwrap();
            let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
            let best = met.fold(0.0, f64::max);
            let off_pct = 100.0 * (best / 6_000.0 - 1.0);
            assert!(off_pct <= 0.0 && off_pct >= -2.0 * tolerance_pct, "{best}");
            let missed = points.iter().filter(|point| !point.met);
            assert!(missed.map(|point| point.offered_iops).all(|rate| rate > 6_000.0));
        }
    }

    /// Returns the highest rate that a knee search accepts for a target, and all measured points.
    fn knee(mut target: impl FnMut(f64) -> CellRun) -> (f64, Vec<CurvePoint>) {
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let points =
            points(1_000.0, &search, Arrival::Poisson, &mut |rate| Ok(Some(target(rate)))).unwrap();
        let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
        (met.fold(0.0, f64::max), points)
    }

    #[test]
    fn knee_rate_needs_two_consecutive_good_runs() {
        // Above 3,000 operations per second every second run fails, starting with the second run of
        // each rate.
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

    // Regression: one stall ended the search at the preceding rate.
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
        // The backlog grows too slowly for the rate or the latency to show it.
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
        // A constant queue, and a stall in the last second, have no slope.
        assert!(waits(|_| 40) > 15_000.0);
        assert!(waits(|second| if second == 9 { 900 } else { 0 }) > 15_000.0);
    }

    #[test]
    fn stopped_search_keeps_its_points() {
        let mut left = 3;
        let mut measure = |rate: f64| {
            left -= 1;
            Ok((left >= 0).then(|| simulated(rate)))
        };
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let points = points(1_000.0, &search, Arrival::Poisson, &mut measure).unwrap();
        let met: Vec<bool> = points.iter().map(|point| point.met).collect();
        assert_eq!(met, [true, true, false], "the third rate was not seen a second time");
    }
}
