//! Traps of a run: legal settings that make its results misleading, reported before the run starts.
//!
//! `check` reports contradictions as errors; `verdict` judges results.
//!
//! Invariants: a trap has a description, a reason and an action for the user; each kind of trap is
//! reported only once, with the rows that it affects; no trap prevents a run.

#[cfg(test)]
mod tests;

use serde::Serialize;
use weir_base::size::Human;

use crate::spec::{
    Access, BonnieSize, CacheState, CellSpec, Durability, LatencyFigure, LoadSpec, OpKind, RunSpec,
    Scale, StreamSpec,
};

/// Machine that runs the target and the generator. If they run on two machines: the memory of the
/// target's machine, and the cores of the generator's machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Number of bytes of memory that can cache the data.
    pub memory_bytes: u64,
    /// Number of cores that the generator can use.
    pub cores: u32,
}

/// Setting that makes a result misleading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trap {
    /// Description of the trap, with its figures.
    pub what: String,
    /// Reason for which the setting makes results misleading.
    pub why: String,
    /// Action that the user should take.
    pub action: String,
}

/// A run that is shorter than this number of milliseconds ends before caches, logs and garbage
/// collection affect it.
const SHORT_MS: u64 = 10_000;
/// A worker that writes more bytes without a flush measures volatile caches.
const FLUSH_BYTES_MAX: u64 = 64 << 20;
/// Minimum number of runs from which a confidence interval can be computed.
const RUNS_MIN: u32 = 3;
/// Minimum number of samples beyond a percentile; with fewer samples the report omits the
/// percentile.
const BEYOND_MIN: f64 = 10.0;
/// Maximum number of operations per second that the generator can send on one core.
const CORE_OPS_S: f64 = 1_000_000.0;

/// Finds the settings that make the results of a run on this machine misleading.
pub fn lint(spec: &RunSpec, machine: &Machine) -> Vec<Trap> {
    let mut traps = Vec::new();
    scale(spec, &mut traps);
    memory(spec, machine, &mut traps);
    durability(spec, &mut traps);
    content(spec, &mut traps);
    sampling(spec, &mut traps);
    queue_depth(spec, &mut traps);
    requirement(spec, &mut traps);
    steadiness(spec, &mut traps);
    generator(spec, machine, &mut traps);
    followers(spec, &mut traps);
    holes(spec, &mut traps);
    traps
}

pub(super) fn trap(
    what: impl Into<String>,
    why: impl Into<String>,
    action: impl Into<String>,
) -> Trap {
    Trap { what: what.into(), why: why.into(), action: action.into() }
}

/// Names of the cells that meet a condition, shortened to fit; `None` if no cell meets the
/// condition.
fn rows(spec: &RunSpec, holds: impl Fn(&CellSpec) -> bool) -> Option<String> {
    let names: Vec<&str> =
        spec.cells.iter().filter(|cell| holds(cell)).map(|cell| cell.name.as_str()).collect();
    match names.as_slice() {
        [] => None,
        all if all.len() == spec.cells.len() && all.len() > 1 => Some("every row".to_owned()),
        [one] => Some(format!("row {one:?}")),
        [first, rest @ ..] => Some(format!("row {first:?} and {} more", rest.len())),
    }
}

fn writes(cell: &CellSpec) -> bool {
    let writes = |stream: &StreamSpec| match stream.op {
        Some(op) => !matches!(op, OpKind::Stat | OpKind::Readdir | OpKind::Readdirplus),
        None => stream.read_pct < 100.0,
    };
    cell.streams.iter().any(writes)
}

fn scale(spec: &RunSpec, traps: &mut Vec<Trap>) {
    if spec.scale == Scale::Smoke {
        traps.push(trap(
            "smoke scale",
            "a few seconds on little data check that the profile runs, but do not measure \
             performance",
            "use --scale standard or --scale seed for figures",
        ));
    }
}

#[expect(clippy::cast_sign_loss, reason = "shares are not negative")]
fn tenths(pct: f64) -> u64 {
    (pct * 10.0).round() as u64
}

/// Size of a cell's working set: the bytes of the dataset that receive most of its operations.
fn working_set(spec: &RunSpec, cell: &CellSpec) -> u64 {
    let total = spec.dataset.total_bytes();
    let part = |access: Access| match access {
        // Compute in tenths of a percent, so that the sizes stay integers.
        Access::Hotspot { data_pct, .. } => total / 1000 * tenths(data_pct),
        Access::Sequential | Access::Random | Access::Zipf { .. } | Access::Walk { .. } => total,
    };
    cell.streams.iter().map(|stream| part(stream.access)).max().unwrap_or(total)
}

fn memory(spec: &RunSpec, machine: &Machine, traps: &mut Vec<Trap>) {
    // An operation on files uses no data of the dataset.
    let uses_data =
        |cell: &CellSpec| cell.streams.iter().any(|it| !it.op.is_some_and(OpKind::is_of_files));
    let fits = |cell: &CellSpec| uses_data(cell) && working_set(spec, cell) <= machine.memory_bytes;
    if let Some(rows) = rows(spec, fits) {
        let set = spec.cells.iter().map(|cell| working_set(spec, cell)).min().unwrap_or(0);
        let (set, memory) = (Human(set), Human(machine.memory_bytes));
        traps.push(trap(
            format!("{rows}: {set} of data are used, {memory} of memory can cache them"),
            "reads come from a cache: the result says little about the storage behind it",
            format!(
                "use a dataset of at least twice the memory, {}",
                Human(machine.memory_bytes * 2)
            ),
        ));
    }
    let Some(BonnieSize::Bytes { bytes }) = spec.bonnie.map(|bonnie| bonnie.size) else { return };
    if bytes < machine.memory_bytes.saturating_mul(3) {
        traps.push(trap(
            format!(
                "the file test uses {}, which is less than three times the memory",
                Human(bytes)
            ),
            "its input phase reads data that its output phase left in memory",
            "give `size = \"3xRAM\"` and use --scale seed",
        ));
    }
}

fn durability(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let Some(rows) = rows(spec, writes) else { return };
    match spec.durability {
        Durability::None => traps.push(trap(
            format!("{rows}: writes are not durable"),
            "they can end in a volatile cache, so the result measures the cache",
            "write `durability = { writes = \"fua\" }`, or \"flush\" as the application does it",
        )),
        Durability::Flush { every_writes } if every_writes > 1024 => {
            traps.push(rare_flush(&rows, format_args!("{every_writes} writes")));
        }
        Durability::FlushBytes { every_bytes } if every_bytes > FLUSH_BYTES_MAX => {
            traps.push(rare_flush(&rows, format_args!("{}", Human(every_bytes))));
        }
        Durability::Flush { .. } | Durability::FlushBytes { .. } | Durability::Fua => {}
    }
}

fn rare_flush(rows: &str, every: std::fmt::Arguments<'_>) -> Trap {
    trap(
        format!("{rows}: one flush per {every}"),
        "a short run ends with most of its writes in a volatile cache",
        "flush as often as the application does",
    )
}

fn content(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let content = &spec.content;
    if content.compress > 1.05 {
        traps.push(trap(
            format!("the data is {} times smaller after compression", content.compress),
            "a target that compresses moves less data than the report counts, which overstates the \
             bandwidth of disks and links",
            "report it with the result, and repeat the run with `compress = 1.0`",
        ));
    }
    if content.dedupe_pct > 0.0 {
        traps.push(trap(
            format!("{} % of the data has a duplicate", content.dedupe_pct),
            "a target that finds duplicates stores less data than the report counts",
            "report it with the result, and repeat the run with `dedupe_pct = 0`",
        ));
        let small = |cell: &CellSpec| {
            let mut blocks = cell.streams.iter().flat_map(|stream| &stream.blocks);
            blocks.any(|block| block.bytes < content.unit_bytes)
        };
        if let Some(rows) = rows(spec, small) {
            traps.push(trap(
                format!("{rows}: blocks are smaller than a duplicate of {}", content.unit_bytes),
                "a write of a part of a unit makes the unit unique, so the share of duplicates \
                 falls",
                "give `unit` no larger than the smallest block",
            ));
        }
    }
}

/// Share of a cell's operations to which a bound on a latency applies.
fn share(cell: &CellSpec, stream: Option<&str>, op: Option<OpKind>) -> f64 {
    let all: f64 = cell.streams.iter().map(|stream| f64::from(stream.share)).sum();
    let chosen = cell.streams.iter().filter(|it| stream.is_none_or(|name| name == it.name));
    let part = |stream: &StreamSpec| match (op, stream.op) {
        (None, _) => 1.0,
        (Some(op), Some(own)) => f64::from(u8::from(op == own)),
        (Some(OpKind::Read), None) => stream.read_pct / 100.0,
        (Some(OpKind::Write), None) => 1.0 - stream.read_pct / 100.0,
        (Some(_), None) => 0.0,
    };
    chosen.map(|it| f64::from(it.share) * part(it)).sum::<f64>() / all.max(1.0)
}

/// Operations per second of a cell, if known before the run: the rate that is offered or required.
fn expected_rate(spec: &RunSpec, cell: &CellSpec) -> Option<f64> {
    match cell.load {
        LoadSpec::Open { rate, .. } => Some(rate),
        LoadSpec::Closed { .. } => spec.require.as_ref().and_then(|require| require.iops),
    }
}

fn holes(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let mut streams = spec.cells.iter().flat_map(|cell| &cell.streams);
    let empties = |it: &StreamSpec| matches!(it.op, Some(OpKind::Trim | OpKind::WriteSame));
    if !streams.any(empties) {
        return;
    }
    let reads = |cell: &CellSpec| cell.streams.iter().any(|stream| stream.read_pct > 0.0);
    if let Some(rows) = rows(spec, reads) {
        traps.push(trap(
            format!("{rows}: other rows trim or zero the last quarter of the same data"),
            "reads of unallocated blocks are faster than reads of data",
            "measure reads in a separate profile",
        ));
    }
}

fn sampling(spec: &RunSpec, traps: &mut Vec<Trap>) {
    // If a run ends after a number of bytes, the length of the run is not known in advance.
    let has_length = |cell: &CellSpec| cell.worker_bytes.is_none();
    let short =
        |cell: &CellSpec| has_length(cell) && cell.duration_ms < SHORT_MS && cell.search.is_none();
    if let Some(rows) = rows(spec, short) {
        traps.push(trap(
            format!("{rows}: runs of less than {} s", SHORT_MS / 1000),
            "they end before write caches fill and before background cleaning starts",
            "give `duration` of at least a minute",
        ));
    }
    let few = |cell: &CellSpec| cell.runs < RUNS_MIN && cell.search.is_none();
    if let Some(rows) = rows(spec, few) {
        traps.push(trap(
            format!("{rows}: fewer than {RUNS_MIN} runs"),
            "one or two runs do not show how far the next would differ",
            "give `runs = 3` or more",
        ));
    }
    for bound in spec.require.iter().flat_map(|require| &require.latency) {
        let (word, beyond) = match bound.figure {
            LatencyFigure::Mean | LatencyFigure::P50 => continue,
            LatencyFigure::P95 => ("95th", 0.05),
            LatencyFigure::P99 => ("99th", 0.01),
            LatencyFigure::P999 => ("99.9th", 0.001),
        };
        let too_few = |cell: &CellSpec| {
            let seconds = cell.duration_ms as f64 / 1000.0 * f64::from(cell.runs);
            let part = share(cell, bound.stream.as_deref(), bound.op);
            expected_rate(spec, cell)
                .filter(|_| has_length(cell))
                .is_some_and(|rate| rate * seconds * part * beyond < BEYOND_MIN)
        };
        if let Some(rows) = rows(spec, too_few) {
            traps.push(trap(
                format!("{rows}: too few operations for the required {word} percentile"),
                "fewer than ten operations would exceed it, so the report does not print it",
                "run longer or more often",
            ));
        }
    }
}

fn queue_depth(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let both = |cell: &CellSpec| match cell.load {
        LoadSpec::Closed { workers, depth } => workers > 1 && depth > 1,
        LoadSpec::Open { .. } => false,
    };
    if let Some(rows) = rows(spec, both) {
        let example = spec.cells.iter().find(|cell| both(cell)).map(|cell| cell.load);
        if let Some(LoadSpec::Closed { workers, depth }) = example {
            let total = u64::from(workers) * u64::from(depth);
            traps.push(trap(
                format!("{rows}: queue depth is {depth} per worker, {total} in all"),
                "\"queue depth\" alone is ambiguous",
                "report both with the result",
            ));
        }
    }
    if let Some(rows) = rows(spec, |cell| cell.clients > 1) {
        let clients = spec.cells.iter().map(|cell| cell.clients).max().unwrap_or(1);
        traps.push(trap(
            format!("{rows}: the profile needs {clients} clients, each with this load"),
            "one client generates a smaller load",
            "start `weir bench agent` on as many machines, or do not compare these rows",
        ));
    }
}

fn requirement(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let bounded = spec.require.as_ref().is_some_and(|require| !require.latency.is_empty());
    let closed = |cell: &CellSpec| matches!(cell.load, LoadSpec::Closed { .. });
    let Some(rows) = rows(spec, closed).filter(|_| bounded) else { return };
    traps.push(trap(
        format!("{rows}: a latency is required, and the loop is closed"),
        "a closed loop stops sending while the target stalls, so its percentiles omit the stall",
        "judge the requirement by rows with `mode = \"open\"`",
    ));
}

fn steadiness(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let random_writes = |cell: &CellSpec| {
        let mut streams = cell.streams.iter();
        streams.any(|it| it.read_pct < 100.0 && it.access.is_random())
    };
    if let Some(rows) = rows(spec, random_writes).filter(|_| spec.precondition.is_none()) {
        traps.push(trap(
            format!("{rows}: random writes without preconditioning"),
            "flash and copy-on-write storage are fast until they have been overwritten once",
            "add `precondition` to [phases]",
        ));
    }
    if let Some(rows) = rows(spec, |cell| cell.warmup_ms == 0 && cell.search.is_none()) {
        traps.push(trap(
            format!("{rows}: no warm-up"),
            "the result includes connection setup, cold caches and rising clock frequencies",
            "give `warmup` of a few seconds",
        ));
    }
    if let Some(rows) = rows(spec, |cell| cell.verify_pct <= 0.0) {
        traps.push(trap(
            format!("{rows}: nothing is verified"),
            "a target that loses or misplaces blocks can be very fast",
            "give `verify = { sample_pct = 1 }`",
        ));
    }
    let declared =
        |cell: &CellSpec| matches!(cell.cache, CacheState::Cold | CacheState::WarmMetadata);
    if let Some(rows) = rows(spec, declared) {
        traps.push(trap(
            format!("{rows}: a state of the target's caches is declared"),
            "the program can drop only the caches of this machine; the target's caches keep their \
             contents",
            "drop the target's caches before each run, or report the state that they have",
        ));
    }
}

fn followers(spec: &RunSpec, traps: &mut Vec<Trap>) {
    let walks =
        |it: &StreamSpec| matches!(it.access, Access::Walk { .. }) && !it.access.is_random();
    let follow = |cell: &CellSpec| cell.load.workers() > 1 && cell.streams.iter().any(walks);
    if let Some(rows) = rows(spec, follow) {
        traps.push(trap(
            format!("{rows}: every worker reads the same data sequentially"),
            "one worker reads it from the storage, the others from a cache",
            "give each worker a separate part: `offset_increment` of `size` in a job file of fio",
        ));
    }
}

fn generator(spec: &RunSpec, machine: &Machine, traps: &mut Vec<Trap>) {
    let most = CORE_OPS_S * f64::from(machine.cores.max(1));
    let beyond = |cell: &CellSpec| matches!(cell.load, LoadSpec::Open { rate, .. } if rate > most);
    if let Some(rows) = rows(spec, beyond) {
        traps.push(trap(
            format!("{rows}: the rate is higher than {} cores can generate", machine.cores),
            "the generator would limit the result, not the target",
            "use more clients or a lower rate",
        ));
    }
    let few = |cell: &CellSpec| {
        let LoadSpec::Closed { workers, .. } = cell.load else { return false };
        let sequential = |it: &StreamSpec| matches!(it.access, Access::Sequential);
        let blocks = cell.streams.iter().filter(|it| sequential(it)).flat_map(|it| &it.blocks);
        let largest = blocks.map(|block| u64::from(block.bytes)).max();
        largest.is_some_and(|bytes| {
            spec.dataset.total_bytes() / u64::from(workers) < bytes.saturating_mul(64)
        })
    };
    if let Some(rows) = rows(spec, few) {
        traps.push(trap(
            format!("{rows}: each worker's part has fewer than 64 sequential blocks"),
            "it is read repeatedly, so a small cache makes the target look fast, and many short \
             streams are hardly sequential",
            "use a larger dataset or fewer workers",
        ));
    }
}
