//! `cargo xtask run`: release build, then the demo pool in the foreground.
//!
//! Not here: the demo (bin/weir).
//!
//! Invariant: the server replaces this process, so Ctrl-C reaches only the server, and the server's
//! exit code is the task's.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};
use weir_command::command;

use crate::setup;

/// Runs the task; returns only if the server cannot start.
pub(crate) fn main() -> Result<()> {
    setup::for_run();
    let args = ["run", "--release", "--package", "weir", "--", "serve", "--demo"];
    Err(command::command("cargo").args(args).exec()).context("cannot start cargo")
}
