//! Formats the tables of the NFS part as Markdown.
//!
//! `document` writes the tables into a document.
//!
//! Invariants: the tables show only medians; a bar (required value) is met or missed only if its
//! figure was measured.

use std::fmt::Write as _;

use super::load::{Kind, Sample};
use super::rows::{self, Group, MATRIX, MATRIX_KIB, MATRIX_MIN, Names, Row, Unit};
use crate::document::{judged, median, ratio_cells, ratios, row};

pub(super) const BEGIN: &str = "<!-- bench-nfs: begin -->";
pub(super) const END: &str = "<!-- bench-nfs: end -->";

/// Minimum ratio of the time in which Ganesha creates and removes a file to Weir's time.
const CREATE_REMOVE_MIN: f64 = 2.0;

const WORDS: &str = "\
Each cell: the median of the rounds, and the microseconds of CPU (user and system, all threads) \
that the server used per operation; kernel threads, which write back ext4's pages, are not \
included. *Ratio*: the median of the ratios of Weir's rate to Ganesha's in each round, in \
brackets the lowest and highest. The client is `weir bench` for both servers, over TCP on \
loopback; client and server share the cores. *Client CPU*: the most of a core that the client \
used in a row. Both servers have their data on one ext4. Weir stores each block LAYOUT, with \
checksums and lz4; Ganesha (FSAL VFS) stores it once, in files of that ext4. Rows of data use \
records of 32 KiB, as the mirrors of the document 000. Random data of 256 MiB, which fits into \
the caches and was written before. *Durable*: a reply to CREATE, REMOVE or SETATTR means that \
the change survives a crash, as RFC 1813 section 4.8 requires: Weir's default. Ganesha replies \
before ext4 commits, so its directory has the flag `D` (dirsync), with which ext4 commits each \
change of a directory; its SETATTR is still not durable. *Volatile*: a crash loses the last \
seconds: Weir's `--async`, Ganesha on a plain directory. Rows of data use Weir's durable and \
Ganesha's volatile share, as both servers come. FILE_SYNC and COMMIT are durable on both sides: \
Ganesha calls fsync. UNSTABLE writes are committed every 4 MiB in the matrix, every 64 MiB in \
rows of 1 MiB, and after the measurement otherwise. *Untar*: FILES files of 8 KiB in one \
directory, once, for at most 180 s.
";

/// Results of the NFS part.
pub(super) struct Results<'a> {
    pub(super) rows: &'a [Row],
    pub(super) samples: &'a [Sample],
    pub(super) rounds: usize,
    pub(super) cut_off: bool,
    /// Copies of each block in Weir's pool, in words.
    pub(super) layout: &'a str,
    pub(super) extracted: u64,
}

/// Formats all tables.
pub(super) fn markdown(results: &Results<'_>) -> String {
    let mut text = String::new();
    if results.cut_off {
        text.push_str("The time was up before all rounds were done.\n\n");
    }
    text.push_str(&matrix(results));
    text.push('\n');
    text.push_str(&table(results));
    text.push('\n');
    let words = WORDS.replace("LAYOUT", results.layout);
    text.push_str(&words.replace("FILES", &results.extracted.to_string()));
    writeln!(text, "{} rounds.", results.rounds).expect("a String takes every write");
    text
}

fn of<'a>(results: &Results<'a>, group: Group, row: &str, server: Kind) -> Vec<&'a Sample> {
    let fits = |sample: &&Sample| {
        sample.group == group.name() && sample.row == row && sample.server == server
    };
    results.samples.iter().filter(fits).collect()
}

fn rates(samples: &[&Sample]) -> Vec<(usize, f64)> {
    samples.iter().map(|sample| (sample.round, sample.ops_per_second)).collect()
}

fn median_rate(samples: &[&Sample]) -> Option<f64> {
    median(samples.iter().map(|sample| sample.ops_per_second))
}

/// Table of the matrix, and the figure with its bar.
fn matrix(results: &Results<'_>) -> String {
    let mut text = String::from("| matrix: pattern, reads |");
    MATRIX_KIB.iter().for_each(|kib| {
        write!(text, " {kib} KiB: Ganesha, Weir, ratio |").expect("a String takes every write");
    });
    write!(text, "\n|{}\n", " --- |".repeat(MATRIX_KIB.len() + 1)).expect("as above");
    let mut all = Vec::new();
    for (pattern, reads) in MATRIX {
        for read_pct in reads {
            let cells = MATRIX_KIB.map(|kib| {
                let name = rows::cell(pattern, kib, *read_pct);
                let at = |server| of(results, Group::Matrix, &name, server);
                let (theirs, ours) = (at(Kind::Ganesha), at(Kind::Weir));
                let ratio = ratios(&rates(&ours), &rates(&theirs)).map(|(middle, ..)| middle);
                let rates = median_rate(&theirs).zip(median_rate(&ours));
                let Some((ratio, (theirs, ours))) = ratio.zip(rates) else { return "-".to_owned() };
                all.push(ratio);
                let shown = format!("{:.1}, {:.1} k/s", theirs / 1000.0, ours / 1000.0);
                let is_met = ratio >= MATRIX_MIN;
                if is_met {
                    format!("{shown}, {ratio:.2}")
                } else {
                    format!("{shown}, **{ratio:.2}**")
                }
            });
            let title = format!("{pattern}, {read_pct} %");
            row(&mut text, &[vec![title], cells.to_vec()].concat());
        }
    }
    let least = all.iter().copied().reduce(f64::min);
    if let Some((least, middle)) = least.zip(median(all.iter().copied())) {
        let met = all.iter().filter(|ratio| **ratio >= MATRIX_MIN).count();
        let verdict = judged(least, met == all.len(), &format!(">= {MATRIX_MIN}"));
        writeln!(
            text,
            "\n95 % data and 5 % metadata, 8 workers with 4 operations in flight each. Ratio of \
             the lowest cell: {verdict}; {met} of {} cells reach {MATRIX_MIN}; median of the \
             cells: {middle:.2}.",
            all.len()
        )
        .expect("a String takes every write");
    }
    text
}

/// Formats a rate in the unit of its row.
fn shown(row: &Row, rate: f64) -> String {
    match row.unit {
        Unit::MiB => format!("{rate:.0} MiB/s"),
        Unit::Thousands => format!("{:.1} k/s", rate / 1000.0),
        Unit::Entries(each) => format!("{:.0} k/s", rate * each as f64 / 1000.0),
    }
}

/// CPU time of one operation in microseconds; of one entry for listings.
fn cpu_us(row: &Row, samples: &[&Sample]) -> Option<f64> {
    let us = median(samples.iter().map(|sample| sample.server_cpu_us_per_op))?;
    Some(if let Unit::Entries(each) = row.unit { us / each as f64 } else { us })
}

fn table(results: &Results<'_>) -> String {
    let mut text = String::from(
        "| workload | a change of names is | Ganesha | Weir | ratio | bar | Weir alone | client \
         CPU |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for line in results.rows {
        let at = |server| of(results, line.group, line.name, server);
        let (theirs, ours) = (at(Kind::Ganesha), at(Kind::Weir));
        let cell = |samples: &[&Sample]| {
            let figures = median_rate(samples).zip(cpu_us(line, samples));
            figures.map_or_else(
                || "-".to_owned(),
                |(rate, us)| format!("{}, {us:.1} us", shown(line, rate)),
            )
        };
        let ratio = ratios(&rates(&ours), &rates(&theirs));
        let (ratio, bar) = ratio_cells(ratio, line.ratio_min.unwrap_or_default());
        let bar = if line.ratio_min.is_some() { bar } else { String::new() };
        let client = ours.iter().chain(&theirs).map(|sample| sample.client_cpu_percent);
        let client = client.reduce(f64::max).map_or("-".to_owned(), |most| format!("{most:.0} %"));
        let own = own_bar(line, &ours);
        row(
            &mut text,
            &[
                line.title.to_owned(),
                promise(line.group).to_owned(),
                cell(&theirs),
                cell(&ours),
                ratio,
                bar,
                own,
                client,
            ],
        );
        if line.name == "remove" {
            create_and_remove(&mut text, results, line.group);
        }
    }
    text
}

fn promise(group: Group) -> &'static str {
    match group.names() {
        Some(Names::Durable) => "durable",
        Some(Names::Volatile) => "volatile",
        None => "",
    }
}

/// Bars that only Weir has: CPU time per operation, or a rate.
fn own_bar(line: &Row, ours: &[&Sample]) -> String {
    let us = line.cpu_us_max.zip(cpu_us(line, ours));
    let cpu = us.map(|(most, us)| judged(us, us <= most, &format!("<= {most} us")));
    let each = if let Unit::Entries(each) = line.unit { each as f64 } else { 1.0 };
    let rate = line.rate_min.zip(median_rate(ours).map(|rate| rate * each));
    let rate = rate.map(|(least, rate)| judged(rate, rate >= least, &format!(">= {least}")));
    cpu.or(rate).unwrap_or_default()
}

/// Row with the rate of files that are created and removed, one after the other.
fn create_and_remove(text: &mut String, results: &Results<'_>, group: Group) {
    let both = |server| -> Vec<(usize, f64)> {
        let removed = rates(&of(results, group, "remove", server));
        let pair = |(round, created): (usize, f64)| {
            let (_, removed) = removed.iter().find(|(other, _)| *other == round)?;
            Some((round, 1.0 / (1.0 / created + 1.0 / removed)))
        };
        rates(&of(results, group, "create", server)).into_iter().filter_map(pair).collect()
    };
    let (theirs, ours) = (both(Kind::Ganesha), both(Kind::Weir));
    let (ratio, bar) = ratio_cells(ratios(&ours, &theirs), CREATE_REMOVE_MIN);
    let cell = |rates: &[(usize, f64)]| {
        let rate = median(rates.iter().map(|(_, rate)| *rate));
        rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1} k/s", rate / 1000.0))
    };
    let title = "create and remove a file".to_owned();
    let (theirs, ours, none) = (cell(&theirs), cell(&ours), String::new());
    row(text, &[title, promise(group).to_owned(), theirs, ours, ratio, bar, none.clone(), none]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(group: Group, row: &str, server: Kind, rate: f64, us: f64) -> Sample {
        Sample {
            group: group.name(),
            row: row.to_owned(),
            server,
            round: 0,
            ops_per_second: rate,
            server_cpu_us_per_op: us,
            client_cpu_percent: 50.0,
            seconds: 1.0,
        }
    }

    fn text(samples: &[Sample]) -> String {
        let rows = rows::rows(100);
        let (rounds, cut_off, layout, extracted) = (1, false, "twice", 100);
        markdown(&Results { rows: &rows, samples, rounds, cut_off, layout, extracted })
    }

    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn bars_are_judged_by_ratio_rate_and_cpu() {
        let durable = Group::Names(Names::Durable);
        let volatile = Group::Names(Names::Volatile);
        let cell = rows::cell("random", 8, 75);
        let text = text(&[
            sample(Group::Matrix, &cell, Kind::Ganesha, 1000.0, 9.0),
            sample(Group::Matrix, &cell, Kind::Weir, 1900.0, 9.0),
            sample(Group::Small, "getattr", Kind::Ganesha, 1000.0, 9.0),
            sample(Group::Small, "getattr", Kind::Weir, 3000.0, 4.5),
            sample(durable, "create", Kind::Ganesha, 1000.0, 9.0),
            sample(durable, "remove", Kind::Ganesha, 1000.0, 9.0),
            sample(durable, "create", Kind::Weir, 1000.0, 9.0),
            sample(durable, "remove", Kind::Weir, 3000.0, 9.0),
            sample(volatile, "readdirplus", Kind::Weir, 50.0, 50_000.0),
        ]);
        let matrix = line(&text, "| random, 75 % |");
        assert!(matrix.contains("| 1.0, 1.9 k/s, **1.90** |"), "{matrix}");
        assert!(text.contains("1.90 (>= 2: **missed**); 0 of 1 cells"), "{text}");
        let getattr = line(&text, "| GETATTR");
        assert!(
            getattr.contains("3.00 (3.00 to 3.00) |  | 4.50 (<= 4 us: **missed**)"),
            "{getattr}"
        );
        let both = line(&text, "| create and remove a file | durable |");
        assert!(
            both.contains("| 0.5 k/s | 0.8 k/s | 1.50 (1.50 to 1.50) | >= 2: **missed**"),
            "{both}"
        );
        let listed = line(&text, "| READDIRPLUS");
        assert!(listed.contains("| 250 k/s, 10.0 us |"), "{listed}");
        assert!(listed.contains("| 250000 (>= 200000: met) |"), "{listed}");
    }

    #[test]
    fn unmeasured_figures_neither_meet_nor_miss_a_bar() {
        let text = text(&[]);
        assert!(!text.contains(": met") && !text.contains("missed"), "{text}");
    }
}
