//! `cargo xtask soak-load`: verified load on a server with a low memory limit and concurrent
//! hostile clients, for twelve minutes.
//!
//! Not here: the other pieces of a soak (soak.rs), crash recoveries (`cargo xtask sim`).
//!
//! Invariants:
//! - fio verifies every block that the load reads; one wrong block or one I/O error fails the soak;
//! - at the end the program checks four limits and names each one that was exceeded: resident
//!   memory of the server and of this program, the time of a management call, and the ratio between
//!   the load's p99 with hostile clients and its p99 without them.

mod callers;
mod hostile;
mod server;
mod watch;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use anyhow::{Context as _, Result, bail};
use hostile::Hostiles;
use server::{Server, VOLUME_BYTES};
use watch::Watch;
use weir_command::fio::{Job, output_of};
use weir_command::process::{guarded, own_rss_bytes};

/// Memory limit of the server (`--memory`).
const MEMORY_BYTES: u64 = 256 << 20;
/// Resident memory that the server may use above 1.1 times [`MEMORY_BYTES`]: for its program,
/// stacks, connections and iSCSI.
const MEMORY_BESIDE_BYTES: u64 = 128 << 20;
/// Seconds of the load alone, and of the load with hostile clients, in each pair of runs. The runs
/// alternate because the other load of the machine changes from minute to minute.
const PAIR_SECONDS: (u64, u64) = (30, 90);
/// Number of pairs of runs, which take twelve minutes in all.
const PAIRS: u64 = 6;
/// Maximum ratio of the load's p99 with hostile clients to its p99 alone.
const P99_RATIO_MAX: f64 = 5.0;
/// Number of the last pairs of runs that the p99 limit considers. The limit is exceeded if at least
/// `P99_PAIRS_BROKEN` of these pairs have a ratio above [`P99_RATIO_MAX`]: other load on the
/// machine makes one or two pairs exceed it.
const P99_PAIRS: usize = 5;
const P99_PAIRS_BROKEN: usize = 3;
/// Maximum growth of this program's resident memory: its size after the last pair of runs, divided
/// by its size after the first pair. With a leak, this program would exceed the memory limit of a
/// soak.
const OWN_MEMORY_RATIO_MAX: f64 = 1.2;
/// Growth of this program's memory that is always allowed: memory that the allocator keeps for the
/// threads of hostile clients.
const OWN_MEMORY_SLACK_BYTES: u64 = 8 << 20;
/// Maximum time of a management call.
const CALL_MAX: Duration = Duration::from_secs(5);

/// The program under test, and its folder.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Program to test.
    #[arg(long, value_name = "PROGRAM")]
    weir: PathBuf,
    /// Folder for disks, sockets and logs; emptied first
    #[arg(long)]
    dir: PathBuf,
    /// Pairs of runs, two minutes each
    #[arg(long, default_value_t = PAIRS)]
    pairs: u64,
}

/// Runs `cargo xtask soak-load`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let Args { weir: program, dir: data, pairs } = args;
    if data.exists() {
        fs::remove_dir_all(data)?;
    }
    fs::create_dir_all(data)?;
    // The server refuses a state folder that other users can read, so set mode 0700.
    fs::set_permissions(data, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let server = Arc::new(Server::start(program, data, MEMORY_BYTES)?);
    let memory_max = MEMORY_BYTES / 10 * 11 + MEMORY_BESIDE_BYTES;
    load(&server, data, &["--rw=write", "--bs=1m", "--iodepth=8"])?;
    // Hostile clients start streams of this snapshot and do not read them.
    server.weir(&["snapshot", "create", "soak/v@stream"])?;
    let watch = Watch::start(&server)?;
    // Keep only the ratios of the last pairs, which the p99 limit needs, so that memory does not
    // grow.
    let (mut ratios, mut connections, mut own_bytes) = (VecDeque::new(), 0, None);
    for pair in 1..=*pairs {
        let alone = random_load(&server, data, PAIR_SECONDS.0).context("the load alone")?;
        let hostiles = Hostiles::start(&server.doors);
        let beside = random_load(&server, data, PAIR_SECONDS.1);
        connections += hostiles.connections();
        drop(hostiles);
        let beside = beside.context("the load with hostile clients")?;
        println!("pair {pair}: p99 {alone:.0} us alone, {beside:.0} us with hostile clients");
        ratios.push_back(beside / alone);
        if ratios.len() > P99_PAIRS {
            ratios.pop_front();
        }
        own_bytes.get_or_insert(own_rss_bytes()?);
    }
    let own = OwnMemory { first: own_bytes.unwrap_or_default(), last: own_rss_bytes()? };
    println!("{own}");
    println!("{connections} hostile connections");
    let seen = watch.finish()?;
    println!("{seen}");
    let server = Arc::into_inner(server).context("the watch still holds the server")?;
    server.kill_and_check(data)?;
    let mut broken = Vec::new();
    if is_p99_broken(&ratios) {
        let shown: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.1}")).collect();
        let shown = shown.join(", ");
        broken.push(format!("p99 grew {shown} times, the limit is {P99_RATIO_MAX}"));
    }
    if seen.rss_bytes_max > memory_max {
        broken.push(format!("resident memory {} of {memory_max} bytes", seen.rss_bytes_max));
    }
    if own.is_broken() {
        broken.push(format!("{own}, the limit is {OWN_MEMORY_RATIO_MAX} times"));
    }
    if seen.call_max > CALL_MAX {
        broken.push(format!("`weir {}` took {:.1?}", seen.slowest_call, seen.call_max));
    }
    if !broken.is_empty() {
        bail!("the load exceeded its limits: {}", broken.join("; "));
    }
    println!("{pairs} pairs of runs: all limits met");
    Ok(())
}

/// Resident memory of this program in bytes, after the first pair of runs and after the last.
struct OwnMemory {
    first: u64,
    last: u64,
}

impl OwnMemory {
    fn is_broken(&self) -> bool {
        let bound = self.first as f64 * OWN_MEMORY_RATIO_MAX;
        self.last.saturating_sub(OWN_MEMORY_SLACK_BYTES) as f64 > bound
    }
}

impl fmt::Display for OwnMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last } = self;
        write!(out, "memory of the soak driver grew from {} to {} KiB", first >> 10, last >> 10)
    }
}

/// Returns true if too many of the last pairs of runs exceed the p99 ratio.
fn is_p99_broken(ratios: &VecDeque<f64>) -> bool {
    let last = ratios.iter().rev().take(P99_PAIRS);
    // A failed measurement is NaN and counts as exceeded.
    let above = last.filter(|ratio| ratio.is_nan() || **ratio > P99_RATIO_MAX);
    above.count() >= P99_PAIRS_BROKEN
}

/// Writes at random offsets in the first half of the volume, reads each written block again and
/// verifies it. Returns the p99 of the writes in us.
fn random_load(server: &Server, data: &Path, seconds: u64) -> Result<f64> {
    let runtime = format!("--runtime={seconds}");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_memory_may_grow_by_a_fifth_and_a_little() {
        assert!(!OwnMemory { first: 10 << 20, last: 20 << 20 }.is_broken());
        assert!(OwnMemory { first: 10 << 20, last: (20 << 20) + 4096 }.is_broken());
    }

    #[test]
    fn three_bad_pairs_of_the_last_five_break_the_p99() {
        let is_broken = |ratios: &[f64]| is_p99_broken(&ratios.iter().copied().collect());
        assert!(!is_broken(&[]));
        assert!(!is_broken(&[5.0, 5.0, 5.0, 5.0, 5.0]), "the bound itself holds");
        assert!(!is_broken(&[9.0, 1.0, 90.0, 1.0, 1.0]));
        assert!(is_broken(&[9.0, 1.0, 5.1, 1.0, 90.0]));
        assert!(!is_broken(&[9.0, 9.0, 9.0, 1.0, 9.0, 1.0, 9.0, 1.0]), "two of the last five");
        assert!(is_broken(&[1.0, 1.0, 1.0, 9.0, 9.0, 9.0]));
        assert!(is_broken(&[f64::NAN, f64::NAN, f64::INFINITY]));
    }
}
