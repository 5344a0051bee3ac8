//! Formats the section on one cell: its verdict, the figures of each run, and its charts.
//!
//! `plots` chooses the charts.
//!
//! Invariants: the heading of the cell and the title of each of its charts contain the verdict; if
//! a cell was not measured, its section contains the reason.

use maud::{Markup, html};

use super::{chip, figure};
use crate::report::{ReportError, plots};
use crate::result::{CellResult, CellRun, CurvePoint, FilesCheck, Verification};
use crate::summary::{CellSummary, LatencySummary, RunFigures};
use crate::verdict::{JudgedCell, JudgedRun};
use crate::words;

/// Formats the sections on all cells, in the order of the profile.
pub(super) fn section(run: &JudgedRun) -> Result<Markup, ReportError> {
    let cells = run.result().cells.iter().zip(run.cells()).enumerate();
    Ok(html! { section id="cells" {
        h2 { "Cells" }
        @for (index, (cell, judged)) in cells { (of_cell(index, cell, judged)?) }
    } })
}

fn of_cell(index: usize, cell: &CellResult, judged: &JudgedCell) -> Result<Markup, ReportError> {
    let charts = plots::of_cell(cell);
    let verdict = judged.verdict();
    Ok(html! { article id={ "cell-" (index) } {
        h3 { (cell.spec.name) " " (chip(verdict)) }
        p.sub { (settings(cell)) }
        @if let Some(failure) = &cell.failure { p.warn { (failure) } }
        @for remark in &judged.remarks {
            p.remark {
                b { (remark.finding.name()) } ": " (remark.detail) " "
                span.action { "To do: " (remark.action) }
            }
        }
        @if cell.runs.iter().any(CellRun::is_measured) { (runs(cell, &judged.summary, verdict)) }
        @if !cell.points.is_empty() { (points(&cell.points, verdict)) }
        (clients(cell, verdict))
        @if let Some(verified) = &cell.verified { (verification(verified)) }
        (files(cell))
        @if charts.is_empty() {
            p.note { "Fewer than ten points: the tables show all of them." }
        }
        div.charts { @for chart in &charts { (figure(chart, verdict)?) } }
        @if cell.runs.iter().all(|run| run.backlog_max == 0) && !cell.runs.is_empty() {
            p.note { "No operation was queued." }
        }
    } })
}

fn settings(cell: &CellResult) -> String {
    let spec = &cell.spec;
    let reads: Vec<String> = spec
        .streams
        .iter()
        .map(|stream| {
            let reads = words::reads(stream);
            if stream.op.is_some() { reads } else { format!("{reads} % reads") }
        })
        .collect();
    let mut parts = vec![
        format!("{}, {}, {}", words::access(spec), words::blocks(spec), reads.join(" + ")),
        words::load(spec),
        format!("runs: {} of {}", spec.runs, words::length(spec)),
        format!("warm-up {}", words::duration(spec.warmup_ms)),
        format!("caches: {}", words::cache(spec.cache)),
    ];
    parts.extend(words::metadata(spec));
    parts.extend(spec.variant.as_ref().map(|variant| format!("variant {variant}")));
    parts.join("; ")
}

/// Maximum number of files that a section names.
const EXAMPLES_MAX: usize = 8;

const FIGURE_HEADS: [&str; 13] = [
    "IOPS",
    "MiB/s",
    "mean ms",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "p99.9 ms",
    "max ms",
    "in flight",
    "CV of seconds",
    "offered",
    "backlog",
    "errors",
];

fn figures(run: &CellRun, offered: Option<f64>) -> Vec<String> {
    let found = RunFigures::of(run);
    let errors: u64 = run.classes.iter().flat_map(|class| class.errors.values()).sum();
    let mut fields = vec![words::number(found.iops), words::number(found.mib_s)];
    fields.extend(latencies(&found.latency));
    fields.extend([
        words::number(found.in_flight),
        format!("{} %", words::number(found.interval_cv_pct)),
        offered.map_or_else(|| "closed loop".to_owned(), words::number),
        run.backlog_max.to_string(),
        errors.to_string(),
    ]);
    fields
}

fn latencies(latency: &LatencySummary) -> Vec<String> {
    let percentile = |us| words::percentile_ms(us, latency.count);
    vec![
        words::ms(latency.mean_us),
        percentile(latency.p50_us),
        percentile(latency.p95_us),
        percentile(latency.p99_us),
        percentile(latency.p999_us),
        words::ms(latency.max_us),
    ]
}

fn table(first: &str, rows: &[(String, Vec<String>)], verdict: &str) -> Markup {
    html! { div.scroll { table.figures {
        thead { tr {
            th.name scope="col" { (first) }
            th scope="col" { "verdict" }
            @for head in FIGURE_HEADS { th.num scope="col" { (head) } }
        } }
        tbody { @for (name, fields) in rows { tr {
            th.name scope="row" { (name) }
            td { (chip(verdict)) }
            @for field in fields { td.num { (field) } }
        } } }
    } } }
}

fn runs(cell: &CellResult, summary: &CellSummary, verdict: &str) -> Markup {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for (index, run) in cell.runs.iter().enumerate() {
        rows.push((format!("run {}", index + 1), figures(run, run.offered_iops)));
    }
    if summary.runs > 1 {
        rows.push(("median, merged latencies".to_owned(), merged(cell, summary)));
    }
    if summary.metadata_latency.count > 0 {
        rows.push(("metadata operations".to_owned(), metadata(summary)));
    }
    html! {
        (table("run", &rows, verdict))
        p.note {
            @if let Some(pct) = summary.iops.ci_pct {
                "With 95 % confidence the true throughput is within ±" (words::number(pct))
                " % of the median. "
            } @else {
                "Too few runs for a confidence interval. "
            }
            "The generator needed " (words::number(summary.cpu_us_per_op))
            " µs of processor time per operation and kept "
            (words::number(summary.cpu_pct)) " % of its threads busy."
        }
    }
}

fn merged(cell: &CellResult, summary: &CellSummary) -> Vec<String> {
    let mut fields = vec![words::number(summary.iops.median), words::number(summary.mib_s.median)];
    fields.extend(latencies(&summary.latency));
    let backlog = cell.runs.iter().map(|run| run.backlog_max).max().unwrap_or(0);
    fields.extend([
        words::number(summary.in_flight),
        format!("{} % worst", words::number(summary.interval_cv_pct)),
        String::new(),
        format!("{backlog} most"),
        summary.errors.to_string(),
    ]);
    fields
}

/// Figures of the metadata operations of a mix, over all runs.
fn metadata(summary: &CellSummary) -> Vec<String> {
    let mut fields = vec![words::number(summary.metadata_iops.median), "-".to_owned()];
    fields.extend(latencies(&summary.metadata_latency));
    fields.resize(FIGURE_HEADS.len(), String::new());
    fields
}

/// Formats the check of the files that the runs of a cell created, renamed and removed.
fn files(cell: &CellResult) -> Markup {
    let mut all = FilesCheck::default();
    let checks = cell.measured().filter_map(|run| run.files.clone());
    let count = checks.map(|check| all.add(check)).count();
    html! { @if count > 0 {
        p.note {
            "The directories listed " (all.listed) " files after the runs; " (all.missing)
            " were missing, and " (all.unexpected) " were listed after their removal or rename."
        }
        @for example in all.examples.iter().take(EXAMPLES_MAX) { p.warn { (example) } }
    } }
}

fn points(points: &[CurvePoint], verdict: &str) -> Markup {
    let row = |point: &CurvePoint| {
        let met = if point.met { "reached" } else { "not reached" };
        (met.to_owned(), figures(&point.run, Some(point.offered_iops)))
    };
    let rows: Vec<(String, Vec<String>)> = points.iter().map(row).collect();
    let reached = points.iter().rev().find(|point| point.met);
    let lowest = points.first().map(|point| point.offered_iops);
    html! {
        h4 { "Tested rates" }
        p {
            @match reached {
                Some(point) => {
                    "Limit: " (words::number(RunFigures::of(&point.run).iops))
                    " operations per second, the highest rate that met the bounds (" (verdict) ")."
                },
                None => {
                    "No rate met the bounds; the lowest tested rate was "
                    (lowest.map_or("none".to_owned(), words::number))
                    " operations per second (" (verdict) ")."
                },
            }
        }
        (table("rate", &rows, verdict))
    }
}

/// Formats the figures of each client, and the time between the starts of the clients.
fn clients(cell: &CellResult, verdict: &str) -> Markup {
    let runs = || cell.runs.iter().enumerate().filter(|(_, run)| !run.clients.is_empty());
    html! { @if runs().next().is_some() {
        h4 { "Clients" }
        div.scroll { table {
            thead { tr {
                th.name { "client" } th { "verdict" } th.num { "IOPS" } th.num { "mean ms" }
                th.num { "CPU %" } th.num { "start skew ms" } th.num { "clock ± us" }
            } }
            tbody { @for (index, run) in runs() {
                @for client in &run.clients { tr {
                    th.name { "run " (index + 1) ", " (client.name) }
                    td { (chip(verdict)) }
                    td.num { (words::number(client.iops)) }
                    td.num { (words::ms(client.mean_us)) }
                    td.num { (words::number(client.cpu_pct)) }
                    td.num { (run.start_skew_ms.map_or_else(|| "n/a".to_owned(), words::number)) }
                    td.num { (words::number(client.clock_error_us)) }
                } }
            } }
        } }
    } }
}

fn verification(verified: &Verification) -> Markup {
    html! {
        p.note {
            (verified.blocks) " blocks were read again and verified; " (verified.bad) " were wrong."
        }
        @for example in &verified.examples { p.warn { (example) } }
    }
}
