//! Runs fio as the client of a server.
//!
//! weir-command parses the JSON of fio. `peers` measures the server's CPU and memory during a run.
//!
//! Invariant: the written data is random and never repeats, so that no server gains by compression
//! or dedupe.

use std::fmt::Write;
use std::fs;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use weir_command::fio::{Job, output_of};
use weir_command::process::guarded;

use super::servers::{Server, VOLUME_BYTES};
use super::workload::{Flush, Workload};

/// Number of writes in the replayed log: more than any server can perform in one run.
const REPLAY_WRITES: u64 = 800_000;

/// Runs a workload for about `seconds`.
pub(super) fn run(workload: &Workload, server: &Server, seconds: u64) -> Result<Job> {
    let mut args = vec![format!("--iodepth={}", workload.depth), format!("--runtime={seconds}")];
    if workload.flush == Flush::Every32 {
        // With fsync=32, fio sends a flush for each further write until the first flush completes.
        // So at QD32 almost every write has a flush. A replayed log has exactly one flush after
        // every 32 writes.
        let log = server.dir().join("flush32.log");
        if !log.exists() {
            fs::write(&log, replay_log())?;
        }
        args.push(format!("--read_iolog={}", log.display()));
        args.push("--replay_no_stall=1".to_owned());
    } else {
        args.push(format!("--rw={}", workload.pattern));
        args.push(format!("--bs={}", workload.block_bytes));
        args.extend(["--time_based", "--norandommap"].map(str::to_owned));
        if workload.flush == Flush::Each {
            args.push("--fsync=1".to_owned());
        }
    }
    call(server, &args)
}

/// Writes the whole volume once, sequentially.
pub(super) fn fill(server: &Server) -> Result<()> {
    call(server, &["--rw=write", "--bs=1m", "--iodepth=16", "--end_fsync=1"].map(str::to_owned))?;
    Ok(())
}

/// Writes the volume repeatedly and sequentially, for `seconds`.
pub(super) fn warm_writes(server: &Server, seconds: u64) -> Result<()> {
    let runtime = format!("--runtime={seconds}");
    call(
        server,
        &["--rw=write", "--bs=1m", "--iodepth=16", "--time_based"]
            .map(str::to_owned)
            .into_iter()
            .chain([runtime])
            .collect::<Vec<_>>(),
    )?;
    Ok(())
}

/// Reads every block once in random order, for at most 10 s on a server without a cache.
pub(super) fn warm(server: &Server) -> Result<()> {
    call(server, &["--rw=randread", "--bs=4k", "--iodepth=32", "--runtime=10"].map(str::to_owned))?;
    Ok(())
}

/// Starts random writes with flushes, which continue until the server is killed.
pub(super) fn load(server: &Server, seconds: u64) -> Result<Child> {
    let mut command = guarded("fio");
    command.args(base(server)).args(["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=32"]);
    command.args(["--time_based", "--norandommap"]).arg(format!("--runtime={seconds}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start fio")
}

fn base(server: &Server) -> Vec<String> {
    // The engine is the first option, because fio accepts options of an engine only after the
    // engine's name.
    let fixed = ["--name=bench", "--ioengine=nbd", "--thread=1", "--randrepeat=0"];
    let data = ["--refill_buffers=1", "--buffer_compress_percentage=0"];
    let mut args: Vec<String> = fixed.into_iter().chain(data).map(str::to_owned).collect();
    args.extend([format!("--uri={}", server.uri()), format!("--size={VOLUME_BYTES}")]);
    args
}

fn call(server: &Server, args: &[String]) -> Result<Job> {
    let output = server.dir().join("fio.json");
    let mut command = guarded("fio");
    command.args(base(server)).args(args);
    output_of(&mut command, &output)
        .with_context(|| format!("the load on {} failed", server.kind().title()))
}

/// Random writes of 4 KiB with a flush after every 32 writes, in version 2 of fio's log format.
fn replay_log() -> String {
    let mut log = String::from("fio version 2 iolog\nvolume add\nvolume open\n");
    let blocks = VOLUME_BYTES / 4096;
    // Constants of Knuth's MMIX generator; its upper bits are random enough to choose a block.
    let mut state = 1_u64;
    for write in 1..=REPLAY_WRITES {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (state >> 33) % blocks * 4096;
        writeln!(log, "volume write {offset} 4096").expect("a String takes every write");
        if write % 32 == 0 {
            log.push_str("volume sync 0 0\n");
        }
    }
    log.push_str("volume close\n");
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn replayed_log_flushes_once_per_32_writes() {
        let log = replay_log();
        let writes: Vec<&str> = log.lines().filter(|line| line.contains(" write ")).collect();
        assert_eq!(writes.len() as u64, REPLAY_WRITES);
        assert_eq!(log.matches(" sync ").count() as u64, REPLAY_WRITES / 32);
        // 800,000 draws from 262,144 blocks miss a given block with a probability of one in 21.
        let blocks = writes.iter().collect::<HashSet<_>>().len();
        assert!((240_000..260_000).contains(&blocks), "{blocks}");
    }
}
