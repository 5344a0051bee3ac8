//! Results of a run: every sample, and the figures.
//!
//! Not here: the measurements (peers.rs), the tables (report.rs).
//!
//! Invariant: results.json holds all fields.

use serde::Serialize;

use super::figures::Figures;

/// One run of one workload on one server.
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

/// All measurements of one call.
#[derive(Default, Serialize)]
pub(super) struct Results {
    pub(super) machine: Vec<(String, String)>,
    pub(super) quick: bool,
    pub(super) samples: Vec<Sample>,
    pub(super) figures: Figures,
    pub(super) cut_off: bool,
}
