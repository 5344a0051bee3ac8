//! `cargo xtask test`: everything CI runs, as one table of stages.
//!
//! Not here: how a stage works (its own file, or cargo).
//!
//! Invariant: from a clean clone within 20 minutes on 2 cores.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::runner::{Suite, UNIT_LANES};
use crate::stage::{self, Needs, Stage, Step};
use crate::{e2e, licences, setup, sim, tidy};

/// What cargo is told to build for the unit tests: all but the program, this crate and examples,
/// which clippy checks.
pub(crate) const UNIT_PACKAGES: &str =
    "--profile ci --workspace --exclude weir --exclude xtask --lib --bins --tests";

/// Formatting of every crate of the workspace.
pub(crate) fn fmt() -> Stage {
    Stage { name: "fmt", step: Step::cargo("fmt --all --check") }
}

/// Lints, warnings denied.
pub(crate) fn clippy() -> Stage {
    let line = "clippy --profile ci --workspace --all-targets -- --deny warnings";
    Stage { name: "clippy", step: Step::cargo(line) }
}

/// Formatting of the fuzz targets, a workspace of their own.
pub(crate) fn fmt_fuzz() -> Stage {
    Stage { name: "fmt-fuzz", step: Step::cargo("fmt --manifest-path fuzz/Cargo.toml --check") }
}

/// The rules that no compiler checks.
pub(crate) fn tidy() -> Stage {
    Stage { name: "tidy", step: Step::Task(tidy::main) }
}

/// Unit, property and snapshot tests, of these packages or of all; in the profile and with the
/// features of the other stages, so that all share one build.
pub(crate) fn unit(packages: Option<BTreeSet<String>>) -> Stage {
    let suite = Suite { packages, ..Suite::new("unit", UNIT_PACKAGES, UNIT_LANES) };
    Stage { name: "unit", step: Step::Tests(suite) }
}

/// The tests of this program, apart: what it asks of its dependencies would have most of those of
/// the others built once more.
pub(crate) fn unit_xtask() -> Stage {
    let suite = Suite::new("unit-xtask", "--profile ci --package xtask", UNIT_LANES);
    Stage { name: "unit-xtask", step: Step::Tests(suite) }
}

/// The task.
pub(crate) fn main() -> Result<()> {
    let stages = [
        Stage { name: "setup", step: Step::Task(setup::for_clients) },
        fmt(),
        clippy(),
        fmt_fuzz(),
        tidy(),
        Stage { name: "licences", step: Step::Task(licences::main) },
        unit(None),
        unit_xtask(),
        Stage { name: "sim", step: Step::Task(sim::short) },
        Stage { name: "e2e", step: Step::Tests(e2e::suite()) },
    ];
    stage::run(&stages, Needs::First)
}
