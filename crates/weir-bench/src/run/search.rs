//! Looking for a limit by changing the rate: curves and knees.
//!
//! Not here: measuring one rate.
//!
//! Invariant: every rate that was measured is told, whether it was met or not.

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
                    && figures.iops >= rate * achieved_below_pct / 100.0
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
                    && RunFigures::of(run).iops >= rate * REACHED_PCT / 100.0
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
