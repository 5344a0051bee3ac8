//! Published result line of bonnie++ 1.96, with the fields of bonnie++.
//!
//! The module `bonnie` of the crate is Weir's own test with the same fields.
//!
//! Invariant: "output" means write and "input" means read. The fields keep the names of bonnie++,
//! because a summary that renamed the fields confused output and input.

use serde::Deserialize;

use crate::bonnie::Phase;

/// One published run. Its figures are KiB per second or operations per second, the processor time
/// in percent of one core, and the longest latency. `None` means that the phase was too fast to
/// time.
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

/// Published figures of one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BonnieFigure {
    /// KiB per second, or operations per second.
    pub rate: Option<f64>,
    /// Processor time in percent of one core.
    pub cpu_pct: Option<f64>,
    /// Duration of the longest operation in microseconds.
    pub latency_us: Option<f64>,
}

impl BonnieRow {
    /// Returns the figures of one phase in this run.
    pub fn figure(&self, phase: Phase) -> BonnieFigure {
        let (rate, cpu_pct, latency_us) = match phase {
            Phase::OutChar => {
                (self.out_char_kib_s, self.out_char_cpu_pct, self.out_char_latency_us)
            }
            Phase::OutBlock => {
                (self.out_block_kib_s, self.out_block_cpu_pct, self.out_block_latency_us)
            }
            Phase::Rewrite => (self.rewrite_kib_s, self.rewrite_cpu_pct, self.rewrite_latency_us),
            Phase::InChar => (self.in_char_kib_s, self.in_char_cpu_pct, self.in_char_latency_us),
            Phase::InBlock => {
                (self.in_block_kib_s, self.in_block_cpu_pct, self.in_block_latency_us)
            }
            Phase::Seeks => (self.seeks_s, self.seeks_cpu_pct, self.seeks_latency_us),
            Phase::SeqCreate => {
                (self.seq_create_s, self.seq_create_cpu_pct, self.seq_create_latency_us)
            }
            Phase::SeqStat => (self.seq_stat_s, self.seq_stat_cpu_pct, self.seq_stat_latency_us),
            Phase::SeqDelete => {
                (self.seq_delete_s, self.seq_delete_cpu_pct, self.seq_delete_latency_us)
            }
            Phase::RandomCreate => {
                (self.random_create_s, self.random_create_cpu_pct, self.random_create_latency_us)
            }
            Phase::RandomStat => {
                (self.random_stat_s, self.random_stat_cpu_pct, self.random_stat_latency_us)
            }
            Phase::RandomDelete => {
                (self.random_delete_s, self.random_delete_cpu_pct, self.random_delete_latency_us)
            }
        };
        BonnieFigure { rate, cpu_pct, latency_us }
    }
}
