//! `cargo xtask e2e`: the release binary under real clients, SIGKILL included.
//!
//! Not here: the tests (bin/weir/tests).
//!
//! Invariant: the binary under test is the one that ships: release profile, no test features of
//! Weir. Its tokio alone has a test clock, which it does not use: all tests ask for the same
//! features of dependencies, so that every crate is built once for them.

use anyhow::Result;

use crate::{command, setup};

/// All tests of the binary, in the profile that ships. Two at a time, whatever the machine: each
/// runs a server and a client, and some measure time.
pub(crate) const ALL: &[&str] =
    &["test", "--no-fail-fast", "--release", "--package", "weir", "--", "--test-threads=2"];

/// The task.
pub(crate) fn main() -> Result<()> {
    setup::for_clients()?;
    command::cargo(ALL)
}
