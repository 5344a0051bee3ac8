//! Whether a series rises, whatever single values in it do.
//!
//! Theory. Theil's abbreviated method (1950): each value of the first half is joined with that as
//! far into the second half, and the middle of those slopes is taken. A quarter of all values can
//! be anything without moving it far, and it takes no more time than there are values.
//!
//! Not here: what a rise means.
//!
//! Invariant: nothing is told of too few values to have two halves.

use super::median;

/// The middle slope per step; `None` of fewer than two values.
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
