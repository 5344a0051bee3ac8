//! Forecasts: the effect that other settings would have on a volume, and the savings of dedupe.
//!
//! weir-dataset performs the measurements.
//!
//! A forecast takes longer than a call may. So the first call starts a job and returns within one
//! or two seconds, with partial results and the number of the job. Later calls contain that number.
//! The server cancels a job that no client polls.
//!
//! Invariant: a response without a job number is the final one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::one_name;
use super::{Answer, Compression, Request};
use crate::Error;
use crate::access::Scope;

/// Maximum number of volumes in one estimate.
const VOLUMES_MAX: usize = 256;

/// Request to measure a volume under other settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAdvise {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// Job number of an earlier response, to continue that job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

one_name!(names::volume, name: VolumeAdvise);

/// Request to estimate the savings of dedupe for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DedupeEstimate {
    /// Full names of volumes of one pool, such as `tank/vm1`: dedupe shares blocks only within a
    /// pool.
    pub names: Vec<String>,
    /// Job number of an earlier response, to continue that job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

impl Request for DedupeEstimate {
    fn check(&self) -> Result<(), Error> {
        let Some(first) = self.names.first() else { return Err(Error::NoVolumes) };
        let (pool, _) = names::volume(first)?;
        for (at, name) in self.names.iter().enumerate() {
            let (of, _) = names::volume(name)?;
            if of != pool {
                let (name, to) = (first.clone(), name.clone());
                return Err(Error::Elsewhere { name, to, what: "pool" });
            }
            if self.names[..at].contains(name) || at == VOLUMES_MAX {
                return Err(Error::NamedTwice { name: name.clone(), most: VOLUMES_MAX });
            }
        }
        Ok(())
    }

    fn names(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }
}

/// Fraction of the written data, estimated from samples: `share` plus or minus `margin` at 95 %
/// confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampledShare {
    /// The fraction: 0.5 is half.
    pub share: f64,
    /// Half the width of the confidence interval.
    pub margin: f64,
}

/// Durations of an operation on this machine, per 4 KiB of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampledTime {
    /// Median.
    pub median_us: f64,
    /// 5th percentile.
    pub low_us: f64,
    /// 95th percentile.
    pub high_us: f64,
}

/// Forecast for one value of `compression`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingForecast {
    /// The value of `compression` that this forecast assumes.
    pub compression: Compression,
    /// Stored size, as a fraction of the written data.
    pub stored: SampledShare,
    /// Compression ratio.
    pub ratio: f64,
    /// Time that compression adds to a write.
    pub write: SampledTime,
    /// Time that decompression adds to a read from disk.
    pub read: SampledTime,
}

/// Forecast for one record size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordForecast {
    /// The value of `compression` that this forecast assumes.
    pub compression: Compression,
    /// The record size.
    pub record_bytes: u64,
    /// Stored size, as a fraction of the written data.
    pub stored: SampledShare,
    /// Compression ratio.
    pub ratio: f64,
    /// Size of a record as a multiple of 4 KiB: a write of 4 KiB stores a whole record.
    pub write_amplification: u64,
}

/// Estimated savings of dedupe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DedupeForecast {
    /// Full names of the volumes.
    pub names: Vec<String>,
    /// Job number for the next call; absent in the final response.
    pub job: Option<String>,
    /// Progress of the job, out of 1000.
    pub progress_permille: u32,
    /// Number of records with data; references to the same physical address count once.
    pub blocks: u64,
    /// Number of distinct contents of these records.
    pub unique: u64,
    /// Number of records that dedupe would not store: all but one of each content.
    pub duplicates: u64,
    /// Current stored size of all these records.
    pub stored_bytes: u64,
    /// Part of `stored_bytes` that dedupe would save.
    pub saved_bytes: u64,
    /// Dedupe ratio.
    pub ratio: f64,
    /// Lower limit of the ratio at 95 % confidence.
    pub ratio_low: f64,
    /// Upper limit of the ratio at 95 % confidence.
    pub ratio_high: f64,
    /// RAM for a dedupe index of all unique records.
    pub index_bytes: u64,
    /// Sampling rate: the job counted one in this many contents; 1 if it counted all.
    pub one_in: u64,
}

impl Answer for DedupeForecast {
    fn keep(&mut self, scope: &Scope) {
        self.names.retain(|name| scope.covers(name));
    }
}

/// Forecasts for a volume under other settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAdvice {
    /// Full name of the volume.
    pub name: String,
    /// Job number for the next call; absent in the final response.
    pub job: Option<String>,
    /// Progress of the job, out of 1000.
    pub progress_permille: u32,
    /// Number of samples, each of up to 1 MiB around a block with data.
    pub samples: u64,
    /// Size of the data in the volume, before compression.
    pub data_bytes: u64,
    /// Current value of `compression`.
    pub compression: Compression,
    /// Current record size.
    #[serde(default = "super::volume::size::one_block")]
    pub record_bytes: u64,
    /// Current compression ratio.
    pub ratio: f64,
    /// Forecasts for other values of `compression`, at the current record size.
    pub settings: Vec<SettingForecast>,
    /// Forecasts for other record sizes.
    pub records: Vec<RecordForecast>,
    /// Estimated savings of dedupe; absent until they are known.
    pub dedupe: Option<DedupeForecast>,
    /// The recommended value of `compression`.
    pub recommended: Compression,
    /// Reason for the recommendation.
    pub why: String,
}

impl Answer for VolumeAdvice {
    fn keep(&mut self, scope: &Scope) {
        self.why = scope.cut_text(&self.why);
        if let Some(dedupe) = &mut self.dedupe {
            dedupe.keep(scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_one_pool_are_named_once() {
        let check = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            DedupeEstimate { names, job: None }.check()
        };
        check(&["tank/a", "tank/b"]).expect("of one pool");
        for (names, part) in [
            (&[][..], "no volume"),
            (&["tank/a", "other/a"], "same pool"),
            (&["tank/a", "tank/a"], "tank/a"),
            (&["tank"], "tank/vm1"),
        ] {
            let error = check(names).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn volumes_of_one_estimate_are_limited() {
        let check = |count: usize| {
            let names = (0..count).map(|n| format!("tank/vm{n}")).collect();
            DedupeEstimate { names, job: None }.check()
        };
        check(256).expect("as many as may be");
        assert!(matches!(check(257), Err(Error::NamedTwice { most: 256, .. })));
    }
}
