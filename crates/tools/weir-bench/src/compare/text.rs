//! Formats comparisons and reruns as text for a terminal.
//!
//! `compare` and `rerun` decide the contents of the text.
//!
//! Invariant: each figure is printed with the verdicts on its cell in the old run and in the new
//! run.

use super::{Comparison, Figure, Rerun};
use crate::words;

pub(super) fn comparison(found: &Comparison) -> String {
    let mut out = format!("old: {}\nnew: {}\n", found.old, found.new);
    list(&mut out, "Ranking is refused:", &found.refused);
    for cell in &found.cells {
        let verdicts = format!("old {}, new {}", cell.old_verdict, cell.new_verdict);
        row(&mut out, &format!("\n{} ({verdicts})", cell.name));
        for figure in &cell.figures {
            let word = figure.word.map_or("not ranked", super::Word::name);
            row(&mut out, &format!("  {}: {word}", values(figure)));
        }
        let own = cell.refused.iter().filter(|reason| !found.refused.contains(reason));
        own.for_each(|reason| {
            row(&mut out, &format!("  not ranked: {reason}"));
        });
    }
    list(&mut out, "Cells without a counterpart:", &found.unmatched);
    list(&mut out, "Other differences:", &found.differences);
    out
}

pub(super) fn rerun(found: &Rerun) -> String {
    let mut out = format!("{}\n", found.answer.name());
    list(&mut out, "Because:", found.reason.as_slice());
    for cell in &found.cells {
        let verdicts = format!("old {}, new {}", cell.old_verdict, cell.new_verdict);
        row(&mut out, &format!("\n{} ({verdicts}): {}", cell.name, cell.answer.name()));
        if let Some(figure) = &cell.figure {
            row(&mut out, &format!("  {}", values(figure)));
        }
        if let Some(reason) = &cell.reason {
            row(&mut out, &format!("  {reason}"));
        }
    }
    list(&mut out, "Differences:", &found.differences);
    out
}

fn values(figure: &Figure) -> String {
    let value = |value: f64| match figure.unit {
        "us" => format!("{} ms", words::ms(value)),
        "KiB/s" | "per s" => format!("{} {}", words::number(value), figure.unit),
        _ => words::number(value),
    };
    let ratio = figure.ratio.map_or_else(
        || "too few runs for a ratio".to_owned(),
        |found| format!("{:.3} times (95 %: {:.3} to {:.3})", found.ratio, found.low, found.high),
    );
    format!("{} {} -> {}, {ratio}", figure.name, value(figure.old), value(figure.new))
}

fn list(out: &mut String, head: &str, lines: &[String]) {
    if !lines.is_empty() {
        row(out, &format!("\n{head}"));
        lines.iter().for_each(|line| {
            row(out, &format!("- {line}"));
        });
    }
}

fn row(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}
