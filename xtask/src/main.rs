//! `cargo xtask`: the project's development tasks, written in Rust so that the same tools check
//! them as check the product.
//!
//! Not here: shipped code; no other crate depends on xtask.
//!
//! Invariants:
//! - a task that cannot do all its work fails and names the missing tool or file; it skips nothing;
//! - a task ends a process by the handle with which it started the process, never by name.

#![expect(clippy::print_stdout, reason = "a task's result is what it prints")]

mod affected;
mod bench;
mod book;
mod check;
mod e2e;
mod fuzz;
mod licences;
mod moved;
mod packages;
mod pictures;
mod release;
mod runner;
mod setup;
mod shipped;
mod sim;
mod soak;
mod stage;
mod subjects;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's development tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install the Debian packages that other tasks need.
    Setup,
    /// Check the sources against the rules that no compiler checks.
    Tidy(tidy::Args),
    /// Check that the changes since a commit only move items between files.
    Moved(moved::Args),
    /// Draw the pictures of README.md
    Pictures(pictures::Args),
    /// Build the documentation as a book in target/book and check its links.
    Book,
    /// Build the program as it ships, with its debug information in a file of its own.
    Release,
    /// Check the licences, names and sources of all dependencies.
    Licences,
    /// Run the checks before every commit: formatting, lints, tidy and the fast tests.
    Check(check::Args),
    /// Run all stages of CI.
    Test,
    /// Check crash recoveries on simulated disks.
    Sim(sim::Args),
    /// Run the long tests before a release, in pieces: crash recoveries, load, fuzzing, cargo-deny.
    Soak(soak::Args),
    /// One piece of `soak`: verified load and hostile clients on one server with a low memory
    /// limit.
    #[command(hide = true)]
    SoakLoad(soak::load::Args),
    /// Fuzz the parsers of untrusted bytes.
    Fuzz(fuzz::Args),
    /// Test the whole program with real clients.
    E2e(e2e::Args),
    /// Compare Weir's speed with other NBD servers on this machine.
    #[command(disable_help_flag = true)]
    BenchPeers(bench::Args),
    /// Compare a mounted Weir filesystem with other FUSE servers, and its NFS server with Ganesha.
    #[command(disable_help_flag = true)]
    BenchFiles(bench::Args),
    /// Repeat the reference document 000 over NFS, with its layouts and with Ganesha.
    #[command(name = "bench-s000", disable_help_flag = true)]
    BenchS000(bench::Args),
    /// Compare Weir's iSCSI target with another one, and with Weir's NBD.
    #[command(disable_help_flag = true)]
    BenchIscsi(bench::Args),
    /// Compare layouts: intact, degraded, full, and during scans.
    #[command(disable_help_flag = true)]
    BenchLayouts(bench::Args),
    /// Measure the cost of snapshots, clones and other data services
    #[command(disable_help_flag = true)]
    BenchServices(bench::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Setup => setup::for_clients(),
        Task::Tidy(args) => tidy::main(&args),
        Task::Moved(args) => moved::main(&args),
        Task::Pictures(args) => pictures::main(&args),
        Task::Book => book::main(),
        Task::Release => release::main(),
        Task::Licences => licences::main(),
        Task::Check(args) => check::main(&args),
        Task::Test => test::main(),
        Task::Sim(args) => sim::main(&args),
        Task::Soak(args) => soak::main(&args),
        Task::SoakLoad(args) => soak::load::main(&args),
        Task::Fuzz(args) => fuzz::main(&args),
        Task::E2e(args) => e2e::main(args),
        Task::BenchPeers(args) => bench::main("peers", &args),
        Task::BenchFiles(args) => bench::main("files", &args),
        Task::BenchS000(args) => bench::main("s000", &args),
        Task::BenchIscsi(args) => bench::main("iscsi", &args),
        Task::BenchLayouts(args) => bench::main("layouts", &args),
        Task::BenchServices(args) => bench::main("services", &args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn benchmark_receives_all_its_options() {
        let given = ["--quick", "--only", "a b", "--help", "-h"];
        let task = Cli::parse_from([&["cargo xtask", "bench-peers"], &given[..]].concat()).task;
        let Task::BenchPeers(args) = task else { panic!("another task") };
        assert_eq!(args.options, given);
        let none = Cli::parse_from(["cargo xtask", "bench-services"]).task;
        assert!(matches!(none, Task::BenchServices(args) if args.options.is_empty()));
    }
}
