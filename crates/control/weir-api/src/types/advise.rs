//! Forecasts: what other settings would make of a volume, and what dedupe would find.
//!
//! Not here: how they are measured (weir-dataset).
//!
//! A forecast takes longer than a call may. The first call starts it and answers within a second or
//! two with what is known by then, and with a number; the next ones name that number. One that
//! nobody asks about any more ends by itself.
//!
//! Invariant: an answer without a number is the last one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::request::one_name;
use super::{Answer, Compression, Request};
use crate::Error;
use crate::access::Scope;

/// Most volumes that one forecast is of.
const VOLUMES_MAX: usize = 256;

/// A volume to be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeAdvise {
    /// Full name, such as `tank/vm1`.
    pub name: String,
    /// The number an earlier answer gave, to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

one_name!(names::volume, name: VolumeAdvise);

/// Volumes that dedupe is considered for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DedupeEstimate {
    /// Full names, of one pool: content is shared inside a pool.
    pub names: Vec<String>,
    /// The number an earlier answer gave, to go on.
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

/// A share of what is written, from a sample: in 95 of 100 samples it is within `margin`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampledShare {
    /// The share: 0.5 is half.
    pub share: f64,
    /// How far off it may be.
    pub margin: f64,
}

/// Times of an operation on this machine, for each 4 KiB of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SampledTime {
    /// Half took less.
    pub median_us: f64,
    /// One in twenty took less.
    pub low_us: f64,
    /// One in twenty took more.
    pub high_us: f64,
}

/// What a setting of `compression` would make of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SettingForecast {
    /// The setting.
    pub compression: Compression,
    /// What would be stored.
    pub stored: SampledShare,
    /// How many times smaller that is.
    pub ratio: f64,
    /// What compressing adds to a write.
    pub write: SampledTime,
    /// What decompressing adds to a read from disk.
    pub read: SampledTime,
}

/// What records of some size would make of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecordForecast {
    /// The setting.
    pub compression: Compression,
    /// Bytes that are compressed as one.
    pub record_bytes: u64,
    /// What would be stored.
    pub stored: SampledShare,
    /// How many times smaller that is.
    pub ratio: f64,
    /// A write of 4 KiB writes so many times as much.
    pub write_amplification: u64,
}

/// What dedupe would find.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DedupeForecast {
    /// Full names of the volumes.
    pub names: Vec<String>,
    /// To ask again; without it this is the end.
    pub job: Option<String>,
    /// How far it is, of 1000.
    pub progress_permille: u32,
    /// Records with data, each place on disk once.
    pub blocks: u64,
    /// Contents that they have.
    pub unique: u64,
    /// Records whose content another one has too.
    pub duplicates: u64,
    /// What all take now.
    pub stored_bytes: u64,
    /// What would be saved of it.
    pub saved_bytes: u64,
    /// How many times smaller it would be.
    pub ratio: f64,
    /// In 95 of 100 samples the ratio is not below this...
    pub ratio_low: f64,
    /// ... and not above this.
    pub ratio_high: f64,
    /// RAM for an index of all unique records.
    pub index_bytes: u64,
    /// One content in so many was counted; 1: all of them.
    pub one_in: u64,
}

impl Answer for DedupeForecast {
    fn keep(&mut self, scope: &Scope) {
        self.names.retain(|name| scope.covers(name));
    }
}

/// What other settings would make of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeAdvice {
    /// Full name of the volume.
    pub name: String,
    /// To ask again; without it this is the end.
    pub job: Option<String>,
    /// How far it is, of 1000.
    pub progress_permille: u32,
    /// Samples drawn, each of up to 1 MiB around a block with data.
    pub samples: u64,
    /// Data in the volume, before compression.
    pub data_bytes: u64,
    /// The setting it has.
    pub compression: Compression,
    /// The record size it has.
    #[serde(default = "super::volume_size::one_block")]
    pub record_bytes: u64,
    /// What is stored of what was written, as it is.
    pub ratio: f64,
    /// What other settings would do, with records of the size it has.
    pub settings: Vec<SettingForecast>,
    /// What records of other sizes would do.
    pub records: Vec<RecordForecast>,
    /// What dedupe would do; absent while that is not known.
    pub dedupe: Option<DedupeForecast>,
    /// The setting to choose.
    pub recommended: Compression,
    /// Why.
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
