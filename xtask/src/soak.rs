//! `cargo xtask soak`: verified load on a server with little memory, beside hostile clients.
//!
//! Not here: crash recoveries (`cargo xtask sim`).
//!
//! Invariants:
//! - every block that the load reads is verified by fio; one wrong block or one error of the load
//!   fails the soak;
//! - three bounds, each judged at the end and named where it is broken: resident memory, the time
//!   of a management call, and the load's p99 beside what it is without hostile clients.

mod hostile;
mod server;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::bench_peers::fio::{Job, output_of};
use crate::bench_peers::process::guarded;
use crate::{command, setup};
use hostile::Hostiles;
use server::{Server, VOLUME_BYTES};
use watch::Watch;

/// Memory that the server is given.
const MEMORY_BYTES: u64 = 256 << 20;
/// Resident memory that it may take beside 1.1 times that: program, stacks, connections, iSCSI.
const MEMORY_BESIDE_BYTES: u64 = 256 << 20;
/// Runs beside hostile clients after each run without: what else the machine does changes by the
/// minute, so both are measured in turns.
const RUNS_BESIDE: usize = 4;
/// Most that hostile clients may do to the median p99 of the load.
const P99_RATIO_MAX: f64 = 2.0;
/// No management call may take longer.
const CALL_MAX: Duration = Duration::from_secs(5);

/// Length of the soak, and the program under test.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Minutes of load; four fifths of them beside hostile clients.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// Seconds of one run of the load; each has a p99 of its own.
    #[arg(long, default_value_t = 60)]
    run_seconds: u64,
    /// Where disks, sockets and logs go; default target/soak.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Test this program instead of building one.
    #[arg(long, value_name = "PROGRAM")]
    weir: Option<PathBuf>,
}

/// The task.
pub(crate) fn main(args: &Args) -> Result<()> {
    setup::for_clients()?;
    let program = match &args.weir {
        Some(program) => program.clone(),
        None => {
            command::cargo(&["build", "--release", "--package", "weir"])?;
            command::target().join("release/weir")
        }
    };
    let data = args.dir.clone().unwrap_or_else(|| command::target().join("soak"));
    if data.exists() {
        fs::remove_dir_all(&data)?;
    }
    fs::create_dir_all(&data)?;
    // Others may not enter: the server refuses such a folder for its state.
    fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let server = Arc::new(Server::start(&program, &data, MEMORY_BYTES)?);
    let memory_max = MEMORY_BYTES / 10 * 11 + MEMORY_BESIDE_BYTES;
    load(&server, &data, &["--rw=write", "--bs=1m", "--iodepth=8"])?;
    let watch = Watch::start(&server)?;
    let end = Instant::now() + Duration::from_mins(args.minutes);
    let (mut quiet, mut beside, mut connections) = (Vec::new(), Vec::new(), 0);
    while Instant::now() < end {
        quiet.push(random_load(&server, &data, args).context("the load alone")?);
        let hostiles = Hostiles::start(&server.doors);
        for _ in 0..RUNS_BESIDE {
            let run = random_load(&server, &data, args);
            beside.push(run.context("the load beside hostile clients")?);
        }
        connections += hostiles.connections();
    }
    println!("p99 without hostile clients: {}", show(&quiet));
    println!("p99 beside {connections} hostile connections: {}", show(&beside));
    let seen = watch.finish()?;
    println!("{seen}");
    let server = Arc::into_inner(server).context("the watch still holds the server")?;
    server.kill_and_check(&data)?;
    let mut broken = Vec::new();
    let ratio = median(&beside) / median(&quiet);
    println!("median p99: {ratio:.2} times that without hostile clients");
    if ratio > P99_RATIO_MAX {
        broken.push(format!("p99 grew {ratio:.2} times, {P99_RATIO_MAX} is the bound"));
    }
    if seen.rss_bytes_max > memory_max {
        broken.push(format!("resident memory {} of {memory_max} bytes", seen.rss_bytes_max));
    }
    if seen.call_max > CALL_MAX {
        broken.push(format!("`weir {}` took {:.1?}", seen.slowest_call, seen.call_max));
    }
    if !broken.is_empty() {
        bail!("the soak broke its bounds: {}", broken.join("; "));
    }
    println!("soak of {} minutes: every bound held", args.minutes);
    Ok(())
}

/// A run of random writes over the first half of the volume, each read again and verified; the p99
/// of the writes in us.
fn random_load(server: &Server, data: &Path, args: &Args) -> Result<f64> {
    let runtime = format!("--runtime={}", args.run_seconds);
    let args = ["--rw=randwrite", "--bs=4k", "--iodepth=8", "--time_based", &runtime];
    Ok(load(server, data, &args)?.write_latency_p99_us)
}

fn load(server: &Server, data: &Path, args: &[&str]) -> Result<Job> {
    let uri = format!("--uri=nbd://{}/{}", server.doors.nbd, server.doors.export);
    let mut fio = guarded("fio");
    fio.args(["--name=soak", "--ioengine=nbd", "--thread=1", &uri, "--fsync=64"]);
    fio.arg(format!("--size={}", VOLUME_BYTES / 2)).args([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
    ]);
    fio.args(["--verify_backlog=1024", "--rate_iops=2000"]).args(args);
    output_of(&mut fio, &data.join("fio.json"))
}

fn median(p99_us: &[f64]) -> f64 {
    let mut sorted = p99_us.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn show(p99_us: &[f64]) -> String {
    let runs: Vec<String> = p99_us.iter().map(|us| format!("{us:.0}")).collect();
    format!("{} us, median {:.0} us", runs.join(", "), median(p99_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_run() {
        assert!((median(&[9.0, 1.0, 5.0]) - 5.0).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }
}
