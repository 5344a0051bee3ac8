//! `cargo xtask sim`: crash recoveries on simulated disks.
//!
//! Not here: the simulator (crates/weir-sim), which also prints the seed.
//!
//! Invariant: the same seed gives the same run.

use std::process::Command;

use anyhow::Result;

use crate::command;

/// Builds the simulator alone.
const BUILD: &[&str] = &["build", "--release", "--package", "weir-sim"];

/// Builds the simulator with the unit tests, which `make test` has built by then. The tests ask for
/// more features of dependencies, so [`BUILD`] would compile the engine once more.
const BUILD_WITH_TESTS: &[&str] =
    &["test", "--no-run", "--release", "--workspace", "--exclude", "weir", "--exclude", "xtask"];

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
        Some(seed) => simulate(BUILD, &["--only", "--seed", &seed.to_string()]),
        None => simulate(BUILD, &["--recoveries", &recoveries]),
    }
}

/// The subset that `make test` runs.
pub(crate) fn short() -> Result<()> {
    simulate(BUILD_WITH_TESTS, &["--recoveries", "10000000", "--seconds", SHORT_SECONDS])
}

fn simulate(build: &[&str], options: &[&str]) -> Result<()> {
    command::cargo(build)?;
    let program = command::target().join("release/weir-sim");
    command::run(Command::new(program).args(options))
}
