//! What is to be measured, decided to the last number: what a profile becomes.
//!
//! Not here: reading profiles (profile), doing it (run), what came of it (result).
//!
//! Invariants: nothing is left to a default of the generator; two runs of one [`RunSpec`] on one
//! target offer the same load, address by address, for the same seed.

use serde::{Deserialize, Serialize};

/// A whole run: preparation, then cells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Of the profile.
    pub name: String,
    /// For the head of the report.
    pub title: String,
    /// Published document whose rows are laid beside: a file name in `profiles/reference`.
    pub reference: Option<String>,
    /// What the source leaves open, as it was decided.
    pub assume: Vec<String>,
    /// How much of what was published is done.
    pub scale: Scale,
    /// Where the data is.
    pub dataset: DatasetSpec,
    /// What the data is.
    pub content: ContentSpec,
    /// What a completed write promises.
    pub durability: Durability,
    /// Every byte of the dataset is written before anything is measured.
    pub fill: FillSpec,
    /// Rounds of the first cell's load until it is steady; `None`: the profile does without.
    pub precondition: Option<PreconditionSpec>,
    /// In the order of the profile; runs of them are interleaved.
    pub cells: Vec<CellSpec>,
    /// The file test in the manner of bonnie++, after the cells.
    #[serde(default)]
    pub bonnie: Option<BonnieSpec>,
    /// What must be reached: page one of the report.
    pub require: Option<Requirement>,
    /// Limits of the medium or the link, drawn into charts.
    pub limits: Option<Limits>,
    /// Node sizes to choose from.
    pub sizing: Option<SizingSpec>,
    /// Prices.
    pub cost: Option<CostSpec>,
    /// Cache, protection and features of the target, as told.
    #[serde(default)]
    pub told: ToldTarget,
}

/// Properties of a target that no block protocol tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToldTarget {
    /// Bytes that its caches hold; 0: it has none.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Redundancy: `mirror of 2`, `raidz1 of 5`.
    #[serde(default)]
    pub protection: Option<String>,
    /// Features that work on the data: `compression`, `dedupe`, `snapshots`.
    #[serde(default)]
    pub features: Vec<String>,
}

/// How much of a profile is done; printed in the title.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Seconds per cell and a small dataset: does everything work?
    Smoke,
    /// A minute per cell.
    Standard,
    /// As published, or as the file of a user says.
    Seed,
}

/// The bytes that are read and written: `files` of `file_bytes` each. On a target that is one file
/// or device they lie one behind the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetSpec {
    /// Files, or parts.
    pub files: u32,
    /// Size of each; whole blocks of the largest size used.
    pub file_bytes: u64,
}

impl DatasetSpec {
    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.files) * self.file_bytes
    }
}

/// What every block holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContentSpec {
    /// How many times smaller a compressor makes it; 1: not at all.
    pub compress: f64,
    /// Share of units that another unit equals.
    pub dedupe_pct: f64,
    /// Bytes in which duplicates come.
    pub unit_bytes: u32,
    /// Of all random numbers of the run.
    pub seed: u64,
}

/// What a completed write promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "writes", deny_unknown_fields)]
pub enum Durability {
    /// Nothing: it may be in a volatile cache.
    None,
    /// It is on stable media (FUA, `O_DSYNC`).
    Fua,
    /// All completed ones are on stable media after the flush that follows so many writes.
    Flush {
        /// Writes of one worker between two flushes.
        every_writes: u32,
    },
}

/// The write of the whole dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillSpec {
    /// Bytes of each write.
    pub block_bytes: u32,
    /// Writes in flight, of all workers together.
    pub in_flight: u32,
}

/// SNIA PTS 2.1.24: steady when, over `window` rounds, the highest and lowest are within
/// `range_pct` of the mean, and the best-fit line rises by no more than `slope_pct` of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreconditionSpec {
    /// Length of a round.
    pub round_ms: u64,
    /// Rounds that are looked at together.
    pub window: u32,
    /// Highest less lowest, by the mean.
    pub range_pct: f64,
    /// Rise of the best-fit line over the window, by the mean.
    pub slope_pct: f64,
    /// After so many it is called unsteady.
    pub rounds_max: u32,
}

/// One load, measured `runs` times: a row of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSpec {
    /// Unique in the run: `random 4KiB read 75% qd32`.
    pub name: String,
    /// The table it is a row of.
    pub table: String,
    /// Named way in which it differs from the profile's own setting.
    pub variant: Option<String>,
    /// One for most.
    pub streams: Vec<StreamSpec>,
    /// How it is offered.
    pub load: LoadSpec,
    /// Not counted, before every run.
    pub warmup_ms: u64,
    /// Length of a run; with `worker_bytes` its maximum, 0: none.
    pub duration_ms: u64,
    /// Bytes of operations after which each worker ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_bytes: Option<u64>,
    /// How often.
    pub runs: u32,
    /// Clients that each offer this load at the same time; more than one needs agents.
    #[serde(default = "one")]
    pub clients: u32,
    /// State of caches that the profile declares for it.
    pub cache: CacheState,
    /// Share of the blocks that is read and verified after the last run.
    pub verify_pct: f64,
    /// Whether every byte of every read is compared as well, while it is measured.
    #[serde(default, skip_serializing_if = "is_false")]
    pub verify_full: bool,
    /// Set where the cell is a search: the load above is where it begins.
    pub search: Option<SearchSpec>,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// A file test with the fields of bonnie++ 1.96: output (write), rewrite, input (read) and seeks of
/// one large file, then creating, looking up and deleting many small ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BonnieSpec {
    /// Of the large file.
    pub size: BonnieSize,
    /// Small files.
    pub files: u32,
    /// How often all of it.
    pub runs: u32,
}

/// Size of the large file of a [`BonnieSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum BonnieSize {
    /// By the memory of the machine that serves it: 3 keeps most of it out of caches.
    MemoryTimes {
        /// Multiple.
        times: f64,
    },
    /// Whatever the memory.
    Bytes {
        /// Size.
        bytes: u64,
    },
}

/// What a cell looks for by changing the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for", deny_unknown_fields)]
pub enum SearchSpec {
    /// Latency by rate: from the load's rate up in steps, until it is not reached any more.
    Curve {
        /// Each rate by the one before.
        step: f64,
        /// Rates put between the last that was reached and the first that was not.
        refine: u32,
        /// Ends where less than this share of the rate is reached ...
        achieved_below_pct: f64,
        /// ... or the 99th percentile is above.
        p99_above_us: f64,
    },
    /// The highest rate at which the requirement is met, to so many percent.
    Knee {
        /// Half the distance between a rate that is met and one that is not, by the rate.
        tolerance_pct: f64,
        /// Bounds that must hold.
        slo: Requirement,
    },
}

/// What caches hold when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// Whatever the cells before left.
    AsIs,
    /// Nothing, as far as the target can be told to drop it.
    Cold,
    /// Metadata was read, data was not.
    WarmMetadata,
    /// The dataset was read once.
    Warm,
}

/// Operations of one kind within a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// `db`, `log`; empty where there is one.
    pub name: String,
    /// Where.
    pub access: Access,
    /// Sizes in bytes and their weights.
    pub blocks: Vec<BlockShare>,
    /// Share of reads in percent; the rest are writes.
    pub read_pct: f64,
    /// Instead of reads and writes, all of them are this: trim, write_same, compare_and_write or
    /// copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<OpKind>,
    /// Weight among the streams of the cell.
    pub share: u32,
}

/// One size of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockShare {
    /// Size.
    pub bytes: u32,
    /// Weight in the set.
    pub weight: u32,
}

/// Where operations go.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Access {
    /// Each worker one part of the dataset, front to back, over and over.
    Sequential,
    /// Any block as likely as any other.
    Random,
    /// The n-th block in a random order with probability in proportion to n^-theta.
    Zipf {
        /// 0.99 is usual.
        theta: f64,
    },
    /// Some of the operations go to some of the blocks.
    Hotspot {
        /// Share of operations that go to the hot part.
        ops_pct: f64,
        /// Share of the dataset that is hot.
        data_pct: f64,
    },
    /// As fio and Iometer choose addresses: an operation begins where the operation before it in
    /// this stream ended, or anywhere. Each worker goes over all of the dataset.
    Walk {
        /// Share of the operations that begin anywhere.
        random_pct: f64,
        /// Operations begin at multiples of this.
        align_bytes: u32,
        /// The stream has two sizes, the ends of a range: every multiple of the smaller one in it
        /// is as likely as any other.
        #[serde(default)]
        between: bool,
    },
}

impl Access {
    /// Whether operations, or some of them, begin anywhere.
    pub fn is_random(&self) -> bool {
        match self {
            Self::Sequential => false,
            Self::Random | Self::Zipf { .. } | Self::Hotspot { .. } => true,
            Self::Walk { random_pct, .. } => *random_pct > 0.0,
        }
    }
}

/// How load is offered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "mode", deny_unknown_fields)]
pub enum LoadSpec {
    /// A new operation when one is done. Latency counts from when it was sent: what a client that
    /// waits would see, not what the target owes at a rate.
    Closed {
        /// Workers, each with a connection or file handle of its own.
        workers: u32,
        /// Operations in flight of each worker.
        depth: u32,
    },
    /// Operations at times drawn ahead. Latency counts from the intended time, so a target that
    /// stalls pays for everything that waited.
    Open {
        /// Workers, each with a connection or file handle of its own.
        workers: u32,
        /// Operations per second, of all workers together.
        rate: f64,
        /// How they are spread.
        arrival: Arrival,
        /// Operations in flight of all workers at most; more wait, and that is counted.
        in_flight_max: u32,
        /// Waiting operations at which the cell is called an overload and ends.
        backlog_max: u64,
    },
}

impl LoadSpec {
    /// Workers of an open loop of which nothing is said.
    pub(crate) const OPEN_WORKERS: u32 = 4;
    /// Operations in flight of such a loop.
    pub(crate) const OPEN_IN_FLIGHT: u32 = 1024;

    /// Workers, each with a connection or file handle of its own.
    pub(crate) fn workers(&self) -> u32 {
        let (Self::Closed { workers, .. } | Self::Open { workers, .. }) = *self;
        workers
    }

    /// How many may wait at a rate, before it is called an overload: those of ten seconds.
    #[expect(clippy::cast_sign_loss, reason = "rates are above 0")]
    pub(crate) fn backlog_max(rate: f64) -> u64 {
        ((rate * 10.0) as u64).max(1000)
    }
}

/// Times between operations of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrival {
    /// All the same.
    Constant,
    /// Exponential.
    Poisson,
}

/// What must be reached; what is not set need not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Requirement {
    /// Operations per second.
    pub iops: Option<f64>,
    /// Payload in MiB per second.
    pub mib_s: Option<f64>,
    /// Bounds of latency.
    #[serde(default)]
    pub latency: Vec<LatencyBound>,
}

/// A bound of latency.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyBound {
    /// Of this stream; `None`: of all.
    pub stream: Option<String>,
    /// Of this kind; `None`: of all.
    pub op: Option<OpKind>,
    /// Which figure.
    pub figure: LatencyFigure,
    /// At most.
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
    /// Trim: TRIM, UNMAP, holes in files. What is there then does not matter.
    Trim,
    /// Zeros written by the target itself: WRITE SAME.
    WriteSame,
    /// Blocks written only if they are what is expected: COMPARE AND WRITE.
    CompareAndWrite,
    /// Blocks copied by the target itself: EXTENDED COPY.
    Copy,
}

impl OpKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Trim,
        Self::WriteSame,
        Self::CompareAndWrite,
        Self::Copy,
    ];

    /// Whether it is about blocks: all but a flush.
    pub fn is_data(self) -> bool {
        self != Self::Flush
    }

    /// Takes the name of a kind from the end of `NAME_KIND` or `KIND`: what is in front of it, and
    /// the kind, if there is one.
    pub fn split(text: &str) -> (&str, Option<Self>) {
        let ends = |kind: &Self| {
            let front = text.strip_suffix(kind.name())?;
            if front.is_empty() { Some(front) } else { front.strip_suffix('_') }
        };
        // The name of one kind is the end of another's.
        let found = Self::ALL.into_iter().filter_map(|kind| Some((ends(&kind)?, kind)));
        let longest = found.min_by_key(|(front, _)| front.len());
        longest.map_or((text, None), |(front, kind)| (front, Some(kind)))
    }

    /// As profiles and results call it.
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

/// Limits of the medium or the link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Operations per second of the disks.
    pub disk_iops: Option<f64>,
    /// Megabits per second of the network.
    pub network_mbps: Option<f64>,
    /// MiB per second of the storage.
    pub storage_mib_s: Option<f64>,
}

impl Limits {
    /// The limit that figures come closest to, and how much of it they are, in percent.
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

/// Node sizes by the operations per second that each carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizingSpec {
    /// Upper end of each size, ascending.
    pub bins_iops: Vec<f64>,
    /// Names, one per size.
    pub labels: Vec<String>,
    /// Kept free.
    pub margin_pct: f64,
}

/// Prices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostSpec {
    /// Of the hardware, in dollars.
    pub hardware_usd: f64,
    /// Usable space in GB (10^9 bytes).
    pub usable_gb: f64,
}
