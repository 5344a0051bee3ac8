//! `cargo xtask check`: what to run before every commit.
//!
//! Not here: anything that takes more than a minute or two on a warm build (test.rs).
//!
//! Invariant: a subset of `cargo xtask test`.

use anyhow::Result;

use crate::stage::{self, Needs};
use crate::test;

/// The task.
pub(crate) fn main() -> Result<()> {
    let stages = [
        test::fmt(),
        test::clippy(),
        test::fmt_fuzz(),
        test::clippy_fuzz(),
        test::tidy(),
        test::unit(),
        test::unit_xtask(),
    ];
    stage::run(&stages, Needs::Nothing)
}
