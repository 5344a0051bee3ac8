//! Runs `weir bench` as the client of a server, and derives the figures of a row from its result.
//!
//! The benchmarks write the profiles.
//!
//! Invariant: a server's CPU time covers only the measured seconds of a row, and neither fill nor
//! pauses.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use weir_command::command;
use weir_command::process::Process;

/// Figures of one run of a row.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Operations per second of the requested classes.
    pub(crate) ops_per_second: f64,
    /// CPU time of the server for each operation of any class, without flushes.
    pub(crate) server_cpu_us_per_op: f64,
    /// CPU time of the client in percent of one core.
    pub(crate) client_cpu_percent: f64,
    /// Length of the measurement.
    pub(crate) seconds: f64,
}

/// Runs a profile on a target and returns the results.
pub(crate) fn run(program: &Path, profile: &Path, address: &str, out: &Path) -> Result<Value> {
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    let mut command = Command::new(program);
    command.args(["bench", "run", "--scale", "seed", "--verify", "0", "--profile"]);
    command.arg(profile).args(["--target", address, "--destroy", address]);
    command.arg("--out").arg(out);
    command::output(&mut command)?;
    let text = fs::read_to_string(out.join("result.json"))?;
    serde_json::from_str(&text).context("result.json")
}

/// Derives the figures of the row `name`. `classes`: the kinds of operation that its rate counts.
pub(crate) fn figures(result: &Value, cpu: &Cpu, name: &str, classes: &[&str]) -> Result<Figures> {
    let cells = result["cells"].as_array().context("no cells")?;
    let cell = cells.iter().find(|cell| cell["spec"]["name"] == name);
    let cell = cell.with_context(|| format!("no cell {name}"))?;
    let run = &cell["runs"][0];
    let all = run["classes"].as_array().with_context(|| format!("{name}: no classes"))?;
    let ops = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let fits = all.iter().filter(|class| class["op"].as_str().is_some_and(wanted));
        fits.filter_map(|class| class["ops"].as_u64()).sum()
    };
    let failed = all.iter().any(|class| class["errors"].as_object().is_some_and(|e| !e.is_empty()));
    ensure!(!failed, "{name}: operations failed: {}", run["classes"]);
    let (counted, every) = (ops(&|op| classes.contains(&op)), ops(&|op| op != "flush"));
    let seconds = run["seconds"].as_f64().filter(|seconds| *seconds > 0.0);
    let seconds = seconds.with_context(|| format!("{name} was not measured: {cell}"))?;
    ensure!(counted > 0, "{name} did nothing");
    let started = run["started_unix_ms"].as_u64().context("no start")? as f64;
    let used_us = cpu.used_us(started, started + seconds * 1e3).context("no CPU times")?;
    let client: f64 = [0, 1].iter().filter_map(|at| run["cpu_s"][at].as_f64()).sum();
    Ok(Figures {
        ops_per_second: counted as f64 / seconds,
        server_cpu_us_per_op: used_us / every as f64,
        client_cpu_percent: client / seconds * 100.0,
        seconds,
    })
}

/// CPU times of a server. Each pair is a time in milliseconds since 1970, and the CPU time in
/// microseconds that the server used up to that time.
pub(crate) struct Cpu(Vec<(f64, f64)>);

impl Cpu {
    /// Samples the server's CPU times while `work` runs.
    pub(crate) fn watch<T>(
        process: &Process,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Self)> {
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
    fn rows_without_operations_and_rows_with_errors_are_refused() {
        let cpu = Cpu(vec![(0.0, 0.0), (2000.0, 100.0)]);
        let result = |ops: u64, errors: Value| {
            serde_json::json!({"cells": [{"spec": {"name": "mix"}, "runs": [{
                "started_unix_ms": 500, "seconds": 1.0, "cpu_s": [0.25, 0.25],
                "classes": [
                    {"op": "read", "ops": ops, "errors": errors},
                    {"op": "metadata", "ops": 10, "errors": {}},
                    {"op": "flush", "ops": 9, "errors": {}},
                ],
            }]}]})
        };
        let none = || serde_json::json!({});
        let got = figures(&result(10, none()), &cpu, "mix", &["read", "write"]).unwrap();
        assert!((got.ops_per_second - 10.0).abs() < 1e-9, "{got:?}");
        assert!((got.server_cpu_us_per_op - 2.5).abs() < 1e-9, "{got:?}");
        assert!((got.client_cpu_percent - 50.0).abs() < 1e-9, "{got:?}");
        assert!(figures(&result(0, none()), &cpu, "mix", &["read"]).is_err());
        assert!(figures(&result(10, none()), &cpu, "other", &["read"]).is_err());
        let errors = serde_json::json!({"NFS3ERR_IO": 3});
        assert!(figures(&result(10, errors), &cpu, "mix", &["read"]).is_err());
    }
}
