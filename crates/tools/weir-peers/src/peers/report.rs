//! Formats the tables of the benchmark as Markdown.
//!
//! `document` writes the tables into a document.
//!
//! Invariants: the tables show only medians; a bar (required value) is met or missed only if its
//! figure was measured.

use std::fmt::Write;

use super::results::{Results, Sample};
use super::servers::{Kind, WEIR_MEMORY_BYTES};
use super::workload::Workload;
use crate::document::{facts_table, median, row};

pub(super) const BEGIN: &str = "<!-- bench-peers: begin -->";
pub(super) const END: &str = "<!-- bench-peers: end -->";

/// Text in place of a figure that was not measured.
const NONE: &str = "-";

/// Maximum resident memory of Weir, as a fraction of `--memory`.
const RSS_RATIO_MAX: f64 = 1.1;
/// Maximum CPU use of an idle server, in percent of a core.
const IDLE_PERCENT_MAX: f64 = 1.0;
/// Maximum time of an import after SIGKILL, in seconds.
const IMPORT_SECONDS_MAX: f64 = 5.0;

const WORDS: &str = "\
Each cell: the median of the rounds, and the microseconds of CPU (user and system, all threads) \
that the server used per operation. *Ratio*: Weir's median by the best peer's, in brackets the \
lowest and highest of the rounds. *QD*: requests in flight. *Warm*: every block was read before. \
Before the first line every server was written to for a while, so that none pays for memory that \
was never touched. \
*Flush every 32*: one flush per 32 writes, from a replayed log, since fio's own `fsync=32` sends \
nearly one per write at QD32. *Client CPU*: the highest share of a core that fio used in that \
line; near 100 % it is the client that is measured. Weir stores each block twice (a mirror of two \
files), with checksums and lz4 on; the peers store it once. Written data is random. One client, \
one connection, a unix socket, volumes of 1 GiB on the same disk.
";

/// Formats all tables.
pub(super) fn markdown(results: &Results, kinds: &[Kind], workloads: &[&Workload]) -> String {
    let mut text = String::new();
    if results.quick {
        text.push_str("Quick run: one round of short runs, a look and not a result.\n\n");
    }
    if results.cut_off {
        text.push_str("The time was up before all rounds were done.\n\n");
    }
    text.push_str(&throughput(results, kinds, workloads));
    text.push('\n');
    text.push_str(WORDS);
    text.push('\n');
    text.push_str(&itself(results, kinds, workloads));
    text.push('\n');
    text.push_str(&facts_table(&results.machine));
    text
}

fn throughput(results: &Results, kinds: &[Kind], workloads: &[&Workload]) -> String {
    let mut text = String::from("| workload |");
    for kind in kinds {
        write!(text, " {} |", kind.title()).expect("a String takes every write");
    }
    text.push_str(" ratio | bar | client CPU |\n|");
    text.push_str(&" --- |".repeat(kinds.len() + 4));
    text.push('\n');
    for workload in workloads {
        let mut cells = vec![workload.title.to_owned()];
        cells.extend(kinds.iter().map(|kind| cell(workload, &samples(results, workload, *kind))));
        let ratio = ratio(results, workload);
        let shown = |(mid, low, high): (f64, f64, f64)| format!("{mid:.2} ({low:.2} to {high:.2})");
        cells.push(ratio.map_or(NONE.to_owned(), shown));
        let verdict = ratio.map_or(NONE, |(mid, ..)| met(mid >= workload.ratio_min));
        cells.push(format!(">= {}: {verdict}", workload.ratio_min));
        let client = results.samples.iter().filter(|sample| sample.workload == workload.name);
        let client = client.map(|sample| sample.client_cpu_percent).fold(0.0, f64::max);
        cells.push(format!("{client:.0} %"));
        row(&mut text, &cells);
    }
    text
}

/// Formats the figures that are not throughput, with comparable figures of the other servers.
fn itself(results: &Results, kinds: &[Kind], workloads: &[&Workload]) -> String {
    let mut text = String::from("| figure | measured | bar |\n| --- | --- | --- |\n");
    for workload in workloads {
        let Some(bar) = workload.cpu_us_max else { continue };
        let used = samples(results, workload, Kind::Weir);
        let used = median(used.iter().map(|sample| sample.server_cpu_us_per_op));
        let name = format!("Weir's CPU per operation: {}", workload.title);
        figure(&mut text, name, used, |us| format!("{us:.1} us"), "us", bar);
    }
    let rss = |kind: Kind| {
        let of = results.samples.iter().filter(|sample| sample.server == kind.name());
        of.map(|sample| sample.server_rss_bytes_max).max()
    };
    let ratio = rss(Kind::Weir).map(|bytes| bytes as f64 / WEIR_MEMORY_BYTES as f64);
    let name = "Weir's resident memory, highest, by `--memory`".to_owned();
    figure(&mut text, name, ratio, |ratio| format!("{ratio:.2}"), "", RSS_RATIO_MAX);
    let idle = |kind: Kind| {
        let of = results.figures.idle_cpu_percent.iter().find(|(name, _)| *name == kind.name());
        of.map(|(_, percent)| *percent)
    };
    let percent = |value: f64| format!("{value:.1} %");
    figure(&mut text, "Weir idle".to_owned(), idle(Kind::Weir), percent, "%", IDLE_PERCENT_MAX);
    let import = results.figures.import_seconds.iter().copied().reduce(f64::max);
    let name = "Weir's import after SIGKILL under load, longest".to_owned();
    figure(&mut text, name, import, |s| format!("{s:.2} s"), "s", IMPORT_SECONDS_MAX);
    for kind in kinds.iter().filter(|kind| **kind != Kind::Weir) {
        let rss = rss(*kind).map_or(NONE.to_owned(), |bytes| format!("{} MiB", bytes >> 20));
        let idle = idle(*kind).map_or(NONE.to_owned(), percent);
        let name = format!("{}: resident memory (page cache apart), idle CPU", kind.title());
        row(&mut text, &[name, format!("{rss}, {idle}"), String::new()]);
    }
    text
}

/// Formats the table row of a figure that has a maximum.
fn figure(
    text: &mut String,
    name: String,
    value: Option<f64>,
    show: impl Fn(f64) -> String,
    unit: &str,
    bar: f64,
) {
    let verdict = value.map_or(NONE, |value| met(value <= bar));
    let bar = format!("{bar} {unit}");
    let cells =
        [name, value.map_or(NONE.to_owned(), show), format!("<= {}: {verdict}", bar.trim())];
    row(text, &cells);
}

fn met(is_met: bool) -> &'static str {
    if is_met { "met" } else { "**missed**" }
}

fn samples<'a>(results: &'a Results, workload: &Workload, kind: Kind) -> Vec<&'a Sample> {
    let fits = |s: &&Sample| s.workload == workload.name && s.server == kind.name();
    results.samples.iter().filter(fits).collect()
}

fn cell(workload: &Workload, samples: &[&Sample]) -> String {
    let rate = |sample: &&Sample| {
        if workload.streams() { sample.mib_per_second } else { sample.ops_per_second }
    };
    let cpu = median(samples.iter().map(|sample| sample.server_cpu_us_per_op));
    let (Some(rate), Some(cpu)) = (median(samples.iter().map(rate)), cpu) else {
        return NONE.to_owned();
    };
    if workload.streams() {
        format!("{rate:.0} MiB/s, {cpu:.0} us")
    } else if rate >= 10_000.0 {
        format!("{:.1} k/s, {cpu:.1} us", rate / 1000.0)
    } else {
        format!("{rate:.0} /s, {cpu:.1} us")
    }
}

/// Ratio of Weir to the best other server: the ratio of their medians, then the minimum and maximum
/// of the ratios in the single rounds.
fn ratio(results: &Results, workload: &Workload) -> Option<(f64, f64, f64)> {
    let rates = |kind| -> Vec<(usize, f64)> {
        let samples = samples(results, workload, kind);
        samples.iter().map(|sample| (sample.round, sample.ops_per_second)).collect()
    };
    let mid = |rates: &[(usize, f64)]| median(rates.iter().map(|(_, rate)| *rate));
    let peers = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Weir).map(rates);
    let (best, best_mid) = peers
        .filter_map(|rates| mid(&rates).map(|mid| (rates, mid)))
        .max_by(|a, b| a.1.total_cmp(&b.1))?;
    let weir = rates(Kind::Weir);
    let by_round = weir.iter().filter_map(|(round, rate)| {
        let peer = best.iter().find(|(other, _)| other == round)?;
        Some(rate / peer.1)
    });
    let (low, high) = by_round.fold((f64::MAX, 0.0_f64), |(l, h), r| (l.min(r), h.max(r)));
    Some((mid(&weir)? / best_mid, low, high))
}

#[cfg(test)]
mod tests {
    use super::super::workload::WORKLOADS;
    use super::*;

    fn sample(server: Kind, round: usize, ops_per_second: f64) -> Sample {
        Sample {
            workload: WORKLOADS[0].name,
            server: server.name(),
            round,
            ops: 1000,
            flushes: 0,
            seconds: 1.0,
            ops_per_second,
            mib_per_second: 4.0,
            latency_p99_us: 1.0,
            server_cpu_us_per_op: 5.0,
            client_cpu_percent: 20.0,
            server_rss_bytes_max: 1 << 20,
        }
    }

    fn results(weir: [f64; 3]) -> Results {
        let mut results = Results::default();
        for (round, rate) in weir.into_iter().enumerate() {
            results.samples.push(sample(Kind::Weir, round, rate));
            results.samples.push(sample(Kind::Nbdkit, round, 10_000.0));
            results.samples.push(sample(Kind::QemuNone, round, 9_000.0));
        }
        results
    }

    #[test]
    fn ratio_to_the_best_peer_decides_the_bar() {
        let line = |weir| {
            let results = results(weir);
            throughput(&results, &Kind::ALL, &[&WORKLOADS[0]]).lines().last().unwrap().to_owned()
        };
        let good = line([16_000.0, 20_000.0, 14_000.0]);
        assert!(good.contains("1.60 (1.40 to 2.00)") && good.contains(">= 1.5: met"), "{good}");
        let bad = line([14_000.0; 3]);
        assert!(bad.contains(">= 1.5: **missed**"), "{bad}");
    }

    #[test]
    fn unmeasured_figures_neither_meet_nor_miss_a_bar() {
        let mut results = results([1.0; 3]);
        results.samples.retain(|sample| sample.server != "weir");
        let text = markdown(&results, &Kind::ALL, &[&WORKLOADS[0], &WORKLOADS[1]]);
        assert!(!text.contains(": met") && !text.contains("missed"), "{text}");
    }
}
