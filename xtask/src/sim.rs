//! `cargo xtask sim`: crash recoveries on simulated disks.
//!
//! Not here: the simulator (crates/weir-sim), which also prints the seed.
//!
//! Invariant: the same seed gives the same run.

use anyhow::Result;

use crate::command;

/// The subset that `make test` runs.
pub(crate) const SHORT: &[&str] = &[
    "run",
    "--release",
    "--package",
    "weir-sim",
    "--",
    "--recoveries",
    "10000000",
    "--seconds",
    "120",
];

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
    let seed = args.seed.map(|seed| seed.to_string());
    let mut line = vec!["run", "--release", "--package", "weir-sim", "--"];
    match &seed {
        Some(seed) => line.extend(["--only", "--seed", seed.as_str()]),
        None => line.extend(["--recoveries", recoveries.as_str()]),
    }
    command::cargo(&line)
}
