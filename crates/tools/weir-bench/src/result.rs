//! Result of a run: the content of `result.json`, the only input of reports and comparisons.
//!
//! Not here: the verdict on the figures (verdict), tables and charts (report).
//!
//! Invariants:
//! - latency distributions are stored complete (HDR V2): percentiles over several runs or clients
//!   come from merged distributions and are never averaged;
//! - a file with another schema version is refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bonnie::BonnieResult;
use crate::histogram::Latencies;
use crate::queue;
use crate::spec::{Arrival, CellSpec, OpKind, RunSpec};
use crate::stats::CHANCE_DEVIATIONS;

/// Schema version of `result.json`.
pub const SCHEMA: u32 = 1;

/// Result of a run, possibly incomplete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`] of the program that wrote the file.
    pub schema: u32,
    /// Name and version of the program that wrote the file.
    pub program: String,
    /// Start of the run in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Command line without secrets.
    pub command: Vec<String>,
    /// Specification of the run.
    pub spec: RunSpec,
    /// XXH3-128 of the JSON form of `spec`, in hexadecimal.
    pub spec_hash: String,
    /// Target that was measured.
    pub target: TargetInfo,
    /// Machine that ran the generator.
    pub environment: Environment,
    /// Phases before the cells.
    pub phases: Vec<PhaseResult>,
    /// Measured cells, in the order of the spec.
    pub cells: Vec<CellResult>,
    /// Result of the bonnie++-style file test.
    #[serde(default)]
    pub bonnie: Option<BonnieResult>,
    /// Warnings for the reader of the report.
    pub warnings: Vec<String>,
    /// Whether every cell of the spec has all its runs or a failure; false after an early stop.
    pub complete: bool,
}

/// Known properties of the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Address as given by the user, without secrets.
    pub address: String,
    /// Kind of target: `file`, `device`, `nbd` or `null`.
    pub kind: String,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Smallest I/O size and alignment in bytes.
    pub block_bytes: u32,
    /// I/O interface of the generator, such as `io_uring, O_DIRECT`.
    pub driver: String,
    /// Size of the target's caches in bytes, if known. A comparison refuses to rank a
    /// cache-resident result against a result with a dataset larger than the cache.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Source of `cache_bytes`: `told` if the user stated it, otherwise the reason found on this
    /// machine.
    #[serde(default)]
    pub cache_source: Option<String>,
    /// Redundancy, if known, such as `mirror of 2` or `raidz1 of 5`.
    #[serde(default)]
    pub protection: Option<String>,
    /// Data services in use, if known, such as `compression` or `dedupe`.
    #[serde(default)]
    pub features: Vec<String>,
    /// Further properties: file system, mount options, negotiated sizes.
    pub facts: BTreeMap<String, String>,
}

impl TargetInfo {
    /// True for files, directories and devices of this machine. A run locks such a target, and the
    /// page cache may hold its data.
    pub(crate) fn is_local(&self) -> bool {
        ["file", "device", "directory"].contains(&self.kind.as_str())
    }
}

/// The machine that runs the generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Host name.
    pub host: String,
    /// Processor model.
    pub cpu: String,
    /// Cores available to the process.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// One-minute load average at the start of the run.
    #[serde(default)]
    pub load_average: f64,
    /// CPU frequency governor, if the machine has one.
    pub governor: Option<String>,
    /// Iterations per second of a fixed computation on one core, to compare machines.
    pub core_score: f64,
}

/// A phase that runs before the cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Name of the phase: `fill` or `precondition`.
    pub name: String,
    /// Measured figures.
    pub run: CellRun,
    /// Remark for the reader, such as "steady after 7 rounds".
    pub note: String,
    /// Operations per second of each round of preconditioning.
    pub rounds_iops: Vec<f64>,
}

/// Result of one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    /// Specification of the cell.
    pub spec: CellSpec,
    /// Runs in the order of execution.
    pub runs: Vec<CellRun>,
    /// Result of the verification after the last run; `None`: not verified.
    pub verified: Option<Verification>,
    /// Reason why the cell was not measured, or why only some of its runs were.
    pub failure: Option<String>,
    /// Rates tried by a search, ascending.
    pub points: Vec<CurvePoint>,
}

impl CellResult {
    /// All measured runs, including the points of a search.
    pub fn measured(&self) -> impl Iterator<Item = &CellRun> {
        self.runs.iter().chain(self.points.iter().map(|point| &point.run))
    }

    /// For a search: the run at the highest rate that met the bounds; if none did, the run at the
    /// lowest rate.
    pub fn best_or_lowest(&self) -> Option<&CellRun> {
        self.best_met().or(self.points.first().map(|point| &point.run))
    }

    /// For a search: the run at the highest rate that met the bounds.
    pub fn best_met(&self) -> Option<&CellRun> {
        self.points.iter().rev().find(|point| point.met).map(|point| &point.run)
    }
}

/// One run of a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CellRun {
    /// Start of the measurement in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Length of the measurement, without warm-up.
    pub seconds: f64,
    /// Figures by stream and kind of operation.
    pub classes: Vec<ClassResult>,
    /// Figures of each second.
    pub intervals: Vec<Interval>,
    /// Offered rate in operations per second; `None` in a closed loop.
    pub offered_iops: Option<f64>,
    /// Delay between the intended and the actual send time; empty in a closed loop.
    pub lag: Latencies,
    /// Largest backlog: operations that were due but not yet sent.
    pub backlog_max: u64,
    /// Whether the run stopped because the backlog reached its limit.
    pub overloaded: bool,
    /// Operations of an open loop that were due during the measurement; 0 in a closed loop.
    #[serde(default)]
    pub due: u64,
    /// Operations that completed or failed during the measurement.
    #[serde(default)]
    pub answered: u64,
    /// Lengths of the stalls: periods of at least 10 ms in which operations were in flight but none
    /// completed.
    #[serde(default)]
    pub stalls: Latencies,
    /// Time in seconds for which the generator's threads waited for a core, summed over the
    /// threads.
    #[serde(default)]
    pub cpu_wait_s: f64,
    /// Steal time: share of the machine's cores that the hypervisor took, in percent.
    #[serde(default)]
    pub steal_pct: f64,
    /// Share of the machine's cores that other processes used, in percent.
    #[serde(default)]
    pub others_pct: f64,
    /// CPU time of the target's server in seconds, if its process is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_s: Option<f64>,
    /// User and system CPU time of the generator, in seconds.
    pub cpu_s: (f64, f64),
    /// Number of generator threads that sent operations.
    pub threads: u32,
    /// Percentage of reads that returned only zeros.
    pub zero_reads_pct: f64,
    /// Whether the clock of the machine jumped or changed its rate.
    pub clock_jumped: bool,
    /// Blocks with wrong contents, found during the measurement.
    pub corrupt: u64,
    /// Blocks that another run wrote, found during the measurement; `corrupt` excludes these
    /// blocks.
    #[serde(default)]
    pub other_run: u64,
    /// Verified share of the reads, including warm-up.
    #[serde(default)]
    pub coverage: Coverage,
    /// With several clients: time between the first and the last client's start, in milliseconds.
    pub start_skew_ms: Option<f64>,
    /// With several clients: figures of each client.
    pub clients: Vec<ClientShare>,
}

impl CellRun {
    /// Whether the run measured at least 1 ms. Over a shorter time, a rate is noise or not finite.
    pub fn is_measured(&self) -> bool {
        self.seconds >= 1e-3 && self.seconds.is_finite()
    }

    /// Adds the bad blocks and failed operations of another run, whose other figures are discarded.
    pub(crate) fn add_faults(&mut self, other: Self) {
        self.corrupt += other.corrupt;
        self.other_run += other.other_run;
        self.zero_reads_pct = self.zero_reads_pct.max(other.zero_reads_pct);
        for class in other.classes.into_iter().filter(|class| !class.errors.is_empty()) {
            let no_latency = Latencies::default();
            let failed =
                ClassResult { ops: 0, bytes: 0, latency: no_latency, service: None, ..class };
            self.classes.push(failed);
        }
    }

    /// For an open loop: whether the target answered at least `pct` percent of the due operations
    /// and its queue does not grow. At the end, as many operations may be outstanding as are
    /// usually in flight.
    pub fn keeps_up(&self, pct: f64, arrival: Arrival) -> bool {
        if self.offered_iops.is_none() || self.due == 0 {
            return true;
        }
        if queue::growth(self, arrival).is_some() {
            return false;
        }
        let in_flight = self.usually_in_flight().max(1.0);
        let under_way = match arrival {
            // Standard deviation of the difference of two Poisson counts.
            Arrival::Poisson => CHANCE_DEVIATIONS * (2.0 * in_flight).sqrt(),
            // Rounded up, because one more operation may become due shortly before the end.
            Arrival::Constant => in_flight.ceil() + 1.0,
        };
        let missing = self.due.saturating_sub(self.answered) as f64;
        let late = missing - queue::of_arrivals(self, arrival);
        late <= self.due as f64 * (1.0 - pct / 100.0) + under_way
    }

    /// Number of operations in flight before any queue grew, by Little's law; 0 in a closed loop.
    pub(crate) fn usually_in_flight(&self) -> f64 {
        let mut all = Latencies::default();
        self.classes.iter().for_each(|class| all.add(&class.latency));
        // The 10th percentile reflects latency before the queue grew.
        let usual_us = all.percentile_us(10.0).unwrap_or(0.0);
        self.offered_iops.unwrap_or(0.0) * usual_us / 1e6
    }
}

/// Verified share of the reads of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Reads that completed.
    pub reads: u64,
    /// Reads with at least one checked block.
    pub checked_reads: u64,
    /// Bytes of all reads.
    pub bytes: u64,
    /// Bytes of blocks that were compared byte by byte.
    pub compared_bytes: u64,
}

impl Coverage {
    /// Adds the coverage of another set of reads.
    pub fn add(&mut self, other: &Self) {
        let Self { reads, checked_reads, bytes, compared_bytes } = other;
        self.reads = self.reads.saturating_add(*reads);
        self.checked_reads = self.checked_reads.saturating_add(*checked_reads);
        self.bytes = self.bytes.saturating_add(*bytes);
        self.compared_bytes = self.compared_bytes.saturating_add(*compared_bytes);
    }
}

/// Figures of one of several clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientShare {
    /// Name of the client.
    pub name: String,
    /// Operations per second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// CPU time in percent of the cores available to the client.
    #[serde(default)]
    pub cpu_pct: f64,
    /// Uncertainty of the offset between this client's clock and the coordinator's, in
    /// microseconds.
    #[serde(default)]
    pub clock_error_us: f64,
}

/// Operations of one kind in one stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassResult {
    /// Name of the stream.
    pub stream: String,
    /// Kind of operation.
    pub op: OpKind,
    /// Operations that succeeded during the measurement.
    pub ops: u64,
    /// Bytes of the operations counted in `ops`.
    pub bytes: u64,
    /// Failed operations, by error text of the system.
    pub errors: BTreeMap<String, u64>,
    /// Headline latency: from the intended time in an open loop, from the send time in a closed
    /// loop.
    pub latency: Latencies,
    /// Service time in an open loop: latency from the send time.
    pub service: Option<Latencies>,
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Index of the second from the start of the run.
    pub second: u32,
    /// Completed operations.
    pub ops: u64,
    /// Bytes of the operations counted in `ops`.
    pub bytes: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds. With several clients: mean of the clients' medians, weighted
    /// by operations. 0 in results of older programs.
    #[serde(default)]
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
    /// Backlog at the end of the second: operations that were due but not yet sent.
    pub backlog: u64,
    /// Operations in flight at the end of the second.
    #[serde(default)]
    pub in_flight: u64,
}

/// Result of reading blocks again and comparing them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Blocks checked.
    pub blocks: u64,
    /// Blocks with wrong contents or location.
    pub bad: u64,
    /// Number of the bad blocks that another run wrote.
    #[serde(default)]
    pub other_run: u64,
    /// Blocks that could not be read, by error text.
    #[serde(default)]
    pub unread: BTreeMap<String, u64>,
    /// Descriptions of the first few bad blocks.
    pub examples: Vec<String>,
}

/// One rate that a search offered.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Offered rate in operations per second.
    pub offered_iops: f64,
    /// Measured figures.
    pub run: CellRun,
    /// Whether the target achieved the rate within the bounds.
    pub met: bool,
}
