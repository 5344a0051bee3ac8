//! Tables of a report, with their rows and columns.
//!
//! `html` and `markdown` format the tables.
//!
//! Invariants:
//! - tables and rows keep the order of the profile, with the preparation first;
//! - each table begins with the columns of the published references, in the order of the
//!   references: size, share of reads, throughput, operations, mean latency, reads, writes; the
//!   other columns follow;
//! - every row has its verdict.

use std::collections::BTreeSet;
use std::slice;

use super::bonnie;
use crate::requirement;
use crate::result::{CellResult, PhaseResult};
use crate::spec::{Limits, OpKind, RunSpec};
use crate::summary::{CellSummary, LatencySummary, merged};
use crate::verdict::{JudgedCell, JudgedRun};
use crate::words;

/// Text that the tables print as the verdict on phases, which only prepare the target.
pub(super) const NOT_JUDGED: &str = "not judged";

/// Table of a report: rows with a common title.
pub(super) struct Table {
    pub(super) title: String,
    /// Headings of the columns that contain figures.
    pub(super) heads: Vec<String>,
    pub(super) rows: Vec<Row>,
    /// Indexes of the cells in the table, for its charts; empty if the rows of the table are not
    /// cells.
    pub(super) cells: Vec<usize>,
    /// Notes on the table for readers.
    pub(super) notes: Vec<String>,
}

/// Headings of the columns that contain settings. The values of settings are known even without a
/// run.
const ASKED: [&str; 3] = ["IO size", "read %", "load"];

/// Row of a report table: a cell, a phase, or a line of the bonnie test.
pub(super) struct Row {
    pub(super) name: String,
    /// Index of the cell; `None` if the row is a phase or a line of the bonnie test.
    pub(super) cell: Option<usize>,
    pub(super) verdict: &'static str,
    /// Figures of the row, one for each heading.
    pub(super) figures: Vec<String>,
}

/// Data from which one row of a table is formatted.
struct Source<'a> {
    name: String,
    cell: Option<(usize, &'a CellResult)>,
    verdict: &'static str,
    summary: CellSummary,
    block: String,
    read_pct: String,
    load: String,
}

type Column<'a> = (String, Box<dyn Fn(&Source<'_>) -> String + 'a>);

/// Builds all tables: one table for the preparation, one for each table and variant of the profile,
/// and one for the bonnie test.
pub(super) fn tables(run: &JudgedRun) -> Vec<Table> {
    let result = run.result();
    let mut tables = Vec::new();
    if !result.phases.is_empty() {
        let phases = result.phases.iter().map(|phase| of_phase(phase, &result.spec));
        let phases: Vec<Source<'_>> = phases.collect();
        tables.push(table("Preparation".to_owned(), &phases, &result.spec));
    }
    let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
    for (index, cell) in result.cells.iter().enumerate() {
        let variant = cell.spec.variant.as_ref().map(|variant| format!(", {variant}"));
        let title = format!("{}{}", cell.spec.table, variant.unwrap_or_default());
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, cells)) => cells.push(index),
            None => groups.push((title, vec![index])),
        }
    }
    for (title, cells) in groups {
        let source = |index: &usize| of_cell(*index, &result.cells[*index], &run.cells()[*index]);
        let sources: Vec<Source<'_>> = cells.iter().map(source).collect();
        let table = table(title, &sources, &result.spec);
        tables.push(Table { cells, ..table });
    }
    tables.extend(bonnie::table(run));
    tables
}

/// Figures that represent a cell in tables. For a search, these are the figures of the highest rate
/// that met its bounds, or of the lowest rate if no rate met them.
pub(super) fn headline(cell: &CellResult, judged: &JudgedCell) -> CellSummary {
    let best = cell.best_or_lowest().filter(|_| judged.summary.runs == 0);
    best.map_or_else(|| judged.summary.clone(), |run| CellSummary::of_runs(slice::from_ref(run)))
}

fn of_cell<'a>(index: usize, cell: &'a CellResult, judged: &JudgedCell) -> Source<'a> {
    let asked = cell.spec.streams.iter().map(words::reads);
    Source {
        name: cell.spec.name.clone(),
        cell: Some((index, cell)),
        verdict: judged.verdict(),
        summary: headline(cell, judged),
        block: words::blocks(&cell.spec),
        read_pct: asked.collect::<Vec<_>>().join(" + "),
        load: words::load_short(&cell.spec),
    }
}

fn of_phase<'a>(phase: &PhaseResult, spec: &RunSpec) -> Source<'a> {
    let summary = CellSummary::of_runs(slice::from_ref(&phase.run));
    let fills = phase.name == "fill";
    Source {
        name: format!("{} ({})", phase.name, phase.note),
        cell: None,
        verdict: NOT_JUDGED,
        read_pct: format!("{:.0}", summary.read_pct),
        summary,
        block: if fills {
            words::bytes(u64::from(spec.fill.block_bytes))
        } else {
            "N/A".to_owned()
        },
        load: if fills { format!("1 x {}", spec.fill.in_flight) } else { "N/A".to_owned() },
    }
}

fn table(title: String, sources: &[Source<'_>], spec: &RunSpec) -> Table {
    let columns = columns(sources, spec);
    let row = |source: &Source<'_>| Row {
        name: source.name.clone(),
        cell: source.cell.map(|(index, _)| index),
        verdict: source.verdict,
        figures: columns.iter().map(|column| field(column, source)).collect(),
    };
    Table {
        title,
        rows: sources.iter().map(row).collect(),
        heads: columns.iter().map(|(head, _)| head.clone()).collect(),
        cells: Vec::new(),
        notes: Vec::new(),
    }
}

/// Formats a figure. A figure that was not measured is printed as `-`, because it is not zero.
fn field((head, figure): &Column<'_>, source: &Source<'_>) -> String {
    let known = source.summary.runs > 0 || ASKED.contains(&head.as_str());
    if known { figure(source) } else { "-".to_owned() }
}

fn columns<'a>(sources: &[Source<'_>], spec: &'a RunSpec) -> Vec<Column<'a>> {
    let mut columns = leading();
    columns.extend(of_metadata(sources));
    columns.extend(of_streams(sources));
    if let Some(limits) = &spec.limits {
        columns.push(column("% of limit", move |source| of_limit(limits, source)));
    }
    if let Some(cost) = &spec.cost {
        columns.push(column("$ per IOPS", move |source| {
            let usd = requirement::usd_per_iops(cost, source.summary.iops.median);
            usd.map_or_else(|| "n/a".to_owned(), |usd| format!("{usd:.4}"))
        }));
    }
    columns.extend(behind());
    columns
}

fn column<'a>(head: &str, figure: impl Fn(&Source<'_>) -> String + 'a) -> Column<'a> {
    (head.to_owned(), Box::new(figure))
}

/// Columns that the published references also have.
fn leading() -> Vec<Column<'static>> {
    vec![
        column("IO size", |source| source.block.clone()),
        column("read %", |source| source.read_pct.clone()),
        column("MiB/s", |source| words::number(source.summary.mib_s.median)),
        column("IOPS", |source| words::number(source.summary.iops.median)),
        column("mean ms", |source| mean_ms(&source.summary.latency)),
        column("reads/s", |source| words::number(source.summary.read_iops.median)),
        column("writes/s", |source| words::number(source.summary.write_iops.median)),
    ]
}

/// Columns with the metadata operations, if cells mix them with reads and writes.
fn of_metadata(sources: &[Source<'_>]) -> Vec<Column<'static>> {
    if sources.iter().all(|source| source.summary.metadata_latency.count == 0) {
        return Vec::new();
    }
    let p99 = |latency: &LatencySummary| words::percentile_ms(latency.p99_us, latency.count);
    vec![
        column("metadata/s", |source| words::number(source.summary.metadata_iops.median)),
        column("metadata %", |source| words::number(source.summary.metadata_pct)),
        column("metadata ms", |source| mean_ms(&source.summary.metadata_latency)),
        column("metadata p99 ms", move |source| p99(&source.summary.metadata_latency)),
    ]
}

/// Columns that the published references do not have.
fn behind() -> Vec<Column<'static>> {
    let p = |latency: &LatencySummary, us: Option<f64>| words::percentile_ms(us, latency.count);
    vec![
        column("load", |source| source.load.clone()),
        column("in flight", |source| words::number(source.summary.in_flight)),
        column("p50 ms", move |s| p(&s.summary.latency, s.summary.latency.p50_us)),
        column("p95 ms", move |s| p(&s.summary.latency, s.summary.latency.p95_us)),
        column("p99 ms", move |s| p(&s.summary.latency, s.summary.latency.p99_us)),
        column("p99.9 ms", move |s| p(&s.summary.latency, s.summary.latency.p999_us)),
        column("max ms", |source| words::ms(source.summary.latency.max_us)),
        column("runs", |source| source.summary.runs.to_string()),
        column("IOPS min to max", |source| {
            let iops = source.summary.iops;
            format!("{} to {}", words::number(iops.min), words::number(iops.max))
        }),
        column("95 % CI", |source| {
            let ci = source.summary.iops.ci_pct;
            ci.map_or_else(|| "n/a".to_owned(), |pct| format!("±{} %", words::number(pct)))
        }),
    ]
}

fn mean_ms(latency: &LatencySummary) -> String {
    if latency.count == 0 { "n/a".to_owned() } else { words::ms(latency.mean_us) }
}

/// Columns with the operations and the mean latency of each stream, if cells have several streams,
/// as in the reference document `004`.
fn of_streams(sources: &[Source<'_>]) -> Vec<Column<'static>> {
    let cells = || sources.iter().filter_map(|source| source.cell.map(|(_, cell)| cell));
    if !cells().any(|cell| cell.spec.streams.len() > 1) {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut columns: Vec<Column<'static>> = Vec::new();
    for stream in cells().flat_map(|cell| &cell.spec.streams) {
        let name = stream.name.clone();
        if !seen.insert(name.clone()) {
            continue;
        }
        let head = format!("{name} IOPS");
        let own = name.clone();
        columns.push(column(&head, move |source| stream_iops(source, &own)));
        let kinds = [(OpKind::Write, "write", 100.0), (OpKind::Read, "read", 0.0)];
        if let Some(op) = stream.op {
            let (own, head) = (name, format!("{} ms", op.name()));
            columns.push(column(&head, move |source| stream_ms(source, &own, op)));
            continue;
        }
        for (op, word, absent_at) in kinds {
            if (stream.read_pct - absent_at).abs() < f64::EPSILON {
                continue;
            }
            let own = name.clone();
            let head = format!("{name} {word} ms");
            columns.push(column(&head, move |source| stream_ms(source, &own, op)));
        }
    }
    columns
}

fn stream_iops(source: &Source<'_>, stream: &str) -> String {
    let Some((_, cell)) = source.cell else { return "N/A".to_owned() };
    let runs: Vec<f64> = cell
        .runs
        .iter()
        .filter(|run| run.is_measured())
        .map(|run| {
            let own = run.classes.iter().filter(|class| class.stream == stream);
            let ops: u64 = own.filter(|class| class.op.is_counted()).map(|class| class.ops).sum();
            ops as f64 / run.seconds
        })
        .collect();
    crate::stats::median(&runs).map_or_else(|| "n/a".to_owned(), words::number)
}

fn stream_ms(source: &Source<'_>, stream: &str, op: OpKind) -> String {
    let Some((_, cell)) = source.cell else { return "N/A".to_owned() };
    let classes = cell.runs.iter().flat_map(|run| &run.classes);
    let own = classes.filter(|class| class.stream == stream && class.op == op);
    mean_ms(&LatencySummary::of(&merged(own)))
}

/// Throughput in percent of the lowest limit that the profile states for this operation size.
fn of_limit(limits: &Limits, source: &Source<'_>) -> String {
    let (iops, mib_s) = (source.summary.iops.median, source.summary.mib_s.median);
    let binding = limits.share_pct(iops, mib_s);
    binding.map_or_else(|| "n/a".to_owned(), |(name, pct)| format!("{pct:.0} ({name})"))
}
