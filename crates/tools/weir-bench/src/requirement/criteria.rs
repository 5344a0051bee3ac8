//! Compares each bound of a requirement with the measured figure.
//!
//! `requirement` chooses the figures, and applies the verdict on the cell to the outcome.
//!
//! Invariant: the outcome of a percentile with too few operations beyond it is "not proven", never
//! PASS.

use super::{Criterion, Limit, Measured, Outcome, RATE_TOLERANCE_PCT};
use crate::histogram::Latencies;
use crate::run::search::{self, reaches};
use crate::spec::{LatencyBound, LatencyFigure, OpKind, Requirement};
use crate::summary::merged;
use crate::words::short;

/// Compares all bounds with the measured figures: first the rates, then the latencies.
pub(super) fn check(requirement: &Requirement, measured: &Measured<'_>) -> Vec<Criterion> {
    let mut found = Vec::new();
    if let Some(need) = requirement.iops {
        found.push(operations(need, measured));
    }
    if let Some(need) = requirement.mib_s {
        found.push(at_least("throughput", "MiB/s", need, measured.mib_s));
    }
    found.extend(latencies(requirement, measured));
    found
}

/// Compares only the latency bounds with the measured figures.
pub(super) fn latencies(requirement: &Requirement, measured: &Measured<'_>) -> Vec<Criterion> {
    requirement.latency.iter().map(|bound| latency(bound, measured)).collect()
}

fn operations(need: f64, measured: &Measured<'_>) -> Criterion {
    let name = "operations per second";
    let just_offered = |offered: &f64| *offered <= need * (1.0 + RATE_TOLERANCE_PCT / 100.0);
    let Some(offered) = measured.offered_iops.filter(just_offered) else {
        let found = at_least(name, "iops", need, measured.iops);
        return match &measured.limit {
            Some(limit) => within(limit, found),
            None => found,
        };
    };
    // In an open loop, the target can complete only the operations that arrive. In a short run,
    // chance may make fewer operations arrive than the requirement needs; `reaches` allows for this
    // chance.
    let share_pct = 100.0 - RATE_TOLERANCE_PCT;
    let Measured { seconds, iops, kept_up, arrival, .. } = *measured;
    let reached = kept_up && reaches(seconds, iops, offered.min(need), share_pct, arrival);
    Criterion {
        headroom_pct: None,
        outcome: if reached { Outcome::Pass } else { Outcome::Fail },
        note: Some(format!(
            "only {offered:.0} operations per second were offered, so the headroom is unknown"
        )),
        ..at_least(name, "iops", need, measured.iops)
    }
}

/// Changes the outcome of a rate to "not proven" if the needed rate is between a rate that the
/// target reached in the search and a rate that it missed.
fn within(limit: &Limit, found: Criterion) -> Criterion {
    let need = found.need;
    if need <= limit.carried || limit.missed <= need || limit.missed.is_infinite() {
        return found;
    }
    let known = format!(
        "the limit is between {} and {} operations per second",
        short(limit.carried),
        short(limit.missed)
    );
    let distance_pct = |capacity: f64| 100.0 * (capacity / need - 1.0).abs();
    let decides = |pct| search::seconds_to_resolve(need, pct, limit.arrival);
    let note = match limit.capacity.map(|capacity| decides(distance_pct(capacity))) {
        Some(Some(seconds)) => {
            let seconds = seconds.max(2.0 * limit.run_s).ceil();
            format!("{known}; a search with runs of {seconds:.0} s decides")
        }
        Some(None) => format!("{known}; the capacity is too close to the need to decide"),
        None => format!("{known}; measure each rate longer"),
    };
    Criterion { outcome: Outcome::NotProven, note: Some(note), ..found }
}

fn at_least(name: &str, unit: &'static str, need: f64, got: f64) -> Criterion {
    Criterion {
        name: name.to_owned(),
        unit,
        need,
        got: Some(got),
        headroom_pct: headroom_pct(got, need),
        outcome: if got >= need { Outcome::Pass } else { Outcome::Fail },
        note: None,
    }
}

fn latency(bound: &LatencyBound, measured: &Measured<'_>) -> Criterion {
    let wanted = |stream: &str, op: OpKind| {
        bound.stream.as_deref().is_none_or(|wanted| wanted == stream)
            && bound.op.map_or(op.is_counted(), |wanted| wanted == op)
    };
    let classes = measured.classes.iter().filter(|class| wanted(&class.stream, class.op));
    let all = merged(classes.copied());
    let got = figure_us(&all, bound.figure);
    let outcome = match got {
        None => Outcome::NotProven,
        Some(got) if got <= bound.max_us => Outcome::Pass,
        Some(_) => Outcome::Fail,
    };
    let few = || format!("too few operations for this figure: {}", all.count());
    Criterion {
        name: bound_name(bound),
        unit: "us",
        need: bound.max_us,
        got,
        headroom_pct: got.and_then(|got| headroom_pct(bound.max_us, got)),
        outcome,
        note: got.is_none().then(few),
    }
}

fn figure_us(all: &Latencies, figure: LatencyFigure) -> Option<f64> {
    match figure {
        LatencyFigure::Mean => (all.count() > 0).then(|| all.mean_us()),
        LatencyFigure::P50 => all.percentile_us(50.0),
        LatencyFigure::P95 => all.percentile_us(95.0),
        LatencyFigure::P99 => all.percentile_us(99.0),
        LatencyFigure::P999 => all.percentile_us(99.9),
    }
}

/// Name of a bound, such as `db read mean latency` or `p99 latency`.
fn bound_name(bound: &LatencyBound) -> String {
    let op = bound.op.map(OpKind::name);
    let figure = match bound.figure {
        LatencyFigure::Mean => "mean latency",
        LatencyFigure::P50 => "p50 latency",
        LatencyFigure::P95 => "p95 latency",
        LatencyFigure::P99 => "p99 latency",
        LatencyFigure::P999 => "p99.9 latency",
    };
    let parts = [bound.stream.as_deref(), op, Some(figure)];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn headroom_pct(more: f64, less: f64) -> Option<f64> {
    (less > 0.0).then(|| (more / less - 1.0) * 100.0)
}
