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

/// Builds the examples of the simulator, which run ranges of seeds.
pub(crate) fn build_examples() -> Result<()> {
    command::cargo(&["build", "--profile", "ci", "--package", "weir-sim", "--examples"])
}

/// Scenarios of the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scenarios {
    /// Pools with volumes.
    Pools,
    /// Filesystems whose clients call weir-fs.
    Files,
    /// Filesystems whose clients use NFS.
    Nfs,
}

impl Scenarios {
    /// Name of the example of weir-sim that runs a range of seeds. `None` for pools.
    pub(crate) fn example(self) -> Option<&'static str> {
        match self {
            Self::Pools => None,
            Self::Files => Some("file_seeds"),
            Self::Nfs => Some("nfs_seeds"),
        }
    }
}

/// Number of crash recoveries that `make test` checks. The limit is a number instead of a time, so
/// that a slow machine checks as many as a fast machine.
const SHORT_RECOVERIES: u64 = 20_000;

/// Options of the simulator.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Replay the scenario of this seed, which a failed run printed
    #[arg(long)]
    seed: Option<u64>,
    /// Number of crash recoveries to check, in pools
    #[arg(long, default_value_t = 300_000)]
    recoveries: u64,
    /// Scenarios to run
    #[arg(long, value_enum, default_value = "pools")]
    scenarios: Scenarios,
    /// Number of seeds to run, from 1 on, of filesystems or NFS clients
    #[arg(long, default_value_t = 100)]
    seeds: u64,
}

/// Runs `cargo xtask sim`.
pub(crate) fn main(args: &Args) -> Result<()> {
    if let Some(example) = args.scenarios.example() {
        build_examples()?;
        let (first, count) = args.seed.map_or((1, args.seeds), |seed| (seed, 1));
        let program = command::target().join("ci/examples").join(example);
        return command::run(Command::new(program).args([first, count].map(|of| of.to_string())));
    }
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
