//! fio as the client: command lines, and the figures from its JSON.
//!
//! Not here: the server's CPU and memory during a run.
//!
//! Invariants:
//! - written data is random and never repeats, so no server gains by compression or dedupe;
//! - a run with an error, or without a completed operation, is an error.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::VOLUME_BYTES;
use super::process::guarded;
use super::servers::Server;
use super::workload::{Flush, Workload};
use crate::command;

/// Writes in the replayed log: more than any server performs in one run.
const REPLAY_WRITES: u64 = 800_000;

/// Result of one run.
pub(crate) struct Job {
    pub(crate) ops: u64,
    pub(super) flushes: u64,
    pub(crate) seconds: f64,
    pub(crate) latency_p99_us: f64,
    /// p99 of the writes only: a load with verification also counts its own reads.
    pub(crate) write_latency_p99_us: f64,
    pub(super) client_cpu_percent: f64,
}

/// Runs a workload for about `seconds`.
pub(super) fn run(workload: &Workload, server: &Server, seconds: u64) -> Result<Job> {
    let mut args = vec![format!("--iodepth={}", workload.depth), format!("--runtime={seconds}")];
    if workload.flush == Flush::Every32 {
        // fio's own fsync=32 sends further flushes until the first one completes: at QD32 that is
        // nearly one per write. A replayed log holds exactly one per 32.
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

/// Writes the volume repeatedly, sequentially.
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

/// Reads every block once, in random order, for at most ten seconds on a server without a cache.
pub(super) fn warm(server: &Server) -> Result<()> {
    call(server, &["--rw=randread", "--bs=4k", "--iodepth=32", "--runtime=10"].map(str::to_owned))?;
    Ok(())
}

/// Starts random writes with flushes, which continue until the server ends.
pub(super) fn load(server: &Server, seconds: u64) -> Result<Child> {
    let mut command = guarded("fio");
    command.args(base(server)).args(["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=32"]);
    command.args(["--time_based", "--norandommap"]).arg(format!("--runtime={seconds}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("cannot start fio")
}

fn base(server: &Server) -> Vec<String> {
    // The engine comes first: fio accepts an engine's options only after its name.
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

/// Runs a fio command, with its JSON in `output`.
pub(crate) fn output_of(command: &mut Command, output: &Path) -> Result<Job> {
    command.arg("--output-format=json").arg(format!("--output={}", output.display()));
    command::output(command)?;
    read(output).with_context(|| format!("`{}`", command::show(command)))
}

fn read(output: &Path) -> Result<Job> {
    let text = fs::read_to_string(output)?;
    // fio prints remarks into the same file, before the JSON.
    let json = text.find('{').map(|at| &text[at..]).context("fio wrote no JSON")?;
    job(&serde_json::from_str::<Value>(json)?["jobs"][0])
}

fn job(job: &Value) -> Result<Job> {
    if job["error"] != 0 {
        bail!("fio reports error {}", job["error"]);
    }
    let (read, write) = (&job["read"], &job["write"]);
    let ops = |side: &Value| side["total_ios"].as_u64().unwrap_or(0);
    let seconds = |side: &Value| side["runtime"].as_f64().unwrap_or(0.0) / 1000.0;
    // A load with verification counts its reads but reports no time for them.
    let busy = if seconds(read) > 0.0 { read } else { write };
    let seconds = seconds(busy);
    if ops(busy) == 0 || seconds <= 0.0 {
        bail!("fio did no operation");
    }
    let percent = |name: &str| job[name].as_f64().unwrap_or(0.0);
    let p99_us =
        |side: &Value| side["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or(0.0) / 1e3;
    Ok(Job {
        ops: ops(read) + ops(write),
        flushes: ops(&job["sync"]),
        seconds,
        latency_p99_us: p99_us(busy),
        write_latency_p99_us: p99_us(write),
        client_cpu_percent: percent("usr_cpu") + percent("sys_cpu"),
    })
}

/// Random 4 KiB writes with a flush after every 32, in fio's log format, version 2.
fn replay_log() -> String {
    let mut log = String::from("fio version 2 iolog\nvolume add\nvolume open\n");
    let blocks = VOLUME_BYTES / 4096;
    // The constants of Knuth's MMIX generator; the upper bits are random enough to pick a block.
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
        // 800,000 draws from 262,144 blocks miss one in 21.
        let blocks = writes.iter().collect::<HashSet<_>>().len();
        assert!((240_000..260_000).contains(&blocks), "{blocks}");
    }

    #[test]
    fn errors_and_empty_runs_are_refused() {
        let good = serde_json::json!({
            "error": 0, "usr_cpu": 10.0, "sys_cpu": 20.0, "sync": {"total_ios": 3},
            "read": {"total_ios": 0, "runtime": 0},
            "write": {"total_ios": 96, "runtime": 2000,
                "clat_ns": {"percentile": {"99.000000": 5000}}},
        });
        let read = job(&good).unwrap();
        assert_eq!((read.ops, read.flushes), (96, 3));
        assert!((read.seconds - 2.0).abs() < 1e-9 && (read.latency_p99_us - 5.0).abs() < 1e-9);
        assert!((read.client_cpu_percent - 30.0).abs() < 1e-9);
        let mut bad = good.clone();
        bad["error"] = 5.into();
        assert!(job(&bad).is_err());
        let mut empty = good;
        empty["write"]["total_ios"] = 0.into();
        assert!(job(&empty).is_err());
    }
}
