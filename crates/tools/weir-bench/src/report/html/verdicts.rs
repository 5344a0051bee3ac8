//! Formats the conclusions, the requirement and the verdicts: whether the target is fast enough,
//! and which figures are valid.
//!
//! `conclusions` has the sentences; `cell` has the figures of the cells.
//!
//! Invariant: the section lists every cell, with the action for the user if the cell is not valid.

use maud::{Markup, html};

use super::{chip, outcome};
use crate::report::{conclusions, facts, rows};
use crate::requirement::{self, Assessment, CellAssessment};
use crate::verdict::JudgedRun;
use crate::words;

/// Formats the conclusions, with which the report begins.
pub(super) fn conclusions(run: &JudgedRun) -> Markup {
    html! {
        section id="conclusions" {
            h2 { "Conclusions" }
            ul { @for sentence in conclusions::conclusions(run) { li { (sentence) } } }
            @if !run.result().complete {
                p.warn { "This run is incomplete. Missing rows were not measured." }
            }
        }
    }
}

/// Formats the requirement and the verdict on each cell.
pub(super) fn section(run: &JudgedRun) -> Markup {
    html! {
        @if let Some(assessment) = requirement::assess(run) { (of_requirement(run, &assessment)) }
        section id="verdicts" {
            h2 { "Verdicts" }
            p { (facts::counted(run)) }
            div.scroll { table {
                thead { tr {
                    th.name scope="col" { "cell" }
                    th scope="col" { "verdict" }
                    th.num scope="col" { "IOPS" }
                    th.num scope="col" { "mean ms" }
                    th scope="col" { "why, and what to do" }
                } }
                tbody { @for index in 0..run.cells().len() { (row(run, index)) } }
            } }
        }
    }
}

fn row(run: &JudgedRun, index: usize) -> Markup {
    let (cell, judged) = (&run.result().cells[index], &run.cells()[index]);
    let figures = rows::headline(cell, judged);
    let measured = figures.runs > 0;
    html! { tr {
        th.name scope="row" { a href={ "#cell-" (index) } { (cell.spec.name) } }
        td { (chip(judged.verdict())) }
        td.num { @if measured { (words::number(figures.iops.median)) } @else { "n/a" } }
        td.num { @if measured { (words::ms(figures.latency.mean_us)) } @else { "n/a" } }
        td.why {
            @for remark in &judged.remarks {
                div {
                    b { (remark.finding.name()) } ": " (remark.detail) " "
                    span.action { "To do: " (remark.action) }
                }
            }
            @if let Some(failure) = &cell.failure { div { (failure) } }
        }
    } }
}

fn of_requirement(run: &JudgedRun, assessment: &Assessment) -> Markup {
    html! { section.requirement id="requirement" {
        h2 { "Requirement: " (outcome(assessment.outcome)) }
        p { (facts::decided(assessment)) }
        div.scroll { table {
            thead { tr {
                th.name scope="col" { "cell" }
                th scope="col" { "verdict" }
                @for head in facts::CRITERION_HEADS { th scope="col" { (head) } }
            } }
            @for cell in &assessment.cells { (of_cell(run, cell)) }
        } }
    } }
}

fn of_cell(run: &JudgedRun, cell: &CellAssessment) -> Markup {
    let name = &run.result().cells[cell.cell].spec.name;
    let lines = facts::criteria(cell);
    html! { tbody {
        @for line in &lines { tr {
            th.name scope="row" { a href={ "#cell-" (cell.cell) } { (name) } }
            td { (chip(cell.verdict)) }
            @for (index, field) in line.iter().enumerate() {
                td.num[(1..4).contains(&index)] .name[index == 0] .why[index == 5] {
                    @if index == 4 { b { (field) } } @else { (field) }
                }
            }
        } }
        @if let Some(reason) = &cell.reason { tr {
            th.name scope="row" { a href={ "#cell-" (cell.cell) } { (name) } }
            td { (chip(cell.verdict)) }
            td colspan="6" { (outcome(cell.outcome)) " because " (reason) }
        } }
    } }
}
