//! Results of a run: every sample, and the figures that are not rates.
//!
//! `visits` performs the measurements; `report` formats the tables.
//!
//! Invariant: results.json contains all fields of the results.

use serde::Serialize;

/// Result of one row for one contender in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) row: String,
    pub(super) contender: &'static str,
    pub(super) round: usize,
    /// Number of files, or of calls of 1 MiB.
    pub(super) ops: u64,
    pub(super) seconds: f64,
    pub(super) ops_per_second: f64,
    pub(super) server_cpu_us_per_op: f64,
}

/// 99th percentiles of the latency of a 4 KiB write with fsync.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) contender: &'static str,
    pub(super) round: usize,
    pub(super) idle_p99_us: f64,
    /// While another process streams into another file.
    pub(super) busy_p99_us: f64,
}

/// All results of one call of the benchmark.
#[derive(Debug, Default, Serialize)]
pub(super) struct Results {
    pub(super) machine: Vec<(String, String)>,
    pub(super) quick: bool,
    pub(super) cut_off: bool,
    pub(super) small_files: u64,
    pub(super) large_mib: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) latencies: Vec<Latency>,
    /// Stored bytes per file of 1 KiB, by contender.
    pub(super) stored_bytes: Vec<(&'static str, f64)>,
}
