//! `cargo xtask bench-services`: what snapshots, clones and other data services cost.
//!
//! Not here: layouts of disks (bench_layouts), other servers (bench_peers).
//!
//! Invariants:
//! - ratios compare runs of one server, taken in turns: they are results, rates are not;
//! - every table says how it was measured; a bar that is missed says so.

mod compression;
mod sending;
mod sharing;
mod snapshots;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use crate::bench_peers::{machine, report, weir_program};
use crate::{command, setup};

const BEGIN: &str = "<!-- bench-services: begin -->";
const END: &str = "<!-- bench-services: end -->";

/// How to measure.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns of each load.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of one turn.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    /// Write the tables between the markers of this file (created if absent).
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where disks and sockets go; default target/bench.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Measure this program instead of building one.
    #[arg(long, value_name = "PROGRAM")]
    weir: Option<PathBuf>,
    /// Measure this part alone.
    #[arg(long, value_enum, conflicts_with = "out")]
    only: Option<Part>,
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Snapshots,
    Sharing,
    Compression,
    Sending,
}

/// The task.
pub(crate) fn main(args: &Args) -> Result<()> {
    setup::for_clients()?;
    let program = match &args.weir {
        Some(program) => std::path::absolute(program)?,
        None => weir_program()?,
    };
    let dir = match &args.dir {
        Some(dir) => std::path::absolute(dir)?,
        None => command::root().join("target/bench"),
    };
    let data = dir.join("services");
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    fs::create_dir_all(&data).with_context(|| data.display().to_string())?;
    let tables = tables(args, &program, &data);
    let facts = machine::facts(&data, Some(&program))?;
    fs::remove_dir_all(&data)?;
    let text = format!("{}\n{}", tables?.join("\n"), report::facts_table(&facts));
    println!("{text}");
    if let Some(out) = &args.out {
        report::write_between(out, (BEGIN, END), &text)?;
    }
    Ok(())
}

/// The tables that were asked for. Each part has its pool, whose files go before the next begins.
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
