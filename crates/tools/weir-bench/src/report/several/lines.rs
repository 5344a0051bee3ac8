//! Rows of one result, with the columns of the document and its published figures.
//!
//! `conclusions` compares the rows of several results.
//!
//! Invariant: a figure that was not measured or not published is `None`, never 0.

use crate::reference::{self, Published};
use crate::result::{CellResult, PhaseResult};
use crate::spec::{Access, LoadSpec};
use crate::summary::{CellSummary, LatencySummary};
use crate::verdict::{Finding, JudgedCell, JudgedRun};
use crate::words;

/// One of several results, with its name in the report.
#[derive(Debug)]
pub struct Named {
    /// Name of the layout or the server.
    pub name: String,
    /// The result.
    pub run: JudgedRun,
    /// True for another product on the same machine: the report shows the ratio of the first result
    /// to it in place of published figures.
    pub is_peer: bool,
}

/// Result with its rows.
pub(super) struct Sheet<'a> {
    pub(super) named: &'a Named,
    pub(super) lines: Vec<Line>,
}

/// Figures of a row, measured or published.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Figures {
    pub(super) mib_s: Option<f64>,
    /// All operations, with the metadata operations.
    pub(super) ops_s: Option<f64>,
    /// Mean latency of all operations.
    pub(super) mean_ms: Option<f64>,
    pub(super) reads_s: Option<f64>,
    pub(super) writes_s: Option<f64>,
}

/// Settings of a row: rows of two results are compared if these are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) is_random: bool,
    pub(super) block_bytes: u32,
    pub(super) read_pct: f64,
}

/// A row.
pub(super) struct Line {
    pub(super) table: String,
    pub(super) verdict: &'static str,
    pub(super) block: String,
    pub(super) read_pct: f64,
    /// `None` for the fill.
    pub(super) key: Option<Key>,
    /// Operations in flight: workers and operations of each.
    pub(super) load: (u32, u32),
    /// True if the figures may be compared with other rows.
    pub(super) is_usable: bool,
    pub(super) figures: Figures,
    pub(super) published: Option<Figures>,
}

/// Rows of a result: the fill, and each cell that is a closed loop of one stream of one block size.
pub(super) fn lines(run: &JudgedRun) -> Vec<Line> {
    let (result, spec) = (run.result(), &run.result().spec);
    let published = spec.reference.as_deref().and_then(|name| reference::load(name).ok());
    let published = published.as_ref();
    let cells = result.cells.iter().zip(run.cells());
    let variant = result.cells.first().and_then(|cell| cell.spec.variant.as_deref());
    let fill = result.phases.iter().filter(|phase| phase.name == "fill");
    let kind = result.target.kind.as_str();
    let block = words::bytes(u64::from(spec.fill.block_bytes));
    let fill = fill.map(|phase| of_fill(phase, block.clone(), variant, published));
    fill.chain(cells.filter_map(|(cell, judged)| of_cell(cell, judged, kind, published))).collect()
}

fn of_fill(
    phase: &PhaseResult,
    block: String,
    variant: Option<&str>,
    published: Option<&Published>,
) -> Line {
    let summary = CellSummary::of_runs(std::slice::from_ref(&phase.run));
    let fits = |row: &&reference::Row| {
        row.cell == "fill" && (variant.is_none() || row.variant.as_deref() == variant)
    };
    let row = published.and_then(|published| published.rows.iter().find(fits));
    Line {
        table: "fill".to_owned(),
        verdict: super::super::rows::NOT_JUDGED,
        block,
        read_pct: 0.0,
        key: None,
        load: (0, 0),
        is_usable: false,
        figures: Figures::of(&summary),
        published: row.map(Figures::published),
    }
}

fn of_cell(
    cell: &CellResult,
    judged: &JudgedCell,
    kind: &str,
    published: Option<&Published>,
) -> Option<Line> {
    let spec = &cell.spec;
    let ([stream], LoadSpec::Closed { workers, depth }) = (spec.streams.as_slice(), spec.load)
    else {
        return None;
    };
    let ([block], None) = (stream.blocks.as_slice(), stream.op) else { return None };
    let is_random = match stream.access {
        Access::Random => true,
        Access::Sequential => false,
        _ => return None,
    };
    let (block_bytes, read_pct) = (block.bytes, stream.read_pct);
    let spoils = |finding| {
        matches!(finding, Finding::Invalid | Finding::Corrupt | Finding::Holes | Finding::Overload)
    };
    let is_usable =
        judged.summary.runs > 0 && !judged.remarks.iter().any(|remark| spoils(remark.finding));
    let row = published.and_then(|published| published.rows_for(spec, kind).next());
    Some(Line {
        table: spec.table.clone(),
        verdict: judged.verdict(),
        block: words::bytes(u64::from(block_bytes)),
        read_pct,
        key: Some(Key { is_random, block_bytes, read_pct }),
        load: (workers, depth),
        is_usable,
        figures: Figures::of(&judged.summary),
        published: row.map(Figures::published),
    })
}

impl Figures {
    fn of(summary: &CellSummary) -> Self {
        if summary.runs == 0 {
            return Self::default();
        }
        let some = |value: f64| Some(value).filter(|value| *value > 0.0);
        Self {
            mib_s: some(summary.mib_s.median),
            ops_s: some(summary.iops.median + summary.metadata_iops.median),
            mean_ms: some(mean_us(&[summary.latency, summary.metadata_latency]) / 1000.0),
            reads_s: some(summary.read_iops.median),
            writes_s: some(summary.write_iops.median),
        }
    }

    fn published(row: &reference::Row) -> Self {
        Self {
            mib_s: row.wire_mib_s.or(row.payload_mib_s()),
            ops_s: row.total_ops_s,
            mean_ms: row.latency_ms,
            reads_s: row.read_ops_s,
            writes_s: row.write_ops_s,
        }
    }
}

/// Mean latency of all operations; 0 without operations.
fn mean_us(all: &[LatencySummary]) -> f64 {
    let count: u64 = all.iter().map(|one| one.count).sum();
    let sum: f64 = all.iter().map(|one| one.mean_us * one.count as f64).sum();
    if count == 0 { 0.0 } else { sum / count as f64 }
}
