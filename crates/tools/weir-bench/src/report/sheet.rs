//! Formats `cells.csv`: one line for each run of each cell, for use by other programs.
//!
//! The tables of the report contain the medians over the runs.
//!
//! Invariants: every line contains the verdict on its cell; a figure that does not exist is an
//! empty field; the names of columns contain the units.

use super::ReportError;
use crate::result::{CellResult, CellRun};
use crate::spec::{CellSpec, LoadSpec, OpKind};
use crate::summary::{LatencySummary, RunFigures, merged};
use crate::verdict::{JudgedCell, JudgedRun};
use crate::words;

const HEAD: [&str; 41] = [
    "table",
    "variant",
    "cell",
    "run",
    "verdict",
    "remarks",
    "started_utc",
    "seconds",
    "access",
    "block",
    "read_pct_asked",
    "load",
    "workers",
    "depth",
    "offered_iops",
    "rate_met",
    "iops",
    "read_iops",
    "write_iops",
    "mib_s",
    "latency_count",
    "mean_us",
    "p50_us",
    "p95_us",
    "p99_us",
    "p99_9_us",
    "max_us",
    "in_flight",
    "interval_cv_pct",
    "errors",
    "corrupt",
    "backlog_max",
    "overloaded",
    "cpu_user_s",
    "cpu_system_s",
    "start_skew_ms",
    "metadata_iops",
    "metadata_mean_us",
    "metadata_p99_us",
    "metadata_max_us",
    "failure",
];

/// Formats the CSV text. A cell without runs has one line, which contains no figures.
pub(super) fn cells(run: &JudgedRun) -> Result<String, ReportError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(HEAD)?;
    for (cell, judged) in run.result().cells.iter().zip(run.cells()) {
        for (index, run) in cell.runs.iter().enumerate() {
            let name = format!("{}", index + 1);
            writer.write_record(line(cell, judged, &name, Some(run), None))?;
        }
        for (index, point) in cell.points.iter().enumerate() {
            let name = format!("rate {}", index + 1);
            let run = CellRun { offered_iops: Some(point.offered_iops), ..point.run.clone() };
            writer.write_record(line(cell, judged, &name, Some(&run), Some(point.met)))?;
        }
        if cell.runs.is_empty() && cell.points.is_empty() {
            writer.write_record(line(cell, judged, "", None, None))?;
        }
    }
    for line in bonnie(run) {
        writer.write_record(line)?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8(bytes).expect("every field is text"))
}

/// Formats one line for each phase of each run of the bonnie test.
fn bonnie(run: &JudgedRun) -> Vec<Vec<String>> {
    let (columns, mut lines) = (run.bonnie(), Vec::new());
    let runs = run.result().bonnie.iter().flat_map(|result| &result.runs);
    for (index, run) in runs.enumerate() {
        for own in &run.figures {
            let Some(column) = columns.iter().find(|column| column.phase == own.phase) else {
                continue;
            };
            let remarks = column.remarks.iter();
            let remarks = remarks.map(|r| format!("{}: {}", r.finding.name(), r.detail));
            let (rate, per_s) = if own.phase.is_bytes() {
                ("mib_s", own.rate / 1024.0)
            } else {
                ("iops", own.rate)
            };
            let known = [
                ("table", "bonnie".to_owned()),
                ("cell", own.phase.label().to_owned()),
                ("run", (index + 1).to_string()),
                ("verdict", column.verdict().to_owned()),
                ("remarks", remarks.collect::<Vec<_>>().join("; ")),
                ("seconds", figure(own.seconds)),
                (rate, figure(per_s)),
                ("max_us", figure(own.latency_us)),
            ];
            let field = |head: &&str| {
                let found = known.iter().find(|(name, _)| name == head);
                found.map_or_else(String::new, |(_, value)| value.clone())
            };
            lines.push(HEAD.iter().map(field).collect());
        }
    }
    lines
}

fn line(
    cell: &CellResult,
    judged: &JudgedCell,
    name: &str,
    run: Option<&CellRun>,
    met: Option<bool>,
) -> Vec<String> {
    let mut line = of_spec(&cell.spec, judged, name, run);
    line.push(run.and_then(|run| run.offered_iops).map_or_else(String::new, figure));
    line.push(met.map_or_else(String::new, |met| met.to_string()));
    match run {
        Some(run) => line.extend(of_run(run)),
        None => line.resize(HEAD.len() - 1, String::new()),
    }
    line.push(cell.failure.clone().unwrap_or_default());
    assert_eq!(line.len(), HEAD.len(), "a field for each head");
    line
}

fn of_spec(spec: &CellSpec, judged: &JudgedCell, name: &str, run: Option<&CellRun>) -> Vec<String> {
    let remarks = judged.remarks.iter();
    let remarks = remarks.map(|remark| format!("{}: {}", remark.finding.name(), remark.detail));
    let read_pct = spec
        .streams
        .iter()
        .map(|stream| stream.op.map_or_else(|| figure(stream.read_pct), |op| op.name().to_owned()));
    let (workers, depth) = match spec.load {
        LoadSpec::Closed { workers, depth } => (workers, depth),
        LoadSpec::Open { workers, in_flight_max, .. } => (workers, in_flight_max),
    };
    vec![
        spec.table.clone(),
        spec.variant.clone().unwrap_or_default(),
        spec.name.clone(),
        name.to_owned(),
        judged.verdict().to_owned(),
        remarks.collect::<Vec<_>>().join("; "),
        run.map_or_else(String::new, |run| words::time(run.started_unix_ms)),
        run.map_or_else(String::new, |run| figure(run.seconds)),
        words::access(spec),
        words::blocks(spec),
        read_pct.collect::<Vec<_>>().join(" + "),
        words::load_mode(&spec.load).to_owned(),
        workers.to_string(),
        depth.to_string(),
    ]
}

fn of_run(run: &CellRun) -> Vec<String> {
    let figures = RunFigures::of(run);
    let latency = figures.latency;
    let metadata = run.classes.iter().filter(|class| class.op == OpKind::Metadata);
    let metadata = LatencySummary::of(&merged(metadata));
    let of_metadata = |value: f64| (metadata.count > 0).then_some(value);
    let maybe = |value: Option<f64>| value.map_or_else(String::new, figure);
    let errors: u64 = run.classes.iter().flat_map(|class| class.errors.values()).sum();
    vec![
        figure(figures.iops),
        figure(figures.read_iops),
        figure(figures.write_iops),
        figure(figures.mib_s),
        latency.count.to_string(),
        figure(latency.mean_us),
        maybe(latency.p50_us),
        maybe(latency.p95_us),
        maybe(latency.p99_us),
        maybe(latency.p999_us),
        figure(latency.max_us),
        figure(figures.in_flight),
        figure(figures.interval_cv_pct),
        errors.to_string(),
        run.corrupt.to_string(),
        run.backlog_max.to_string(),
        run.overloaded.to_string(),
        figure(run.cpu_s.0),
        figure(run.cpu_s.1),
        maybe(run.start_skew_ms),
        maybe(of_metadata(figures.metadata_iops)),
        maybe(of_metadata(metadata.mean_us)),
        maybe(metadata.p99_us),
        maybe(of_metadata(metadata.max_us)),
    ]
}

/// Formats a figure with at most three decimals. For a figure in microseconds, the last decimal is
/// a nanosecond.
fn figure(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
