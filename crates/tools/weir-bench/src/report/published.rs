//! Tables with the published rows of the document that a profile repeats, next to the rows of this
//! run.
//!
//! `reference` reads the published rows; `html` and `markdown` format the tables.
//!
//! Invariants:
//! - rows keep the order of the document, and each row of this run has its verdict;
//! - every table states that the published figures come from other hardware. The ratio of a
//!   measured figure to a published figure therefore does not show which storage is faster (a
//!   rank). Only the change of the ratio from row to row (the shape) has a meaning.

use std::slice;

use super::rows::{self, Row, Table};
use crate::reference::{self, Published};
use crate::summary::CellSummary;
use crate::verdict::JudgedRun;
use crate::words;

/// Caveat in the title of every table with published rows.
const SHAPE: &str = "other hardware: shape, not rank";

/// Tables with published rows next to the rows of this run, and notes on the published rows.
pub(super) struct PublishedTables {
    pub(super) tables: Vec<Table>,
    pub(super) notes: Vec<String>,
}

/// Result of this run that is shown next to a published row.
struct Ours {
    name: String,
    cell: Option<usize>,
    verdict: &'static str,
    summary: CellSummary,
}

/// Builds the tables. The result has no tables if the run repeats no document, or none of the
/// document's rows.
pub(super) fn published(run: &JudgedRun) -> PublishedTables {
    let nothing = PublishedTables { tables: Vec::new(), notes: Vec::new() };
    let Some(name) = &run.result().spec.reference else { return nothing };
    // A result that another version of weir-bench wrote may name a document that this version does
    // not contain.
    let Ok(published) = reference::load(name) else { return nothing };
    let mut tables: Vec<Table> = Vec::new();
    let mut left_out = 0;
    for row in &published.rows {
        let ours = ours(run, &published, row);
        left_out += u32::from(ours.is_empty());
        for ours in ours {
            let title = format!("{} of {name}, next to this run: {SHAPE}", row.table);
            let line = line(row, &ours);
            match tables.iter_mut().find(|table| table.title == title) {
                Some(table) => table.rows.push(line),
                None => tables.push(Table {
                    title,
                    heads: HEADS.map(str::to_owned).to_vec(),
                    rows: vec![line],
                    cells: Vec::new(),
                    notes: Vec::new(),
                }),
            }
        }
    }
    let mut notes = published.notes;
    if left_out > 0 {
        notes.push(format!(
            "{left_out} published rows belong to variants or protocols that this run did not \
             measure"
        ));
    }
    PublishedTables { tables, notes }
}

const HEADS: [&str; 13] = [
    "published for",
    "IO size KiB",
    "read %",
    "MiB/s published",
    "MiB/s measured",
    "ratio",
    "IOPS published",
    "IOPS measured",
    "ratio",
    "mean ms published",
    "mean ms measured",
    "ratio",
    "note",
];

fn ours(run: &JudgedRun, published: &Published, row: &reference::Row) -> Vec<Ours> {
    let result = run.result();
    let phases = result.phases.iter().filter(|phase| phase.name == row.cell);
    let mut found: Vec<Ours> = phases
        .map(|phase| Ours {
            name: phase.name.clone(),
            cell: None,
            verdict: rows::NOT_JUDGED,
            summary: CellSummary::of_runs(slice::from_ref(&phase.run)),
        })
        .collect();
    for (index, (cell, judged)) in result.cells.iter().zip(run.cells()).enumerate() {
        if published.rows_for(&cell.spec, &result.target.kind).any(|other| std::ptr::eq(other, row))
        {
            found.push(Ours {
                name: cell.spec.name.clone(),
                cell: Some(index),
                verdict: judged.verdict(),
                summary: rows::headline(cell, judged),
            });
        }
    }
    found
}

fn line(row: &reference::Row, ours: &Ours) -> Row {
    let measured = ours.summary.runs > 0;
    let of = |value: f64| measured.then_some(value).filter(|value| *value > 0.0);
    let mib_s = (row.payload_mib_s(), of(ours.summary.mib_s.median));
    let iops = (row.data_ops_s().or(row.total_ops_s), of(ours.summary.iops.median));
    let ms = (row.latency_ms, of(ours.summary.latency.mean_us / 1000.0));
    let known = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), words::number);
    let mut figures = vec![variant(row), known(row.block_kib), known(row.read_pct)];
    for (published, ours) in [mib_s, iops, ms] {
        let both = published.filter(|value| *value > 0.0).zip(ours);
        let ratio =
            both.map_or_else(|| "-".to_owned(), |(published, ours)| ratio(ours / published));
        figures.extend([known(published), known(ours), ratio]);
    }
    figures.push(note(row));
    Row { name: ours.name.clone(), cell: ours.cell, verdict: ours.verdict, figures }
}

/// Note on a published row. If the row has no mean latency, the note contains its latencies by kind
/// of operation.
fn note(row: &reference::Row) -> String {
    let kinds = [
        ("database reads", row.db_read_ms),
        ("database writes", row.db_write_ms),
        ("log writes", row.log_write_ms),
    ];
    let kind = |(name, ms): (&str, Option<f64>)| ms.map(|ms| format!("{name} {ms} ms"));
    let kinds = kinds.into_iter().filter_map(kind);
    let note = Some(row.note.clone()).filter(|note| !note.is_empty());
    kinds.chain(note).collect::<Vec<_>>().join("; ")
}

fn ratio(value: f64) -> String {
    format!("{value:.2}")
}

/// Configuration of a published row, in the words of its document.
fn variant(row: &reference::Row) -> String {
    let counted = |what: &str, count: Option<u32>| count.map(|count| format!("{count} {what}"));
    let parts = [
        row.test.map(|test| format!("test {test}")),
        row.layout.clone(),
        row.variant.clone(),
        row.media.clone(),
        row.protocol.clone(),
        counted("copies", row.copies),
        counted("clients", row.clients),
        counted("per worker", row.window),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}
