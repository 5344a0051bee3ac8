//! What a run gave: the content of `result.json`, from which everything else is made.
//!
//! Not here: judging it (verdict), tables and charts (report).
//!
//! Invariants:
//! - distributions are kept whole (HDR V2): percentiles of several runs or clients come from merged
//!   ones and are never averaged;
//! - a file of another schema is refused, not guessed at.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bonnie::BonnieResult;
use crate::histogram::Latencies;
use crate::queue;
use crate::spec::{Arrival, CellSpec, OpKind, RunSpec};
use crate::stats::CHANCE_DEVIATIONS;

/// Version of `result.json`.
pub const SCHEMA: u32 = 1;

/// A run, as far as it came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`] of the program that wrote it.
    pub schema: u32,
    /// Name and version of that program.
    pub program: String,
    /// Milliseconds since 1970.
    pub started_unix_ms: u64,
    /// The command line, secrets left out.
    pub command: Vec<String>,
    /// What was to be measured.
    pub spec: RunSpec,
    /// XXH3-128 of the spec as JSON, in hexadecimal.
    pub spec_hash: String,
    /// What was measured.
    pub target: TargetInfo,
    /// Where the generator ran.
    pub environment: Environment,
    /// What was done before the cells.
    pub phases: Vec<PhaseResult>,
    /// Those that were measured, in the order of the spec.
    pub cells: Vec<CellResult>,
    /// What came of the file test in the manner of bonnie++.
    #[serde(default)]
    pub bonnie: Option<BonnieResult>,
    /// What the reader must know.
    pub warnings: Vec<String>,
    /// Whether every cell of the spec is there.
    pub complete: bool,
}

/// The target, as far as it can be known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetInfo {
    /// As given, secrets left out.
    pub address: String,
    /// `file`, `device`, `nbd`, `null`.
    pub kind: String,
    /// Bytes that it has.
    pub bytes: u64,
    /// Smallest unit of an operation.
    pub block_bytes: u32,
    /// How it is driven: `io_uring, O_DIRECT`.
    pub driver: String,
    /// Bytes that its caches hold, where it is known: ranking is refused across this border.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Source of `cache_bytes`: `told`, or the reason found on this machine.
    #[serde(default)]
    pub cache_source: Option<String>,
    /// What survives, where it is known: `mirror of 2`, `raidz1 of 5`.
    #[serde(default)]
    pub protection: Option<String>,
    /// Features that work on the data, where known: `compression`, `dedupe`.
    #[serde(default)]
    pub features: Vec<String>,
    /// More that is known: file system, mount options, negotiated sizes.
    pub facts: BTreeMap<String, String>,
}

impl TargetInfo {
    /// True for files, directories and devices of this machine. A run locks them, and the page
    /// cache may hold them.
    pub(crate) fn is_local(&self) -> bool {
        ["file", "device", "directory"].contains(&self.kind.as_str())
    }
}

/// The machine of the generator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Name of the machine.
    pub host: String,
    /// Model of the processor.
    pub cpu: String,
    /// Cores that may be used.
    pub cores: u32,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Load average of the last minute when the run began.
    #[serde(default)]
    pub load_average: f64,
    /// Governor of the processor's clock, where there is one.
    pub governor: Option<String>,
    /// Operations per second of a fixed computation on one core, for ratios between machines.
    pub core_score: f64,
}

/// A phase before the cells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhaseResult {
    /// `fill`, `precondition`.
    pub name: String,
    /// What was measured of it.
    pub run: CellRun,
    /// What must be known: "steady after 7 rounds".
    pub note: String,
    /// By round: operations per second, for preconditions.
    pub rounds_iops: Vec<f64>,
}

/// A cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellResult {
    /// What was to be measured.
    pub spec: CellSpec,
    /// Each run, in the order they were done.
    pub runs: Vec<CellRun>,
    /// What verification after the last run found; `None` where there was none.
    pub verified: Option<Verification>,
    /// Why it was not or not wholly measured.
    pub failure: Option<String>,
    /// Of a search: every rate that was tried, ascending.
    pub points: Vec<CurvePoint>,
}

impl CellResult {
    /// Everything that was measured: runs, and the points of a search.
    pub fn measured(&self) -> impl Iterator<Item = &CellRun> {
        self.runs.iter().chain(self.points.iter().map(|point| &point.run))
    }

    /// Of a search: the highest rate that was reached within its bounds, else the lowest.
    pub fn best_or_lowest(&self) -> Option<&CellRun> {
        self.best_met().or(self.points.first().map(|point| &point.run))
    }

    /// Of a search: what was measured at the highest rate that was reached within the bounds.
    pub fn best_met(&self) -> Option<&CellRun> {
        self.points.iter().rev().find(|point| point.met).map(|point| &point.run)
    }
}

/// One run of a cell.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CellRun {
    /// When counting began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Time that counts.
    pub seconds: f64,
    /// By stream and kind of operation.
    pub classes: Vec<ClassResult>,
    /// Each second.
    pub intervals: Vec<Interval>,
    /// Operations per second that were to be offered; `None` in a closed loop.
    pub offered_iops: Option<f64>,
    /// Sent less intended; empty in a closed loop.
    pub lag: Latencies,
    /// Most operations that waited for their turn.
    pub backlog_max: u64,
    /// The run ended because too many waited.
    pub overloaded: bool,
    /// Operations of an open loop that were due in the time that counts; 0 in a closed one.
    #[serde(default)]
    pub due: u64,
    /// Operations that were answered in the time that counts, those that failed among them.
    #[serde(default)]
    pub answered: u64,
    /// Lengths of the times in which operations were in flight and none was answered, from 10 ms
    /// on.
    #[serde(default)]
    pub stalls: Latencies,
    /// Time that the generator's threads waited for a core, in seconds, summed over them.
    #[serde(default)]
    pub cpu_wait_s: f64,
    /// Share of the machine's cores that its hypervisor took, in percent.
    #[serde(default)]
    pub steal_pct: f64,
    /// Share of the machine's cores that other processes used, in percent.
    #[serde(default)]
    pub others_pct: f64,
    /// Processor time of the target's server in seconds, if its process is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_cpu_s: Option<f64>,
    /// Processor time of the generator in seconds: user, system.
    pub cpu_s: (f64, f64),
    /// Threads of the generator that were busy.
    pub threads: u32,
    /// Share of reads that came back as nothing but zeros.
    pub zero_reads_pct: f64,
    /// The clock of the machine jumped or ran at another speed.
    pub clock_jumped: bool,
    /// Blocks that were not what was written, while measuring.
    pub corrupt: u64,
    /// Blocks that another run wrote, while measuring.
    #[serde(default)]
    pub other_run: u64,
    /// Verified share of its reads, warm-up included.
    #[serde(default)]
    pub coverage: Coverage,
    /// Of several clients: start of the last less that of the first, in milliseconds.
    pub start_skew_ms: Option<f64>,
    /// Of several clients: operations of each.
    pub clients: Vec<ClientShare>,
}

impl CellRun {
    /// Whether time counted: rates of less than a millisecond would be noise, or no numbers at all.
    pub fn is_measured(&self) -> bool {
        self.seconds >= 1e-3 && self.seconds.is_finite()
    }

    /// Adds the wrong blocks and failed operations of another run, whose figures are dropped.
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

    /// Of an open loop: whether the target answered that share of what was due, in percent, in
    /// time, with a queue that does not grow. What it usually has in flight may be under way at the
    /// end.
    pub fn keeps_up(&self, pct: f64, arrival: Arrival) -> bool {
        let Some(offered) = self.offered_iops.filter(|_| self.due > 0) else { return true };
        if queue::growth(self, arrival).is_some() {
            return false;
        }
        let mut all = Latencies::default();
        self.classes.iter().for_each(|class| all.add(&class.latency));
        // The quick operations are those of before a queue grew.
        let usual_us = all.percentile_us(10.0).unwrap_or(0.0);
        let in_flight = (offered * usual_us / 1e6).max(1.0);
        let under_way = match arrival {
            // Deviations of the difference of two Poisson numbers.
            Arrival::Poisson => CHANCE_DEVIATIONS * (2.0 * in_flight).sqrt(),
            // Rounded up; the last one may be due just before the end.
            Arrival::Constant => in_flight.ceil() + 1.0,
        };
        let missing = self.due.saturating_sub(self.answered) as f64;
        missing <= self.due as f64 * (1.0 - pct / 100.0) + under_way
    }
}

/// Verified share of the reads of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Reads that were answered.
    pub reads: u64,
    /// Reads with at least one checked block.
    pub checked_reads: u64,
    /// Bytes of all reads.
    pub bytes: u64,
    /// Bytes of blocks that were compared byte by byte.
    pub compared_bytes: u64,
}

impl Coverage {
    /// Adds the coverage of other reads.
    pub fn add(&mut self, other: &Self) {
        let Self { reads, checked_reads, bytes, compared_bytes } = other;
        self.reads = self.reads.saturating_add(*reads);
        self.checked_reads = self.checked_reads.saturating_add(*checked_reads);
        self.bytes = self.bytes.saturating_add(*bytes);
        self.compared_bytes = self.compared_bytes.saturating_add(*compared_bytes);
    }
}

/// What one of several clients did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientShare {
    /// Its name.
    pub name: String,
    /// Operations per second.
    pub iops: f64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Processor time by that of the cores it could use, in percent.
    #[serde(default)]
    pub cpu_pct: f64,
    /// By how much the comparison of its clock with the coordinator's may be off, in microseconds.
    #[serde(default)]
    pub clock_error_us: f64,
}

/// Operations of one kind in one stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClassResult {
    /// Name of the stream.
    pub stream: String,
    /// Kind.
    pub op: OpKind,
    /// Operations that succeeded within the time that counts.
    pub ops: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Operations that failed, by what the system called it.
    pub errors: BTreeMap<String, u64>,
    /// Headline: from the intended time in an open loop, from the sending in a closed one.
    pub latency: Latencies,
    /// From the sending, in an open loop.
    pub service: Option<Latencies>,
}

/// One second of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// From the start of the run.
    pub second: u32,
    /// Operations done.
    pub ops: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Mean latency in microseconds.
    pub mean_us: f64,
    /// Median; of several clients the mean of theirs by operations. 0 in results of older programs.
    #[serde(default)]
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Longest.
    pub max_us: f64,
    /// Operations that waited for their turn at its end.
    pub backlog: u64,
    /// Operations in flight at its end.
    #[serde(default)]
    pub in_flight: u64,
}

/// Blocks that were read again and compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Blocks looked at.
    pub blocks: u64,
    /// Blocks that were not right.
    pub bad: u64,
    /// Of them, blocks that another run wrote.
    #[serde(default)]
    pub other_run: u64,
    /// Failed reads of blocks, by error text.
    #[serde(default)]
    pub unread: BTreeMap<String, u64>,
    /// The first few, in words.
    pub examples: Vec<String>,
}

/// One rate of a search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Operations per second that were offered.
    pub offered_iops: f64,
    /// What came of it.
    pub run: CellRun,
    /// Whether the rate was reached within the bounds.
    pub met: bool,
}
