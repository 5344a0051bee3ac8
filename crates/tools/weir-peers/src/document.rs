//! Markdown that all benchmarks share: common tables, and the position of tables in a document.
//!
//! Each benchmark formats its own tables.
//!
//! Invariant: text outside the markers of a document never changes.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use weir_command::command;

/// Formats the facts about the machine as a table.
pub(crate) fn facts_table(facts: &[(String, String)]) -> String {
    let mut text = String::from("| machine | |\n| --- | --- |\n");
    for (name, value) in facts {
        row(&mut text, &[name.clone(), value.clone()]);
    }
    text
}

pub(crate) fn row(text: &mut String, cells: &[String]) {
    writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes every write");
}

/// Formats `value` with its bar (the required value) and the verdict.
pub(crate) fn judged(value: f64, met: bool, bar: &str) -> String {
    let verdict = if met { "met" } else { "**missed**" };
    let decimals = if value.abs() >= 1000.0 { 0 } else { 2 };
    format!("{value:.decimals$} ({bar}: {verdict})")
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (upper, lower) = (values.get(values.len() / 2)?, values.get(values.len().div_ceil(2) - 1)?);
    Some(f64::midpoint(*upper, *lower))
}

/// Ratios of two servers' rates over all rounds: median, minimum and maximum. Each rate has the
/// number of its round.
pub(crate) fn ratios(ours: &[(usize, f64)], theirs: &[(usize, f64)]) -> Option<(f64, f64, f64)> {
    let by_round = |(round, ours): &(usize, f64)| {
        let (_, theirs) = theirs.iter().find(|(other, _)| other == round)?;
        Some(ours / theirs)
    };
    let all: Vec<f64> = ours.iter().filter_map(by_round).collect();
    let least = all.iter().copied().reduce(f64::min)?;
    let greatest = all.iter().copied().reduce(f64::max)?;
    Some((median(all.into_iter())?, least, greatest))
}

/// Formats ratios and the verdict on the bar `min` as two table cells.
pub(crate) fn ratio_cells(ratio: Option<(f64, f64, f64)>, min: f64) -> (String, String) {
    let Some((middle, least, greatest)) = ratio else { return ("-".to_owned(), "-".to_owned()) };
    let verdict = if middle >= min { "met" } else { "**missed**" };
    (format!("{middle:.2} ({least:.2} to {greatest:.2})"), format!(">= {min}: {verdict}"))
}

/// Writes text between the markers of a document. A new document also gets a title.
pub(crate) fn write_between(out: &Path, markers: (&str, &str), text: &str) -> Result<()> {
    let file = command::root().join(out);
    let name = file.display().to_string();
    let (begin, end) = markers;
    let old = if file.exists() {
        std::fs::read_to_string(&file).with_context(|| name.clone())?
    } else {
        format!("# Performance\n\n{begin}\n{end}\n")
    };
    let new = replace(&old, markers, text).with_context(|| name.clone())?;
    std::fs::write(&file, new).with_context(|| name)
}

fn replace(document: &str, (begin, end): (&str, &str), text: &str) -> Result<String> {
    let (before, rest) = document.split_once(begin).context("no begin marker")?;
    let Some((_, after)) = rest.split_once(end) else {
        bail!("no end marker after the begin marker");
    };
    Ok(format!("{before}{begin}\n{}\n{end}{after}", text.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- begin -->";
    const END: &str = "<!-- end -->";

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0].into_iter()), Some(2.5));
        assert_eq!(median(std::iter::empty()), None);
    }

    #[test]
    fn ratio_compares_rates_of_one_round() {
        let (ours, theirs) = ([(0, 10.0), (1, 30.0)], [(1, 20.0), (0, 10.0)]);
        assert_eq!(ratios(&ours, &theirs), Some((1.25, 1.0, 1.5)));
        assert_eq!(ratio_cells(ratios(&ours, &theirs), 1.25).1, ">= 1.25: met");
        assert_eq!(ratio_cells(ratios(&ours, &theirs), 1.3).1, ">= 1.3: **missed**");
        assert_eq!(ratios(&ours, &[]), None);
    }

    #[test]
    fn only_the_part_between_the_markers_changes() {
        let document = format!("a\n{BEGIN}\nold\n{END}\nz\n");
        assert_eq!(
            replace(&document, (BEGIN, END), "new\n").unwrap(),
            format!("a\n{BEGIN}\nnew\n{END}\nz\n")
        );
        assert!(replace("a", (BEGIN, END), "new").is_err());
        assert!(replace(&format!("{END}{BEGIN}"), (BEGIN, END), "new").is_err());
    }
}
