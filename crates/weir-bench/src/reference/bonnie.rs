//! A published row of bonnie++ 1.96, in its own fields.
//!
//! Not here: our file test with the same fields.
//!
//! Invariant: output is writing and input is reading; the names of bonnie++ are kept, because a
//! summary that renamed them has swapped them before.

use serde::Deserialize;

/// One run. KiB per second or operations per second, processor in percent of one core, longest
/// latency; `None`: too fast to be timed.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "bonnie++ defines its fields; the names carry the units")]
pub struct BonnieRow {
    pub run: u32,
    pub size_gib: f64,
    pub files: u32,
    pub out_char_kib_s: Option<f64>,
    pub out_char_cpu_pct: Option<f64>,
    pub out_block_kib_s: Option<f64>,
    pub out_block_cpu_pct: Option<f64>,
    pub rewrite_kib_s: Option<f64>,
    pub rewrite_cpu_pct: Option<f64>,
    pub in_char_kib_s: Option<f64>,
    pub in_char_cpu_pct: Option<f64>,
    pub in_block_kib_s: Option<f64>,
    pub in_block_cpu_pct: Option<f64>,
    pub seeks_s: Option<f64>,
    pub seeks_cpu_pct: Option<f64>,
    pub seq_create_s: Option<f64>,
    pub seq_create_cpu_pct: Option<f64>,
    pub seq_stat_s: Option<f64>,
    pub seq_stat_cpu_pct: Option<f64>,
    pub seq_delete_s: Option<f64>,
    pub seq_delete_cpu_pct: Option<f64>,
    pub random_create_s: Option<f64>,
    pub random_create_cpu_pct: Option<f64>,
    pub random_stat_s: Option<f64>,
    pub random_stat_cpu_pct: Option<f64>,
    pub random_delete_s: Option<f64>,
    pub random_delete_cpu_pct: Option<f64>,
    pub out_char_latency_us: Option<f64>,
    pub out_block_latency_us: Option<f64>,
    pub rewrite_latency_us: Option<f64>,
    pub in_char_latency_us: Option<f64>,
    pub in_block_latency_us: Option<f64>,
    pub seeks_latency_us: Option<f64>,
    pub seq_create_latency_us: Option<f64>,
    pub seq_stat_latency_us: Option<f64>,
    pub seq_delete_latency_us: Option<f64>,
    pub random_create_latency_us: Option<f64>,
    pub random_stat_latency_us: Option<f64>,
    pub random_delete_latency_us: Option<f64>,
}
