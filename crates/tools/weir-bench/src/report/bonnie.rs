//! Table of the bonnie test, with columns for the published rows.
//!
//! The module `bonnie` of the crate computes figures and verdicts; `html` and `markdown` format the
//! table.
//!
//! Invariants: the phases have the order of bonnie++, and each has its verdict; a ratio to
//! published rows is labelled "shape, not rank", because the published hardware differs.

use super::rows::{Row, Table};
use crate::bonnie::{BonnieResult, Column, Phase};
use crate::reference::{self, BonnieFigure, Published};
use crate::summary::Spread;
use crate::verdict::JudgedRun;
use crate::words;

const HEADS: [&str; 7] = ["unit", "median", "min to max", "CV %", "CPU %", "longest ms", "runs"];
const PUBLISHED_HEADS: [&str; 5] = [
    "published median",
    "published min to max",
    "published CPU %",
    "published longest ms",
    "ratio (shape, not rank)",
];

/// Builds the table of the bonnie test; `None` if the run contains no bonnie test.
pub(super) fn table(run: &JudgedRun) -> Option<Table> {
    let result = run.result().bonnie.as_ref()?;
    let published = run.result().spec.reference.as_deref().and_then(|name| {
        let published = reference::load(name).ok()?;
        (!published.bonnie.is_empty()).then_some(published)
    });
    let columns = run.bonnie();
    let row = |column: &Column| Row {
        name: column.phase.label().to_owned(),
        cell: None,
        verdict: column.verdict(),
        figures: figures(result, column, published.as_ref()),
    };
    let mut title = "File test in the manner of bonnie++ 1.96".to_owned();
    let mut heads = HEADS.to_vec();
    if let Some(published) = &published {
        let (runs, name) = (published.bonnie.len(), &published.name);
        let beside = format!("next to {runs} published runs of {name}");
        title = format!("{title}, {beside}: other hardware: shape, not rank");
        heads.extend(PUBLISHED_HEADS);
    }
    Some(Table {
        title,
        heads: heads.into_iter().map(str::to_owned).collect(),
        rows: columns.iter().map(row).collect(),
        cells: Vec::new(),
        notes: notes(result, &columns, published.as_ref()),
    })
}

fn figures(result: &BonnieResult, column: &Column, published: Option<&Published>) -> Vec<String> {
    let maybe = |figure: Option<f64>| figure.map_or_else(|| "n/a".to_owned(), words::number);
    let mut figures = vec![
        column.phase.unit().to_owned(),
        words::number(column.rate.median),
        range(&column.rate),
        maybe(column.cv_pct),
        words::number(column.cpu_pct),
        words::ms(column.latency_us),
        result.runs.len().to_string(),
    ];
    let Some(published) = published else { return figures };
    let of = |figure: fn(BonnieFigure) -> Option<f64>| -> Vec<f64> {
        let rows = published.bonnie.iter();
        rows.filter_map(|row| figure(row.figure(column.phase))).collect()
    };
    let rates = of(|figure| figure.rate);
    if rates.is_empty() {
        figures.extend(["too fast to be timed", "-", "-", "-", "-"].map(str::to_owned));
        return figures;
    }
    let rate = Spread::of(&rates);
    let longest = of(|figure| figure.latency_us).into_iter().reduce(f64::max);
    figures.extend([
        words::number(rate.median),
        range(&rate),
        maybe(crate::stats::median(&of(|figure| figure.cpu_pct))),
        longest.map_or_else(|| "n/a".to_owned(), words::ms),
        words::number(column.rate.median / rate.median),
    ]);
    figures
}

fn range(rate: &Spread) -> String {
    format!("{} to {}", words::number(rate.min), words::number(rate.max))
}

/// Notes on the bonnie test, remarks on its phases, and notes on the published runs.
fn notes(result: &BonnieResult, columns: &[Column], published: Option<&Published>) -> Vec<String> {
    let mut notes = result.notes.clone();
    notes.extend(result.failure.iter().map(|why| format!("ended early: {why}")));
    let mut said: Vec<(String, Vec<Phase>)> = Vec::new();
    for column in columns {
        for remark in &column.remarks {
            let (finding, detail) = (remark.finding.name(), &remark.detail);
            let text = format!("{finding}: {detail}; {}", remark.action);
            match said.iter_mut().find(|(other, _)| *other == text) {
                Some((_, phases)) => phases.push(column.phase),
                None => said.push((text, vec![column.phase])),
            }
        }
    }
    notes.extend(said.into_iter().map(|(text, phases)| match phases.len() {
        all if all == columns.len() => text,
        _ => {
            let labels: Vec<&str> = phases.iter().map(|phase| phase.label()).collect();
            format!("{text} ({})", labels.join(", "))
        }
    }));
    let theirs = published.iter().flat_map(|published| &published.bonnie_notes);
    notes.extend(theirs.map(|note| format!("published: {note}")));
    notes
}
