//! Whether two programs found the same.
//!
//! Not here: the statistics (stats).
//!
//! Invariants: medians within 3 % agree, and so do medians whose difference the runs do not show;
//! of runs that differ too much among themselves, or are too few, nothing is said.

use serde::Serialize;

use super::{DriverRun, SEED};
use crate::stats::{self, RatioInterval, ratio_of_medians};

/// Medians may differ by so much whatever their interval.
const OFF_PCT: f64 = 3.0;
/// An interval whose ends are farther apart than by this factor holds 1 too easily.
const SHARP: f64 = 1.5;

/// What is held against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Operations per second.
    Iops,
    /// Median latency.
    P50,
    /// 99th percentile of it.
    P99,
    /// Processor time per operation.
    Cpu,
}

impl Figure {
    /// With its unit.
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

/// A figure of both.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Which.
    pub figure: Figure,
    /// Median of fio's runs; `None`: too few operations.
    pub fio: Option<f64>,
    /// Median of ours.
    pub ours: Option<f64>,
    /// Ours by fio's.
    pub ratio: Option<RatioInterval>,
    /// Of results: they agree. Of the cost: ours is no higher. `None`: it cannot be told.
    pub holds: Option<bool>,
}

/// Holds a figure of our runs against those of fio.
pub(super) fn compare(figure: Figure, ours: &[DriverRun], fio: &[DriverRun]) -> Compared {
    // A run without the figure leaves nothing to take a median of.
    let all = |runs: &[DriverRun]| -> Option<Vec<f64>> {
        runs.iter().map(|run| figure.of(run)).collect()
    };
    let (ours, fio) = (all(ours), all(fio));
    let ratio = ours.as_ref().zip(fio.as_ref());
    let ratio = ratio.and_then(|(ours, fio)| ratio_of_medians(ours, fio, SEED));
    let median = |runs: Option<Vec<f64>>| runs.as_deref().and_then(stats::median);
    let holds = |found: RatioInterval| match figure {
        Figure::Cpu if found.ratio <= 1.0 => Some(true),
        // A cost that is only perhaps higher is neither shown to be nor not to be.
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
