//! Formats `report.html`: one file, readable without a network and without scripts, light and dark.
//!
//! `facts` has the texts, `rows` the figures of the tables, `chart` the charts.
//!
//! Invariants: the template escapes all text that comes from a result; the page loads no other
//! file.

mod cell;
mod verdicts;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{self, Chart};
use super::rows::{self, Row, Table};
use super::{ReportError, facts, plots, published};
use crate::requirement::Outcome;
use crate::result::PhaseResult;
use crate::verdict::JudgedRun;
use crate::words;

const STYLE: &str = include_str!("style.css");

/// Formats the whole HTML document.
pub(super) fn document(run: &JudgedRun) -> Result<String, ReportError> {
    let title = facts::title(run);
    let tables = rows::tables(run);
    let body = html! {
        header {
            h1 { (title) }
            p.sub { (facts::subtitle(run)) }
            nav {
                a href="#conclusions" { "Conclusions" }
                a href="#tables" { "Tables" }
                a href="#verdicts" { "Verdicts" }
                @if run.result().spec.reference.is_some() {
                    a href="#published" { "Published rows" }
                }
                a href="#cells" { "Cells" }
                a href="#facts" { "Environment and conditions" }
            }
        }
        main {
            div.first {
                (verdicts::conclusions(run))
                aside { dl { @for (name, value) in facts::beside_headline(run) {
                    dt { (name) }
                    dd { (value) }
                } } }
            }
            section id="tables" {
                h2 { "Tables" }
                @if let Some(reference) = &run.result().spec.reference {
                    p.note {
                        "Published reference: " (reference)
                        ". Other hardware: shape, not rank."
                    }
                }
                @for table in &tables { (of_table(run, table)?) }
                @for phase in &run.result().phases {
                    @if let Some(rounds) = plots::rounds(phase) {
                        (figure(&rounds, &phase.note)?)
                    } @else if !phase.rounds_iops.is_empty() {
                        p.note { (rounds_told(phase)) }
                    }
                }
                (sizing(run))
            }
            (published(run)?)
            (verdicts::section(run))
            (cell::section(run)?)
            (conditions(run))
        }
    };
    Ok(page(&title, &body))
}

/// Formats a document with this title.
pub(super) fn page(title: &str, body: &Markup) -> String {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    };
    markup.into_string()
}

/// Formats the rates of the rounds of a phase as a list.
fn rounds_told(phase: &PhaseResult) -> String {
    let rounds: Vec<String> = phase.rounds_iops.iter().map(|iops| words::number(*iops)).collect();
    let (name, rounds, note) = (&phase.name, rounds.join(", "), &phase.note);
    format!("{name}, operations per second by round: {rounds} ({note})")
}

fn of_table(run: &JudgedRun, table: &Table) -> Result<Markup, ReportError> {
    let sweep = plots::sweep(run, &table.cells);
    Ok(html! {
        h3 { (table.title) }
        div.scroll { table.figures {
            thead { tr {
                th.name scope="col" { "cell" }
                th scope="col" { "verdict" }
                @for head in &table.heads { th.num scope="col" { (head) } }
            } }
            tbody { @for row in &table.rows { (of_row(row)) } }
        } }
        @for note in &table.notes { p.note { (note) } }
        @if let Some(sweep) = sweep {
            div.charts { (figure(&sweep, &shared_verdict(run, &table.cells))?) }
        }
    })
}

/// Formats the published rows of the document that the run repeats, next to the rows of this run.
fn published(run: &JudgedRun) -> Result<Markup, ReportError> {
    let published = published::published(run);
    if published.tables.is_empty() {
        return Ok(html! {});
    }
    Ok(html! {
        section id="published" {
            h2 { "Published rows and this run" }
            ul { @for note in &published.notes { li { (note) } } }
            @for table in &published.tables { (of_table(run, table)?) }
        }
    })
}

fn of_row(row: &Row) -> Markup {
    html! { tr {
        th.name scope="row" {
            @match row.cell {
                Some(index) => a href={ "#cell-" (index) } { (row.name) },
                None => (row.name),
            }
        }
        td { (chip(row.verdict)) }
        @for figure in &row.figures { td.num { (figure) } }
    } }
}

/// Formats the verdicts on the cells of a chart as one line.
fn shared_verdict(run: &JudgedRun, cells: &[usize]) -> String {
    let spoiled = |index: &&usize| !run.cells()[**index].remarks.is_empty();
    match cells.iter().filter(spoiled).count() {
        0 => "all valid".to_owned(),
        count => format!("{count} of {} cells are not valid; see the table", cells.len()),
    }
}

/// Formats a chart with its title, verdict and legend; empty if the chart has no line to draw.
fn figure(chart: &Chart, verdict: &str) -> Result<Markup, ReportError> {
    let Some(svg) = chart::svg(chart)? else { return Ok(html! {}) };
    Ok(html! {
        figure {
            figcaption { (chart.title) " " span.of { "(" (verdict) ")" } }
            div role="img" aria-label=(chart.title) { (PreEscaped(svg)) }
            @if chart.lines.len() > 1 {
                ul.legend {
                    @for (index, line) in chart.lines.iter().enumerate() {
                        li { span class={ "key k" (index % chart::COLOURS.len()) } {} (line.name) }
                    }
                }
            }
        }
    })
}

/// Formats a verdict as a coloured label.
pub(super) fn chip(verdict: &str) -> Markup {
    let class = match verdict {
        "valid" => "good",
        "invalid" | "corrupt" | "overload" | "holes" => "bad",
        "not judged" | "stated" => "plain",
        _ => "doubt",
    };
    html! { span class={ "chip " (class) } { (verdict) } }
}

fn outcome(outcome: Outcome) -> Markup {
    let class = match outcome {
        Outcome::Pass => "good",
        Outcome::NotProven => "doubt",
        Outcome::Fail => "bad",
    };
    html! { span class={ "chip " (class) } { (outcome.name()) } }
}

fn sizing(run: &JudgedRun) -> Markup {
    let rows = facts::size_rows(run);
    html! { @if !rows.is_empty() {
        h3 { "Sizing" }
        div.scroll { table.figures {
            thead { tr { @for head in facts::SIZE_HEADS { th scope="col" { (head) } } } }
            tbody { @for row in &rows { tr {
                @for (index, field) in row.iter().enumerate() {
                    td.num[(2..5).contains(&index)] {
                        @if index == 1 { (chip(field)) } @else { (field) }
                    }
                }
            } } }
        } }
    } }
}

fn conditions(run: &JudgedRun) -> Markup {
    html! { section id="facts" {
        @for (title, facts) in facts::facts(run) {
            h2 { (title) }
            dl { @for (name, value) in facts {
                dt { (name) }
                dd { (value) }
            } }
        }
    } }
}
