//! Looking for a limit by changing the rate: curves and knees.
//!
//! Not here: measuring one rate.
//!
//! Invariants: every rate that was measured is among the points; no more than 64 are.

use super::MeasureError;
use crate::requirement;
use crate::result::{CellRun, CurvePoint};
use crate::spec::SearchSpec;
use crate::summary::RunFigures;

/// Rates that a search tries, about: for the time it will take.
pub(super) const RUNS_EXPECTED: u32 = 20;
/// Rates that a search tries at most.
const POINTS_MAX: usize = 64;
/// Less than this share of a rate is not reaching it (design 4.3).
const REACHED_PCT: f64 = 99.0;

/// Measures one rate; `None`: the run is to end.
type Try<'a> = dyn FnMut(f64) -> Result<Option<CellRun>, MeasureError> + 'a;

/// Whether a run reached a share of a rate, in percent, but for what chance keeps from being
/// offered: arrivals in a time are Poisson, and fewer than the mean by three standard deviations
/// in one case of a thousand.
pub(crate) fn reaches(run: &CellRun, iops: f64, rate: f64, pct: f64) -> bool {
    let chance = 3.0 * (rate / run.seconds.max(1e-3)).sqrt();
    iops >= rate * pct / 100.0 - chance
}

/// Every rate that was tried, ascending.
pub(super) fn points(
    start: f64,
    search: &SearchSpec,
    measure: &mut Try<'_>,
) -> Result<Vec<CurvePoint>, MeasureError> {
    let mut points = Vec::new();
    match search {
        SearchSpec::Curve { step, refine, achieved_below_pct, p99_above_us } => {
            let met = |rate: f64, run: &CellRun| {
                let figures = RunFigures::of(run);
                let p99 = figures.latency.p99_us.unwrap_or(figures.latency.max_us);
                !run.overloaded
                    && reaches(run, figures.iops, rate, *achieved_below_pct)
                    && p99 <= *p99_above_us
            };
            let bounds = climb(start, step.max(1.01), &met, &mut points, measure)?;
            if let Some((reached, missed)) = bounds {
                for part in 1..=*refine {
                    let rate =
                        reached + (missed - reached) * f64::from(part) / f64::from(refine + 1);
                    if !try_one(rate, &met, &mut points, measure)?.unwrap_or(false) {
                        break;
                    }
                }
            }
        }
        SearchSpec::Knee { tolerance_pct, slo } => {
            let met = |rate: f64, run: &CellRun| {
                !run.overloaded
                    && reaches(run, RunFigures::of(run).iops, rate, REACHED_PCT)
                    && requirement::keeps_latencies(slo, run)
            };
            let mut bounds = climb(start, 2.0, &met, &mut points, measure)?;
            while let Some((reached, missed)) = bounds {
                let near = (missed - reached) / 2.0 <= missed * tolerance_pct / 100.0;
                if near || points.len() >= POINTS_MAX {
                    break;
                }
                let middle = f64::midpoint(reached, missed);
                bounds = match try_one(middle, &met, &mut points, measure)? {
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

/// Rates that grow until one is not met; the last that was (0: none) and the first that was not.
fn climb(
    start: f64,
    step: f64,
    met: &dyn Fn(f64, &CellRun) -> bool,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<Option<(f64, f64)>, MeasureError> {
    let (mut rate, mut reached) = (start, 0.0);
    while points.len() < POINTS_MAX {
        match try_one(rate, met, points, measure)? {
            Some(true) => (reached, rate) = (rate, rate * step),
            Some(false) => return Ok(Some((reached, rate))),
            None => return Ok(None),
        }
    }
    Ok(None)
}

fn try_one(
    rate: f64,
    met: &dyn Fn(f64, &CellRun) -> bool,
    points: &mut Vec<CurvePoint>,
    measure: &mut Try<'_>,
) -> Result<Option<bool>, MeasureError> {
    let Some(run) = measure(rate)? else { return Ok(None) };
    let met = met(rate, &run);
    points.push(CurvePoint { offered_iops: rate, run, met });
    Ok(Some(met))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::spec::{LatencyBound, LatencyFigure, Requirement};

    /// A target that does 6,000 per second in 1 ms, and lets wait for a second what is more.
    fn simulated(rate: f64) -> CellRun {
        let us = if rate <= 6_000.0 { 1_000 } else { 1_000_000 };
        fixture::closed_run(crate::content::whole(rate), 1, 100, us, us)
    }

    #[test]
    fn a_knee_is_found_within_its_tolerance() {
        let bound =
            LatencyBound { stream: None, op: None, figure: LatencyFigure::P99, max_us: 50_000.0 };
        let slo = Requirement { latency: vec![bound], ..Requirement::default() };
        for (start, tolerance_pct) in [(1_000.0, 3.0), (4_000.0, 1.0), (20_000.0, 0.2)] {
            let search = SearchSpec::Knee { tolerance_pct, slo: slo.clone() };
            let mut measure = |rate: f64| Ok(Some(simulated(rate)));
            let points = points(start, &search, &mut measure).unwrap();
            let met = points.iter().filter(|point| point.met).map(|point| point.offered_iops);
            let best = met.fold(0.0, f64::max);
            let off_pct = 100.0 * (best / 6_000.0 - 1.0);
            assert!(off_pct <= 0.0 && off_pct >= -2.0 * tolerance_pct, "{best}");
            let missed = points.iter().filter(|point| !point.met);
            assert!(missed.map(|point| point.offered_iops).all(|rate| rate > 6_000.0));
        }
    }

    #[test]
    fn a_search_that_is_ended_keeps_what_it_has() {
        let mut left = 3;
        let mut measure = |rate: f64| {
            left -= 1;
            Ok((left >= 0).then(|| simulated(rate)))
        };
        let search = SearchSpec::Knee { tolerance_pct: 1.0, slo: Requirement::default() };
        let points = points(1_000.0, &search, &mut measure).unwrap();
        assert_eq!(points.len(), 3);
    }
}
