//! Formats the tables of the filesystem benchmark as Markdown.
//!
//! `document` writes the tables into a document.
//!
//! Invariants: the tables show only medians; a bar (required value) is met or missed only if its
//! figure was measured.

use std::fmt::Write as _;

use super::contenders::Kind;
use super::results::{Latency, Results, Sample};
use super::rows::{FSYNC_RATIO_MAX, Row};
use crate::document::{facts_table, median, ratio_cells, ratios, row};

pub(super) const BEGIN: &str = "<!-- bench-files: begin -->";
pub(super) const END: &str = "<!-- bench-files: end -->";

/// Text in place of a figure that was not measured.
const NONE: &str = "-";
/// Text in place of the figures of a contender whose programs are missing.
const NOT_INSTALLED: &str = "not installed";

const WORDS: &str = "\
Each cell: the median of the rounds, and the microseconds of CPU (user and system, all threads) \
that the server used per file, or per MiB. *By*: the median of the ratios of Weir's rate to the \
peer's rate in each round, in brackets the lowest and highest. Client and server share the cores. \
*Create* writes 4 KiB with one call; *read* opens, reads and closes; the files are in 20 \
directories, and each of 4 processes has its own 5. *Kernel caches dropped*: names, inodes and \
the pages of files are no longer in the kernel's caches, but the caches of servers are full. \
Without the drop, the kernel answers from its caches as far as the contender allows: \
passthrough_ll for 1 s, Weir for an hour. *Sequential*: calls of 1 MiB; a write ends with fsync; \
before a read, Weir is restarted, zfs-fuse imports its pool again, and the kernel's caches are \
dropped. Weir and zfs-fuse store each block twice (a mirror of two files) with checksums and \
compression; passthrough_ll stores it once in a directory of the same ext4. Column ext4: that \
ext4 without FUSE, for orientation. Written data is random.
";

/// Formats all tables.
pub(super) fn markdown(results: &Results, kinds: &[Kind], rows: &[Row]) -> String {
    let mut text = String::new();
    if results.quick {
        text.push_str("Quick run: one round of short runs, a look and not a result.\n\n");
    }
    if results.cut_off {
        text.push_str("The time was up before all rounds were done.\n\n");
    }
    let Results { small_files, large_mib, .. } = results;
    write!(text, "{small_files} files of 4 KiB, one file of {large_mib} MiB:\n\n")
        .expect("a String takes every write");
    text.push_str(&rates(results, kinds, rows));
    text.push('\n');
    text.push_str(WORDS);
    text.push('\n');
    text.push_str(&others(results, kinds));
    text.push('\n');
    text.push_str(&facts_table(&results.machine));
    text
}

fn header(first: &str, kinds: &[Kind], last: &[&str]) -> String {
    let names = kinds.iter().map(|kind| kind.name());
    let cells: Vec<&str> = [first].into_iter().chain(names).chain(last.iter().copied()).collect();
    let line = " --- |".repeat(cells.len());
    format!("| {} |\n|{line}\n", cells.join(" | "))
}

fn rates(results: &Results, kinds: &[Kind], rows: &[Row]) -> String {
    let last = ["by passthrough_ll", "bar", "by zfs-fuse", "bar"];
    let mut text = header("workload", kinds, &last);
    for line in rows {
        let mut cells = vec![line.title.clone()];
        cells.extend(kinds.iter().map(|kind| cell(line, *kind, &samples(results, line, *kind))));
        for (peer, min) in
            [(Kind::Passthrough, line.passthrough_min), (Kind::ZfsFuse, line.zfs_min)]
        {
            let (ratio, verdict) = compared(results, line, peer, min);
            cells.extend([ratio, verdict]);
        }
        row(&mut text, &cells);
    }
    text
}

fn samples<'a>(results: &'a Results, row: &Row, kind: Kind) -> Vec<&'a Sample> {
    let fits = |sample: &&Sample| sample.row == row.name && sample.contender == kind.name();
    results.samples.iter().filter(fits).collect()
}

fn cell(row: &Row, kind: Kind, samples: &[&Sample]) -> String {
    let rate = median(samples.iter().map(|sample| sample.ops_per_second));
    let cpu = median(samples.iter().map(|sample| sample.server_cpu_us_per_op));
    let Some((rate, cpu)) = rate.zip(cpu) else { return absent(kind).to_owned() };
    let rate = if row.is_sequential {
        format!("{rate:.0} MiB/s")
    } else {
        format!("{:.1} k/s", rate / 1000.0)
    };
    if kind == Kind::Ext4 { rate } else { format!("{rate}, {cpu:.0} us") }
}

/// Text in place of a figure of this contender.
fn absent(kind: Kind) -> &'static str {
    if kind.is_installed() { NONE } else { NOT_INSTALLED }
}

/// Ratio of Weir's rate to a peer's rate, and the verdict on the bar, as two cells.
fn compared(results: &Results, row: &Row, peer: Kind, min: Option<f64>) -> (String, String) {
    let rates = |kind| -> Vec<(usize, f64)> {
        let all = samples(results, row, kind);
        all.iter().map(|sample| (sample.round, sample.ops_per_second)).collect()
    };
    let ratio = ratios(&rates(Kind::Weir), &rates(peer));
    let (shown, verdict) = ratio_cells(ratio, min.unwrap_or_default());
    (shown, if min.is_some() { verdict } else { String::new() })
}

/// Formats the figures that are not rates.
fn others(results: &Results, kinds: &[Kind]) -> String {
    let mut text = header("figure", kinds, &["bar for Weir"]);
    let mut figure = |title: &str, cell: &dyn Fn(Kind) -> Option<String>, verdict: String| {
        let cells = kinds.iter().map(|kind| cell(*kind).unwrap_or(absent(*kind).to_owned()));
        let all: Vec<String> =
            [title.to_owned()].into_iter().chain(cells).chain([verdict]).collect();
        row(&mut text, &all);
    };
    let of = |kind: Kind, value: fn(&Latency) -> f64| {
        let own = results.latencies.iter().filter(move |one| one.contender == kind.name());
        own.map(value).collect::<Vec<f64>>()
    };
    let p99 = |kind, value| median(of(kind, value).into_iter()).map(|us| format!("{us:.0} us"));
    let slowdowns = |kind| of(kind, |one| one.busy_p99_us / one.idle_p99_us);
    figure(
        "p99 of a 4 KiB write with fsync",
        &|kind| p99(kind, |one| one.idle_p99_us),
        String::new(),
    );
    figure("... during a stream", &|kind| p99(kind, |one| one.busy_p99_us), String::new());
    let slowdown = median(slowdowns(Kind::Weir).into_iter());
    let verdict =
        slowdown.map_or(NONE, |ratio| if ratio <= FSYNC_RATIO_MAX { "met" } else { "**missed**" });
    figure(
        "... by the p99 without a stream",
        &|kind| {
            let all = slowdowns(kind);
            let least = all.iter().copied().reduce(f64::min)?;
            let greatest = all.iter().copied().reduce(f64::max)?;
            let middle = median(all.into_iter())?;
            Some(format!("{middle:.2} ({least:.2} to {greatest:.2})"))
        },
        format!("<= {FSYNC_RATIO_MAX}: {verdict}"),
    );
    figure(
        "stored bytes per file of 1 KiB",
        &|kind| {
            let stored = results.stored_bytes.iter().find(|(name, _)| *name == kind.name());
            stored.map(|(_, bytes)| format!("{bytes:.0}"))
        },
        String::new(),
    );
    text.push_str(
        "\nStored bytes count one copy; for Weir and zfs-fuse they include inodes, directories \
         and metadata of the pool, for ext4 and passthrough_ll only the blocks of the files.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::*;

    fn sample(kind: Kind, round: usize, ops_per_second: f64) -> Sample {
        Sample {
            row: "create-1".to_owned(),
            contender: kind.name(),
            round,
            ops: 1000,
            seconds: 1.0,
            ops_per_second,
            server_cpu_us_per_op: 50.0,
        }
    }

    fn results(weir: f64) -> Results {
        let mut results = Results::default();
        for round in 0..3 {
            let spread = 1.0 + round as f64 / 10.0;
            results.samples.push(sample(Kind::Passthrough, round, 3000.0));
            results.samples.push(sample(Kind::Weir, round, weir * spread));
        }
        let (idle_p99_us, busy_p99_us) = (100.0, 400.0);
        let contender = Kind::Weir.name();
        results.latencies.push(Latency { contender, round: 0, idle_p99_us, busy_p99_us });
        results
    }

    #[test]
    fn ratio_of_each_row_decides_its_bar() {
        let text = markdown(&results(3000.0), &Kind::ALL, &rows());
        let line = text.lines().find(|line| line.starts_with("| create, 1 process")).unwrap();
        assert!(line.contains("3.3 k/s, 50 us"), "{line}");
        assert!(line.contains("1.10 (1.00 to 1.20) | >= 1: met"), "{line}");
        let text = markdown(&results(2000.0), &Kind::ALL, &rows());
        assert!(text.contains(">= 1: **missed**"), "{text}");
        assert!(text.contains("4.00 (4.00 to 4.00) | <= 3: **missed**"), "{text}");
    }

    #[test]
    fn unmeasured_figures_neither_meet_nor_miss_a_bar() {
        let text = markdown(&Results::default(), &Kind::ALL, &rows());
        assert!(!text.contains(": met") && !text.contains("missed"), "{text}");
    }
}
