//! `cargo xtask e2e`: the release binary under real clients, SIGKILL included.
//!
//! Not here: the tests (bin/weir/tests).
//!
//! Invariant: the binary under test is the one that ships: release profile, no test features of
//! Weir. Its tokio alone has a test clock, which it does not use: all tests ask for the same
//! features of dependencies, so that every crate is built once for them.

use anyhow::Result;

use crate::{command, setup};

/// The tests of the binary that may run beside each other, in the profile that ships. Two at a
/// time, whatever the machine: each runs a server and a client, and some measure time.
pub(crate) const BESIDE: &[&str] = &[
    "test",
    "--no-fail-fast",
    "--release",
    "--package",
    "weir",
    "--",
    "--test-threads=2",
    "--skip=selftest::",
];

/// The self-test of `weir bench`, which measures time: no other test takes the processor from it.
pub(crate) const ALONE: &[&str] =
    &["test", "--release", "--package", "weir", "--test", "all", "--", "selftest::"];

/// The task.
pub(crate) fn main() -> Result<()> {
    setup::for_clients()?;
    let beside = command::cargo(BESIDE);
    let alone = command::cargo(ALONE);
    beside.and(alone)
}
