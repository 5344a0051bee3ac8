//! `cargo xtask bench-peers`: uses fio to compare Weir with other NBD servers on this machine's
//! disk.
//!
//! The bars (required values) are the project's own requirements; no general standard defines them.
//!
//! Invariants:
//! - each server stores its data in its own file on one file system, is filled in the same way, and
//!   is measured in turn with the others, so that a noisy minute affects all servers;
//! - every sample is kept in `results.json` in the folder of the run; the table shows medians;
//! - a run has a deadline; the table shows measurements after the deadline as not measured;
//! - the servers end with this process, however this process ends.

mod figures;
mod fio;
mod report;
mod results;
mod servers;
mod workload;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use regex::Regex;
use results::{Results, Sample};
use servers::{Kind, Server};
use workload::{WORKLOADS, Workload};

use crate::machine;
use crate::place::{self, Place};

/// Selection and length of the measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// One round of short runs: a first impression, not a result.
    #[arg(long)]
    quick: bool,
    /// Only workloads whose name matches
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,
    /// Only servers whose name matches
    #[arg(long, value_name = "REGEX")]
    servers: Option<Regex>,
    /// Turns for each workload; default 3, with --quick 1.
    #[arg(long)]
    rounds: Option<usize>,
    #[command(flatten)]
    place: Place,
}

/// Durations and counts of the phases of a run.
struct Pace {
    rounds: usize,
    run_seconds: u64,
    steady_seconds: u64,
    idle_seconds: u64,
    warm_seconds: u64,
    deadline: Duration,
}

impl Pace {
    fn of(args: &Args) -> Self {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        let mut pace = if args.quick {
            Self {
                rounds: 1,
                run_seconds: 3,
                steady_seconds: 10,
                idle_seconds: 3,
                warm_seconds: 5,
                deadline: minutes(4),
            }
        } else {
            Self {
                rounds: 3,
                run_seconds: 6,
                steady_seconds: 60,
                idle_seconds: 10,
                warm_seconds: 20,
                deadline: minutes(25),
            }
        };
        pace.rounds = args.rounds.unwrap_or(pace.rounds);
        pace
    }

    fn seconds(&self, workload: &Workload) -> u64 {
        if workload.steady { self.steady_seconds } else { self.run_seconds }
    }
}

/// Runs the benchmark.
pub(crate) fn main(args: &Args) -> Result<()> {
    let wanted = |kind: &Kind| args.servers.as_ref().is_none_or(|only| only.is_match(kind.name()));
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(wanted).collect();
    let chosen = |w: &&Workload| args.only.as_ref().is_none_or(|only| only.is_match(w.name));
    let workloads: Vec<&Workload> = WORKLOADS.iter().filter(chosen).collect();
    if kinds.is_empty() || workloads.is_empty() {
        bail!("nothing to measure: --only and --servers leave no workload or no server");
    }
    let is_weir = kinds.contains(&Kind::Weir);
    let weir = is_weir.then(|| args.place.program()).transpose()?;
    let dir = args.place.folder()?;
    let data = dir.join("data");
    place::empty(&data)?;
    let mut results = Results {
        machine: machine::facts(&data, weir.as_deref(), machine::block_peers())?,
        quick: args.quick,
        ..Results::default()
    };
    let measured = measure(&kinds, &workloads, args, weir.as_deref(), &data, &mut results);
    // Even after an error, save the samples so far and delete the volumes.
    fs::write(dir.join("results.json"), serde_json::to_string_pretty(&results)?)?;
    fs::remove_dir_all(&data)?;
    measured?;
    let text = report::markdown(&results, &kinds, &workloads);
    args.place.print(&text, (report::BEGIN, report::END))
}

fn measure(
    kinds: &[Kind],
    workloads: &[&Workload],
    args: &Args,
    weir: Option<&Path>,
    data: &Path,
    results: &mut Results,
) -> Result<()> {
    let pace = Pace::of(args);
    let start = Instant::now();
    let mut running = Vec::new();
    for kind in kinds {
        eprintln!("bench: starting and filling {}", kind.title());
        let server = Server::start(*kind, weir, data)?;
        fio::fill(&server)?;
        server.settle()?;
        fio::warm(&server)?;
        if workloads.iter().any(|workload| workload.writes()) {
            // On a virtual machine, the first access to memory costs more than the write itself.
            fio::warm_writes(&server, pace.warm_seconds)?;
            server.settle()?;
            fio::warm(&server)?;
        }
        running.push(server);
    }
    for workload in workloads {
        for round in 0..pace.rounds {
            // The first server after a pause finds the disk idle, so each round begins with another
            // server.
            for turn in 0..running.len() {
                let server = &running[(round + turn) % running.len()];
                let seconds = pace.seconds(workload);
                if start.elapsed() + Duration::from_secs(seconds) > pace.deadline {
                    results.cut_off = true;
                    continue;
                }
                let sample = run(workload, server, round, seconds)?;
                eprintln!(
                    "bench: {} {} round {}: {:.0} ops/s, {:.1} us CPU per op",
                    workload.name,
                    server.kind().title(),
                    round + 1,
                    sample.ops_per_second,
                    sample.server_cpu_us_per_op
                );
                results.samples.push(sample);
            }
        }
    }
    figures::idle(&running, pace.idle_seconds, &mut results.figures)?;
    if let Some(at) = running.iter().position(|server| server.kind() == Kind::Weir) {
        let server = running.swap_remove(at);
        drop(running);
        figures::import_after_kill(server, weir, data, pace.rounds, &mut results.figures)?;
    }
    Ok(())
}

fn run(workload: &Workload, server: &Server, round: usize, seconds: u64) -> Result<Sample> {
    let process = server.process();
    process.reset_rss_max()?;
    let cpu = process.cpu()?;
    let job = fio::run(workload, server, seconds)?;
    let cpu_us = (process.cpu()?.saturating_sub(cpu)).as_secs_f64() * 1e6;
    let server_rss_bytes_max = process.rss_bytes_max()?;
    if workload.writes() {
        server.settle()?;
    }
    let ops = job.ops as f64;
    Ok(Sample {
        workload: workload.name,
        server: server.kind().name(),
        round,
        ops: job.ops,
        flushes: job.flushes,
        seconds: job.seconds,
        ops_per_second: ops / job.seconds,
        mib_per_second: ops * workload.block_bytes as f64 / job.seconds / f64::from(1 << 20),
        latency_p99_us: job.latency_p99_us,
        server_cpu_us_per_op: cpu_us / ops,
        client_cpu_percent: job.client_cpu_percent,
        server_rss_bytes_max,
    })
}
