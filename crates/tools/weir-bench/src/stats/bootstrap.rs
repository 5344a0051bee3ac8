//! Ratio of the medians of two sets of runs, with its 95 % confidence interval.
//!
//! `compare` decides which results may be compared.
//!
//! Theory. The interval is a percentile bootstrap: the runs are resampled with replacement 10,000
//! times, and the middle 95 % of the ratios of medians are the interval. With fewer than six runs
//! this interval is too narrow: no resampled median lies outside the range of the runs, and three
//! runs include their true median in only 75 of 100 cases. So with few runs, the interval is
//! widened to include Welch's interval for the difference of the logarithms.
//!
//! Invariants: equal runs with an equal seed give an equal interval; the interval contains the
//! ratio.

use serde::Serialize;

use super::interval::{ORDER_RUNS_MIN, welch_interval};
use super::{median, sorted};

/// Number of resamples.
const DRAWS: usize = 10_000;
/// Number of resampled ratios beyond each end of the interval: 2.5 % of all.
const BEYOND: usize = DRAWS / 40;

/// Ratio of two medians, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RatioInterval {
    /// Median of the new runs divided by the median of the old runs.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Divides the median of `new` by the median of `old`, and computes the 95 % interval of this
/// ratio. `None` if `new` or `old` has fewer than two runs, or a run that is not positive.
pub fn ratio_of_medians(new: &[f64], old: &[f64], seed: u64) -> Option<RatioInterval> {
    let positive = new.iter().chain(old).all(|run| *run > 0.0);
    if !positive || new.len() < 2 || old.len() < 2 {
        return None;
    }
    let ratio = median(new)? / median(old)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut ratios = Vec::with_capacity(DRAWS);
    for _ in 0..DRAWS {
        ratios.push(drawn_median(new, &mut random)? / drawn_median(old, &mut random)?);
    }
    let ratios = sorted(&ratios);
    let (mut low, mut high) = (ratios[BEYOND].min(ratio), ratios[DRAWS - 1 - BEYOND].max(ratio));
    if new.len().min(old.len()) < ORDER_RUNS_MIN {
        let logs = |runs: &[f64]| runs.iter().map(|run| run.ln()).collect::<Vec<_>>();
        let welch = welch_interval(&logs(new), &logs(old))?;
        (low, high) = (low.min(welch.low.exp()), high.max(welch.high.exp()));
    }
    Some(RatioInterval { ratio, low, high })
}

fn drawn_median(runs: &[f64], random: &mut fastrand::Rng) -> Option<f64> {
    let drawn: Vec<f64> = runs.iter().map(|_| runs[random.usize(..runs.len())]).collect();
    median(&drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_runs_have_a_ratio_without_width() {
        let found = ratio_of_medians(&[200.0; 3], &[100.0; 3], 1).unwrap();
        assert!((found.ratio - 2.0).abs() < 1e-12);
        assert!((found.low - 2.0).abs() < 1e-9 && (found.high - 2.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn equal_seeds_give_equal_intervals() {
        let (new, old) = ([9.0, 10.0, 11.0, 10.5, 9.5, 10.2], [8.0, 9.0, 10.0, 8.5, 9.5, 9.1]);
        let found = ratio_of_medians(&new, &old, 7).unwrap();
        assert_eq!(ratio_of_medians(&new, &old, 7), Some(found));
        assert!(found.low < found.ratio && found.ratio < found.high, "{found:?}");
        // No resampled median lies outside the range of the runs from which it was drawn.
        assert!(found.low >= 9.0 / 10.0 && found.high <= 11.0 / 8.0, "{found:?}");
    }

    #[test]
    fn three_runs_with_a_large_spread_show_no_difference() {
        // Every new run is above every old run, but the runs of each set vary as much as the sets
        // differ.
        let (new, old) = ([103.0, 108.0, 118.0], [90.0, 101.0, 102.0]);
        let found = ratio_of_medians(&new, &old, 7).unwrap();
        assert!(found.low < 1.0 && found.high > 1.0, "{found:?}");
        // With a tenth of the variation, the difference between the sets is significant.
        let (new, old) = ([109.0, 110.0, 111.0], [99.0, 100.0, 101.0]);
        assert!(ratio_of_medians(&new, &old, 7).unwrap().low > 1.0);
    }

    #[test]
    fn too_few_or_zero_runs_have_no_ratio() {
        assert_eq!(ratio_of_medians(&[1.0], &[1.0, 2.0], 7), None);
        assert_eq!(ratio_of_medians(&[1.0, 2.0], &[0.0, 2.0], 7), None);
    }

    /// A 95 % interval must contain the true value in about 95 of 100 cases, with three runs as
    /// well as with eight.
    #[test]
    fn interval_contains_the_true_ratio_in_at_least_90_percent() {
        const SEED: u64 = 20_261;
        let mut random = fastrand::Rng::with_seed(SEED);
        for runs in [3, 8] {
            let held = (0..200).filter(|trial| {
                // The sum of twelve uniform numbers is nearly normal. Its standard deviation is
                // scaled to a tenth of the mean.
                let mut noisy = |middle: f64| {
                    let sum: f64 = (0..12).map(|_| random.f64()).sum();
                    middle * (1.0 + 0.1 * (sum - 6.0))
                };
                let new: Vec<f64> = (0..runs).map(|_| noisy(120.0)).collect();
                let old: Vec<f64> = (0..runs).map(|_| noisy(100.0)).collect();
                let found = ratio_of_medians(&new, &old, *trial).unwrap();
                found.low <= 1.2 && 1.2 <= found.high
            });
            let held = held.count();
            assert!(held >= 180, "seed {SEED}: of {runs} runs, {held} of 200 hold the truth");
        }
    }
}
