//! Batch means: averages over batches of consecutive seconds of one run, so that the averages are
//! nearly independent samples.
//!
//! `interval` computes intervals over several runs.
//!
//! Theory. Neighbouring seconds of a run are correlated (caches, flushes, background work), so
//! single seconds contain less information than their number suggests. Means of longer batches are
//! less correlated; the batch length grows until the correlation of neighbours is negligible.
//!
//! Invariants: all batches have the same length; values at the end that do not fill a batch are
//! dropped.

use super::{ConfidenceInterval, mean, runs_interval};

/// Lag-1 autocorrelation below which the batches count as independent.
const LAG1_MAX: f64 = 0.1;
/// Minimum number of batches from which a meaningful correlation can be computed.
const BATCHES_MIN: usize = 10;

/// Batch means of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchMeans {
    /// Number of values in each batch.
    pub length: usize,
    /// Mean of each batch, in order.
    pub means: Vec<f64>,
    /// Lag-1 autocorrelation of the batch means.
    pub lag1: f64,
    /// True if `lag1` is below 0.1. If not, the run was too short for independent batches.
    pub independent: bool,
}

impl BatchMeans {
    /// 95 % interval of the run's mean or median; `None` if the batches are not independent.
    pub fn interval(&self) -> Option<ConfidenceInterval> {
        self.independent.then(|| runs_interval(&self.means)).flatten()
    }
}

/// Averages `values`, such as the operations in each second, over batches. Uses the shortest
/// batches whose lag-1 autocorrelation is below 0.1. If there is no such length, uses the longest
/// batches of which `values` contains ten. `None` if there are fewer than ten values.
pub fn batch_means(values: &[f64]) -> Option<BatchMeans> {
    let longest = values.len() / BATCHES_MIN;
    let mut last = None;
    for length in 1..=longest {
        let batches = values.chunks_exact(length);
        let means: Vec<f64> = batches.filter_map(mean).collect();
        let lag1 = lag1(&means)?;
        let independent = lag1 < LAG1_MAX;
        last = Some(BatchMeans { length, means, lag1, independent });
        if independent {
            break;
        }
    }
    last
}

/// Lag-1 autocorrelation of values: 0 if all values are equal, `None` if there are fewer than two
/// values.
pub fn lag1(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|_| values.len() > 1)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let neighbours: f64 = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean)).sum();
    Some(if squares > 0.0 { neighbours / squares } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlation_of_known_series() {
        assert_eq!(lag1(&[5.0]), None);
        assert_eq!(lag1(&[5.0; 9]), Some(0.0));
        // For alternating values 1 and -1, the result is n - 1 products of -1 divided by n squares
        // of 1.
        let alternating: Vec<f64> = (0..10).map(|i| f64::from(i % 2) * 2.0 - 1.0).collect();
        assert!((lag1(&alternating).unwrap() + 0.9).abs() < 1e-12);
        // For the values 1 2 3 4 5, the sum of the products is 2 + 0 + 0 + 2 = 4, and the sum of
        // the squares is 10.
        assert!((lag1(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap() - 0.4).abs() < 1e-12);
    }

    #[test]
    fn batches_grow_until_periodic_values_are_independent() {
        // Five fast seconds alternate with five slow seconds. Single seconds are correlated, but
        // batches of ten seconds are equal.
        let seconds: Vec<f64> = (0..600).map(|i| if i % 10 < 5 { 100.0 } else { 200.0 }).collect();
        let batches = batch_means(&seconds).unwrap();
        assert!(batches.independent && batches.length > 1, "{batches:?}");
        assert!(lag1(&seconds).unwrap() > 0.5);
        let interval = batches.interval().unwrap();
        assert!(interval.low <= 150.0 && 150.0 <= interval.high, "{interval:?}");
    }

    #[test]
    fn drifting_series_has_no_independent_batches() {
        let drift: Vec<f64> = (0..200).map(f64::from).collect();
        let batches = batch_means(&drift).unwrap();
        assert!(!batches.independent && batches.means.len() == BATCHES_MIN, "{batches:?}");
        assert_eq!(batches.interval(), None);
        assert_eq!(batch_means(&drift[..9]), None);
    }
}
