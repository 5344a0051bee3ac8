//! Robust slope of a series, insensitive to outliers.
//!
//! Theory. Theil's abbreviated method (1950): each value of the first half of the series is paired
//! with the value at the same position of the second half; the result is the median of the slopes
//! of the pairs. Outliers in up to a quarter of all values change the result little, and the method
//! takes linear time.
//!
//! Invariant: a series too short for two halves has no slope. The callers interpret the slope.

use super::median;

/// Median of the slopes of the pairs (see the header of this file), per step of the series; `None`
/// for a series of fewer than two values.
pub fn middle_slope(values: &[f64]) -> Option<f64> {
    let pairs = values.len() / 2;
    let apart = values.len() - pairs;
    let later = values.get(apart..)?;
    let slopes: Vec<f64> =
        values.iter().zip(later).map(|(y, later)| (later - y) / apart as f64).collect();
    median(&slopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_known_series() {
        assert_eq!(middle_slope(&[]), None);
        assert_eq!(middle_slope(&[7.0]), None);
        assert_eq!(middle_slope(&[7.0, 9.0]), Some(2.0));
        assert_eq!(middle_slope(&[1.0, 100.0, 5.0]), Some(2.0), "the middle one has no other");
        let line: Vec<f64> = (0..101).map(|x| 3.0 * f64::from(x)).collect();
        assert!((middle_slope(&line).unwrap() - 3.0).abs() < 1e-9);
        let mut outliers = line.clone();
        (90..101).for_each(|at| outliers[at] = 1e9);
        assert!((middle_slope(&outliers).unwrap() - 3.0).abs() < 1e-9);
        assert_eq!(middle_slope(&[0.0, 0.0, 0.0, 0.0, 0.0, 50.0]), Some(0.0));
        assert!(middle_slope(&[9.0, 8.0, 6.0, 5.0]).unwrap() < 0.0);
    }
}
