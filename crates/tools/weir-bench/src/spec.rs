//! Specification of a run: a profile with every parameter resolved.
//!
//! Not here: reading profiles (profile), running them (run), results (result).
//!
//! Invariants: the generator has no defaults of its own; two runs of one [`RunSpec`] on one target
//! with the same seed issue the same load, address by address.

use serde::{Deserialize, Serialize};

/// Specification of a complete run: preparation, then cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Name of the profile.
    pub name: String,
    /// Title of the report.
    pub title: String,
    /// Published results that the report shows next to the measured ones: a file name in
    /// `profiles/reference`.
    pub reference: Option<String>,
    /// Assumptions where the published source is ambiguous.
    pub assume: Vec<String>,
    /// Durations and sizes, relative to the published profile.
    pub scale: Scale,
    /// Number and size of the files.
    pub dataset: DatasetSpec,
    /// Contents of the blocks.
    pub content: ContentSpec,
    /// Durability that a completed write guarantees.
    pub durability: Durability,
    /// Sequential write of the whole dataset before any measurement.
    pub fill: FillSpec,
    /// Rounds of the first cell's load until steady state; `None`: no preconditioning.
    pub precondition: Option<PreconditionSpec>,
    /// Cells in the order of the profile; the runner interleaves their runs.
    pub cells: Vec<CellSpec>,
    /// File test that follows bonnie++; it runs after the cells.
    #[serde(default)]
    pub bonnie: Option<BonnieSpec>,
    /// Performance requirement, reported on page one.
    pub require: Option<Requirement>,
    /// Limits of the medium or the link, drawn into the charts.
    pub limits: Option<Limits>,
    /// Node sizes for the sizing recommendation.
    pub sizing: Option<SizingSpec>,
    /// Prices for the cost figures.
    pub cost: Option<CostSpec>,
    /// Cache, redundancy and features of the target, as stated by the user.
    #[serde(default)]
    pub told: ToldTarget,
}

/// Properties of a target that no block protocol reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldTarget {
    /// Size of the target's caches in bytes; 0: it has no cache.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Redundancy, such as `mirror of 2` or `raidz1 of 5`.
    #[serde(default)]
    pub protection: Option<String>,
    /// Data services in use, such as `compression`, `dedupe` or `snapshots`.
    #[serde(default)]
    pub features: Vec<String>,
}

/// Durations and sizes of a run, relative to the published profile; printed in the title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// A few seconds for each cell and a small dataset: a functional check.
    Smoke,
    /// One minute for each cell.
    Standard,
    /// Unchanged durations and sizes, as in the published profile or the user's file.
    Seed,
}

/// Working set: `files` files of `file_bytes` each. On a target that is a single file or device,
/// consecutive ranges replace the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// Number of files or ranges.
    pub files: u32,
    /// Size of each file or range in bytes; a multiple of the largest block size used.
    pub file_bytes: u64,
}

impl DatasetSpec {
    /// Size of all files together.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.files) * self.file_bytes
    }
}

/// Contents of the blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentSpec {
    /// Compression ratio that the data allows; 1: incompressible.
    pub compress: f64,
    /// Percentage of units that are duplicates of another unit.
    pub dedupe_pct: f64,
    /// Size of a duplicated unit in bytes.
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
    /// All completed writes are on stable media after the next flush; each worker flushes after
    /// this many writes.
    Flush {
        /// Writes of one worker between two flushes.
        every_writes: u32,
    },
}

/// Sequential write of the whole dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillSpec {
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Queue depth over all workers together.
    pub in_flight: u32,
}

/// Steady state as in SNIA PTS 2.1.24: over `window` rounds, the highest and the lowest value
/// differ by at most `range_pct` of the mean, and the best-fit line rises or falls by at most
/// `slope_pct` of the mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreconditionSpec {
    /// Length of a round in milliseconds.
    pub round_ms: u64,
    /// Number of rounds in the measurement window.
    pub window: u32,
    /// Largest difference between the highest and the lowest round, in percent of the mean.
    pub range_pct: f64,
    /// Largest rise or fall of the best-fit line over the window, in percent of the mean.
    pub slope_pct: f64,
    /// Maximum number of rounds; the target is unsteady if it needs more.
    pub rounds_max: u32,
}

/// One load, measured `runs` times: a row of a report table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSpec {
    /// Unique name within the run: `random 4KiB read 75% qd32`.
    pub name: String,
    /// Title of the report table that contains this cell.
    pub table: String,
    /// Name of the variant, if the cell departs from the profile's base setting.
    pub variant: Option<String>,
    /// Streams of operations; most cells have one.
    pub streams: Vec<StreamSpec>,
    /// Open or closed loop, with its parameters.
    pub load: LoadSpec,
    /// Warm-up before every run, in milliseconds; its operations do not count.
    pub warmup_ms: u64,
    /// Length of a run in milliseconds. If `worker_bytes` is set, the maximum length, where 0 means
    /// no maximum.
    pub duration_ms: u64,
    /// Each worker stops after this many bytes of operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_bytes: Option<u64>,
    /// Number of runs.
    pub runs: u32,
    /// Number of clients that offer this load concurrently; more than one needs agents.
    #[serde(default = "one")]
    pub clients: u32,
    /// Required cache state at the start of a run.
    pub cache: CacheState,
    /// Percentage of the blocks that verification reads after the last run.
    pub verify_pct: f64,
    /// Whether the workers also compare every byte of every read during the measurement.
    #[serde(default, skip_serializing_if = "is_false")]
    pub verify_full: bool,
    /// Search over the offered rate; it starts at the rate of `load`.
    pub search: Option<SearchSpec>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// File test with the phases of bonnie++ 1.96: write, rewrite, read and seek on one large file,
/// then create, look up and delete many small files.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BonnieSpec {
    /// Size of the large file.
    pub size: BonnieSize,
    /// Number of small files.
    pub files: u32,
    /// Number of repetitions of the whole test.
    pub runs: u32,
}

/// Size of the large file of a [`BonnieSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum BonnieSize {
    /// Multiple of the memory of the machine that serves the file system; a factor of 3 keeps most
    /// of the file out of caches.
    MemoryTimes {
        /// Factor.
        times: f64,
    },
    /// Fixed size, independent of the memory.
    Bytes {
        /// Size in bytes.
        bytes: u64,
    },
}

/// Goal of a search over the offered rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for", deny_unknown_fields)]
pub enum SearchSpec {
    /// Latency curve: raises the rate from the load's rate in steps until the target no longer
    /// achieves it.
    Curve {
        /// Factor between consecutive rates.
        step: f64,
        /// Number of additional rates between the last rate achieved and the first rate missed.
        refine: u32,
        /// The search ends when the target achieves less than this percentage of the offered rate
        /// ...
        achieved_below_pct: f64,
        /// ... or when the 99th percentile exceeds this latency.
        p99_above_us: f64,
    },
    /// Highest rate that meets the requirement, within a tolerance.
    Knee {
        /// The search ends when half the distance between the highest rate that meets the
        /// requirement and the lowest rate that misses it is at most this percentage of the missed
        /// rate.
        tolerance_pct: f64,
        /// Requirement that a rate has to meet.
        slo: Requirement,
    },
}

/// State of the caches at the start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// Unchanged since the runs of the previous cells.
    AsIs,
    /// Empty, as far as the target supports dropping its caches.
    Cold,
    /// Metadata of the dataset was read, its data was not.
    WarmMetadata,
    /// The whole dataset was read once.
    Warm,
}

/// Operations of a cell that share one access pattern.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// Name such as `db` or `log`; empty in a cell with one stream.
    pub name: String,
    /// Access pattern.
    pub access: Access,
    /// Block sizes in bytes and their weights.
    pub blocks: Vec<BlockShare>,
    /// Percentage of reads; the other operations are writes.
    pub read_pct: f64,
    /// If set, every operation is of this kind instead of a read or write: trim, `write_same`,
    /// `compare_and_write` or copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpKind>,
    /// Weight of this stream among the streams of the cell.
    pub share: u32,
}

/// One block size of a stream, with its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockShare {
    /// Block size.
    pub bytes: u32,
    /// Weight in the distribution.
    pub weight: u32,
}

/// Access pattern: how a worker chooses addresses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Access {
    /// Each worker reads or writes its own range of the dataset from start to end, repeatedly.
    Sequential,
    /// Uniformly random over all blocks.
    Random,
    /// Zipf: the n-th block of a random permutation has a probability proportional to n^-theta.
    Zipf {
        /// Exponent theta; 0.99 is usual.
        theta: f64,
    },
    /// A percentage of the operations go to a hot percentage of the dataset.
    Hotspot {
        /// Percentage of operations that go to the hot range of the dataset.
        ops_pct: f64,
        /// Size of the hot range in percent of the dataset.
        data_pct: f64,
    },
    /// Address selection of fio and Iometer: an operation starts at a random address or where the
    /// previous operation of this stream ended. Every worker covers the whole dataset.
    Walk {
        /// Percentage of operations at a random address.
        random_pct: f64,
        /// Alignment of the addresses.
        align_bytes: u32,
        /// Whether the two block sizes of the stream are the bounds of a range, in which every
        /// multiple of the smaller size is equally likely.
        #[serde(default)]
        between: bool,
    },
}

impl Access {
    /// Whether operations of `bytes` fit into a file of the dataset. A walk starts operations
    /// anywhere in a file; all other access patterns start them at multiples of their size.
    pub(crate) fn fits(&self, bytes: u32, file_bytes: u64) -> bool {
        let bytes = u64::from(bytes);
        match self {
            Self::Walk { .. } => bytes <= file_bytes,
            _ => bytes > 0 && file_bytes.is_multiple_of(bytes),
        }
    }

    /// Whether some or all operations start at random addresses.
    pub fn is_random(&self) -> bool {
        match self {
            Self::Sequential => false,
            Self::Random | Self::Zipf { .. } | Self::Hotspot { .. } => true,
            Self::Walk { random_pct, .. } => *random_pct > 0.0,
        }
    }
}

/// Load mode of the generator: closed or open loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum LoadSpec {
    /// Closed loop: a worker sends a new operation when one completes. Latency counts from the time
    /// the operation was sent, as a waiting client sees it; it does not include delay against an
    /// intended rate.
    Closed {
        /// Number of workers, each with its own connection or file handle.
        workers: u32,
        /// Queue depth of each worker.
        depth: u32,
    },
    /// Open loop: operations are due at times drawn in advance. Latency counts from the intended
    /// time, so it includes the wait of every operation that queued during a stall.
    Open {
        /// Number of workers, each with its own connection or file handle.
        workers: u32,
        /// Operations per second over all workers.
        rate: f64,
        /// Distribution of the arrival times.
        arrival: Arrival,
        /// Maximum queue depth over all workers; operations beyond it wait in the backlog, which
        /// the result reports.
        in_flight_max: u32,
        /// Backlog at which the run stops; the cell then has the verdict overload.
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

    /// Default overload limit of the backlog at `rate`: the arrivals of ten seconds.
    #[expect(clippy::cast_sign_loss, reason = "rates are above 0")]
    pub(crate) fn backlog_max(rate: f64) -> u64 {
        ((rate * 10.0) as u64).max(1000)
    }
}

/// Distribution of the times between operations of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// Constant intervals.
    Constant,
    /// Exponentially distributed intervals.
    Poisson,
}

/// Performance requirement; a bound that is `None` does not apply.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Minimum operations per second.
    pub iops: Option<f64>,
    /// Minimum payload in MiB per second.
    pub mib_s: Option<f64>,
    /// Latency bounds.
    #[serde(default)]
    pub latency: Vec<LatencyBound>,
}

/// An upper bound on one latency figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyBound {
    /// Stream that the bound applies to; `None`: all streams.
    pub stream: Option<String>,
    /// Kind of operation that the bound applies to; `None`: all kinds.
    pub op: Option<OpKind>,
    /// Bounded figure.
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
    /// Trim: TRIM, UNMAP, or a hole punched in a file. Later reads of the range may return
    /// anything.
    Trim,
    /// The target writes zeros without receiving them: WRITE SAME.
    WriteSame,
    /// The target writes the blocks only if they hold the expected data: COMPARE AND WRITE.
    CompareAndWrite,
    /// The target copies the blocks without sending them to the client: EXTENDED COPY.
    Copy,
}

impl OpKind {
    /// All kinds, in numeric order.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteSame,
        Self::CompareAndWrite,
        Self::Copy,
    ];

    /// Whether the operation addresses blocks: every kind except a flush.
    pub fn is_data(self) -> bool {
        self != Self::Flush
    }

    /// Splits the name of a kind off the end of `NAME_KIND` or `KIND`. Returns the text before the
    /// kind's name and the kind; without such a name, the whole text and `None`.
    pub fn split(text: &str) -> (&str, Option<Self>) {
        let ends = |kind: &Self| {
            let front = text.strip_suffix(kind.name())?;
            if front.is_empty() { Some(front) } else { front.strip_suffix('_') }
        };
        // Some kind names are suffixes of others, so take the longest match.
        let found = Self::ALL.into_iter().filter_map(|kind| Some((ends(&kind)?, kind)));
        let longest = found.min_by_key(|(front, _)| front.len());
        longest.map_or((text, None), |(front, kind)| (front, Some(kind)))
    }

    /// Name of the kind in profiles and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::WriteSame => "write_same",
            Self::CompareAndWrite => "compare_and_write",
            Self::Copy => "copy",
        }
    }
}

/// Limits of the medium or the link, as stated by the profile.
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
    /// Returns the name of the limit that the figures come closest to, and the figure in percent of
    /// that limit.
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

/// Node sizes, classified by the operations per second that each sustains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizingSpec {
    /// Maximum operations per second of each size, ascending.
    pub bins_iops: Vec<f64>,
    /// Names of the sizes, one for each bound.
    pub labels: Vec<String>,
    /// Percentage of operations per second to keep free.
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
