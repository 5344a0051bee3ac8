//! Statistics of measurements: confidence intervals, spread and steady state.
//!
//! `verdict` interprets the statistics and judges the validity of a cell.
//!
//! Invariants: all functions are pure, and give identical results on every machine; a value that
//! cannot be computed is `None`, never a placeholder; arguments must be finite.

mod batch;
mod bootstrap;
mod interval;
mod slope;
mod steady;

pub use batch::{BatchMeans, batch_means, lag1};
pub use bootstrap::{RatioInterval, ratio_of_medians};
pub use interval::{ConfidenceInterval, median_interval, runs_interval, throughput_interval};
pub use slope::middle_slope;
pub use steady::{Steadiness, SteadyRule, steadiness, steady_after};

/// Number of standard deviations up to which a difference counts as chance. Chance causes a larger
/// difference in only one case of 370.
pub(crate) const CHANCE_DEVIATIONS: f64 = 3.0;

/// Median; the mean of the middle two values if the number of values is even. `None` if there are
/// no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// Arithmetic mean; `None` if there are no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Sample variance (the sum divided by n - 1); `None` if there are fewer than two values.
pub fn variance(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| squares / (values.len() - 1) as f64)
}

/// Coefficient of variation: the sample standard deviation in percent of the mean. `None` if there
/// are fewer than two values or the mean is not positive.
pub fn cv_pct(values: &[f64]) -> Option<f64> {
    let mean = mean(values).filter(|mean| *mean > 0.0)?;
    Some(variance(values)?.sqrt() / mean * 100.0)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    assert!(values.iter().all(|value| value.is_finite()), "statistics of what is no number");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_and_spread_of_known_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(mean(&[]), None);
        assert_eq!(variance(&[1.0]), None);
        // Textbook sample 2 4 4 4 5 5 7 9: the mean is 5, and the sum of squares is 32.
        let sample = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        assert_eq!(mean(&sample), Some(5.0));
        assert!((variance(&sample).unwrap() - 32.0 / 7.0).abs() < 1e-12);
        assert!((cv_pct(&sample).unwrap() - 42.761_798_705_987_9).abs() < 1e-9);
        assert_eq!(cv_pct(&[0.0, 0.0]), None);
    }

    /// The eight published bonnie++ runs of the reference document `002`. Their write figures
    /// repeat well; their seek figures do not.
    #[test]
    fn spread_of_published_runs_matches_the_design() {
        let writes = [381_672, 383_428, 380_309, 379_416, 387_046, 381_530, 381_556, 383_434];
        let seeks = [6300, 7034, 10_018, 5067, 11_517, 10_903, 5144, 5869];
        let (writes, seeks) = (writes.map(f64::from), seeks.map(f64::from));
        assert!((cv_pct(&writes).unwrap() - 0.6).abs() < 0.05, "{:?}", cv_pct(&writes));
        assert!((cv_pct(&seeks).unwrap() - 34.0).abs() < 0.5, "{:?}", cv_pct(&seeks));
        assert_eq!(mean(&seeks), Some(7731.5));
        // With only eight runs, the interval of the median extends from the lowest run to the
        // highest run.
        let interval = throughput_interval(&seeks).unwrap();
        assert_eq!((interval.low, interval.high), (5067.0, 11_517.0));
    }
}
