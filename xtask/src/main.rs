//! `cargo xtask`: the project's own tasks, in Rust so that they are checked like the rest.
//!
//! Not here: anything that ships; no other crate depends on this one.
//!
//! Invariants:
//! - a task that cannot do its whole work fails and names what is missing; nothing is skipped;
//! - processes are ended by the handle they were started with, never by name.

#![expect(clippy::print_stdout, reason = "a task's result is what it prints")]

mod affected;
mod bench;
mod bench_iscsi;
mod bench_layouts;
mod bench_peers;
mod bench_services;
mod check;
mod command;
mod e2e;
mod fuzz;
mod licences;
mod moved;
mod pictures;
mod run;
mod runner;
mod setup;
mod shipped;
mod sim;
mod soak;
mod stage;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the Debian packages that other tasks need.
    Setup(setup::Args),
    /// Build the release binary and serve the demo pool.
    Run,
    /// Read the sources and check the rules that no compiler checks.
    Tidy(tidy::Args),
    /// Prove that the changes since a commit only move items between files.
    Moved(moved::Args),
    /// Draw the pictures of README.md
    Pictures(pictures::Args),
    /// Check the licences, names and sources of all dependencies.
    Licences,
    /// Formatting, lints, tidy and the fast tests: before every commit.
    Check(check::Args),
    /// Everything CI runs, stage by stage.
    Test,
    /// Crash recoveries on simulated disks.
    Sim(sim::Args),
    /// The long proofs of a release, in pieces: crash recoveries, load, fuzzing, cargo-deny.
    Soak(soak::Args),
    /// One piece of it: verified load and hostile clients on one server with little memory.
    #[command(hide = true)]
    SoakLoad(soak::load::Args),
    /// Feed generated input to the parsers of untrusted bytes.
    Fuzz(fuzz::Args),
    /// The whole program under real clients.
    E2e(e2e::Args),
    /// Compare Weir's speed with other NBD servers on this machine.
    BenchPeers(bench_peers::Args),
    /// Compare Weir's iSCSI target with another, and with its own NBD.
    BenchIscsi(bench_iscsi::Args),
    /// Compare layouts: whole, degraded, full, and while they heal.
    BenchLayouts(bench_layouts::Args),
    /// Measure what snapshots, clones and other data services cost
    BenchServices(bench_services::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Setup(args) => setup::main(&args),
        Task::Run => run::main(),
        Task::Tidy(args) => tidy::main(&args),
        Task::Moved(args) => moved::main(&args),
        Task::Pictures(args) => pictures::main(&args),
        Task::Licences => licences::main(),
        Task::Check(args) => check::main(&args),
        Task::Test => test::main(),
        Task::Sim(args) => sim::main(&args),
        Task::Soak(args) => soak::main(&args),
        Task::SoakLoad(args) => soak::load::main(&args),
        Task::Fuzz(args) => fuzz::main(&args),
        Task::E2e(args) => e2e::main(args),
        Task::BenchPeers(args) => bench_peers::main(&args),
        Task::BenchIscsi(args) => bench_iscsi::main(&args),
        Task::BenchLayouts(args) => bench_layouts::main(&args),
        Task::BenchServices(args) => bench_services::main(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
