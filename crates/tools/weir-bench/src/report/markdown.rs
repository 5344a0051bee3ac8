//! Formats `report.md`: the report for a terminal, a pull request or a wiki.
//!
//! The Markdown report has no charts.
//!
//! Invariants: the sections have the same order as in the HTML report; no text can break a table.

use super::rows::{self, Table};
use super::{conclusions, facts, published};
use crate::requirement::{self, Assessment};
use crate::verdict::JudgedRun;

/// Formats the whole Markdown document.
pub(super) fn document(run: &JudgedRun) -> String {
    let mut out = String::new();
    line(&mut out, &format!("# {}", facts::title(run)));
    line(&mut out, &facts::subtitle(run));
    list(&mut out, "Conclusions", &conclusions::conclusions(run));
    let headline = facts::beside_headline(run).into_iter();
    let headline: Vec<String> = headline.map(|(name, value)| format!("{name}: {value}")).collect();
    list(&mut out, "Target and conditions", &headline);
    line(&mut out, "## Tables");
    for table in rows::tables(run) {
        of_table(&mut out, &table);
    }
    let published = published::published(run);
    if !published.tables.is_empty() {
        line(&mut out, "## Published rows");
        published.notes.iter().for_each(|note| row(&mut out, &format!("- {}", field(note))));
        out.push('\n');
        published.tables.iter().for_each(|table| of_table(&mut out, table));
    }
    sizes(&mut out, run);
    if let Some(assessment) = requirement::assess(run) {
        of_assessment(&mut out, run, &assessment);
    }
    verdicts(&mut out, run);
    for (title, facts) in facts::facts(run) {
        line(&mut out, &format!("## {title}"));
        for (name, value) in facts {
            row(&mut out, &format!("- {}: {}", field(&name), field(&value)));
        }
        out.push('\n');
    }
    out
}

fn list(out: &mut String, title: &str, lines: &[String]) {
    line(out, &format!("## {title}"));
    lines.iter().for_each(|text| row(out, &format!("- {}", field(text))));
    out.push('\n');
}

fn line(out: &mut String, text: &str) {
    row(out, text);
    out.push('\n');
}

fn of_assessment(out: &mut String, run: &JudgedRun, assessment: &Assessment) {
    line(out, &format!("## Requirement: {}", assessment.outcome.name()));
    line(out, &facts::decided(assessment));
    let heads = ["cell", "verdict", "criterion", "need", "got", "headroom", "outcome", "note"];
    let mut lines = Vec::new();
    for cell in &assessment.cells {
        let name = &run.result().cells[cell.cell].spec.name;
        for found in facts::criteria(cell) {
            let mut fields = vec![name.clone(), cell.verdict.to_owned()];
            fields.extend(found);
            lines.push(fields);
        }
    }
    table(out, &heads, &lines);
}

fn verdicts(out: &mut String, run: &JudgedRun) {
    line(out, "## Verdicts");
    line(out, &facts::counted(run));
    let mut lines = Vec::new();
    for (cell, judged) in run.result().cells.iter().zip(run.cells()) {
        let name = cell.spec.name.clone();
        if judged.remarks.is_empty() {
            lines.push(vec![name.clone(), "valid".to_owned(), String::new(), String::new()]);
        }
        for remark in &judged.remarks {
            let verdict = remark.finding.name().to_owned();
            lines.push(vec![name.clone(), verdict, remark.detail.clone(), remark.action.clone()]);
        }
    }
    table(out, &["cell", "verdict", "why", "what to do"], &lines);
}

fn of_table(out: &mut String, content: &Table) {
    line(out, &format!("### {}", content.title));
    let heads = ["cell", "verdict"].into_iter().chain(content.heads.iter().map(String::as_str));
    let rows = content.rows.iter().map(|row| {
        let start = [row.name.clone(), row.verdict.to_owned()];
        start.into_iter().chain(row.figures.iter().cloned()).collect()
    });
    table(out, &heads.collect::<Vec<_>>(), &rows.collect::<Vec<_>>());
    for note in &content.notes {
        row(out, &format!("- {}", field(note)));
    }
    if !content.notes.is_empty() {
        out.push('\n');
    }
}

fn sizes(out: &mut String, run: &JudgedRun) {
    let rows = facts::size_rows(run);
    if !rows.is_empty() {
        line(out, "## Sizing");
        table(out, &facts::SIZE_HEADS, &rows);
    }
}

pub(super) fn table(out: &mut String, heads: &[&str], rows: &[Vec<String>]) {
    row(out, &format!("| {} |", heads.join(" | ")));
    row(out, &format!("|{}", " --- |".repeat(heads.len())));
    for fields in rows {
        let fields: Vec<String> = fields.iter().map(|value| field(value)).collect();
        row(out, &format!("| {} |", fields.join(" | ")));
    }
    out.push('\n');
}

fn row(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

/// Escapes a field of a table. Names come from profiles and systems; a bar, a line break or a tag
/// in a name must not change the document.
pub(super) fn field(value: &str) -> String {
    let escaped = value.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;");
    escaped.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_break_a_table() {
        assert_eq!(field("a|b\nc<d"), "a\\|b c&lt;d");
    }
}
