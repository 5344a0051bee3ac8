//! `cargo xtask sim`: crash recoveries on simulated disks.
//!
//! Not here: the simulator (crates/weir-sim), which also prints the seed.
//!
//! Invariant: the same seed gives the same run.

use std::process::Command;

use anyhow::Result;

use crate::command;

/// Builds the simulator as the unit tests are built: cargo chooses the features of dependencies
/// for all packages that are named, and with others the engine would be compiled once more.
const BUILD: &[&str] = &[
    "build",
    "--release",
    "--workspace",
    "--exclude",
    "weir",
    "--exclude",
    "xtask",
    "--bin",
    "weir-sim",
];

/// How long `make test` runs it.
const SHORT_SECONDS: &str = "120";

/// Options passed on to the simulator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Replay the scenario of this seed, as a failing run printed it.
    #[arg(long)]
    seed: Option<u64>,
    /// Crash recoveries to check.
    #[arg(long, default_value_t = 300_000)]
    recoveries: u64,
}

/// The task.
pub(crate) fn main(args: &Args) -> Result<()> {
    let recoveries = args.recoveries.to_string();
    match args.seed {
        Some(seed) => simulate(&["--only", "--seed", &seed.to_string()]),
        None => simulate(&["--recoveries", &recoveries]),
    }
}

/// The subset that `make test` runs.
pub(crate) fn short() -> Result<()> {
    simulate(&["--recoveries", "10000000", "--seconds", SHORT_SECONDS])
}

fn simulate(options: &[&str]) -> Result<()> {
    command::cargo(BUILD)?;
    let program = command::target().join("release/weir-sim");
    command::run(Command::new(program).args(options))
}
