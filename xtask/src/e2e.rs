//! `cargo xtask e2e`: tests of the `weir` program with real clients, SIGKILL included.
//!
//! Not here: the code of the tests (bin/weir/tests).
//!
//! Invariant: the program under test (profile `ci`) has the code of the shipped program, without
//! debug information and without test features of Weir. The data path is compiled as in the shipped
//! program; management calls are not optimised. Tokio has one more feature, a test clock, which the
//! program does not use: all tests request the same features of dependencies, so that cargo builds
//! every crate once.

use anyhow::Result;
use weir_command::command;

use crate::runner::{E2E_LANES, Suite};
use crate::stage::{self, Stage, Step};
use crate::{packages, setup};

/// Tests to run, and the number of runs.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the test with this name, or the tests whose names contain it
    filter: Option<String>,
    /// Number of runs of each test
    #[arg(long, default_value_t = 1)]
    repeat: u32,
}

/// Returns the options with which cargo builds the end-to-end tests.
fn options() -> String {
    format!("--profile ci {}", packages::E2E)
}

/// Returns the suite of all end-to-end tests.
pub(crate) fn suite() -> Suite {
    Suite::new("e2e", &options(), E2E_LANES)
}

/// Builds the end-to-end tests without running them.
pub(crate) fn build() -> Result<()> {
    let line = format!("test --no-run {}", options());
    command::cargo(&line.split_whitespace().collect::<Vec<_>>())
}

/// Builds the examples of all crates except weir-nbd and weir-iscsi; some tests run examples. Cargo
/// puts all examples into one folder, and these two crates each have an example called `memory`.
pub(crate) fn examples() -> Stage {
    let chosen = packages::all_except(&["weir", "weir-nbd", "weir-iscsi"]);
    let line = format!("build --profile ci {chosen} --examples");
    Stage { name: "examples", step: Step::cargo(&line) }
}

/// Runs `cargo xtask e2e`.
pub(crate) fn main(args: Args) -> Result<()> {
    // If the filter excludes the tests that run examples, the examples are not built.
    let needs_examples = args.filter.as_ref().is_none_or(|filter| filter.contains("example"));
    let suite = Suite { filter: args.filter, repeat: args.repeat, ..suite() };
    let mut stages = vec![Stage { name: stage::SETUP, step: Step::Task(setup::for_clients) }];
    stages.extend(needs_examples.then(examples));
    stages.push(Stage { name: "e2e", step: Step::Tests(suite) });
    stage::run(&stages)
}
