//! `cargo xtask check`: what to run before every commit.
//!
//! Not here: anything that takes more than a minute or two on a warm build (test.rs).
//!
//! Invariant: a subset of `cargo xtask test`.

use anyhow::Result;

use crate::stage::{self, Needs, Stage};
use crate::test;

/// The task.
pub(crate) fn main() -> Result<()> {
    let stages = [
        Stage { name: "fmt", step: test::FMT },
        Stage { name: "clippy", step: test::CLIPPY },
        Stage { name: "fmt-fuzz", step: test::FMT_FUZZ },
        Stage { name: "clippy-fuzz", step: test::CLIPPY_FUZZ },
        Stage { name: "tidy", step: test::TIDY },
        Stage { name: "unit", step: test::UNIT },
        Stage { name: "unit-xtask", step: test::UNIT_XTASK },
    ];
    stage::run(&stages, Needs::Nothing)
}
