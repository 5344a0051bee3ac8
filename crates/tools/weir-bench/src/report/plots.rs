//! Chooses the charts of a cell, and the charts of a table.
//!
//! `chart` draws the charts.
//!
//! Invariant: a chart without data is omitted, and the caller describes the missing data in words.

use std::collections::BTreeMap;

use super::chart::{Axis, Chart, Line, Scale, thin};
use crate::histogram::Latencies;
use crate::result::{CellResult, CellRun, Interval, PhaseResult};
use crate::spec::{LoadSpec, OpKind};
use crate::summary::{RunFigures, whole_intervals};
use crate::verdict::JudgedRun;
use crate::words;

/// Minimum number of points in the longest line of a chart. Shorter lines appear only in tables.
const POINTS_MIN: usize = 10;

/// Number of steps for each factor of 10. If two points of a distribution are closer than one step,
/// one of them is omitted.
const STEPS_PER_DECADE: f64 = 40.0;

/// Charts of a cell: figures of each second, latency distribution and backlog. A cell with a search
/// also has a chart of latency by rate.
pub(super) fn of_cell(cell: &CellResult) -> Vec<Chart> {
    let latency =
        by_second(cell, "Latency, 99th percentile of each second", |second| second.p99_us);
    let latency = Chart { y: latency_axis("latency"), ..latency };
    let waiting = cell.runs.iter().flat_map(|run| &run.intervals).any(|second| second.backlog > 0);
    let backlog = by_second(cell, "Queued operations", |s| s.backlog as f64);
    let mut charts = vec![
        curve(cell),
        by_second(cell, "Operations per second", |second| second.ops as f64),
        latency,
        distribution(cell),
    ];
    if waiting {
        charts.push(backlog);
    }
    charts.retain(is_worth_drawing);
    charts
}

/// True if a chart shows more than a table can: at least one of its lines has [`POINTS_MIN`]
/// points.
fn is_worth_drawing(chart: &Chart) -> bool {
    chart.lines.iter().any(|line| line.points.len() >= POINTS_MIN)
}

/// Chart of the operations per second in each round of the preconditioning.
pub(super) fn rounds(phase: &PhaseResult) -> Option<Chart> {
    let point = |(index, iops): (usize, &f64)| ((index + 1) as f64, *iops);
    let points: Vec<(f64, f64)> = phase.rounds_iops.iter().enumerate().map(point).collect();
    (points.len() >= POINTS_MIN).then(|| Chart {
        title: format!("Operations per second by round of {}", phase.name),
        x: Axis { label: "round", scale: Scale::Linear, format: words::axis },
        y: Axis { label: "", scale: Scale::Linear, format: words::axis },
        lines: vec![Line { name: phase.name.clone(), points: thin(&points, 1), marked: true }],
    })
}

fn by_second(cell: &CellResult, title: &str, figure: fn(&Interval) -> f64) -> Chart {
    let line = |(index, run): (usize, &CellRun)| {
        let seconds = whole_intervals(run);
        let points: Vec<(f64, f64)> =
            seconds.map(|second| (f64::from(second.second), figure(second))).collect();
        Line {
            name: format!("run {}", index + 1),
            points: thin(&points, cell.runs.len()),
            marked: false,
        }
    };
    Chart {
        title: title.to_owned(),
        x: Axis { label: "second of the run", scale: Scale::Linear, format: words::axis },
        y: Axis { label: "", scale: Scale::Linear, format: words::axis },
        lines: cell.runs.iter().enumerate().map(line).collect(),
    }
}

/// Chart of the share of slower operations by latency. The logarithmic axes give the tail of the
/// distribution as much space as its body.
fn distribution(cell: &CellResult) -> Chart {
    let best = cell.best_or_lowest().filter(|_| cell.runs.is_empty());
    let runs = cell.runs.iter().chain(best);
    let mut kinds: BTreeMap<(&str, OpKind), Latencies> = BTreeMap::new();
    for class in runs.flat_map(|run| &run.classes).filter(|class| class.op.is_counted()) {
        kinds.entry((&class.stream, class.op)).or_default().add(&class.latency);
    }
    let line = |((stream, op), all): ((&str, OpKind), Latencies)| Line {
        name: format!("{stream} {}", op.name()).trim().to_owned(),
        points: slower(&all),
        marked: false,
    };
    Chart {
        title: "Share of operations that took longer".to_owned(),
        x: latency_axis("latency"),
        y: Axis {
            label: "",
            scale: Scale::Logarithmic(10),
            format: |pct| format!("{} %", words::axis(pct)),
        },
        lines: kinds.into_iter().map(line).collect(),
    }
}

fn latency_axis(label: &'static str) -> Axis {
    Axis { label, scale: Scale::Logarithmic(10), format: words::axis_us }
}

/// Latencies, each with the percentage of operations that were slower. Omits points that are too
/// close to each other.
fn slower(all: &Latencies) -> Vec<(f64, f64)> {
    let smallest = 100.0 / (all.count().max(1) as f64);
    let points = all.points().into_iter().map(|(us, up_to)| (us, (1.0 - up_to) * 100.0));
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (us, pct) in points.filter(|(us, pct)| *us > 0.0 && *pct >= smallest * 0.99) {
        let apart = |last: &(f64, f64)| {
            let step = (us / last.0).log10().max((last.1 / pct).log10());
            step * STEPS_PER_DECADE >= 1.0
        };
        match kept.last() {
            None => kept.extend([(us, 100.0), (us, pct)]),
            Some(last) if apart(last) => kept.push((us, pct)),
            Some(_) => {}
        }
    }
    // End the line at the slowest operation, even if all operations took the same time.
    let max_us = all.max_us();
    if kept.is_empty() && all.count() > 0 {
        kept.push((max_us, 100.0));
    }
    if all.count() > 0 {
        kept.push((max_us, smallest));
    }
    kept
}

/// Chart of latency by offered rate, for a cell with a search.
fn curve(cell: &CellResult) -> Chart {
    let figures: Vec<RunFigures> =
        cell.points.iter().map(|point| RunFigures::of(&point.run)).collect();
    let line = |name: &str, figure: fn(&RunFigures) -> Option<f64>| {
        let points = figures.iter().filter_map(|found| Some((found.iops, figure(found)?)));
        Line { name: name.to_owned(), points: points.collect(), marked: true }
    };
    let mean = line("mean", |found| (found.latency.count > 0).then_some(found.latency.mean_us));
    let p99 = line("99th percentile", |found| found.latency.p99_us);
    Chart {
        title: "Latency by operations per second".to_owned(),
        x: Axis { label: "operations per second", scale: Scale::Linear, format: words::axis },
        y: latency_axis("latency"),
        lines: vec![mean, p99],
    }
}

/// Chart of operations per second by operations in flight, for the cells of a table that differ
/// only in queue depth.
pub(super) fn sweep(run: &JudgedRun, cells: &[usize]) -> Option<Chart> {
    let mut lines: Vec<(usize, Line)> = Vec::new();
    for index in cells {
        let cell = &run.result().cells[*index];
        let judged = &run.cells()[*index];
        let LoadSpec::Closed { workers, depth } = cell.spec.load else { continue };
        if judged.summary.runs == 0 {
            continue;
        }
        let clients = f64::from(cell.spec.clients.max(1));
        let point = (clients * f64::from(workers) * f64::from(depth), judged.summary.iops.median);
        let alike = |(first, _): &&mut (usize, Line)| {
            let first = &run.result().cells[*first].spec;
            (&first.streams, &first.variant, first.clients)
                == (&cell.spec.streams, &cell.spec.variant, cell.spec.clients)
        };
        match lines.iter_mut().find(alike) {
            Some((_, line)) => line.points.push(point),
            None => {
                let name = format!(
                    "{} {}, {:.0} % reads",
                    words::access(&cell.spec),
                    words::blocks(&cell.spec),
                    judged.summary.read_pct
                );
                lines.push((*index, Line { name, points: vec![point], marked: true }));
            }
        }
    }
    let mut lines: Vec<Line> = lines.into_iter().map(|(_, line)| line).collect();
    lines.iter_mut().for_each(|line| line.points.sort_by(|a, b| a.0.total_cmp(&b.0)));
    let depths = |line: &Line| line.points.chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq()).count();
    lines.retain(|line| depths(line) >= POINTS_MIN);
    (!lines.is_empty()).then(|| Chart {
        title: "Operations per second by operations in flight".to_owned(),
        x: Axis {
            label: "operations in flight",
            scale: Scale::Logarithmic(2),
            format: words::axis,
        },
        y: Axis { label: "", scale: Scale::Linear, format: words::axis },
        lines,
    })
}
