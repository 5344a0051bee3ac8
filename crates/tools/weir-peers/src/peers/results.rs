//! Results of a run: every sample, and the figures that are not throughput.
//!
//! `peers` performs the measurements; `report` formats the tables.
//!
//! Invariant: results.json contains all fields of the results.

use serde::Serialize;

use super::figures::Figures;

/// Result of one run of one workload on one server.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) workload: &'static str,
    pub(super) server: &'static str,
    pub(super) round: usize,
    pub(super) ops: u64,
    pub(super) flushes: u64,
    pub(super) seconds: f64,
    pub(super) ops_per_second: f64,
    pub(super) mib_per_second: f64,
    pub(super) latency_p99_us: f64,
    pub(super) server_cpu_us_per_op: f64,
    pub(super) client_cpu_percent: f64,
    pub(super) server_rss_bytes_max: u64,
}

/// All results of one call of the benchmark.
#[derive(Default, Serialize)]
pub(super) struct Results {
    pub(super) machine: Vec<(String, String)>,
    pub(super) quick: bool,
    pub(super) samples: Vec<Sample>,
    pub(super) figures: Figures,
    pub(super) cut_off: bool,
}
