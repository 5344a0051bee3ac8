//! Prints runs and validations as text or JSON.
//!
//! Not here: the report files and the verdicts (weir-bench).
//!
//! Invariant: every line with figures ends with the verdict of its cell.

use serde::Serialize;
use weir_api::ApiError;
use weir_bench::requirement::{self, Assessment, Criterion};
use weir_bench::result::{CellResult, TargetInfo};
use weir_bench::spec::LoadSpec;
use weir_bench::standing::{self, Standing};
use weir_bench::summary::CellSummary;
use weir_bench::verdict::{JudgedCell, JudgedRun};

use crate::bench::folder::{Folder, RESULT};
use crate::bench::text::{milliseconds, number};
use crate::cli::base::output;
use crate::cli::base::output::Style;

/// File name of the HTML report.
const HTML: &str = "report.html";

#[derive(Serialize)]
struct Run<'a> {
    profile: &'a str,
    title: &'a str,
    target: &'a TargetInfo,
    complete: bool,
    /// Whether the target's cache can hold the dataset: yes, no, or unknown because the size of the
    /// cache is unknown.
    cache: Standing,
    /// Number of rows whose verdict is `valid`, so that their figures may be quoted.
    quotable: usize,
    cells: Vec<Cell<'a>>,
    warnings: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    assessment: Option<&'a Assessment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usd_per_gb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usd_per_iops: Option<f64>,
}

#[derive(Serialize)]
struct Cell<'a> {
    name: &'a str,
    verdict: &'static str,
    #[serde(flatten)]
    judged: &'a JudgedCell,
    /// Only for a search: the highest offered rate at which the target met the requirement.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_iops: Option<f64>,
}

fn of<'a>(judged: &'a JudgedRun, folder: Option<&Folder>) -> Run<'a> {
    let result = judged.result();
    let cells = result.cells.iter().zip(judged.cells()).map(|(cell, judged)| Cell {
        name: &cell.spec.name,
        verdict: judged.verdict(),
        judged,
        limit_iops: limit(cell).map(|summary| summary.iops.median),
    });
    Run {
        profile: &result.spec.name,
        title: &result.spec.title,
        target: &result.target,
        complete: result.complete,
        cache: Standing::of(result),
        quotable: judged.quotable().0,
        cells: cells.collect(),
        warnings: &result.warnings,
        directory: folder.map(|folder| folder.path().display().to_string()),
        assessment: None,
        usd_per_gb: None,
        usd_per_iops: None,
    }
}

/// Returns the figures of one run of a search: the run at the highest rate that met the
/// requirement.
fn limit(cell: &CellResult) -> Option<CellSummary> {
    cell.best_met().map(|run| CellSummary::of_runs(std::slice::from_ref(run)))
}

/// Prints the figures of a run with their verdicts.
pub(super) fn run(judged: &JudgedRun, folder: Option<&Folder>, json: bool) -> Result<(), ApiError> {
    if json {
        return output::print(&output::json(&of(judged, folder))?);
    }
    output::print(&text(judged))?;
    say_where(folder);
    Ok(())
}

/// Prints the figures of a run, and whether they meet the requirement.
pub(super) fn validation(
    judged: &JudgedRun,
    assessment: Option<&Assessment>,
    folder: &Folder,
    json: bool,
) -> Result<(), ApiError> {
    let cost = judged.result().spec.cost.as_ref();
    let limits = judged.result().cells.iter().filter_map(limit);
    let reached = limits.map(|summary| summary.iops.median).fold(0.0, f64::max);
    let usd_per_gb = cost.and_then(requirement::usd_per_gb);
    let usd_per_iops = cost.and_then(|cost| requirement::usd_per_iops(cost, reached));
    if json {
        let run = Run { assessment, usd_per_gb, usd_per_iops, ..of(judged, Some(folder)) };
        return output::print(&output::json(&run)?);
    }
    let mut out = text(judged);
    if let (Some(per_gb), Some(per_iops)) = (usd_per_gb, usd_per_iops) {
        let (per_gb, per_iops) = (number(per_gb), number(per_iops));
        let line = format!("\n{per_gb} $ per GB, {per_iops} $ per operation per second\n");
        out += &line;
    }
    if let Some(assessment) = assessment {
        out += &assessed(judged, assessment);
    }
    output::print(&out)?;
    say_where(Some(folder));
    Ok(())
}

fn assessed(judged: &JudgedRun, assessment: &Assessment) -> String {
    let mut rows = Vec::new();
    for found in &assessment.cells {
        let name = &judged.result().cells[found.cell].spec.name;
        for criterion in &found.criteria {
            let Criterion { name: what, need, headroom_pct, outcome, .. } = criterion;
            let headroom = headroom_pct.map_or("-".to_owned(), |pct| format!("{pct:+.0} %"));
            let got = criterion.got.map_or("-".to_owned(), |got| shown(got, criterion.unit));
            let need = shown(*need, criterion.unit);
            let outcome = outcome.name().to_owned();
            rows.push([name.clone(), what.clone(), need, got, headroom, outcome]);
        }
    }
    let header = ["ROW", "BOUND", ">NEED", ">GOT", ">HEADROOM", "ANSWER"];
    let mut text = "\n".to_owned() + &output::table(header, &rows, Style::new(false));
    for found in &assessment.cells {
        if let Some(reason) = &found.reason {
            let name = &judged.result().cells[found.cell].spec.name;
            let line = format!("{name}: {reason}\n");
            text += &line;
        }
    }
    let headroom = assessment.least_headroom();
    let headroom =
        headroom.map_or(String::new(), |(what, pct)| format!(", headroom {pct:+.0} % ({what})"));
    text + &format!("\n{}{headroom}\n", assessment.outcome.name())
}

fn shown(value: f64, unit: &str) -> String {
    if unit == "us" { format!("{} ms", milliseconds(value)) } else { number(value) }
}

fn say_where(folder: Option<&Folder>) {
    if let Some(folder) = folder {
        let path = folder.path();
        let (result, report) = (path.join(RESULT), path.join(HTML));
        output::say(&format!("\n{}\n{}", report.display(), result.display()));
    }
}

fn text(judged: &JudgedRun) -> String {
    let result = judged.result();
    let TargetInfo { address, driver, .. } = &result.target;
    let (title, (valid, all)) = (&result.spec.title, judged.quotable());
    let refused = judged.refused().map_or_else(String::new, |refused| format!("{refused}\n"));
    let mut text = format!(
        "{title} on {address} ({driver})\n{valid} of {all} rows can be quoted\n{refused}{}\n\n",
        standing::sentence(result)
    );
    let cells = result.cells.iter().zip(judged.cells());
    let rows: Vec<[String; 7]> = cells.flat_map(|(cell, judged)| rows(cell, judged)).collect();
    let header = ["ROW", ">IOPS", ">MiB/s", ">MEAN ms", ">P99 ms", "LATENCY", "VERDICT"];
    text += &output::table(header, &rows, Style::new(false));
    let mut first = true;
    for (cell, judged) in result.cells.iter().zip(judged.cells()) {
        for remark in &judged.remarks {
            if std::mem::take(&mut first) {
                text.push('\n');
            }
            let (name, finding) = (&cell.spec.name, remark.finding.name());
            let line = format!("{name}: {finding}: {}; {}\n", remark.detail, remark.action);
            text += &line;
        }
        for note in &judged.notes {
            let line = format!("note: {}: {note}\n", cell.spec.name);
            text += &line;
        }
    }
    for warning in &result.warnings {
        let line = format!("note: {warning}\n");
        text += &line;
    }
    if !result.complete {
        text += "note: the run is not complete\n";
    }
    text
}

/// Returns the rows of a cell: its main row, and a row for the metadata operations of a mix.
fn rows(cell: &CellResult, judged: &JudgedCell) -> Vec<[String; 7]> {
    let searched = cell.spec.search.as_ref().map(|_| {
        let shown = cell.best_or_lowest().map(std::slice::from_ref);
        shown.map(CellSummary::of_runs).unwrap_or_default()
    });
    let name = match &searched {
        Some(_) if cell.best_met().is_some() => {
            format!("{} (highest that meets the bounds)", cell.spec.name)
        }
        Some(_) => format!("{} (none met the bounds; lowest tested)", cell.spec.name),
        None => cell.spec.name.clone(),
    };
    let summary = searched.as_ref().unwrap_or(&judged.summary);
    let p99 = summary.latency.p99_us.map_or("-".to_owned(), milliseconds);
    let latency = match cell.spec.load {
        LoadSpec::Closed { .. } => "service time only",
        LoadSpec::Open { .. } => "from intended time",
    };
    let metadata = &summary.metadata_latency;
    let of_metadata = (metadata.count > 0).then(|| {
        [
            format!("{name}, metadata"),
            number(summary.metadata_iops.median),
            "-".to_owned(),
            milliseconds(metadata.mean_us),
            metadata.p99_us.map_or("-".to_owned(), milliseconds),
            latency.to_owned(),
            judged.verdict().to_owned(),
        ]
    });
    let main = [
        name,
        number(summary.iops.median),
        number(summary.mib_s.median),
        milliseconds(summary.latency.mean_us),
        p99,
        latency.to_owned(),
        judged.verdict().to_owned(),
    ];
    std::iter::once(main).chain(of_metadata).collect()
}
