//! Judging: what is wrong with each cell of a run (design/validation.md 4.3).
//!
//! Not here: what each finding is called (verdict), figures (summary).
//!
//! Invariant: a bound stands here once, with its reason.

use std::collections::BTreeMap;

use weir_base::size::Human;

use crate::result::{CellResult, CellRun, RunResult};
use crate::run::search::reaches;
use crate::spec::{CellSpec, LoadSpec, OpKind, Scale};
use crate::stats;
use crate::summary::{CellSummary, RunFigures, merged, whole_intervals};
use crate::verdict::{Finding, Remark};

/// Operations by mean latency are what was in flight. More than this share of the depth cannot be;
/// with less, the row is not of the depth that it is called by; what is between is a note ...
const IN_FLIGHT_PCT_MAX: f64 = 105.0;
const IN_FLIGHT_PCT_MIN: f64 = 80.0;
/// ... of a closed loop of at least so many: below, the time between two operations shows.
pub(crate) const LITTLE_DEPTH_MIN: f64 = 4.0;
/// Reads may be off the share asked for by so many points, beside what chance does.
const MIX_POINTS: f64 = 1.0;
/// Share of its cores above which the generator is called the limit.
const CPU_PCT_MAX: f64 = 80.0;
/// An open loop's own lateness by the median latency.
const LAG_PCT_MAX: f64 = 5.0;
/// Lateness that no timer of the kernel promises to stay below.
const LAG_US_MIN: f64 = 200.0;
/// Less than this share of the rate that was offered is an overload.
const REACHED_PCT_MIN: f64 = 98.0;
/// Highest less lowest run by the median.
const RUNS_SPREAD_PCT_MAX: f64 = 20.0;
/// Rise of the best-fit line over the seconds of a run, by the mean.
const SLOPE_PCT_MAX: f64 = 10.0;
/// Whole seconds below which nothing can be said of whether a run was steady.
const STEADY_SECONDS_MIN: usize = 3;
/// A second with less than this share of the median second's operations is a dip ...
const DIP_PCT: f64 = 50.0;
/// ... where the median second has enough that chance does not halve them.
const DIP_OPS_MIN: f64 = 64.0;
/// Share of the time in which a target may answer nothing ...
const STALLED_PCT_MAX: f64 = 3.0;
/// ... and a stall that is one however long the run was.
const STALL_S_MAX: f64 = 1.0;
/// Start of the last client less that of the first.
const SKEW_MS_MAX: f64 = 10.0;
/// More than this share of a stated limit cannot come from what is limited.
const LIMIT_PCT_MAX: f64 = 105.0;
/// Runs below which nothing can be said of how far they differ.
const RUNS_MIN: u32 = 3;

/// What is wrong with each cell, worst first.
pub(crate) fn judge(result: &RunResult) -> Vec<Vec<Remark>> {
    result.cells.iter().map(|cell| judge_cell(result, cell)).collect()
}

fn judge_cell(result: &RunResult, cell: &CellResult) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut say = |finding, detail: String, action: &str| {
        remarks.push(Remark { finding, detail, action: action.to_owned() });
    };
    if let Some(failure) = &cell.failure {
        say(Finding::Invalid, failure.clone(), "mend the cause and measure again");
    }
    let runs: Vec<&CellRun> = cell.measured().collect();
    if runs.iter().all(|run| !run.is_measured()) {
        if cell.failure.is_none() {
            say(Finding::Invalid, "nothing was measured".to_owned(), "measure it");
        }
        return remarks;
    }
    let summary = CellSummary::of(cell);
    look_at_data(cell, &runs, &mut say);
    look_at_generator(result, cell, &runs, &mut say);
    if let Some(best) = cell.best_met() {
        let best = CellSummary::of_runs(std::slice::from_ref(best));
        look_at_caches(result, cell, &best, &mut say);
        look_at_stalls(&best, &mut say);
    } else {
        look_at_caches(result, cell, &summary, &mut say);
    }
    look_at_scale(result, &mut say);
    if cell.points.is_empty() {
        look_at_load(&cell.spec, cell, &summary, &mut say);
        look_at_steadiness(cell, &summary, &mut say);
        look_at_evidence(cell, &summary, &mut say);
    }
    remarks.sort_by_key(|remark| remark.finding);
    remarks
}

type Say<'a> = &'a mut dyn FnMut(Finding, String, &str);

fn look_at_data(cell: &CellResult, runs: &[&CellRun], say: Say<'_>) {
    let bad = cell.verified.as_ref().map_or(0, |verified| verified.bad);
    let corrupt: u64 = runs.iter().map(|run| run.corrupt).sum::<u64>() + bad;
    if corrupt > 0 {
        let examples = cell.verified.as_ref().map(|v| v.examples.join("; ")).unwrap_or_default();
        let detail = format!("{corrupt} blocks were not what was written: {examples}");
        say(Finding::Corrupt, detail, "do not trust this storage with data; look at its logs");
    }
    let holes = runs.iter().map(|run| run.zero_reads_pct).fold(0.0, f64::max);
    if holes > 0.0 {
        let detail = format!("{holes:.1} % of the reads brought nothing but zeros");
        say(Finding::Holes, detail, "fill the dataset first, and do not trim it");
    }
    if let Some(detail) = refused(runs.iter().copied()) {
        say(Finding::Invalid, detail, "look at the target's logs");
    }
    if let Some(verified) = cell.verified.as_ref().filter(|found| !found.unread.is_empty()) {
        let each = |(error, count): (&String, &u64)| format!("{count} ({error})");
        let unread: Vec<String> = verified.unread.iter().map(each).collect();
        let detail = format!("verification could not read {} blocks", unread.join(", "));
        say(Finding::Invalid, detail, "look at the target's logs");
    }
    if runs.iter().any(|run| run.clock_jumped) {
        let detail = "the clock jumped while it was measured".to_owned();
        say(Finding::Invalid, detail, "let the clock settle and measure again");
    }
}

/// The operations that a target refused, by kind and error; `None` if it refused none.
pub(crate) fn refused<'a>(runs: impl Iterator<Item = &'a CellRun>) -> Option<String> {
    let mut all: BTreeMap<(OpKind, &str), u64> = BTreeMap::new();
    for class in runs.flat_map(|run| &run.classes) {
        for (error, count) in &class.errors {
            *all.entry((class.op, error)).or_default() += count;
        }
    }
    let told = |((op, error), count): (&(OpKind, &str), &u64)| {
        format!("{} failed {count} times: {error}", op.name())
    };
    let told: Vec<String> = all.iter().map(told).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

/// Finds signs that a cache answered instead of the medium.
fn look_at_caches(result: &RunResult, cell: &CellResult, summary: &CellSummary, say: Say<'_>) {
    let (dataset, cache) = (result.spec.dataset.total_bytes(), result.target.cache_bytes);
    let reads = cell.spec.streams.iter().any(|stream| stream.read_pct > 0.0);
    // In this machine's memory writes end as well.
    let in_memory = result.target.cache_source.as_deref().is_some_and(|source| source != "told");
    if let Some(cache) = cache.filter(|cache| (reads || in_memory) && dataset <= *cache) {
        let (dataset, cached) = (Human(dataset), Human(cache));
        let why = result.target.cache_source.as_deref().filter(|_| in_memory);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        let detail = format!("the dataset of {dataset} fits the cache of {cached}{why}");
        say(Finding::CacheResident, detail, "use a dataset of several times the cache, or say so");
    }
    if let Some((name, pct)) = result.spec.limits.as_ref().and_then(|limits| {
        let found = limits.share_pct(summary.iops.median, summary.mib_s.median);
        found.filter(|(_, pct)| *pct > LIMIT_PCT_MAX)
    }) {
        let detail = format!("{pct:.0} % of what is possible by the stated limit ({name})");
        let action = "a cache answered, or the limit is wrong: use a larger dataset, or mend it";
        say(Finding::CacheResident, detail, action);
    }
}

fn look_at_generator(result: &RunResult, cell: &CellResult, runs: &[&CellRun], say: Say<'_>) {
    let (busy_pct, who) = generator_busy_pct(result, runs);
    if busy_pct > CPU_PCT_MAX {
        let detail = format!("{who} used {busy_pct:.0} % of its cores");
        say(Finding::GeneratorBound, detail, "use more workers, more clients or larger blocks");
    }
    if let LoadSpec::Open { .. } = cell.spec.load {
        let mut lag = crate::histogram::Latencies::default();
        runs.iter().for_each(|run| lag.add(&run.lag));
        let all = merged(runs.iter().flat_map(|run| &run.classes));
        // A target that lets everything wait makes the generator late; its own lateness shows only
        // where nothing waited.
        let waited = runs.iter().any(|run| run.backlog_max > 1);
        if let (Some(lag), Some(median), false) =
            (lag.percentile_us(99.0), all.percentile_us(50.0), waited)
            && lag > median * LAG_PCT_MAX / 100.0
            && lag > LAG_US_MIN
        {
            let detail =
                format!("99 % were sent within {lag:.0} us, the median took {median:.0} us");
            say(Finding::GeneratorBound, detail, "use more workers or a less busy client");
        }
    }
    let skew = runs.iter().filter_map(|run| run.start_skew_ms).fold(0.0, f64::max);
    if skew > SKEW_MS_MAX {
        let detail = format!("the last client began {skew:.1} ms after the first");
        say(Finding::Invalid, detail, "look at the clients' load and network");
    }
}

/// How much of its cores the generator used, and its name: of several clients that of the busiest.
fn generator_busy_pct<'a>(result: &RunResult, runs: &[&'a CellRun]) -> (f64, &'a str) {
    let clients = runs.iter().flat_map(|run| &run.clients);
    let busiest = clients.max_by(|a, b| a.cpu_pct.total_cmp(&b.cpu_pct));
    if let Some(busiest) = busiest {
        return (busiest.cpu_pct, &busiest.name);
    }
    let cores = f64::from(result.environment.cores.max(1));
    let threads = runs.iter().map(|run| f64::from(run.threads)).fold(1.0, f64::max);
    let seconds: f64 = runs.iter().map(|run| run.seconds).sum();
    let cpu: f64 = runs.iter().map(|run| run.cpu_s.0 + run.cpu_s.1).sum();
    (100.0 * cpu / (seconds * threads.min(cores)).max(1e-9), "the generator")
}

fn look_at_load(spec: &CellSpec, cell: &CellResult, summary: &CellSummary, say: Say<'_>) {
    let clients = f64::from(spec.clients.max(1));
    match spec.load {
        LoadSpec::Closed { workers, depth } => {
            let wanted = f64::from(workers) * f64::from(depth) * clients;
            let pct = 100.0 * summary.in_flight / wanted;
            let possible = IN_FLIGHT_PCT_MIN..=IN_FLIGHT_PCT_MAX;
            if wanted >= LITTLE_DEPTH_MIN && !possible.contains(&pct) {
                let found = summary.in_flight;
                let detail = format!("{found:.1} operations were in flight instead of {wanted:.0}");
                let action =
                    "the generator took that time: use more workers, or call it this depth";
                say(Finding::Inconsistent, detail, action);
            }
        }
        LoadSpec::Open { rate, arrival, .. } => {
            let reached = 100.0 * summary.iops.median / (rate * clients).max(1e-9);
            let waited = cell.runs.iter().map(|run| run.backlog_max).max().unwrap_or(0);
            let missed = cell.runs.iter().any(|run| {
                let (iops, offered) = (RunFigures::of(run).iops, rate * clients);
                let kept_up = run.keeps_up(REACHED_PCT_MIN, arrival)
                    && reaches(run.seconds, iops, offered, REACHED_PCT_MIN, arrival);
                run.overloaded || !kept_up
            });
            if missed {
                let unanswered = cell.runs.iter().map(|run| run.due.saturating_sub(run.answered));
                let unanswered = unanswered.max().unwrap_or(0);
                let detail = format!(
                    "{reached:.1} % of the rate was reached, {waited} operations waited, \
                     {unanswered} were not answered when the time was over"
                );
                say(Finding::Overload, detail, "offer less, or search for the limit");
            }
        }
    }
    let shares: f64 = spec.streams.iter().map(|stream| f64::from(stream.share)).sum();
    let wanted: f64 =
        spec.streams.iter().map(|s| s.read_pct * f64::from(s.share)).sum::<f64>() / shares.max(1.0);
    let ops = summary.latency.count as f64;
    // Three standard deviations of a binomial share.
    let chance = 300.0 * (wanted / 100.0 * (1.0 - wanted / 100.0) / ops.max(1.0)).sqrt();
    if (summary.read_pct - wanted).abs() > MIX_POINTS + chance {
        let detail = format!("{:.1} % reads instead of {wanted:.1} %", summary.read_pct);
        say(Finding::MixOff, detail, "look at failed operations, and measure longer");
    }
}

fn look_at_steadiness(cell: &CellResult, summary: &CellSummary, say: Say<'_>) {
    look_at_stalls(summary, say);
    let iops: Vec<f64> = cell.runs.iter().map(|run| RunFigures::of(run).iops).collect();
    let spread = 100.0 * (summary.iops.max - summary.iops.min) / summary.iops.median.max(1e-9);
    if iops.len() > 1 && spread > RUNS_SPREAD_PCT_MAX {
        let detail = format!("the runs differ by {spread:.0} % of their median");
        say(Finding::Unsteady, detail, "precondition, measure longer, and keep others away");
    }
    let seconds = |run| whole_intervals(run).map(|second| second.ops as f64).collect();
    let runs: Vec<Vec<f64>> = cell.runs.iter().map(seconds).collect();
    let judged = || runs.iter().filter(|seconds| seconds.len() >= STEADY_SECONDS_MIN);
    if let Some(rise) = judged().find_map(|seconds| rise_pct(seconds)) {
        let detail = format!("it changed by {rise:+.0} % from its start to its end");
        say(Finding::Unsteady, detail, "precondition, or warm up longer");
    }
    if let Some((second, pct)) = judged().find_map(|seconds| dip(seconds)) {
        let detail = format!("second {second} had {pct:.0} % of the operations of the median one");
        say(Finding::Unsteady, detail, "look at what the target did then; keep others away");
    }
}

/// Times in which the target stood still: a closed loop waits with it, and its percentiles do not
/// show them.
fn look_at_stalls(summary: &CellSummary, say: Say<'_>) {
    let found = summary.stalls;
    if found.share_pct > STALLED_PCT_MAX || found.longest_s >= STALL_S_MAX {
        let detail = format!(
            "the target answered nothing {} times, {:.1} s in all, {:.2} s at the longest",
            found.count, found.total_s, found.longest_s
        );
        let action = "look at what the target did then; an open loop shows what clients see";
        say(Finding::Unsteady, detail, action);
    }
}

/// By how much the best-fit line over the seconds of a run rises, if that is too much.
fn rise_pct(seconds: &[f64]) -> Option<f64> {
    let rule = stats::SteadyRule {
        window: seconds.len().max(2),
        range_pct: f64::MAX,
        slope_pct: SLOPE_PCT_MAX,
    };
    let rise_pct = stats::steadiness(seconds, rule)?.rise_pct;
    // Of few seconds chance alone makes a line rise: counts differ by their square roots.
    let mean = seconds.iter().sum::<f64>() / seconds.len() as f64;
    let chance_pct = 300.0 / mean.max(1.0).sqrt() / (seconds.len() as f64).sqrt();
    (rise_pct.abs() > SLOPE_PCT_MAX + chance_pct).then_some(rise_pct)
}

/// The first second with far fewer operations than the median one, and its share in percent.
fn dip(seconds: &[f64]) -> Option<(usize, f64)> {
    let median = stats::median(seconds).filter(|median| *median >= DIP_OPS_MIN)?;
    let share_pct = |ops: &f64| 100.0 * ops / median;
    let found = seconds.iter().map(share_pct).enumerate().find(|(_, pct)| *pct < DIP_PCT)?;
    Some((found.0 + 1, found.1))
}

/// Too little was measured for the figures, whatever they are.
fn look_at_evidence(cell: &CellResult, summary: &CellSummary, say: Say<'_>) {
    if summary.latency.p99_us.is_none() {
        let count = summary.latency.count;
        let detail = format!("{count} operations are too few for a 99th percentile");
        say(Finding::UnderSampled, detail, "measure longer");
    }
    if summary.runs < RUNS_MIN {
        let runs = if summary.runs == 1 { "one run says" } else { "two runs say" };
        let detail = format!("{runs} little of how far runs differ");
        say(Finding::UnderSampled, detail, "make three runs or more");
    }
    let shortest = cell.runs.iter().map(|run| whole_intervals(run).count()).min().unwrap_or(0);
    if shortest < STEADY_SECONDS_MIN {
        let detail = format!("{shortest} whole seconds are too few to tell whether it is steady");
        say(Finding::UnderSampled, detail, "measure for 3 s or longer");
    }
}

fn look_at_scale(result: &RunResult, say: Say<'_>) {
    if result.spec.scale == Scale::Smoke {
        let detail = "smoke scale only shows that everything runs".to_owned();
        say(Finding::UnderSampled, detail, "measure with --scale standard");
    }
}

#[cfg(test)]
mod tests;
