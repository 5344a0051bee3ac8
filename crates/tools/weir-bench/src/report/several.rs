//! Report on several results of one profile: one set of columns for each, next to the published
//! rows, with computed differences. For results of several layouts, and of other servers.
//!
//! The reports on single results are in the other files; `compare` compares two results.
//!
//! Invariants:
//! - every row has the verdict on its cell;
//! - the only input is the results, so that equal results always give equal reports;
//! - a row that is invalid, corrupt, overloaded or with holes is in no computed difference.

mod conclusions;
mod lines;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use maud::{Markup, html};

pub use self::lines::Named;
use self::lines::{Figures, Line, Sheet, lines};
use super::html::{chip, page};
use super::markdown::{field, table};
use super::{HTML, MARKDOWN, ReportError, facts, save};
use crate::words;

/// Table of the report.
struct Table {
    title: String,
    heads: Vec<String>,
    /// Rows: the verdict on the cell, and the fields.
    rows: Vec<(&'static str, Vec<String>)>,
}

/// Columns that each layout has in the document.
const HEADS: [&str; 7] = ["IO size", "read %", "MiB/s", "ops/s", "mean ms", "reads/s", "writes/s"];

/// Explanation of the columns.
const NOTES: [&str; 3] = [
    "MiB/s is the payload; the document prints the bytes on the wire, which are 271 to 287 bytes \
     more for each operation.",
    "Ops/s counts reads, writes and metadata operations; the mean latency includes all of them.",
    "Published figures come from other hardware: their shape can be compared, their size cannot.",
];

/// Writes the report on several results into `directory`, and returns the paths of its files.
///
/// # Errors
/// A file could not be created or written. The files that were written before it remain.
pub fn write_several(all: &[Named], directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
    save(directory, vec![(MARKDOWN, markdown_of_several(all)), (HTML, html_of_several(all))])
}

/// Formats the report on several results as Markdown.
pub fn markdown_of_several(all: &[Named]) -> String {
    let sheets = sheets(all);
    let mut out = format!("# {}\n\n## Conclusions\n\n", title(all));
    for text in conclusions::conclusions(&sheets) {
        writeln!(out, "- {}", field(&text)).expect("a String takes every write");
    }
    out.push_str("\n## Conditions\n\n");
    for text in conditions(all) {
        writeln!(out, "- {}", field(&text)).expect("a String takes every write");
    }
    out.push_str("\n## Tables\n\n");
    for note in NOTES {
        writeln!(out, "- {}", field(note)).expect("a String takes every write");
    }
    out.push('\n');
    for Table { title, heads, rows } in tables(&sheets) {
        write!(out, "### {title}\n\n").expect("a String takes every write");
        let heads: Vec<&str> =
            ["verdict"].into_iter().chain(heads.iter().map(String::as_str)).collect();
        let rows = rows
            .into_iter()
            .map(|(verdict, row)| [verdict.to_owned()].into_iter().chain(row).collect::<Vec<_>>());
        table(&mut out, &heads, &rows.collect::<Vec<_>>());
    }
    out
}

/// Formats the report on several results as one HTML document.
pub fn html_of_several(all: &[Named]) -> String {
    let (title, sheets) = (title(all), sheets(all));
    let list = |texts: Vec<String>| html! { ul { @for text in &texts { li { (text) } } } };
    let body = html! {
        header { h1 { (title) } }
        main {
            section id="conclusions" {
                h2 { "Conclusions" }
                (list(conclusions::conclusions(&sheets)))
            }
            section id="conditions" { h2 { "Conditions" } (list(conditions(all))) }
            section id="tables" {
                h2 { "Tables" }
                (list(NOTES.map(str::to_owned).to_vec()))
                @for table in tables(&sheets) { (of_table(&table)) }
            }
        }
    };
    page(&title, &body)
}

fn of_table(table: &Table) -> Markup {
    html! {
        h3 { (table.title) }
        div.scroll { table.figures {
            thead { tr {
                th scope="col" { "verdict" }
                @for head in &table.heads { th.num scope="col" { (head) } }
            } }
            tbody { @for (verdict, row) in &table.rows { tr {
                td { (chip(verdict)) }
                @for value in row { td.num { (value) } }
            } } }
        } }
    }
}

fn title(all: &[Named]) -> String {
    let names: Vec<&str> = all.iter().map(|named| named.name.as_str()).collect();
    let profile = all.first().map_or("", |named| named.run.result().spec.name.as_str());
    format!("{profile}: {}", names.join(", "))
}

fn sheets(all: &[Named]) -> Vec<Sheet<'_>> {
    all.iter().map(|named| Sheet { named, lines: lines(&named.run) }).collect()
}

/// Conditions of each result: length of the measurements, data, load, target and machine.
fn conditions(all: &[Named]) -> Vec<String> {
    let mut said = Vec::new();
    for Named { name, run, .. } in all {
        let (result, spec) = (run.result(), &run.result().spec);
        let cell = spec.cells.first();
        let length = cell.map_or_else(String::new, |cell| {
            format!(", {} for each row, {}", words::length(cell), words::load(cell))
        });
        let protection = result.target.protection.as_deref().map(|text| format!(", {text}"));
        said.push(format!(
            "{name}: {}{}, {}{length}; {}; {}",
            result.target.address,
            protection.unwrap_or_default(),
            words::dataset(&spec.dataset),
            words::durability(spec.durability),
            facts::counted(run),
        ));
    }
    if let Some(run) = all.first().map(|named| named.run.result()) {
        let machine = &run.environment;
        said.push(format!("Machine of the client: {}, {} cores", machine.cpu, machine.cores));
        said.extend(run.spec.assume.iter().map(|text| format!("Assumed: {text}")));
    }
    said
}

/// Tables of each result, in the order of the document.
fn tables(sheets: &[Sheet<'_>]) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    for sheet in sheets {
        let is_peer = sheet.named.is_peer;
        for line in &sheet.lines {
            let title = format!("{}, {}", sheet.named.name, line.table);
            let beside =
                if is_peer { sheets[0].lines.iter().find(|own| own.key == line.key) } else { None };
            let fields = if is_peer { peer(line, beside) } else { published(line) };
            match tables.iter_mut().find(|table| table.title == title) {
                Some(table) => table.rows.push((line.verdict, fields)),
                None => {
                    let (heads, rows) = (heads(is_peer, &sheets[0]), vec![(line.verdict, fields)]);
                    tables.push(Table { title, heads, rows });
                }
            }
        }
    }
    tables
}

fn heads(is_peer: bool, first: &Sheet<'_>) -> Vec<String> {
    let name = &first.named.name;
    let further: Vec<String> = if is_peer {
        ["ops/s", "mean ms"].map(|head| format!("{head}: {name} / this")).to_vec()
    } else {
        HEADS[2..].iter().map(|head| format!("{head} published")).collect()
    };
    HEADS.iter().map(|head| (*head).to_owned()).chain(further).collect()
}

fn leading(line: &Line) -> Vec<String> {
    let mut fields = vec![line.block.clone(), words::short(line.read_pct)];
    fields.extend(figures(Some(&line.figures)));
    fields
}

fn figures(of: Option<&Figures>) -> [String; 5] {
    let known = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), words::number);
    let of = of.copied().unwrap_or_default();
    [of.mib_s, of.ops_s, of.mean_ms, of.reads_s, of.writes_s].map(known)
}

fn published(line: &Line) -> Vec<String> {
    [leading(line), figures(line.published.as_ref()).to_vec()].concat()
}

/// Fields of a row of another product: `own` is the same row of the first result.
fn peer(line: &Line, own: Option<&Line>) -> Vec<String> {
    let ratio = |of: fn(&Figures) -> Option<f64>| {
        let both = own.and_then(|own| of(&own.figures)).zip(of(&line.figures));
        both.map_or_else(|| "-".to_owned(), |(own, this)| words::short(own / this))
    };
    let ratios = [ratio(|of| of.ops_s), ratio(|of| of.mean_ms)];
    [leading(line), ratios.to_vec()].concat()
}
