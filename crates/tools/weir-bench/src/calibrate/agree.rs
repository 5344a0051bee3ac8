//! Decides whether the figures of two programs agree.
//!
//! `stats` computes the intervals of the ratios.
//!
//! Invariants: two medians agree if they differ by at most 3 %, or if the confidence interval of
//! their ratio contains 1. If the runs vary too much or are too few, the figure gets no verdict.

use serde::Serialize;

use super::{DriverRun, SEED};
use crate::stats::{self, RatioInterval, ratio_of_medians};

/// Two medians that differ by at most this percentage agree, unless the confidence interval of
/// their ratio is too wide for a verdict.
const OFF_PCT: f64 = 3.0;
/// If the ends of an interval differ by more than this factor, the interval is too wide for a
/// verdict, because it may contain 1 by chance.
const SHARP: f64 = 1.5;

/// Figure of both programs that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations per second.
    Iops,
    /// Median latency.
    P50,
    /// 99th percentile of the latency.
    P99,
    /// Processor time of an operation.
    Cpu,
}

impl Figure {
    /// Name of the figure, with its unit.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iops => "IOPS",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::Cpu => "CPU µs per operation",
        }
    }

    fn of(self, run: &DriverRun) -> Option<f64> {
        match self {
            Self::Iops => Some(run.iops),
            Self::P50 => run.p50_us,
            Self::P99 => run.p99_us,
            Self::Cpu => Some(run.cpu_us),
        }
    }
}

/// Comparison of one figure between Weir and fio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Figure that is compared.
    pub figure: Figure,
    /// Median of fio's runs; `None` if there were too few operations.
    pub fio: Option<f64>,
    /// Median of Weir's runs; `None` if there were too few operations.
    pub ours: Option<f64>,
    /// Weir's median divided by fio's median.
    pub ratio: Option<RatioInterval>,
    /// True if the two medians agree. For processor time, true if Weir's median is not higher than
    /// fio's. `None` if the runs allow no verdict.
    pub holds: Option<bool>,
}

/// Compares a figure of Weir's runs with the figure of fio's runs.
pub(super) fn compare(figure: Figure, ours: &[DriverRun], fio: &[DriverRun]) -> Compared {
    // If any run lacks the figure, return no values, so that the figure has no median.
    let all = |runs: &[DriverRun]| -> Option<Vec<f64>> {
        runs.iter().map(|run| figure.of(run)).collect()
    };
    let (ours, fio) = (all(ours), all(fio));
    let ratio = ours.as_ref().zip(fio.as_ref());
    let ratio = ratio.and_then(|(ours, fio)| ratio_of_medians(ours, fio, SEED));
    let median = |runs: Option<Vec<f64>>| runs.as_deref().and_then(stats::median);
    let holds = |found: RatioInterval| match figure {
        Figure::Cpu if found.ratio <= 1.0 => Some(true),
        // If the interval includes 1, the runs do not prove a higher cost.
        Figure::Cpu => (found.low > 1.0).then_some(false),
        _ => {
            let is_near = (found.ratio - 1.0).abs() * 100.0 <= OFF_PCT;
            let is_possible = (found.low..=found.high).contains(&1.0);
            let is_sharp = found.high <= found.low * SHARP;
            if is_sharp || !is_possible { Some(is_near || is_possible) } else { None }
        }
    };
    let (fio, ours, holds) = (median(fio), median(ours), ratio.and_then(holds));
    Compared { figure, fio, ours, ratio, holds }
}
