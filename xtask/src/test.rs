//! `cargo xtask test`: all stages of CI, reported in one table.
//!
//! Not here: the work of each stage (a file for each, or cargo).
//!
//! Invariant: all stages together take at most 20 minutes on 2 cores from a clean clone.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::runner::{Suite, UNIT_LANES};
use crate::stage::{self, Stage, Step};
use crate::{book, e2e, licences, packages, setup, shipped, sim, subjects, tidy};

/// Returns the stage that checks the formatting of every crate of the workspace.
pub(crate) fn fmt() -> Stage {
    Stage { name: "fmt", step: Step::cargo("fmt --all --check") }
}

/// Returns the stage that runs Clippy and denies warnings.
pub(crate) fn clippy() -> Stage {
    let line = "clippy --profile ci --workspace --all-targets -- --deny warnings";
    Stage { name: "clippy", step: Step::cargo(line) }
}

/// Returns the stage that compares the features of dependencies. Tests request more features than
/// the program. If the code of the program needs one of these features, the code compiles in the
/// other stages, but not when the program is built alone for shipping.
pub(crate) fn shipped() -> Stage {
    Stage { name: "shipped", step: Step::Task(shipped::main) }
}

/// Returns the stage that checks the formatting of the fuzz targets, which are a separate
/// workspace.
pub(crate) fn fmt_fuzz() -> Stage {
    Stage { name: "fmt-fuzz", step: Step::cargo("fmt --manifest-path fuzz/Cargo.toml --check") }
}

/// Returns the stage that checks the project rules that no compiler checks.
pub(crate) fn tidy() -> Stage {
    Stage { name: "tidy", step: Step::Task(tidy::stage) }
}

/// Returns the stage that checks the subjects of new commits.
pub(crate) fn subjects() -> Stage {
    Stage { name: "subjects", step: Step::Task(subjects::main) }
}

/// Returns the stage with the unit, property and snapshot tests of these packages, or of all
/// packages. Its cargo call uses the profile and features of the other stages, so that they share
/// one build.
pub(crate) fn unit(chosen: Option<BTreeSet<String>>) -> Stage {
    let suite =
        Suite { packages: chosen, ..Suite::new("unit", &packages::unit_tests(), UNIT_LANES) };
    Stage { name: "unit", step: Step::Tests(suite) }
}

/// Returns the stage that builds the programs that tests of [`unit_xtask`] start. The stage e2e
/// uses the same build.
pub(crate) fn programs() -> Stage {
    Stage { name: "programs", step: Step::Task(e2e::build) }
}

/// Returns the stage with the unit tests of [`packages::TASKS`]. It follows [`programs`]: without
/// Weir, the tests of weir-peers measure only other servers.
pub(crate) fn unit_xtask() -> Stage {
    let names = packages::TASKS.join(" --package ");
    let arguments = format!("--profile ci --package {names}");
    let suite = Suite::new("unit-xtask", &arguments, UNIT_LANES);
    Stage { name: "unit-xtask", step: Step::Tests(suite) }
}

/// Runs `cargo xtask test`.
pub(crate) fn main() -> Result<()> {
    // The download of packages needs little processor time, so it overlaps the first stages.
    setup::start_for_stages();
    let stages = [
        fmt(),
        clippy(),
        shipped(),
        fmt_fuzz(),
        tidy(),
        subjects(),
        Stage { name: "licences", step: Step::Task(licences::main) },
        Stage { name: stage::SETUP, step: Step::Task(setup::wait_for_stages) },
        Stage { name: "book", step: Step::Task(book::main) },
        unit(None),
        programs(),
        unit_xtask(),
        Stage { name: "sim", step: Step::Task(sim::short) },
        e2e::examples(),
        Stage { name: "e2e", step: Step::Tests(e2e::suite()) },
    ];
    stage::run(&stages)
}
