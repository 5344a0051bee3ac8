//! Distribution of latencies.
//!
//! `load` records latencies; `summary` computes the figures of a cell.
//!
//! Invariants:
//! - latencies are recorded in nanoseconds, from 100 ns to 60 s with three significant digits; a
//!   latency outside this range counts as the nearer end of the range;
//! - a percentile exists only if at least ten samples are beyond it (slower than it).

use std::fmt;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer as HdrDeserializer, Serializer as _, V2Serializer};
use serde::{Deserialize, Serialize};

const LOW_NS: u64 = 100;
const HIGH_NS: u64 = 60_000_000_000;
const DIGITS: u8 = 3;
/// Minimum number of samples beyond a percentile.
const BEYOND_MIN: f64 = 10.0;

/// Distribution of latencies.
#[derive(Clone, PartialEq)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(LOW_NS, HIGH_NS, DIGITS);
        Self(bounds.expect("the bounds are constants"))
    }
}

impl Latencies {
    /// Records one latency.
    pub fn record_ns(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    /// Adds all samples of another distribution.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    /// Removes all samples.
    pub fn clear(&mut self) {
        self.0.reset();
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean latency in microseconds; 0 if the distribution is empty.
    pub fn mean_us(&self) -> f64 {
        if self.0.is_empty() { 0.0 } else { self.0.mean() / 1000.0 }
    }

    /// Longest latency in microseconds; 0 if the distribution is empty.
    pub fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }

    /// Percentile (such as `99.9`) of the latencies in microseconds; `None` if fewer than ten
    /// samples are beyond it.
    pub fn percentile_us(&self, percent: f64) -> Option<f64> {
        let beyond = self.count() as f64 * (1.0 - percent / 100.0);
        let enough = beyond + 1e-9 >= BEYOND_MIN;
        enough.then(|| self.0.value_at_percentile(percent) as f64 / 1000.0)
    }

    /// Number of latencies above `us`, and the sum of these latencies in microseconds.
    pub fn beyond(&self, us: f64) -> (u64, f64) {
        let steps = self.0.iter_recorded().map(|step| {
            (step.value_iterated_to() as f64 / 1000.0, step.count_since_last_iteration())
        });
        let longer = steps.filter(|(each, _)| *each > us);
        longer.fold((0, 0.0), |(n, sum), (each, count)| (n + count, sum + each * count as f64))
    }

    /// Cumulative distribution in ascending order: each pair is a latency in microseconds and the
    /// share of the latencies that do not exceed it.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let steps = self.0.iter_recorded();
        steps.map(|step| (step.value_iterated_to() as f64 / 1000.0, step.quantile())).collect()
    }
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latencies({} x {:.1} us)", self.count(), self.mean_us())
    }
}

impl Serialize for Latencies {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        let written = V2Serializer::new().serialize(&self.0, &mut bytes);
        written.map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&base64::Engine::encode(&BASE64, &bytes))
    }
}

const BASE64: base64::engine::GeneralPurpose = base64::engine::general_purpose::STANDARD;

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = base64::Engine::decode(&BASE64, text).map_err(serde::de::Error::custom)?;
        let read = HdrDeserializer::new().deserialize(&mut &bytes[..]);
        let read: Histogram<u64> =
            read.map_err(|error| serde::de::Error::custom(format!("{error:?}")))?;
        // Copy the samples into a distribution with the bounds of this program, because a stored
        // distribution with other bounds could not be merged later.
        let mut own = Self::default();
        own.0.add(&read).map_err(|error| serde::de::Error::custom(format!("{error:?}")))?;
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_need_samples_beyond_them_and_survive_json() {
        let mut all = Latencies::default();
        (1..=999_u64).for_each(|us| all.record_ns(us * 1000));
        assert_eq!(all.percentile_us(99.0), None, "9.99 beyond");
        all.record_ns(1_000_000);
        let p99 = all.percentile_us(99.0).expect("ten beyond");
        assert!((989.0..=991.0).contains(&p99), "{p99}");
        assert_eq!(all.percentile_us(99.9), None);
        assert!((all.mean_us() - 500.5).abs() < 1.0);
        let json = serde_json::to_string(&all).expect("it is text");
        assert_eq!(serde_json::from_str::<Latencies>(&json).expect("it was written so"), all);
        assert!(serde_json::from_str::<Latencies>("\"AAAA\"").is_err());
    }
}
