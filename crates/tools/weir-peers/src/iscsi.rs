//! `cargo xtask bench-iscsi`: compares Weir's iSCSI target with tgt, and with Weir's NBD server.
//!
//! `peers` compares other NBD servers; tests check the conformance of the protocol.
//!
//! Invariants:
//! - one client, `weir bench`, measures the targets in turn;
//! - the table compares two targets only if an acknowledged write is equally durable on both;
//! - the table marks each missed bar (required value), and states how the figures were measured.

mod fairness;
mod load;
mod offloads;
mod rows;
mod servers;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use load::Sample;
use rows::{ROWS, Row};
use servers::{Contestant, Servers};

use crate::document::{median, ratio_cells, ratios};
use crate::place::Place;

const BEGIN: &str = "<!-- bench-iscsi: begin -->";
const END: &str = "<!-- bench-iscsi: end -->";

/// Minimum ratio of Weir's operations per second over iSCSI to those over NBD, with 4 KiB blocks at
/// QD32.
const NBD_RATIO_MIN: f64 = 0.8;

const WORDS: &str = "\
Each cell: the median of the turns, and the microseconds of CPU (user and system, all threads) \
that the server used per operation. *Ratio*: the median of the ratios of each turn, in brackets \
the lowest and highest. The client is `weir bench`, one session, over TCP on loopback; *client \
CPU* is the most of a core it used, near 100 % it is the client that is measured. *Volatile*: a \
write may be lost until the next SYNCHRONIZE CACHE, as tgt's default and Weir's `--write-cache \
on`. *Durable*: an answered write is on stable media, as Weir's default and tgt's `--bsoflags \
sync`. *Sync write*: each write is followed by SYNCHRONIZE CACHE. Weir stores each block twice (a \
mirror of two files) with checksums and lz4; tgt stores it once, in a file on the same disk. \
Random data, volumes of 1 GiB, read before: both answer reads from memory.
";

/// Length of the measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns for each load.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds for each row of a turn.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    #[command(flatten)]
    place: Place,
}

/// Runs the iSCSI benchmark.
pub(crate) fn main(args: &Args) -> Result<()> {
    args.place.tables("iscsi", (BEGIN, END), |program, data| tables(args, program, data))
}

fn tables(args: &Args, program: &Path, data: &Path) -> Result<String> {
    let servers = Servers::start(program, data)?;
    let mut samples = Vec::new();
    for round in 0..args.rounds {
        // The first target after a pause finds the disk idle, so each round begins with another
        // target.
        for turn in 0..Contestant::ALL.len() {
            let of = Contestant::ALL[(round + turn) % Contestant::ALL.len()];
            let got = load::run(program, &servers, of, args.seconds, data)?;
            for sample in &got {
                let (row, rate, cpu) = (sample.row, sample.ops_per_second, sample.cpu_us_per_op);
                let of = of.title();
                eprintln!("bench: {row} {of} {}: {rate:.0} ops/s, {cpu:.1} us", round + 1);
            }
            samples.extend(got.into_iter().map(|sample| (round, of, sample)));
        }
    }
    let mut text = peers(&samples);
    text.push('\n');
    text.push_str(&beside_nbd(&samples));
    text.push('\n');
    text.push_str(WORDS);
    text.push_str("\n| figure | measured | bar |\n| --- | --- | --- |\n");
    fairness::measure(program, &servers, data)?.rows(&mut text);
    offloads::measure(program, &servers)?.rows(&mut text);
    Ok(text)
}

type Samples = [(usize, Contestant, Sample)];

fn of<'a>(samples: &'a Samples, of: Contestant, row: &Row) -> Vec<(usize, &'a Sample)> {
    let fits = samples.iter().filter(|(_, whose, sample)| *whose == of && sample.row == row.name);
    fits.map(|(round, _, sample)| (*round, sample)).collect()
}

/// Operations per second of samples, with their rounds.
fn rates(samples: &[(usize, &Sample)]) -> Vec<(usize, f64)> {
    samples.iter().map(|(round, sample)| (*round, sample.ops_per_second)).collect()
}

fn judged(ours: &[(usize, &Sample)], theirs: &[(usize, &Sample)], min: f64) -> (String, String) {
    ratio_cells(ratios(&rates(ours), &rates(theirs)), min)
}

fn cell(row: &Row, samples: &[(usize, &Sample)]) -> String {
    let rate = median(samples.iter().map(|(_, sample)| sample.ops_per_second));
    let cpu = median(samples.iter().map(|(_, sample)| sample.cpu_us_per_op));
    let (Some(rate), Some(cpu)) = (rate, cpu) else { return "-".to_owned() };
    if row.block_bytes >= 1 << 20 {
        format!("{rate:.0} MiB/s, {cpu:.0} us")
    } else {
        format!("{:.1} k/s, {cpu:.1} us", rate / 1000.0)
    }
}

fn peers(samples: &Samples) -> String {
    let mut text = String::from(
        "| workload | a write is | tgt | Weir | ratio | bar | client CPU |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (kind, ours, theirs) in [
        ("volatile", Contestant::WeirVolatile, Contestant::TgtVolatile),
        ("durable", Contestant::WeirDurable, Contestant::TgtDurable),
    ] {
        for row in ROWS.iter().filter(|row| ours.runs(row)) {
            let (ours, theirs) = (of(samples, ours, row), of(samples, theirs, row));
            let (ratio, bar) = judged(&ours, &theirs, row.ratio_min);
            let client = ours.iter().chain(&theirs).map(|(_, sample)| sample.client_cpu_percent);
            let client = client.fold(0.0, f64::max);
            let (title, theirs, ours) = (row.title, cell(row, &theirs), cell(row, &ours));
            writeln!(
                text,
                "| {title} | {kind} | {theirs} | {ours} | {ratio} | {bar} | {client:.0} % |"
            )
            .expect("a String takes every write");
        }
    }
    text
}

fn beside_nbd(samples: &Samples) -> String {
    let mut text = String::from(
        "| workload | Weir over NBD (TCP) | Weir over iSCSI | ratio | bar |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    for row in ROWS.iter().filter(|row| Contestant::WeirNbd.runs(row)) {
        let ours = of(samples, Contestant::WeirVolatile, row);
        let nbd = of(samples, Contestant::WeirNbd, row);
        let (ratio, bar) = judged(&ours, &nbd, NBD_RATIO_MIN);
        let bar = if row.depth == 32 { bar } else { String::new() };
        let (title, nbd, ours) = (row.title, cell(row, &nbd), cell(row, &ours));
        writeln!(text, "| {title} | {nbd} | {ours} | {ratio} | {bar} |")
            .expect("a String takes every write");
    }
    text
}
