//! Benchmarks of Weir against other servers on this machine, and of Weir's layouts and services
//! against each other.
//!
//! `cargo xtask bench-peers`, `bench-files`, `bench-s000`, `bench-iscsi`, `bench-layouts` and
//! `bench-services` install the other servers and run this program.
//!
//! weir-bench measures storage of any kind.
//!
//! Invariant: the servers end with this process, however this process ends.

#![expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]

mod client;
mod document;
mod files;
mod iscsi;
mod layouts;
mod machine;
mod mounted;
mod nfs;
mod peers;
mod place;
mod s000;
mod services;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Benchmarks of Weir against other servers on this machine.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    benchmark: Benchmark,
}

#[derive(Subcommand)]
enum Benchmark {
    /// Compare Weir's speed with other NBD servers on this machine.
    Peers(peers::Args),
    /// Compare a mounted Weir filesystem with other FUSE servers, and its NFS server with Ganesha.
    Files(files::Args),
    /// One process of the load of `files`.
    #[command(name = files::worker::SUBCOMMAND, hide = true)]
    FilesWorker,
    /// Repeat the reference document 000 over NFS, with its layouts and with Ganesha.
    #[command(name = "s000")]
    S000(s000::Args),
    /// Compare Weir's iSCSI target with another one, and with Weir's NBD.
    Iscsi(iscsi::Args),
    /// Compare layouts: intact, degraded, full, and during scans.
    Layouts(layouts::Args),
    /// Measure the cost of snapshots, clones and other data services
    Services(services::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().benchmark {
        Benchmark::Peers(args) => peers::main(&args),
        Benchmark::Files(args) => files::main(&args),
        Benchmark::FilesWorker => files::worker::main(),
        Benchmark::S000(args) => s000::main(&args),
        Benchmark::Iscsi(args) => iscsi::main(&args),
        Benchmark::Layouts(args) => layouts::main(&args),
        Benchmark::Services(args) => services::main(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}
