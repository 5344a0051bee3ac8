//! `cargo xtask bench-peers`, `bench-files`, `bench-s000`, `bench-iscsi`, `bench-layouts` and
//! `bench-services`: install the packages of the benchmarks, then run weir-peers.
//!
//! Not here: the code and the options of the benchmarks (crates/tools/weir-peers).
//!
//! Invariant: weir-peers replaces this process, so the servers that weir-peers starts end with the
//! task, and the task returns the exit code of weir-peers.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use anyhow::{Context as _, Result};
use weir_command::command;

use crate::setup;

/// Options for weir-peers.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Options of the benchmark; `--help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    pub(crate) options: Vec<OsString>,
}

/// Runs a benchmark of weir-peers; returns only if it cannot start.
pub(crate) fn main(benchmark: &str, args: &Args) -> Result<()> {
    let Args { options } = args;
    if !options.iter().any(|option| option == "--help" || option == "-h") {
        match benchmark {
            "files" | "s000" => setup::for_files()?,
            _ => setup::for_clients()?,
        }
    }
    let mut cargo = command::command("cargo");
    // The options may contain file names, which are relative to the folder in which the user called
    // the task.
    cargo.current_dir(".");
    cargo.args(["run", "--quiet", "--profile", "ci", "--package", "weir-peers"]);
    cargo.arg("--manifest-path").arg(command::root().join("Cargo.toml"));
    Err(cargo.arg("--").arg(benchmark).args(options).exec()).context("cannot start cargo")
}
