//! `cargo xtask sim`: crash recoveries on simulated disks.
//!
//! Not here: the simulator (crates/weir-sim), which also prints the seed.
//!
//! Invariant: the same seed gives the same run.

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::test::UNIT_PACKAGES;

/// Builds the simulator alone.
const BUILD: &str = "build --profile ci --package weir-sim";

/// Crash recoveries that `make test` checks. A number and no time: then a slow machine proves as
/// much as a fast one.
const SHORT_RECOVERIES: u64 = 20_000;

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

/// The subset that `make test` runs. It builds the simulator as the unit tests do, which `make
/// test` has done by then: the tests ask for more features of dependencies, so [`BUILD`] would
/// compile the engine once more.
pub(crate) fn short() -> Result<()> {
    let build = format!("test --no-run {UNIT_PACKAGES}");
    simulate(&build, &["--recoveries", &SHORT_RECOVERIES.to_string()])
}

fn simulate(build: &str, options: &[&str]) -> Result<()> {
    command::cargo(&build.split_whitespace().collect::<Vec<_>>())?;
    let program = command::target().join("ci/weir-sim");
    command::run(Command::new(program).args(options))
}
