//! `cargo xtask bench-services`: the cost of snapshots, clones and other data services.
//!
//! `layouts` compares layouts of disks; `peers` compares other servers.
//!
//! Invariants:
//! - a ratio compares runs of one server that alternate in rounds. Only the ratios are results,
//!   because absolute rates depend on the machine;
//! - every table states how the figures were measured, and marks each missed bar (required value).

mod compression;
mod sending;
mod sharing;
mod snapshots;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::place::Place;

const BEGIN: &str = "<!-- bench-services: begin -->";
const END: &str = "<!-- bench-services: end -->";

/// Length and parts of the measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns for each load.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one turn.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    #[command(flatten)]
    place: Place,
    /// Measure only this part.
    #[arg(long, value_enum, conflicts_with = "out")]
    only: Option<Part>,
}

/// Part of the measurement with its own pool and table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Snapshots,
    Sharing,
    Compression,
    Sending,
}

/// Runs the benchmark of data services.
pub(crate) fn main(args: &Args) -> Result<()> {
    let measure = |program: &Path, data: &Path| Ok(tables(args, program, data)?.join("\n"));
    args.place.tables("services", (BEGIN, END), measure)
}

/// Measures the selected parts and returns their tables. Each part has its own pool, whose files
/// are removed before the next part.
fn tables(args: &Args, program: &Path, data: &Path) -> Result<Vec<String>> {
    let all = [Part::Snapshots, Part::Sharing, Part::Compression, Part::Sending];
    let parts = all.into_iter().filter(|part| args.only.is_none_or(|only| only == *part));
    let (rounds, seconds) = (args.rounds, args.seconds);
    let table = |part| {
        let data = data.join(format!("{part:?}"));
        fs::create_dir_all(&data)?;
        let start = Instant::now();
        let table = match part {
            Part::Snapshots => snapshots::measure(program, &data, rounds, seconds)?.table(),
            Part::Sharing => sharing::measure(&data, rounds)?.table()?,
            Part::Compression => compression::measure(program, &data, rounds, seconds)?.table(),
            Part::Sending => sending::measure(program, &data, rounds)?.table(),
        };
        fs::remove_dir_all(&data)?;
        eprintln!("bench: {part:?} took {:.0} s", start.elapsed().as_secs_f64());
        Ok(table)
    };
    parts.map(table).collect()
}
