//! Result of a run: the contents of `result.json`, the only input of reports and comparisons.
//!
//! `verdict` judges the figures; `report` has the tables and charts.
//!
//! Invariants:
//! - latency distributions are stored completely (HDR V2): percentiles over several runs or clients
//!   are computed from merged distributions, never averaged;
//! - a result file with another schema version is refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bonnie::BonnieResult;
use crate::histogram::Latencies;
use crate::queue;
use crate::spec::{Arrival, CellSpec, MetadataKind, OpKind, RunSpec};
use crate::stats::CHANCE_DEVIATIONS;

/// Schema version of `result.json`.
pub const SCHEMA: u32 = 1;

/// Result of a run, which may be incomplete.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// Schema version ([`SCHEMA`]) of the program that wrote the file.
    pub schema: u32,
    /// Name and version of the program that wrote the file.
    pub program: String,
    /// Start of the run, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Command line that started the run, without secrets.
    pub command: Vec<String>,
    /// Specification of the run.
    pub spec: RunSpec,
    /// XXH3-128 of the JSON form of `spec`, in hexadecimal.
    pub spec_hash: String,
    /// Target that was measured.
    pub target: TargetInfo,
    /// Machine that ran the generator.
    pub environment: Environment,
    /// Results of the phases that ran before the cells.
    pub phases: Vec<PhaseResult>,
    /// Results of the measured cells, in the order of the spec.
    pub cells: Vec<CellResult>,
    /// Result of the file test with the phases of bonnie++; `None` if the run has no file test.
    #[serde(default)]
    pub bonnie: Option<BonnieResult>,
    /// Warnings for readers of the report.
    pub warnings: Vec<String>,
    /// True if every cell of the spec has all its runs or a failure. False if the run was stopped
    /// early.
    pub complete: bool,
}

/// Properties of the target, as far as they are known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// Address of the target as the user wrote it, without secrets.
    pub address: String,
    /// Kind of target: `file`, `device`, `nbd`, `iscsi`, `nfs` or `null`.
    pub kind: String,
    /// Capacity of the target in bytes.
    pub bytes: u64,
    /// Smallest I/O size and alignment of the target in bytes.
    pub block_bytes: u32,
    /// I/O interface with which the generator accesses the target, such as `io_uring, O_DIRECT`.
    pub driver: String,
    /// Size of the target's caches in bytes; `None` if it is not known. A comparison does not rank
    /// a result from a cache against a result whose dataset is larger than the cache.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Source of `cache_bytes`: `told` if the user stated the size, otherwise the reason that was
    /// found on this machine.
    #[serde(default)]
    pub cache_source: Option<String>,
    /// Redundancy of the target, such as `mirror of 2` or `raidz1 of 5`; `None` if it is not known.
    #[serde(default)]
    pub protection: Option<String>,
    /// Data services that the target uses, such as `compression` or `dedupe`, if they are known.
    #[serde(default)]
    pub features: Vec<String>,
    /// Other properties of the target: file system, mount options, negotiated sizes.
    pub facts: BTreeMap<String, String>,
}

impl TargetInfo {
    /// True if the target is a file, directory or device of this machine. A run locks such a
    /// target, and the page cache may contain its data.
    pub(crate) fn is_local(&self) -> bool {
        ["file", "device", "directory"].contains(&self.kind.as_str())
    }
}

/// Machine that runs the generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Host name of the machine.
    pub host: String,
    /// Model of the processor.
    pub cpu: String,
    /// Number of cores that the process can use.
    pub cores: u32,
    /// Memory of the machine in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Load average over one minute, at the start of the run.
    #[serde(default)]
    pub load_average: f64,
    /// CPU frequency governor; `None` if the machine has none.
    pub governor: Option<String>,
    /// Iterations per second of a fixed computation on one core, with which machines can be
    /// compared.
    pub core_score: f64,
}

/// A phase that runs before the cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Name of the phase: `fill` or `precondition`.
    pub name: String,
    /// Figures that were measured in the phase.
    pub run: CellRun,
    /// Remark for readers, such as "steady after 7 rounds".
    pub note: String,
    /// Operations per second in each round of the preconditioning.
    pub rounds_iops: Vec<f64>,
}

/// Result of one cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    /// Specification of the cell.
    pub spec: CellSpec,
    /// Runs of the cell, in the order in which they ran.
    pub runs: Vec<CellRun>,
    /// Result of the verification after the last run; `None` if the cell was not verified.
    pub verified: Option<Verification>,
    /// Reason why the cell was not measured, or why only some of its runs were measured.
    pub failure: Option<String>,
    /// Rates that a search tried, in ascending order.
    pub points: Vec<CurvePoint>,
}

impl CellResult {
    /// All measured runs of the cell, including the points of a search.
    pub fn measured(&self) -> impl Iterator<Item = &CellRun> {
        self.runs.iter().chain(self.points.iter().map(|point| &point.run))
    }

    /// For a search: the run at the highest rate that met the bounds, or the run at the lowest rate
    /// if no rate met them.
    pub fn best_or_lowest(&self) -> Option<&CellRun> {
        self.best_met().or(self.points.first().map(|point| &point.run))
    }

    /// For a search: the run at the highest rate that met the bounds; `None` if no rate met them.
    pub fn best_met(&self) -> Option<&CellRun> {
        self.points.iter().rev().find(|point| point.met).map(|point| &point.run)
    }
}

/// One run of a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CellRun {
    /// Start of the measurement, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Length of the measurement in seconds, without the warm-up.
    pub seconds: f64,
    /// Figures of each kind of operation in each stream.
    pub classes: Vec<ClassResult>,
    /// Number of metadata operations in mixes with reads and writes, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata_ops: BTreeMap<MetadataKind, u64>,
    /// Check of the files that the run created, renamed and removed; `None` if the run has no
    /// metadata operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FilesCheck>,
    /// Figures of each second of the run.
    pub intervals: Vec<Interval>,
    /// Rate that an open loop offered, in operations per second; `None` in a closed loop.
    pub offered_iops: Option<f64>,
    /// Delays between the intended and the actual send times; empty in a closed loop.
    pub lag: Latencies,
    /// Largest backlog: the number of operations that were due but not sent yet.
    pub backlog_max: u64,
    /// True if the run stopped because the backlog reached its limit.
    pub overloaded: bool,
    /// Number of operations of an open loop that were due during the measurement; 0 in a closed
    /// loop.
    #[serde(default)]
    pub due: u64,
    /// Number of operations that completed or failed during the measurement.
    #[serde(default)]
    pub answered: u64,
    /// Lengths of the stalls: periods of at least 10 ms in which operations were in flight but none
    /// completed.
    #[serde(default)]
    pub stalls: Latencies,
    /// Time for which the generator's threads waited for a CPU core, in seconds, summed over the
    /// threads.
    #[serde(default)]
    pub cpu_wait_s: f64,
    /// Steal time: the share of the machine's CPU time that the hypervisor took, in percent.
    #[serde(default)]
    pub steal_pct: f64,
    /// Share of the machine's CPU time that all processes except the generator used, in percent.
    #[serde(default)]
    pub others_pct: f64,
    /// CPU time that the target's server used, in seconds; `None` if its process is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_s: Option<f64>,
    /// User and system CPU time that the generator used, in seconds.
    pub cpu_s: (f64, f64),
    /// Number of threads of the generator that sent operations.
    pub threads: u32,
    /// Percentage of reads that returned only zeros.
    pub zero_reads_pct: f64,
    /// True if the clock of the machine jumped, or if it changed its rate.
    pub clock_jumped: bool,
    /// Number of blocks with wrong contents that were found during the measurement.
    pub corrupt: u64,
    /// Number of blocks that another run wrote, found during the measurement. `corrupt` does not
    /// include these blocks.
    #[serde(default)]
    pub other_run: u64,
    /// Share of the reads that were verified, including reads of the warm-up.
    #[serde(default)]
    pub coverage: Coverage,
    /// If there are several clients: time between the start of the first and of the last client, in
    /// milliseconds.
    pub start_skew_ms: Option<f64>,
    /// If there are several clients: figures of each client.
    pub clients: Vec<ClientShare>,
}

impl CellRun {
    /// True if the run measured for at least 1 ms. Over a shorter time, a rate would be noise or
    /// not finite.
    pub fn is_measured(&self) -> bool {
        self.seconds >= 1e-3 && self.seconds.is_finite()
    }

    /// Adds the bad blocks and the failed operations of another run, whose other figures are
    /// discarded.
    pub(crate) fn add_faults(&mut self, other: Self) {
        self.corrupt += other.corrupt;
        self.other_run += other.other_run;
        self.zero_reads_pct = self.zero_reads_pct.max(other.zero_reads_pct);
        if let Some(files) = other.files {
            self.files.get_or_insert_default().add(files);
        }
        for class in other.classes.into_iter().filter(|class| !class.errors.is_empty()) {
            let no_latency = Latencies::default();
            let failed =
                ClassResult { ops: 0, bytes: 0, latency: no_latency, service: None, ..class };
            self.classes.push(failed);
        }
    }

    /// For an open loop: true if the target completed at least `pct` percent of the due operations
    /// and its queue did not grow. At the end of the run, the usual number of operations in flight
    /// may be outstanding.
    pub fn keeps_up(&self, pct: f64, arrival: Arrival) -> bool {
        if self.offered_iops.is_none() || self.due == 0 {
            return true;
        }
        if queue::growth(self, arrival).is_some() {
            return false;
        }
        let in_flight = self.usually_in_flight().max(1.0);
        let under_way = match arrival {
            // Chance: three standard deviations of the difference between two Poisson counts.
            Arrival::Poisson => CHANCE_DEVIATIONS * (2.0 * in_flight).sqrt(),
            // Round up, because one more operation may become due shortly before the end.
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
        // The 10th percentile is a latency from the time before the queue grew.
        let usual_us = all.percentile_us(10.0).unwrap_or(0.0);
        self.offered_iops.unwrap_or(0.0) * usual_us / 1e6
    }
}

/// Share of the reads of a run that were verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Number of reads that completed.
    pub reads: u64,
    /// Number of reads in which at least one block was checked.
    pub checked_reads: u64,
    /// Number of bytes of all reads.
    pub bytes: u64,
    /// Number of bytes in blocks that were compared byte by byte.
    pub compared_bytes: u64,
}

impl Coverage {
    /// Adds the numbers of `other`, which covers other reads.
    pub fn add(&mut self, other: &Self) {
        let Self { reads, checked_reads, bytes, compared_bytes } = other;
        self.reads = self.reads.saturating_add(*reads);
        self.checked_reads = self.checked_reads.saturating_add(*checked_reads);
        self.bytes = self.bytes.saturating_add(*bytes);
        self.compared_bytes = self.compared_bytes.saturating_add(*compared_bytes);
    }
}

/// Figures of one client, if there are several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientShare {
    /// Name of the client.
    pub name: String,
    /// Operations per second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// CPU time in percent of the cores that the client can use.
    #[serde(default)]
    pub cpu_pct: f64,
    /// Uncertainty of the offset between the clock of this client and the clock of the coordinator,
    /// in microseconds.
    #[serde(default)]
    pub clock_error_us: f64,
}

/// Figures of the operations of one kind in one stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassResult {
    /// Name of the stream.
    pub stream: String,
    /// Kind of operation.
    pub op: OpKind,
    /// Number of operations that succeeded during the measurement.
    pub ops: u64,
    /// Number of bytes of the operations that `ops` counts.
    pub bytes: u64,
    /// Numbers of failed operations, by the error text of the system.
    pub errors: BTreeMap<String, u64>,
    /// Latency that reports show: from the intended time in an open loop, from the send time in a
    /// closed loop.
    pub latency: Latencies,
    /// Service time in an open loop: the latency from the send time on.
    pub service: Option<Latencies>,
}

/// Figures of one second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Index of the second, counted from the start of the measurement.
    pub second: u32,
    /// Number of completed operations, with the metadata operations of mixes and without flushes.
    pub ops: u64,
    /// Number of bytes of the operations that `ops` counts.
    pub bytes: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median latency in microseconds. With several clients, this is the mean of the clients'
    /// medians, weighted by operations. The value is 0 in results that older programs wrote.
    #[serde(default)]
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Longest latency in microseconds.
    pub max_us: f64,
    /// Backlog at the end of the second: the number of operations that were due but not sent yet.
    pub backlog: u64,
    /// Number of operations in flight at the end of the second.
    #[serde(default)]
    pub in_flight: u64,
}

/// Result of reading blocks again and comparing them with their expected contents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Number of blocks that were checked.
    pub blocks: u64,
    /// Number of blocks with wrong contents, or with the contents of another address.
    pub bad: u64,
    /// Number of bad blocks that another run wrote.
    #[serde(default)]
    pub other_run: u64,
    /// Numbers of blocks that could not be read, by error text.
    #[serde(default)]
    pub unread: BTreeMap<String, u64>,
    /// Descriptions of the first few bad blocks that were found.
    pub examples: Vec<String>,
}

/// Comparison of the names that the directories of a run list at its end with the operations that
/// completed. Files whose last operation failed are not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesCheck {
    /// Number of names that the directories list.
    pub listed: u64,
    /// Number of files that the run created or renamed and that no directory lists by their name.
    pub missing: u64,
    /// Number of listed names of files that the run removed, renamed or never created.
    pub unexpected: u64,
    /// Descriptions of the first few differences.
    pub examples: Vec<String>,
}

impl FilesCheck {
    /// Adds the numbers of `other`, which covers other directories.
    pub fn add(&mut self, other: Self) {
        let Self { listed, missing, unexpected, examples } = other;
        self.listed = self.listed.saturating_add(listed);
        self.missing = self.missing.saturating_add(missing);
        self.unexpected = self.unexpected.saturating_add(unexpected);
        self.examples.extend(examples);
    }
}

/// One rate that a search offered, with its run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Offered rate in operations per second.
    pub offered_iops: f64,
    /// Figures that were measured at this rate.
    pub run: CellRun,
    /// True if the target reached the rate within the bounds.
    pub met: bool,
}
