//! `cargo xtask sim`: tests crash recovery on simulated disks.
//!
//! Not here: the simulator itself (crates/tools/weir-sim), which prints the seed of a failed run.
//!
//! Invariant: the same seed always produces the same run.

use std::process::Command;

use anyhow::Result;
use weir_command::command;

use crate::packages;

/// Arguments with which cargo builds only the simulator.
const BUILD: &str = "build --profile ci --package weir-sim";

/// Number of crash recoveries that `make test` checks. The limit is a number instead of a time, so
/// that a slow machine checks as many as a fast machine.
const SHORT_RECOVERIES: u64 = 20_000;

/// Options of the simulator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Replay the scenario of this seed, which a failed run printed
    #[arg(long)]
    seed: Option<u64>,
    /// Number of crash recoveries to check
    #[arg(long, default_value_t = 300_000)]
    recoveries: u64,
}

/// Runs `cargo xtask sim`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let recoveries = args.recoveries.to_string();
    match args.seed {
        Some(seed) => simulate(BUILD, &["--only", "--seed", &seed.to_string()]),
        None => simulate(BUILD, &["--recoveries", &recoveries]),
    }
}

/// Runs the short check of `make test`. Builds the simulator with the cargo call of the unit tests,
/// because `make test` has already made this call. [`BUILD`] selects fewer features of
/// dependencies, so it would compile the engine again.
pub(crate) fn short() -> Result<()> {
    let build = format!("test --no-run {}", packages::unit_tests());
    simulate(&build, &["--recoveries", &SHORT_RECOVERIES.to_string()])
}

fn simulate(build: &str, options: &[&str]) -> Result<()> {
    command::cargo(&build.split_whitespace().collect::<Vec<_>>())?;
    let program = command::target().join("ci/weir-sim");
    command::run(Command::new(program).args(options))
}
