//! Parses the result of a fio run from fio's JSON.
//!
//! xtask and weir-peers have the command lines of fio.
//!
//! Invariant: a run that failed, or that completed no operation, is an error.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command;

/// Result of one fio run.
pub struct Job {
    /// Number of completed reads and writes.
    pub ops: u64,
    /// Number of completed flushes.
    pub flushes: u64,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// 99th percentile of the read latency, or of the write latency if fio reports no time for
    /// reads.
    pub latency_p99_us: f64,
    /// 99th percentile of the write latency. If fio verifies its writes, `latency_p99_us` may be
    /// the latency of the verifying reads.
    pub write_latency_p99_us: f64,
    /// CPU use of fio itself, in percent of a core.
    pub client_cpu_percent: f64,
}

/// Runs a fio command that writes its JSON to the file `output`.
pub fn output_of(command: &mut Command, output: &Path) -> Result<Job> {
    command.arg("--output-format=json").arg(format!("--output={}", output.display()));
    command::output(command)?;
    read(output).with_context(|| format!("`{}`", command::show(command)))
}

fn read(output: &Path) -> Result<Job> {
    let text = fs::read_to_string(output)?;
    // fio prints remarks into the same file before its JSON.
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
    // If fio verifies its writes, it counts the verifying reads but reports no time for them. So
    // use the reads only if they have a time.
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

#[cfg(test)]
mod tests {
    use super::*;

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
