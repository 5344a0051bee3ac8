//! Rules about the load: limits of the generator and the target, and deviations from the specified
//! load.
//!
//! `steady` judges changes over time.
//!
//! Invariant: each bound is one constant, whose comment gives the reason.

use weir_base::size::Human;

use super::Evidence;
use crate::histogram::Latencies;
use crate::queue;
use crate::result::CellRun;
use crate::run::search::reaches;
use crate::spec::{LoadSpec, MetadataSpec, OpKind, StreamSpec};
use crate::stats::CHANCE_DEVIATIONS;
use crate::summary::{RunFigures, merged};
use crate::target::caches::SERVER_HERE;

/// Limits of the mean queue depth (by Little's law, rate times mean latency), in percent of the
/// specified depth. A depth above the maximum is impossible. With a depth below the minimum, the
/// cell did not run at the depth in its name. `notes` adds a note if the depth is slightly below
/// 100 %.
const IN_FLIGHT_PCT_MAX: f64 = 105.0;
const IN_FLIGHT_PCT_MIN: f64 = 80.0;
/// Smallest queue depth to which the rule on queue depth applies. At a smaller depth, the
/// generator's own time between two operations is a large share of the total time.
pub(crate) const SMALL_DEPTH: f64 = 4.0;
/// Number of percentage points by which the share of reads, or of metadata operations, may deviate,
/// in addition to chance.
const MIX_POINTS: f64 = 1.0;
/// CPU use, in percent of the generator's cores, above which the generator limits the rate: a
/// busier thread reads completions late.
const CPU_PCT_MAX: f64 = 80.0;
/// Maximum 99th percentile of the send delay of an open loop, in percent of the median latency. A
/// delay of at most [`LAG_US_MIN`] is allowed in any case.
const LAG_PCT_MAX: f64 = 5.0;
/// Send delay in microseconds that is always allowed, because kernel timers alone can cause it.
const LAG_US_MIN: f64 = 200.0;
/// If a target completes less than this percentage of the offered rate, the target is overloaded.
const REACHED_PCT_MIN: f64 = 98.0;
/// Maximum time between the start of the first client and the start of the last client.
const SKEW_MS_MAX: f64 = 10.0;
/// Highest possible figure in percent of a limit that the profile states, such as the bandwidth of
/// the network. A higher figure means that the profile or the measurement is wrong.
const LIMIT_PCT_MAX: f64 = 100.0;

pub(super) fn late_client(evidence: &Evidence<'_>) -> Option<String> {
    let skew = evidence.all.iter().filter_map(|run| run.start_skew_ms).fold(0.0, f64::max);
    (skew > SKEW_MS_MAX).then(|| format!("the last client started {skew:.1} ms after the first"))
}

pub(super) fn busy_generator(evidence: &Evidence<'_>) -> Option<String> {
    let (busy_pct, who) = generator_busy_pct(evidence);
    (busy_pct > CPU_PCT_MAX).then(|| format!("{who} used {busy_pct:.0} % of its cores"))
}

/// CPU use in percent of the generator's cores, and the name of the generator. With several
/// clients, these are the values of the busiest client.
fn generator_busy_pct<'a>(evidence: &Evidence<'a>) -> (f64, &'a str) {
    let runs = &evidence.all;
    let clients = runs.iter().flat_map(|run| &run.clients);
    if let Some(busiest) = clients.max_by(|a, b| a.cpu_pct.total_cmp(&b.cpu_pct)) {
        return (busiest.cpu_pct, &busiest.name);
    }
    let cores = f64::from(evidence.result.environment.cores.max(1));
    let threads = runs.iter().map(|run| f64::from(run.threads)).fold(1.0, f64::max);
    let seconds: f64 = runs.iter().map(|run| run.seconds).sum();
    // The system calls of operations on files execute the code of the file system, so their system
    // time is not the generator's own.
    let of_files = is_of_files(evidence);
    let cpu_s = |run: &&CellRun| run.cpu_s.0 + if of_files { 0.0 } else { run.cpu_s.1 };
    let cpu: f64 = runs.iter().map(cpu_s).sum();
    (100.0 * cpu / (seconds * threads.min(cores)).max(1e-9), "the generator")
}

pub(super) fn late_generator(evidence: &Evidence<'_>) -> Option<String> {
    let LoadSpec::Open { .. } = evidence.cell.spec.load else { return None };
    // A slow target also delays the generator. So the generator itself is late only if no operation
    // waited for a slot.
    if evidence.all.iter().any(|run| run.backlog_max > 1) {
        return None;
    }
    let mut lag = Latencies::default();
    evidence.all.iter().for_each(|run| lag.add(&run.lag));
    let all = merged(evidence.all.iter().flat_map(|run| &run.classes));
    let (lag, median) = (lag.percentile_us(99.0)?, all.percentile_us(50.0)?);
    (lag > median * LAG_PCT_MAX / 100.0 && lag > LAG_US_MIN)
        .then(|| format!("sent {lag:.0} us late (99th percentile); median latency {median:.0} us"))
}

pub(super) fn in_flight(evidence: &Evidence<'_>) -> Option<String> {
    let LoadSpec::Closed { workers, depth } = evidence.cell.spec.load else { return None };
    let wanted = f64::from(workers) * f64::from(depth) * clients(evidence);
    let found = evidence.summary.in_flight;
    if depth == 1 && is_of_files(evidence) {
        // A worker executes these system calls on its own thread. A note states the missing part.
        return None;
    }
    let is_possible = (IN_FLIGHT_PCT_MIN..=IN_FLIGHT_PCT_MAX).contains(&(100.0 * found / wanted));
    (wanted >= SMALL_DEPTH && !is_possible)
        .then(|| format!("{found:.1} operations were in flight instead of {wanted:.0}"))
}

pub(super) fn overload(evidence: &Evidence<'_>) -> Option<String> {
    let LoadSpec::Open { rate, arrival, .. } = evidence.cell.spec.load else { return None };
    let (runs, offered) = (&evidence.cell.runs, rate * clients(evidence));
    let missed = runs.iter().any(|run| {
        let iops = RunFigures::of(run).all_iops();
        run.overloaded
            || !run.keeps_up(REACHED_PCT_MIN, arrival)
            || !reaches(run.seconds, iops, offered, REACHED_PCT_MIN, arrival)
    });
    let iops = evidence.summary.iops.median + evidence.summary.metadata_iops.median;
    let reached = 100.0 * iops / offered.max(1e-9);
    let waited = runs.iter().map(|run| run.backlog_max).max().unwrap_or(0);
    let unanswered = runs.iter().map(|run| run.due.saturating_sub(run.answered)).max();
    let unanswered = unanswered.unwrap_or(0);
    missed.then(|| {
        let growth = runs.iter().find_map(|run| queue::growth(run, arrival));
        let grew = growth.map_or_else(String::new, |growth| format!(", {growth}"));
        format!(
            "the target reached {reached:.1} % of the rate, {waited} operations waited, \
             {unanswered} were incomplete at the end{grew}"
        )
    })
}

pub(super) fn nothing_reached(evidence: &Evidence<'_>) -> Option<String> {
    let points = &evidence.cell.points;
    let lowest = points.first().filter(|_| points.iter().all(|point| !point.met))?;
    Some(format!("no tested rate met the bounds; the lowest was {:.0}/s", lowest.offered_iops))
}

pub(super) fn mix(evidence: &Evidence<'_>) -> Option<String> {
    let streams = &evidence.cell.spec.streams;
    let shares: f64 = streams.iter().map(|stream| f64::from(stream.share)).sum();
    let reads: f64 = streams.iter().map(|s| s.read_pct * f64::from(s.share)).sum();
    let wanted = reads / shares.max(1.0);
    let (found, operations) = (evidence.summary.read_pct, evidence.summary.latency.count);
    is_off(found, wanted, operations)
        .then(|| format!("{found:.1} % reads instead of {wanted:.1} %"))
}

pub(super) fn metadata_mix(evidence: &Evidence<'_>) -> Option<String> {
    let streams = &evidence.cell.spec.streams;
    let shares: f64 = streams.iter().map(|stream| f64::from(stream.share)).sum();
    let part = |stream: &StreamSpec| {
        MetadataSpec::mix_pct(stream.metadata.as_ref()) * f64::from(stream.share)
    };
    let wanted = streams.iter().map(part).sum::<f64>() / shares.max(1.0);
    let summary = &evidence.summary;
    let (found, operations) =
        (summary.metadata_pct, summary.latency.count + summary.metadata_latency.count);
    is_off(found, wanted, operations)
        .then(|| format!("{found:.1} % metadata operations instead of {wanted:.1} %"))
}

/// True if the share of a kind of operation, `found_pct`, differs from `wanted_pct` by more than
/// chance allows for this number of operations.
fn is_off(found_pct: f64, wanted_pct: f64, operations: u64) -> bool {
    // Standard deviation of a binomial share, in percentage points.
    let share = wanted_pct / 100.0;
    let deviation = 100.0 * (share * (1.0 - share) / (operations as f64).max(1.0)).sqrt();
    (found_pct - wanted_pct).abs() > MIX_POINTS + CHANCE_DEVIATIONS * deviation
}

pub(super) fn cached_dataset(evidence: &Evidence<'_>) -> Option<String> {
    let (spec, target) = (&evidence.result.spec, &evidence.result.target);
    let reads = evidence.cell.spec.streams.iter().any(|stream| stream.read_pct > 0.0);
    let found = target.cache_source.as_deref().filter(|source| *source != "told");
    // The page cache of this machine also absorbs writes, unless a server flushes them.
    let absorbs_writes = found.is_some_and(|source| source != SERVER_HERE);
    let dataset = spec.dataset.total_bytes();
    let cache = target.cache_bytes.filter(|cache| dataset <= *cache)?;
    let why = found.map_or_else(String::new, |why| format!(": {why}"));
    let (dataset, cache) = (Human(dataset), Human(cache));
    (reads || absorbs_writes)
        .then(|| format!("the dataset of {dataset} fits the cache of {cache}{why}"))
}

pub(super) fn above_limit(evidence: &Evidence<'_>) -> Option<String> {
    let (limits, summary) = (evidence.result.spec.limits.as_ref()?, &evidence.summary);
    let (name, pct) = limits.share_pct(summary.iops.median, summary.mib_s.median)?;
    (pct > LIMIT_PCT_MAX).then(|| format!("{pct:.0} % of the stated limit ({name})"))
}

/// True if all operations of the cell are operations on files, such as create or stat.
fn is_of_files(evidence: &Evidence<'_>) -> bool {
    evidence.cell.spec.streams.iter().all(|stream| stream.op.is_some_and(OpKind::is_of_files))
}

fn clients(evidence: &Evidence<'_>) -> f64 {
    f64::from(evidence.cell.spec.clients.max(1))
}
