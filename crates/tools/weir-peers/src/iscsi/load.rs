//! Load of the iSCSI benchmark: a profile of rows that `weir bench` runs on a target.
//!
//! The rows are in `rows`, the targets in `servers`.
//!
//! Invariant: a server's CPU time covers only the measured seconds of a row, and neither fill nor
//! pauses.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;
use weir_command::command;
use weir_command::process::Process;

use super::rows::{ROWS, Row};
use super::servers::{Contestant, Servers, VOLUME_BYTES};

/// Result of one row in one round.
pub(super) struct Sample {
    pub(super) row: &'static str,
    pub(super) ops_per_second: f64,
    pub(super) cpu_us_per_op: f64,
    pub(super) client_cpu_percent: f64,
}

/// Runs all rows of a target once.
pub(super) fn run(
    program: &Path,
    servers: &Servers,
    of: Contestant,
    seconds: u64,
    data: &Path,
) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for sync in [false, true] {
        let rows: Vec<&Row> = ROWS.iter().filter(|row| row.sync == sync && of.runs(row)).collect();
        if rows.is_empty() {
            continue;
        }
        let profile = data.join("profile.toml");
        fs::write(&profile, profile_of(&rows, seconds))?;
        let work = || bench(program, &profile, &servers.address(of), &data.join("run"));
        let (result, cpu) = Cpu::watch(servers.process(of), work)?;
        for row in rows {
            samples.push(sample(row, &result, &cpu)?);
        }
    }
    Ok(samples)
}

/// Returns the text of a profile with these rows, whose writes all have the same durability.
pub(super) fn profile_of(rows: &[&Row], seconds: u64) -> String {
    let writes = if rows.iter().any(|row| row.sync) {
        "writes = \"flush\", every_writes = 1"
    } else {
        "writes = \"none\""
    };
    let mut text = format!(
        "schema = 1\nname = \"iscsi\"\n\
         dataset = {{ files = 1, file_size = \"{VOLUME_BYTES}B\" }}\n\
         content = {{ compress = 1.0, dedupe_pct = 0, unit = \"4KiB\", seed = 42 }}\n\
         durability = {{ {writes} }}\n\
         [phases]\nfill = {{ block = \"1MiB\", in_flight = 8 }}\n\
         measure = {{ warmup = \"1s\", duration = \"{seconds}s\", runs = 1 }}\n"
    );
    for Row { name, pattern, block_bytes, read_pct, depth, .. } in rows {
        write!(
            text,
            "[[test]]\nname = \"{name}\"\npattern = \"{pattern}\"\nblock = \"{block_bytes}B\"\n\
             read_pct = {read_pct}\nqd = [{depth}]\n"
        )
        .expect("a String takes every write");
    }
    text
}

/// Runs a profile on a target and returns the results.
pub(super) fn bench(program: &Path, profile: &Path, address: &str, out: &Path) -> Result<Value> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    let mut command = Command::new(program);
    command.args(["bench", "run", "--scale", "seed", "--profile"]).arg(profile);
    command.args(["--target", address, "--destroy", address, "--out"]).arg(out);
    command::output(&mut command)?;
    let text = fs::read_to_string(out.join("result.json"))?;
    serde_json::from_str(&text).context("result.json")
}

fn sample(row: &Row, result: &Value, cpu: &Cpu) -> Result<Sample> {
    let cells = result["cells"].as_array().context("no cells")?;
    let cell = cells.iter().find(|cell| cell["spec"]["name"] == row.name);
    let run = &cell.with_context(|| format!("no cell {}", row.name))?["runs"][0];
    let classes = run["classes"].as_array().context("no classes")?;
    let wanted = if row.read_pct > 0 { "read" } else { "write" };
    let counts = classes.iter().filter(|class| class["op"] == wanted);
    let ops: u64 = counts.filter_map(|class| class["ops"].as_u64()).sum();
    let seconds = run["seconds"].as_f64().filter(|seconds| *seconds > 0.0);
    let seconds = seconds.with_context(|| format!("{} was not measured", row.name))?;
    let started = run["started_unix_ms"].as_u64().context("no start")? as f64;
    let used_us = cpu.used_us(started, started + seconds * 1e3).context("no CPU times")?;
    let client: f64 = [0, 1].iter().filter_map(|at| run["cpu_s"][at].as_f64()).sum();
    anyhow::ensure!(ops > 0, "{} did nothing: {cell:?}", row.name);
    Ok(Sample {
        row: row.name,
        ops_per_second: ops as f64 / seconds,
        cpu_us_per_op: used_us / ops as f64,
        client_cpu_percent: client / seconds * 100.0,
    })
}

/// CPU times of a server. Each pair is a time in milliseconds since 1970, and the CPU time in
/// microseconds that the server used up to that time.
struct Cpu(Vec<(f64, f64)>);

impl Cpu {
    /// Samples the server's CPU times while `work` runs.
    fn watch<T>(process: &Process, work: impl FnOnce() -> Result<T>) -> Result<(T, Self)> {
        let done = AtomicBool::new(false);
        let look = || {
            let mut points = Vec::new();
            loop {
                // Read the stop flag before sampling, so that the last sample is taken after the
                // load has ended.
                let is_done = done.load(Ordering::Relaxed);
                let used_us = process.cpu()?.as_secs_f64() * 1e6;
                let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
                points.push((now.as_secs_f64() * 1e3, used_us));
                if is_done {
                    return anyhow::Ok(Self(points));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        };
        std::thread::scope(|scope| {
            let watcher = scope.spawn(look);
            let result = work();
            done.store(true, Ordering::Relaxed);
            let cpu = watcher.join().expect("it only reads a file")?;
            Ok((result?, cpu))
        })
    }

    fn at(&self, when_ms: f64) -> Option<f64> {
        let Self(points) = self;
        let after = points.iter().position(|(at, _)| *at >= when_ms)?;
        let (later, more) = points[after];
        let (sooner, less) = *points.get(after.checked_sub(1)?)?;
        Some(less + (more - less) * (when_ms - sooner) / (later - sooner))
    }

    fn used_us(&self, from_ms: f64, to_ms: f64) -> Option<f64> {
        Some(self.at(to_ms)? - self.at(from_ms)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_covers_the_requested_interval() {
        let cpu = Cpu(vec![(0.0, 0.0), (100.0, 50.0), (200.0, 50.0), (300.0, 150.0)]);
        assert_eq!(cpu.used_us(50.0, 250.0), Some(75.0));
        assert_eq!(cpu.used_us(50.0, 350.0), None);
    }

    #[test]
    fn rows_without_operations_are_an_error() {
        let cpu = Cpu(vec![(0.0, 0.0), (2000.0, 100.0)]);
        let result = |ops: u64| {
            serde_json::json!({"cells": [{"spec": {"name": "randread-qd32"}, "runs": [{
                "started_unix_ms": 500, "seconds": 1.0, "cpu_s": [0.25, 0.25],
                "classes": [{"op": "read", "ops": ops}, {"op": "flush", "ops": 9}],
            }]}]})
        };
        let got = sample(&ROWS[1], &result(10), &cpu).unwrap();
        assert!((got.ops_per_second - 10.0).abs() < 1e-9 && (got.cpu_us_per_op - 5.0).abs() < 1e-9);
        assert!((got.client_cpu_percent - 50.0).abs() < 1e-9);
        assert!(sample(&ROWS[1], &result(0), &cpu).is_err());
        assert!(sample(&ROWS[0], &result(10), &cpu).is_err());
    }
}
