//! 95 % confidence intervals over a small number of runs.
//!
//! The confidence interval of a ratio is in `bootstrap`.
//!
//! Theory. Throughputs of runs are positive and vary by factors, so their logarithms are closer to
//! a normal distribution than the throughputs themselves. For 3 to 5 runs the interval is Student's
//! t on the logarithms: `exp(m +- t(0.975, n - 1) s / sqrt n)`. From 6 runs it uses order
//! statistics, which assume no distribution: the k-th lowest and k-th highest run enclose the
//! median with probability `1 - 2 P(Bin(n, 1/2) < k)`, with the largest k that leaves at least 95
//! %. Five runs are too few: their extremes enclose the median with 93.75 %.
//!
//! Invariants: `low <= middle <= high`; fewer than three runs have no confidence interval.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::{mean, median, sorted, variance};

/// Minimum number of runs for a confidence interval.
const RUNS_MIN: usize = 3;
/// Minimum number of runs for a 95 % interval from order statistics.
pub(super) const ORDER_RUNS_MIN: usize = 6;
/// Probability that the true value lies beyond one given end of the interval.
const TAIL: f64 = 0.025;

/// An interval that contains the true value with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceInterval {
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl ConfidenceInterval {
    /// Half the width of the interval in percent of `middle`; `None` if `middle` is not positive.
    pub fn half_width_pct(&self, middle: f64) -> Option<f64> {
        (middle > 0.0).then(|| (self.high - self.low) / 2.0 / middle * 100.0)
    }
}

/// Confidence interval of the throughput of `runs`: Student's t on the logarithms for 3 to 5 runs,
/// order statistics from 6 runs on. `None` for fewer than 3 runs or if a run is not positive.
pub fn throughput_interval(runs: &[f64]) -> Option<ConfidenceInterval> {
    if runs.iter().any(|run| *run <= 0.0) {
        return None;
    }
    if runs.len() >= ORDER_RUNS_MIN {
        return median_interval(runs);
    }
    let logs: Vec<f64> = runs.iter().map(|run| run.ln()).collect();
    let of_logs = t_interval(&logs)?;
    Some(ConfidenceInterval { low: of_logs.low.exp(), high: of_logs.high.exp() })
}

/// Confidence interval of any figure of `runs`. Unlike [`throughput_interval`], applies Student's t
/// to the figures themselves instead of their logarithms, so that they may be zero or negative.
pub fn runs_interval(runs: &[f64]) -> Option<ConfidenceInterval> {
    if runs.len() >= ORDER_RUNS_MIN { median_interval(runs) } else { t_interval(runs) }
}

/// Confidence interval of the median of `values` by order statistics; `None` for fewer than six
/// values.
pub fn median_interval(values: &[f64]) -> Option<ConfidenceInterval> {
    let sorted = sorted(values);
    let length = sorted.len();
    let mut below = 0.0;
    let mut probability = 0.5_f64.powi(i32::try_from(length).ok()?);
    let mut rank = 0;
    while rank < length && below + probability <= TAIL {
        below += probability;
        probability *= (length - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    let low = rank.checked_sub(1)?;
    Some(ConfidenceInterval { low: sorted[low], high: sorted[length - 1 - low] })
}

fn t_interval(values: &[f64]) -> Option<ConfidenceInterval> {
    if values.len() < RUNS_MIN {
        return None;
    }
    let count = values.len() as f64;
    let half = student_t(count - 1.0) * (variance(values)? / count).sqrt();
    let mean = mean(values)?;
    // Because of rounding, the mean of equal values can lie outside the range of these values.
    let middle = median(values)?;
    Some(ConfidenceInterval { low: (mean - half).min(middle), high: (mean + half).max(middle) })
}

/// Welch's interval for the difference of the means of two samples; `None` if a sample has fewer
/// than two values.
pub(super) fn welch_interval(first: &[f64], second: &[f64]) -> Option<ConfidenceInterval> {
    let (n1, n2) = (first.len() as f64, second.len() as f64);
    let (share1, share2) = (variance(first)? / n1, variance(second)? / n2);
    let difference = mean(first)? - mean(second)?;
    let both = share1 + share2;
    let within = share1.powi(2) / (n1 - 1.0) + share2.powi(2) / (n2 - 1.0);
    // Two samples, each with only equal values, give an interval of zero width.
    let half = if within > 0.0 { student_t(both.powi(2) / within) * both.sqrt() } else { 0.0 };
    Some(ConfidenceInterval { low: difference - half, high: difference + half })
}

/// 97.5 % quantile of Student's t distribution.
pub(super) fn student_t(freedom: f64) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, freedom);
    distribution.expect("degrees of freedom are positive").inverse_cdf(1.0 - TAIL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn student_t_matches_published_tables() {
        for (freedom, table) in [(1.0, 12.706), (2.0, 4.303), (3.0, 3.182), (4.0, 2.776)] {
            assert!((student_t(freedom) - table).abs() < 5e-4, "{freedom}");
        }
        assert!((student_t(30.0) - 2.042).abs() < 5e-4);
    }

    #[test]
    fn three_runs_give_a_wide_interval_on_logarithms() {
        // The logarithms of 100/q, 100 and 100 q have the standard deviation ln q, so the half
        // width is 4.303 ln q/sqrt 3.
        let q: f64 = 1.02;
        let interval = throughput_interval(&[100.0 * q, 100.0 / q, 100.0]).unwrap();
        let factor = (4.302_652_73 * q.ln() / 3.0_f64.sqrt()).exp();
        assert!((interval.high - 100.0 * factor).abs() < 1e-4, "{interval:?}");
        assert!((interval.low - 100.0 / factor).abs() < 1e-4, "{interval:?}");
        assert!(interval.half_width_pct(100.0).unwrap() > 4.9);
        assert_eq!(throughput_interval(&[1.0, 2.0]), None);
        assert_eq!(throughput_interval(&[1.0, 0.0, 2.0]), None);
        let same = throughput_interval(&[7.0; 4]).unwrap();
        assert!((same.low - 7.0).abs() < 1e-9 && (same.high - 7.0).abs() < 1e-9);
    }

    #[test]
    fn median_interval_matches_published_ranks() {
        // Ranks of the ends of the 95 % interval of the median, from tables of the sign test.
        for (count, rank) in [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (20, 6), (25, 8)] {
            let values: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            let interval = median_interval(&values).unwrap();
            assert_eq!(
                (interval.low, interval.high),
                (f64::from(rank), f64::from(count + 1 - rank))
            );
            assert_eq!(throughput_interval(&values), Some(interval));
        }
        assert_eq!(median_interval(&[1.0; 5]), None);
        assert_eq!(median_interval(&[]), None);
    }

    #[test]
    fn zero_and_negative_figures_have_an_interval_too() {
        let interval = runs_interval(&[-1.0, 0.0, 1.0]).unwrap();
        assert!((interval.high - 4.302_652_73 / 3.0_f64.sqrt()).abs() < 1e-6);
        assert!((interval.low + interval.high).abs() < 1e-12);
        assert_eq!(runs_interval(&[1.0, 2.0]), None);
    }
}
