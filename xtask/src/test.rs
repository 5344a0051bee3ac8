//! `cargo xtask test`: everything CI runs, as one table of stages.
//!
//! Not here: how a stage works (its own file, or cargo).
//!
//! Invariant: from a clean clone within 30 minutes on 2 cores.

use anyhow::Result;

use crate::stage::{self, Needs, Stage, Step};
use crate::{e2e, fuzz, setup, sim, tidy};

/// Formatting of every crate of the workspace.
pub(crate) const FMT: Step = Step::Cargo(&["fmt", "--all", "--check"]);
/// Lints, warnings denied.
pub(crate) const CLIPPY: Step =
    Step::Cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]);
/// Formatting of the fuzz targets, a workspace of their own.
pub(crate) const FMT_FUZZ: Step =
    Step::Cargo(&["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]);
/// Lints of the fuzz targets: a changed interface shows here, not half an hour later when they run.
pub(crate) const CLIPPY_FUZZ: Step = Step::Cargo(&[
    "clippy",
    "--manifest-path=fuzz/Cargo.toml",
    "--target-dir=target",
    "--",
    "--deny",
    "warnings",
]);
/// The rules that no compiler checks.
pub(crate) const TIDY: Step = Step::Task(tidy::main);
/// Unit, property and snapshot tests; in release, so that the simulator and the real-binary tests
/// share one build with them.
pub(crate) const UNIT: Step = Step::Tests(&[
    "test",
    "--no-fail-fast",
    "--release",
    "--workspace",
    "--exclude",
    "weir",
    "--exclude",
    "xtask",
]);

/// The tests of this program, apart: what it asks of its dependencies would have most of those of
/// the others built once more.
pub(crate) const UNIT_XTASK: Step = Step::Tests(&["test", "--no-fail-fast", "--package", "xtask"]);

/// Licences, banned crates and registries; deny.toml says why not advisories.
const DENY: Step = Step::Cargo(&["deny", "check", "licenses", "bans", "sources"]);

const STAGES: &[Stage] = &[
    Stage { name: "setup", step: Step::Task(setup::for_test) },
    Stage { name: "fmt", step: FMT },
    Stage { name: "clippy", step: CLIPPY },
    Stage { name: "fmt-fuzz", step: FMT_FUZZ },
    Stage { name: "clippy-fuzz", step: CLIPPY_FUZZ },
    Stage { name: "tidy", step: TIDY },
    Stage { name: "deny", step: DENY },
    Stage { name: "unit", step: UNIT },
    Stage { name: "unit-xtask", step: UNIT_XTASK },
    Stage { name: "sim", step: Step::Task(sim::short) },
    Stage { name: "e2e", step: Step::Tests(e2e::BESIDE) },
    Stage { name: "e2e-alone", step: Step::Tests(e2e::ALONE) },
    Stage { name: "fuzz", step: Step::Task(fuzz::short) },
];

/// The task.
pub(crate) fn main() -> Result<()> {
    stage::run(STAGES, Needs::First)
}
