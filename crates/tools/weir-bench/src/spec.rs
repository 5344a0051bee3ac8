//! Specification of a run: a profile in which every parameter has a value.
//!
//! `profile` reads profiles, `run` executes specs, `result` has the results.
//!
//! Invariants: the generator has no default values of its own; two runs of one [`RunSpec`] on one
//! target with the same seed generate the same load, address by address.

mod metadata;

use serde::{Deserialize, Serialize};

pub use metadata::{MetadataKind, MetadataShare, MetadataSpec};

/// Specification of a complete run: first the preparation, then the cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Name of the profile.
    pub name: String,
    /// Title of the report.
    pub title: String,
    /// Published results that the report shows next to the measured results: the name of a file in
    /// `profiles/reference`.
    pub reference: Option<String>,
    /// Assumptions of the profile where the published source is ambiguous.
    pub assume: Vec<String>,
    /// Scale of durations and sizes, relative to the published profile.
    pub scale: Scale,
    /// Number and size of the files of the dataset.
    pub dataset: DatasetSpec,
    /// Contents of the blocks.
    pub content: ContentSpec,
    /// Durability that a completed write guarantees.
    pub durability: Durability,
    /// Fill: a sequential write of the whole dataset before any measurement.
    pub fill: FillSpec,
    /// Rounds of the first cell's load until a steady state; `None` if the run has no
    /// preconditioning.
    pub precondition: Option<PreconditionSpec>,
    /// Cells in the order of the profile. The runs of different cells alternate.
    pub cells: Vec<CellSpec>,
    /// File test with the steps of bonnie++. The test runs after the cells.
    #[serde(default)]
    pub bonnie: Option<BonnieSpec>,
    /// Performance requirement; its outcome is on the first page of the report.
    pub require: Option<Requirement>,
    /// Limits of the medium or the link, which the charts show.
    pub limits: Option<Limits>,
    /// Node sizes from which the report recommends one.
    pub sizing: Option<SizingSpec>,
    /// Prices for the cost figures of the report.
    pub cost: Option<CostSpec>,
    /// Cache, redundancy and features of the target, as the user stated them.
    #[serde(default)]
    pub told: StatedTarget,
}

/// Properties of a target that no block protocol reports, so that the user must state them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedTarget {
    /// Size of the target's caches in bytes; 0 if the target has no cache.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Redundancy of the target, such as `mirror of 2` or `raidz1 of 5`.
    #[serde(default)]
    pub protection: Option<String>,
    /// Data services that the target uses, such as `compression`, `dedupe` or `snapshots`.
    #[serde(default)]
    pub features: Vec<String>,
}

/// Durations and sizes of a run, relative to the published profile. The title of the report
/// contains the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// A few seconds for each cell and a small dataset, to check that the profile works.
    Smoke,
    /// One minute for each cell.
    Standard,
    /// The durations and sizes of the published profile or of the user's file, unchanged.
    Seed,
}

/// Working set: `files` files of `file_bytes` each. If the target is a single file or device,
/// consecutive ranges of it take the place of the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// Number of files or ranges in the dataset.
    pub files: u32,
    /// Size of each file or range in bytes: a multiple of the largest block size that the run uses.
    pub file_bytes: u64,
}

impl DatasetSpec {
    /// Size of all files together in bytes.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.files) * self.file_bytes
    }
}

/// Contents of the blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentSpec {
    /// Ratio by which the data can be compressed; 1 means incompressible data.
    pub compress: f64,
    /// Percentage of units that duplicate another unit.
    pub dedupe_pct: f64,
    /// Size of a unit that can be a duplicate, in bytes.
    pub unit_bytes: u32,
    /// Seed of all random numbers of the run.
    pub seed: u64,
}

/// Durability that a completed write guarantees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "writes", deny_unknown_fields)]
pub enum Durability {
    /// No guarantee: a completed write may be in a volatile cache.
    None,
    /// A completed write is on stable media (FUA, `O_DSYNC`).
    Fua,
    /// A completed write is on stable media only after the next flush. Each worker flushes after
    /// this number of writes.
    Flush {
        /// Number of writes of one worker between two flushes.
        every_writes: u32,
    },
    /// A completed write is on stable media only after the next flush. Each worker flushes after
    /// this number of written bytes.
    FlushBytes {
        /// Number of bytes that one worker writes between two flushes.
        every_bytes: u64,
    },
}

impl Durability {
    /// Sum of the [weights](Self::weight) of one worker's writes after which it flushes; `None` if
    /// it never flushes.
    pub(crate) fn flush_every(self) -> Option<u64> {
        match self {
            Self::None | Self::Fua => None,
            Self::Flush { every_writes } => Some(u64::from(every_writes.max(1))),
            Self::FlushBytes { every_bytes } => Some(every_bytes.max(1)),
        }
    }

    /// Weight of a write of `bytes` in [`Self::flush_every`].
    pub(crate) fn weight(self, bytes: u64) -> u64 {
        if let Self::FlushBytes { .. } = self { bytes } else { 1 }
    }
}

/// Sequential write of the whole dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillSpec {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Queue depth of all workers together.
    pub in_flight: u32,
}

/// Steady state as in SNIA PTS 2.1.24: in `window` consecutive rounds, the highest and the lowest
/// value differ by at most `range_pct` of the mean, and the best-fit line rises or falls by at most
/// `slope_pct` of the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreconditionSpec {
    /// Length of a round in milliseconds.
    pub round_ms: u64,
    /// Number of consecutive rounds that must be steady.
    pub window: u32,
    /// Maximum difference between the highest and the lowest round, in percent of the mean.
    pub range_pct: f64,
    /// Maximum rise or fall of the best-fit line over the window, in percent of the mean.
    pub slope_pct: f64,
    /// Maximum number of rounds. If the target needs more rounds, it is unsteady.
    pub rounds_max: u32,
}

/// One load that is measured `runs` times: a row of a report table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSpec {
    /// Name of the cell, which is unique within the run: `random 4KiB read 75% qd32`.
    pub name: String,
    /// Title of the report table that contains the cell.
    pub table: String,
    /// Name of the variant, if the cell belongs to a variant of the profile.
    pub variant: Option<String>,
    /// Streams of operations; most cells have only one.
    pub streams: Vec<StreamSpec>,
    /// Open or closed loop, with its parameters.
    pub load: LoadSpec,
    /// Length of the warm-up before every run, in milliseconds. The operations of the warm-up do
    /// not count.
    pub warmup_ms: u64,
    /// Length of a run in milliseconds. If `worker_bytes` is set, this is the maximum length, and 0
    /// means that the length is not limited.
    pub duration_ms: u64,
    /// Number of bytes after which each worker stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_bytes: Option<u64>,
    /// Number of runs of the cell.
    pub runs: u32,
    /// Number of clients that generate this load together. More than one client needs agents.
    #[serde(default = "one")]
    pub clients: u32,
    /// State of the caches that a run of the cell requires at its start.
    pub cache: CacheState,
    /// Percentage of the blocks that the verification reads after the last run.
    pub verify_pct: f64,
    /// True if the workers compare every byte of every read, also during the measurement.
    #[serde(default, skip_serializing_if = "is_false")]
    pub verify_full: bool,
    /// Search over the offered rate, which starts at the rate of `load`.
    pub search: Option<SearchSpec>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// File test with the phases of bonnie++ 1.96: it writes, rewrites, reads and seeks in one large
/// file, then creates, looks up and deletes many small files.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BonnieSpec {
    /// Size of the large file.
    pub size: BonnieSize,
    /// Number of small files.
    pub files: u32,
    /// Number of runs of the whole test.
    pub runs: u32,
}

/// Size of the large file of a [`BonnieSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum BonnieSize {
    /// Multiple of the memory of the machine that serves the file system. With a factor of 3, most
    /// of the file does not fit into caches.
    MemoryTimes {
        /// Factor by which the memory is multiplied.
        times: f64,
    },
    /// Fixed size, which does not depend on the memory.
    Bytes {
        /// Size of the file in bytes.
        bytes: u64,
    },
}

/// Goal of a search over the offered rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for", deny_unknown_fields)]
pub enum SearchSpec {
    /// Latency curve: raises the rate from the rate of the load in steps, until the target no
    /// longer reaches the rate.
    Curve {
        /// Factor between two consecutive rates.
        step: f64,
        /// Number of additional rates between the last rate that was reached and the first rate
        /// that was missed.
        refine: u32,
        /// The search ends when the target reaches less than this percentage of the offered rate.
        achieved_below_pct: f64,
        /// The search also ends when the 99th percentile of the latency exceeds this time.
        p99_above_us: f64,
    },
    /// Knee: searches for the highest rate that meets the requirement, within a tolerance.
    Knee {
        /// The search ends when half the distance between the highest rate that meets the
        /// requirement and the lowest rate that misses it is at most this percentage of the missed
        /// rate.
        tolerance_pct: f64,
        /// Requirement that a rate must meet.
        slo: Requirement,
    },
}

/// State of the caches at the start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// Caches as the runs of the preceding cells left them.
    AsIs,
    /// Empty caches, as far as the target can drop its caches.
    Cold,
    /// The metadata of the dataset was read, but not its data.
    WarmMetadata,
    /// The whole dataset was read once before the run.
    Warm,
}

/// Operations of a cell that share one access pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Name of the stream, such as `db` or `log`; empty if the cell has only one stream.
    pub name: String,
    /// Access pattern of the stream.
    pub access: Access,
    /// Block sizes of the stream in bytes, with their weights; empty if all operations of the
    /// stream are metadata operations.
    pub blocks: Vec<BlockShare>,
    /// Percentage of reads. The other operations are writes.
    pub read_pct: f64,
    /// If set, every operation is of this kind, in place of a read or write: trim, `write_same`,
    /// `compare_and_write`, copy, create, stat, remove, rename or readdir.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpKind>,
    /// Metadata operations of the stream; `None` if it has only operations on data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<MetadataSpec>,
    /// Weight of this stream among the streams of the cell.
    pub share: u32,
}

impl StreamSpec {
    /// True if the stream needs a target with files.
    pub fn needs_files(&self) -> bool {
        self.metadata.is_some()
    }

    /// True if the stream mixes metadata operations with its reads and writes.
    pub fn has_mix(&self) -> bool {
        matches!(self.metadata, Some(MetadataSpec::Mix { .. }))
    }

    /// True if `op`, `metadata` and `blocks` fit each other, and the values of `metadata` are
    /// within their limits. A spec from a profile always fits; a spec from a file or from another
    /// host may not.
    pub(crate) fn is_consistent(&self) -> bool {
        let (op, blocks) = (self.op, !self.blocks.is_empty());
        match &self.metadata {
            Some(MetadataSpec::Files { files, file_bytes, .. }) => {
                op.is_some_and(OpKind::is_of_files)
                    && !blocks
                    && (1..=MetadataSpec::FILES_MAX).contains(files)
                    && *file_bytes <= MetadataSpec::FILE_BYTES_MAX
            }
            Some(MetadataSpec::Mix { pct, shares }) => {
                let weights = || shares.iter().map(|share| share.weight);
                op.is_none()
                    && blocks
                    && *pct > 0.0
                    && *pct <= 100.0
                    && shares.len() <= MetadataKind::ALL.len()
                    && weights().all(|weight| (0.0..=1e9).contains(&weight))
                    && weights().sum::<f64>() > 0.0
            }
            None => blocks && op.is_none_or(|op| !op.is_of_files() && op != OpKind::Metadata),
        }
    }
}

/// One block size of a stream, with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockShare {
    /// Block size in bytes.
    pub bytes: u32,
    /// Weight of this size among the sizes of the stream.
    pub weight: u32,
}

/// Access pattern: rule by which a worker chooses addresses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Access {
    /// Each worker reads or writes its own range of the dataset from start to end, repeatedly.
    Sequential,
    /// Random addresses, uniformly distributed over all blocks.
    Random,
    /// Zipf: the n-th block of a random permutation has a probability proportional to n^-theta.
    Zipf {
        /// Exponent theta; 0.99 is usual.
        theta: f64,
    },
    /// A hot percentage of the dataset receives a given percentage of the operations.
    Hotspot {
        /// Percentage of the operations that go to the hot range of the dataset.
        ops_pct: f64,
        /// Size of the hot range in percent of the dataset.
        data_pct: f64,
    },
    /// Addresses as in fio and Iometer: an operation starts at a random address, or where the
    /// preceding operation of this stream ended. Every worker covers the whole dataset.
    Walk {
        /// Percentage of operations that start at a random address.
        random_pct: f64,
        /// Alignment of the addresses in bytes.
        align_bytes: u32,
        /// True if the two block sizes of the stream are the bounds of a range of sizes, in which
        /// every multiple of the smaller size is equally likely.
        #[serde(default)]
        between: bool,
    },
}

impl Access {
    /// True if operations of `bytes` fit into a file of the dataset. A walk can start an operation
    /// anywhere in a file; all other access patterns start operations at multiples of their size.
    pub(crate) fn fits(&self, bytes: u32, file_bytes: u64) -> bool {
        let bytes = u64::from(bytes);
        match self {
            Self::Walk { .. } => bytes <= file_bytes,
            _ => bytes > 0 && file_bytes.is_multiple_of(bytes),
        }
    }

    /// True if at least some operations start at random addresses.
    pub fn is_random(&self) -> bool {
        match self {
            Self::Sequential => false,
            Self::Random | Self::Zipf { .. } | Self::Hotspot { .. } => true,
            Self::Walk { random_pct, .. } => *random_pct > 0.0,
        }
    }
}

/// Load of a cell: a closed loop or an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum LoadSpec {
    /// Closed loop: a worker sends the next operation when one completes. Latency counts from the
    /// send time, as a waiting client experiences it, so it includes no delay against an intended
    /// rate.
    Closed {
        /// Number of workers, each with its own connection or file handle.
        workers: u32,
        /// Number of operations that each worker has in flight.
        depth: u32,
    },
    /// Open loop: operations are due at times that are chosen in advance. Latency counts from the
    /// intended time, so it includes the wait of every operation that queued during a stall.
    Open {
        /// Number of workers, each with its own connection or file handle.
        workers: u32,
        /// Operations per second of all workers together.
        rate: f64,
        /// Distribution of the times at which operations are due.
        arrival: Arrival,
        /// Maximum number of operations that all workers have in flight. Further operations wait in
        /// the backlog, whose size the result contains.
        in_flight_max: u32,
        /// Size of the backlog at which the run stops. The cell then has the verdict "overload".
        backlog_max: u64,
    },
}

impl LoadSpec {
    /// Default number of workers of an open loop.
    pub(crate) const OPEN_WORKERS: u32 = 4;
    /// Default maximum queue depth of an open loop.
    pub(crate) const OPEN_IN_FLIGHT: u32 = 1024;

    /// Number of workers, each with its own connection or file handle.
    pub(crate) fn workers(&self) -> u32 {
        let (Self::Closed { workers, .. } | Self::Open { workers, .. }) = *self;
        workers
    }

    /// Default size of the backlog that counts as overload at `rate`: the arrivals of ten seconds.
    #[expect(clippy::cast_sign_loss, reason = "rates are above 0")]
    pub(crate) fn backlog_max(rate: f64) -> u64 {
        ((rate * 10.0) as u64).max(1000)
    }
}

/// Distribution of the intervals between the operations of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Constant intervals.
    Constant,
    /// Exponentially distributed intervals.
    Poisson,
}

/// Performance requirement. A bound that is `None` does not apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Minimum number of operations per second.
    pub iops: Option<f64>,
    /// Minimum payload in MiB per second.
    pub mib_s: Option<f64>,
    /// Upper bounds on latencies.
    #[serde(default)]
    pub latency: Vec<LatencyBound>,
}

/// Upper bound on one latency figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyBound {
    /// Stream to which the bound applies; `None` for all streams.
    pub stream: Option<String>,
    /// Kind of operation to which the bound applies; `None` for all kinds.
    pub op: Option<OpKind>,
    /// Latency figure that is bounded.
    pub figure: LatencyFigure,
    /// Maximum of the figure in microseconds.
    pub max_us: f64,
}

/// A figure of a latency distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyFigure {
    /// Mean.
    Mean,
    /// Median.
    P50,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// 99.9th percentile.
    P999,
}

/// A kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush.
    Flush,
    /// Trim: TRIM, UNMAP, or a hole punched in a file. Later reads of the range may return any
    /// data.
    Trim,
    /// WRITE SAME: the target writes zeros without receiving them.
    WriteSame,
    /// COMPARE AND WRITE: the target writes the blocks only if they contain the expected data.
    CompareAndWrite,
    /// EXTENDED COPY: the target copies the blocks without sending them to the client.
    Copy,
    /// Metadata operation in a mix with reads and writes ([`MetadataKind`]).
    Metadata,
    /// Creates a file, and writes its contents.
    Create,
    /// Returns the attributes of a file, which is found by its name.
    Stat,
    /// Removes a file.
    Remove,
    /// Renames a file within its directory.
    Rename,
    /// Lists the names of all files in a directory.
    Readdir,
    /// Lists the names and the attributes of all files in a directory.
    Readdirplus,
    /// Creates a file, writes its contents, and sets its mode and its time of change, as a program
    /// that extracts an archive.
    Extract,
}

impl OpKind {
    /// All kinds, in numeric order.
    pub const ALL: [Self; 15] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteSame,
        Self::CompareAndWrite,
        Self::Copy,
        Self::Metadata,
        Self::Create,
        Self::Stat,
        Self::Remove,
        Self::Rename,
        Self::Readdir,
        Self::Readdirplus,
        Self::Extract,
    ];

    /// True if the main figures of a cell (IOPS, MiB/s, latency) count an operation of this kind.
    /// Flushes and the metadata operations of a mix have their own figures.
    pub fn is_counted(self) -> bool {
        !matches!(self, Self::Flush | Self::Metadata)
    }

    /// True if an operation of this kind addresses blocks of the dataset.
    pub fn is_data(self) -> bool {
        self.is_counted() && !self.is_of_files()
    }

    /// True if an operation of this kind addresses a file or directory that only the run uses.
    pub fn is_of_files(self) -> bool {
        matches!(
            self,
            Self::Create
                | Self::Stat
                | Self::Remove
                | Self::Rename
                | Self::Readdir
                | Self::Readdirplus
                | Self::Extract
        )
    }

    /// True if a run of a stream with this `op` ends when each file was used once: create, extract
    /// and remove.
    pub fn ends_with_files(self) -> bool {
        self.creates_files() || self == Self::Remove
    }

    /// True if an operation of this kind creates a file.
    pub fn creates_files(self) -> bool {
        matches!(self, Self::Create | Self::Extract)
    }

    /// Splits the name of a kind off the end of `NAME_KIND` or `KIND`. Returns the text before the
    /// name of the kind, and the kind. If the text ends with no such name, returns the whole text
    /// and `None`.
    pub fn split(text: &str) -> (&str, Option<Self>) {
        let ends = |kind: &Self| {
            let front = text.strip_suffix(kind.name())?;
            if front.is_empty() { Some(front) } else { front.strip_suffix('_') }
        };
        // The names of some kinds are suffixes of other names, so take the longest match.
        let found = Self::ALL.into_iter().filter_map(|kind| Some((ends(&kind)?, kind)));
        let longest = found.min_by_key(|(front, _)| front.len());
        longest.map_or((text, None), |(front, kind)| (front, Some(kind)))
    }

    /// Name of the kind of operation in profiles and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteSame => "write_same",
            Self::CompareAndWrite => "compare_and_write",
            Self::Copy => "copy",
            Self::Metadata => "metadata",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Readdir => "readdir",
            Self::Readdirplus => "readdirplus",
            Self::Extract => "extract",
        }
    }
}

/// Limits of the medium or the link, as the profile states them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Maximum operations per second of the disks.
    pub disk_iops: Option<f64>,
    /// Maximum megabits per second of the network.
    pub network_mbps: Option<f64>,
    /// Maximum MiB per second of the storage.
    pub storage_mib_s: Option<f64>,
}

impl Limits {
    /// Returns the name of the limit to which the figures come closest, and the figure in percent
    /// of this limit.
    pub fn share_pct(&self, iops: f64, mib_s: f64) -> Option<(&'static str, f64)> {
        let megabits_s = mib_s * 1_048_576.0 * 8.0 / 1e6;
        let shares = [
            ("disks", iops, self.disk_iops),
            ("network", megabits_s, self.network_mbps),
            ("storage", mib_s, self.storage_mib_s),
        ];
        let share = |(name, got, limit): (&'static str, f64, Option<f64>)| {
            limit.filter(|limit| *limit > 0.0).map(|limit| (name, got / limit * 100.0))
        };
        shares.into_iter().filter_map(share).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Node sizes, by the number of operations per second that each size sustains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizingSpec {
    /// Maximum operations per second that each size sustains, in ascending order.
    pub bins_iops: Vec<f64>,
    /// Names of the sizes, one for each entry of `bins_iops`.
    pub labels: Vec<String>,
    /// Percentage of the operations per second that must remain free.
    pub margin_pct: f64,
}

/// Prices, for the cost figures of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostSpec {
    /// Price of the hardware in dollars.
    pub hardware_usd: f64,
    /// Usable capacity in GB (10^9 bytes).
    pub usable_gb: f64,
}
