//! Keys of a profile file.
//!
//! `read` parses the text, `check` validates the values, `expand` turns the profile into a run.
//!
//! Invariants: a key that is not in this file is an error; `dataset`, `content` and `durability`
//! are mandatory; each value that can contradict another value keeps its span in the text.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::spec::{CacheState, CostSpec, Limits, OpKind, SizingSpec, StatedTarget};

use super::Protocol;
use super::quantity::{Size, Time};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Profile {
    pub(super) schema: Spanned<u32>,
    pub(super) name: String,
    pub(super) title: Option<String>,
    /// Name of the file in `profiles/reference` that contains the published results.
    pub(super) reference: Option<Spanned<String>>,
    /// Protocols that the author of the source used; an empty list allows any protocol.
    #[serde(default)]
    pub(super) protocols: Vec<Protocol>,
    pub(super) clients: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) assume: Vec<String>,
    pub(super) dataset: Spanned<Dataset>,
    pub(super) content: Spanned<Content>,
    pub(super) durability: Spanned<Durability>,
    pub(super) load: Option<Spanned<Load>>,
    pub(super) mix: Option<Spanned<Mix>>,
    pub(super) matrix: Option<Spanned<Matrix>>,
    #[serde(default)]
    pub(super) phases: Phases,
    #[serde(default)]
    pub(super) stream: Vec<Spanned<Stream>>,
    #[serde(default)]
    pub(super) test: Vec<Spanned<Test>>,
    pub(super) curve: Option<Spanned<Curve>>,
    pub(super) require: Option<Spanned<BTreeMap<String, Spanned<f64>>>>,
    pub(super) limits: Option<Limits>,
    pub(super) sizing: Option<Spanned<SizingSpec>>,
    pub(super) cost: Option<CostSpec>,
    pub(super) target: Option<Target>,
    /// Counters to watch on the target during the run. The report lists their names with the
    /// assumptions.
    #[serde(default)]
    pub(super) observe: Vec<String>,
    #[serde(default)]
    pub(super) variant: Vec<Variant>,
}

/// Properties of the target for which the profile was written: cache, protection and features.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    /// Size of the target's cache; `0` if the target has no cache.
    cache: Option<Size>,
    protection: Option<String>,
    #[serde(default)]
    features: Vec<String>,
}

impl Target {
    pub(super) fn told(&self) -> StatedTarget {
        StatedTarget {
            cache_bytes: self.cache.as_ref().map(|size| size.0),
            protection: self.protection.clone(),
            features: self.features.clone(),
        }
    }
}

/// Dataset: `files` files of `file_size` each. A profile that repeats a published measurement may
/// use the terms of that document in place of `files`, such as `databases` of `db_size`; each such
/// unit is a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dataset {
    pub(super) files: Option<u32>,
    pub(super) file_size: Option<Size>,
    pub(super) shares: Option<u32>,
    pub(super) files_per_share: Option<u32>,
    pub(super) volumes_per_client: Option<u32>,
    pub(super) volume_size: Option<Size>,
    pub(super) databases: Option<u32>,
    pub(super) db_size: Option<Size>,
    #[serde(default)]
    pub(super) access: Where,
    pub(super) theta: Option<f64>,
    pub(super) hot_ops_pct: Option<f64>,
    pub(super) hot_data_pct: Option<f64>,
}

/// Address distribution of operations with random access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Where {
    #[default]
    Uniform,
    Zipf,
    Hotspot,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Content {
    pub(super) compress: f64,
    pub(super) dedupe_pct: f64,
    pub(super) unit: Size,
    pub(super) seed: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Durability {
    pub(super) writes: Writes,
    /// Number of bytes between two flushes, for operations of the largest block size.
    pub(super) commit_every: Option<Size>,
    /// Number of writes of one worker between two flushes.
    pub(super) every_writes: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Writes {
    #[serde(rename = "none")]
    None,
    #[serde(rename = "fua")]
    Fua,
    #[serde(rename = "data_sync")]
    DataSync,
    #[serde(rename = "file_sync")]
    FileSync,
    #[serde(rename = "flush")]
    Flush,
    #[serde(rename = "unstable+commit")]
    UnstableCommit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    #[default]
    Closed,
    Open,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ArrivalName {
    Constant,
    Poisson,
}

/// Load of the matrix, and of all tests that define no load.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    #[serde(default)]
    pub(super) mode: Mode,
    pub(super) workers: Option<u32>,
    /// Number of operations that each worker has in flight.
    pub(super) window: Option<u32>,
    /// Number of operations that all workers of a client have in flight together.
    pub(super) qd: Option<u32>,
    pub(super) rate: Option<f64>,
    pub(super) arrival: Option<ArrivalName>,
    pub(super) in_flight_max: Option<u32>,
    pub(super) backlog_max: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mix {
    pub(super) data_pct: f64,
    #[serde(default)]
    pub(super) meta: MetaMix,
}

/// Weights of the metadata operations.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct MetaMix {
    pub(super) getattr: f64,
    pub(super) lookup: f64,
    pub(super) access: f64,
    pub(super) setattr: f64,
    pub(super) readdirplus: f64,
    pub(super) readdir: f64,
    pub(super) fsstat: f64,
    pub(super) create: f64,
    pub(super) remove: f64,
}

impl MetaMix {
    pub(super) fn weights(&self) -> [f64; 9] {
        let reads = [self.getattr, self.lookup, self.access, self.readdirplus, self.readdir];
        let [getattr, lookup, access, readdirplus, readdir] = reads;
        let (fsstat, setattr, create, remove) =
            (self.fsstat, self.setattr, self.create, self.remove);
        [getattr, lookup, access, readdirplus, readdir, fsstat, setattr, create, remove]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Pattern {
    Random,
    Seq,
}

/// Matrix: makes one cell for each combination of its values. The block size changes fastest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Matrix {
    pub(super) pattern: Vec<Pattern>,
    pub(super) read_pct: Vec<Spanned<f64>>,
    /// Values of `read_pct` for sequential cells, if they differ from `read_pct` in order or
    /// number.
    pub(super) seq_read_pct: Option<Vec<Spanned<f64>>>,
    pub(super) block: Vec<Spanned<Size>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Phases {
    pub(super) fill: Option<Spanned<Fill>>,
    pub(super) precondition: Option<Spanned<Precondition>>,
    pub(super) measure: Option<Spanned<Measure>>,
    pub(super) verify: Option<Spanned<Verify>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fill {
    pub(super) block: Size,
    /// Only `seq` is valid, because a fill is always sequential. This key is only for readers of
    /// the profile.
    pub(super) pattern: Option<Spanned<Pattern>>,
    pub(super) in_flight: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Precondition {
    pub(super) round: Time,
    pub(super) window: u32,
    pub(super) range_pct: f64,
    pub(super) slope_pct: f64,
    pub(super) max_rounds: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measure {
    pub(super) warmup: Option<Time>,
    pub(super) duration: Option<Time>,
    pub(super) runs: Option<u32>,
    /// Only `interleaved` is valid. This key is only for readers of the profile.
    #[serde(rename = "order")]
    pub(super) _order: Option<Order>,
    pub(super) headline: Option<Headline>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    Interleaved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Headline {
    Median,
    Mean,
}

/// Extent of the verification: `"full"`, or a table with `sample_pct`.
#[derive(Debug)]
pub(super) enum Verify {
    /// Compares every byte of every read, and after the last run every byte of every block.
    Full,
    /// Checks the stamps of reads, and compares a share of the blocks after the last run.
    Sample(Sample),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sample {
    sample_pct: f64,
}

impl Verify {
    pub(super) fn sample_pct(&self) -> f64 {
        match self {
            Self::Full => 100.0,
            Self::Sample(sample) => sample.sample_pct,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Full)
    }
}

impl<'de> Deserialize<'de> for Verify {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(VerifyVisitor)
    }
}

/// Visitor that deserializes [`Verify`]. A derived untagged enum would not name the wrong word in
/// its error.
struct VerifyVisitor;

impl<'de> Visitor<'de> for VerifyVisitor {
    type Value = Verify;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "\"full\" or {{ sample_pct = NUMBER }}")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Verify, E> {
        if word == "full" {
            Ok(Verify::Full)
        } else {
            Err(E::invalid_value(Unexpected::Str(word), &self))
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Verify, A::Error> {
        Sample::deserialize(MapAccessDeserializer::new(map)).map(Verify::Sample)
    }
}

/// Stream of operations. A test that defines no stream uses all streams of the profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stream {
    pub(super) name: String,
    pub(super) block: Option<Spanned<Size>>,
    pub(super) blocks: Option<Vec<Share>>,
    /// Order of the addresses or files; optional for an operation on files.
    pub(super) pattern: Option<Pattern>,
    /// Percentage of reads; it cannot be combined with `op`.
    pub(super) read_pct: Option<Spanned<f64>>,
    /// Percentage of metadata operations; it cannot be combined with `op`.
    pub(super) metadata_pct: Option<Spanned<f64>>,
    /// Operation that the stream executes in place of reads and writes.
    pub(super) op: Option<Spanned<OwnOp>>,
    /// Only for an operation on files: number of files of each worker.
    pub(super) files: Option<u32>,
    /// Only for an operation on files: size of each file.
    pub(super) file_size: Option<Spanned<Size>>,
    /// Only for an operation on files: directory of the files.
    pub(super) directory: Option<DirectoryName>,
    pub(super) share: u32,
}

/// Directory of the files of an operation on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DirectoryName {
    /// Each worker has its own directory.
    Own,
    /// The files of all workers are in one directory.
    Shared,
}

/// Operations that a stream can execute in place of reads and writes: offloaded operations, which
/// the target executes without data from the client, and operations on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OwnOp {
    Trim,
    WriteSame,
    CompareAndWrite,
    Copy,
    Create,
    Stat,
    Remove,
    Rename,
    Readdir,
    Readdirplus,
    Extract,
}

impl OwnOp {
    pub(super) const fn kind(self) -> OpKind {
        match self {
            Self::Trim => OpKind::Trim,
            Self::WriteSame => OpKind::WriteSame,
            Self::CompareAndWrite => OpKind::CompareAndWrite,
            Self::Copy => OpKind::Copy,
            Self::Create => OpKind::Create,
            Self::Stat => OpKind::Stat,
            Self::Remove => OpKind::Remove,
            Self::Rename => OpKind::Rename,
            Self::Readdir => OpKind::Readdir,
            Self::Readdirplus => OpKind::Readdirplus,
            Self::Extract => OpKind::Extract,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Share {
    pub(super) size: Spanned<Size>,
    pub(super) weight: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    pub(super) name: String,
    #[serde(default)]
    pub(super) engine: Engine,
    pub(super) pattern: Option<Pattern>,
    pub(super) block: Option<Spanned<Size>>,
    pub(super) blocks: Option<Vec<Share>>,
    pub(super) read_pct: Option<Spanned<f64>>,
    /// Percentage of metadata operations; it cannot be combined with `op`.
    pub(super) metadata_pct: Option<Spanned<f64>>,
    /// Operation that the test executes in place of reads and writes.
    pub(super) op: Option<Spanned<OwnOp>>,
    /// Only for an operation on files: size of each file.
    pub(super) file_size: Option<Spanned<Size>>,
    /// Only for an operation on files: directory of the files.
    pub(super) directory: Option<DirectoryName>,
    /// Number of operations that all workers of a client have in flight together. Each value makes
    /// one cell.
    pub(super) qd: Option<Vec<Spanned<u32>>>,
    /// Number of workers, each with one operation in flight. Each value makes one cell.
    pub(super) threads: Option<Vec<Spanned<u32>>>,
    pub(super) workers: Option<u32>,
    pub(super) mode: Option<Mode>,
    pub(super) arrival: Option<ArrivalName>,
    pub(super) rate: Option<Spanned<f64>>,
    pub(super) rate_of: Option<Spanned<RateOf>>,
    pub(super) search: Option<Spanned<Search>>,
    pub(super) duration: Option<Time>,
    pub(super) runs: Option<u32>,
    pub(super) clients: Option<u32>,
    /// Only for the bonnie engine: size of the large file, in bytes or as a multiple of the memory
    /// (`3xRAM`).
    pub(super) size: Option<Spanned<String>>,
    /// Number of small files of the bonnie engine; number of files of each worker for an operation
    /// on files.
    pub(super) files: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Engine {
    #[default]
    Weir,
    Bonnie,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum RateOf {
    #[serde(rename = "require.iops")]
    RequireIops,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    /// Only `require` is valid: the search uses the requirement of the profile. This key is only
    /// for readers of the profile.
    #[serde(rename = "slo")]
    pub(super) _slo: Slo,
    pub(super) tolerance_pct: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Slo {
    Require,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Curve {
    pub(super) clients: Option<u32>,
    pub(super) workers: Option<u32>,
    pub(super) block: Spanned<Size>,
    pub(super) pattern: Option<Pattern>,
    pub(super) read_pct: Vec<Spanned<f64>>,
    pub(super) arrival: ArrivalName,
    pub(super) rate: CurveRate,
    pub(super) burst: Time,
    pub(super) stop: CurveStop,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurveRate {
    pub(super) from: f64,
    pub(super) step: f64,
    pub(super) refine: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CurveStop {
    pub(super) achieved_below_pct: f64,
    pub(super) or_p99_above: Time,
}

/// Variant with a name. `read` applies `set` to the TOML table before it deserializes the profile.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variant {
    pub(super) name: String,
    #[serde(default, rename = "set")]
    pub(super) _set: BTreeMap<String, toml::Value>,
    /// Settings of the target in this variant. The generator cannot apply these settings itself.
    #[serde(default)]
    pub(super) target: BTreeMap<String, toml::Value>,
    pub(super) cache: Option<CacheState>,
}
