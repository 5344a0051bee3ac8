//! Steady-state detection over a series of rounds: repeated measurements of the same figure.
//!
//! The callers choose the rounds and the figure.
//!
//! Theory. SNIA Solid State Storage Performance Test Specification 2.1.24: over a window of rounds,
//! the highest value less the lowest value is at most `range_pct` of the mean, and the
//! least-squares line rises or falls over the window by at most `slope_pct` of the mean. Both
//! conditions are needed: the first condition alone accepts a slow drift, the second condition
//! alone an oscillation.
//!
//! Invariant: a series with fewer rounds than a window is never steady.

use super::mean;

/// Criteria by which a series counts as steady.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SteadyRule {
    /// Number of rounds in the window; at least two.
    pub window: usize,
    /// Maximum difference between the highest and the lowest value of the window, in percent of the
    /// mean.
    pub range_pct: f64,
    /// Maximum rise or fall of the least-squares line over the window, in percent of the mean.
    pub slope_pct: f64,
}

/// Variation of the rounds in one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steadiness {
    /// Difference between the highest and the lowest value of the window, in percent of the mean.
    pub range_pct: f64,
    /// Rise of the least-squares line over the window, in percent of the mean; negative if the line
    /// falls.
    pub rise_pct: f64,
    /// True if range and rise meet the criteria of the [`SteadyRule`].
    pub steady: bool,
}

/// Evaluates the last `rule.window` rounds; `None` if there are fewer rounds or the mean of these
/// rounds is not positive.
pub fn steadiness(rounds: &[f64], rule: SteadyRule) -> Option<Steadiness> {
    assert!(rule.window >= 2, "a line needs two points");
    let window = &rounds[rounds.len().checked_sub(rule.window)?..];
    let mean = mean(window).filter(|mean| *mean > 0.0)?;
    let (low, high) = window
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), y| (low.min(*y), high.max(*y)));
    let last = (window.len() - 1) as f64;
    let (mut products, mut squares) = (0.0, 0.0);
    for (index, y) in window.iter().enumerate() {
        let x = index as f64 - last / 2.0;
        products += x * (y - mean);
        squares += x * x;
    }
    let range_pct = (high - low) / mean * 100.0;
    let rise_pct = products / squares * last / mean * 100.0;
    // A rounding error must not reject a value that is exactly at the limit.
    let within = |found: f64, limit: f64| found <= limit + 1e-9;
    let steady = within(range_pct, rule.range_pct) && within(rise_pct.abs(), rule.slope_pct);
    Some(Steadiness { range_pct, rise_pct, steady })
}

/// Number of rounds after which the series was first steady; `None` if it never was.
pub fn steady_after(rounds: &[f64], rule: SteadyRule) -> Option<usize> {
    (rule.window..=rounds.len())
        .find(|count| steadiness(&rounds[..*count], rule).is_some_and(|found| found.steady))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTS: SteadyRule = SteadyRule { window: 5, range_pct: 20.0, slope_pct: 10.0 };

    #[test]
    fn range_and_rise_of_known_windows() {
        // The mean is 100 and the range is 12; a slope of 3 per round rises by 12 over the four
        // steps of the window.
        let found = steadiness(&[94.0, 97.0, 100.0, 103.0, 106.0], PTS).unwrap();
        assert!((found.range_pct - 12.0).abs() < 1e-9);
        assert!((found.rise_pct - 12.0).abs() < 1e-9);
        assert!(!found.steady, "the range would pass, the drift does not");
        // An oscillation without slope fails only the criterion for the range.
        let found = steadiness(&[88.0, 110.0, 104.0, 110.0, 88.0], PTS).unwrap();
        assert!(found.rise_pct.abs() < 1e-9 && !found.steady, "{found:?}");
        // Range and rise of these rounds are exactly at the limits of the rule.
        let found = steadiness(&[95.0, 95.0, 100.0, 105.0, 105.0], PTS).unwrap();
        assert!(found.range_pct <= 10.0 + 1e-9);
        let edge = SteadyRule { range_pct: 10.0, slope_pct: found.rise_pct, ..PTS };
        assert!(steadiness(&[95.0, 95.0, 100.0, 105.0, 105.0], edge).unwrap().steady);
    }

    #[test]
    fn slowing_disk_is_steady_only_at_its_plateau() {
        let rounds = [900.0, 600.0, 400.0, 300.0, 250.0, 240.0, 245.0, 238.0, 242.0];
        assert_eq!(steady_after(&rounds, PTS), Some(9));
        assert_eq!(steady_after(&rounds[..8], PTS), None);
        assert_eq!(steadiness(&rounds[..4], PTS), None, "less than a window");
        assert_eq!(steadiness(&[0.0; 5], PTS), None, "nothing happened");
    }
}
