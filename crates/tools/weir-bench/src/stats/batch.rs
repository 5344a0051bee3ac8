//! Means of batches: seconds of one run made independent enough to count as samples.
//!
//! Not here: intervals over runs (interval).
//!
//! Theory. Neighbouring seconds of a run are alike (caches, flushes, background work), so their
//! number overstates what is known. Means of longer batches are less alike; the batches grow until
//! neighbours have no correlation worth the name.
//!
//! Invariants: every batch has the same length; a rest at the end that fills none is left out.

use super::{ConfidenceInterval, mean, runs_interval};

/// Correlation of neighbours below which batches count as independent.
const LAG1_MAX: f64 = 0.1;
/// Batches below which a correlation says nothing.
const BATCHES_MIN: usize = 10;

/// Means of batches of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchMeans {
    /// Values in a batch.
    pub length: usize,
    /// Mean of each, in order.
    pub means: Vec<f64>,
    /// Correlation of neighbouring means.
    pub lag1: f64,
    /// Whether it is below 0.1; where it is not, the run was too short to tell.
    pub independent: bool,
}

impl BatchMeans {
    /// The 95 % interval of the run's mean or median; `None` where the batches are not independent.
    pub fn interval(&self) -> Option<ConfidenceInterval> {
        self.independent.then(|| runs_interval(&self.means)).flatten()
    }
}

/// Means of the shortest batches of `values`, such as the operations of each second, whose lag-1
/// autocorrelation is below 0.1; where there are none such, the longest that leave ten batches.
/// `None` of fewer than ten values.
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

/// Correlation of each value with the next; 0 where all are equal, `None` of fewer than two.
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
        // Alternating: n - 1 products of -1 by n squares of 1.
        let alternating: Vec<f64> = (0..10).map(|i| f64::from(i % 2) * 2.0 - 1.0).collect();
        assert!((lag1(&alternating).unwrap() + 0.9).abs() < 1e-12);
        // 1 2 3 4 5: products 2 + 0 + 0 + 2 = 4, squares 10.
        assert!((lag1(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap() - 0.4).abs() < 1e-12);
    }

    #[test]
    fn batches_grow_over_what_repeats() {
        // Five seconds fast, five slow: single seconds are alike, ten of them are all the same.
        let seconds: Vec<f64> = (0..600).map(|i| if i % 10 < 5 { 100.0 } else { 200.0 }).collect();
        let batches = batch_means(&seconds).unwrap();
        assert!(batches.independent && batches.length > 1, "{batches:?}");
        assert!(lag1(&seconds).unwrap() > 0.5);
        let interval = batches.interval().unwrap();
        assert!(interval.low <= 150.0 && 150.0 <= interval.high, "{interval:?}");
    }

    #[test]
    fn a_drift_never_becomes_independent() {
        let drift: Vec<f64> = (0..200).map(f64::from).collect();
        let batches = batch_means(&drift).unwrap();
        assert!(!batches.independent && batches.means.len() == BATCHES_MIN, "{batches:?}");
        assert_eq!(batches.interval(), None);
        assert_eq!(batch_means(&drift[..9]), None);
    }
}
