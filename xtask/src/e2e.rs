//! `cargo xtask e2e`: the whole program under real clients, SIGKILL included.
//!
//! Not here: the tests (bin/weir/tests).
//!
//! Invariant: the program under test has the code and the settings of the one that ships, without
//! debug information: profile `ci`, no test features of Weir. Its tokio alone has a test clock,
//! which it does not use: all tests ask for the same features of dependencies, so that every crate
//! is built once for them.

use anyhow::Result;

use crate::runner::{E2E_LANES, Suite};
use crate::setup;
use crate::stage::{self, Needs, Stage, Step};

/// Which tests to run, and how often.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the test of this name, or those with this in their name.
    filter: Option<String>,
    /// Run each test so many times.
    #[arg(long, default_value_t = 1)]
    repeat: u32,
}

/// All tests of the program.
pub(crate) fn suite() -> Suite {
    Suite::new("e2e", "--profile ci --package weir", E2E_LANES)
}

/// The task.
pub(crate) fn main(args: Args) -> Result<()> {
    let suite = Suite { filter: args.filter, repeat: args.repeat, ..suite() };
    let stages = [
        Stage { name: "setup", step: Step::Task(setup::for_clients) },
        Stage { name: "e2e", step: Step::Tests(suite) },
    ];
    stage::run(&stages, Needs::First)
}
