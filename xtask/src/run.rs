//! `cargo xtask run`: release build, then the demo pool in the foreground.
//!
//! Not here: the demo (bin/weir).
//!
//! Invariant: the server takes the place of this process, so that Ctrl-C reaches it and nothing
//! else, and its exit code is the task's.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::{command, setup};

/// The task; returns only when the server cannot be started.
pub(crate) fn main() -> Result<()> {
    setup::for_run();
    let args = ["run", "--release", "--package", "weir", "--", "serve", "--demo"];
    Err(command::command("cargo").args(args).exec()).context("cannot start cargo")
}
