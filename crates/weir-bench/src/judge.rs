//! Judging: what is wrong with each cell of a run (design/validation.md 4.3).
//!
//! Not here: what each finding is called (verdict), figures (summary).
//!
//! Invariant: a bound stands here once, with its reason.

use crate::result::{CellResult, CellRun, RunResult};
use crate::run::search::reaches;
use crate::spec::{CellSpec, LoadSpec};
use crate::stats;
use crate::summary::{CellSummary, RunFigures, merged, whole_intervals};
use crate::verdict::{Finding, Remark};

/// Operations by mean latency may be off what was in flight by this part ...
const LITTLE_PCT: f64 = 5.0;
/// ... of a closed loop of at least so many: below, the time between two operations shows.
const LITTLE_DEPTH_MIN: f64 = 4.0;
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
/// Seconds below which no slope is looked for.
const SLOPE_SECONDS_MIN: usize = 10;
/// Start of the last client less that of the first.
const SKEW_MS_MAX: f64 = 10.0;
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
    let runs: Vec<&CellRun> =
        cell.runs.iter().chain(cell.points.iter().map(|point| &point.run)).collect();
    if runs.iter().all(|run| !run.is_measured()) {
        if cell.failure.is_none() {
            say(Finding::Invalid, "nothing was measured".to_owned(), "measure it");
        }
        return remarks;
    }
    let summary = CellSummary::of(cell);
    look_at_data(result, cell, &runs, &mut say);
    look_at_generator(result, cell, &runs, &mut say);
    if cell.points.is_empty() {
        look_at_load(&cell.spec, cell, &summary, &mut say);
        look_at_steadiness(cell, &summary, &mut say);
    }
    remarks.sort_by_key(|remark| remark.finding);
    remarks
}

type Say<'a> = &'a mut dyn FnMut(Finding, String, &str);

fn look_at_data(result: &RunResult, cell: &CellResult, runs: &[&CellRun], say: Say<'_>) {
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
    let errors: u64 =
        runs.iter().flat_map(|run| &run.classes).flat_map(|class| class.errors.values()).sum();
    if errors > 0 {
        let name = runs.iter().flat_map(|run| &run.classes).flat_map(|class| class.errors.keys());
        let name = name.map(String::as_str).next().unwrap_or_default();
        let detail = format!("{errors} operations failed: {name}");
        say(Finding::Invalid, detail, "look at the target's logs");
    }
    if runs.iter().any(|run| run.clock_jumped) {
        let detail = "the clock jumped while it was measured".to_owned();
        say(Finding::Invalid, detail, "let the clock settle and measure again");
    }
    let (dataset, cache) = (result.spec.dataset.total_bytes(), result.target.cache_bytes);
    let reads = cell.spec.streams.iter().any(|stream| stream.read_pct > 0.0);
    if let Some(cache) = cache.filter(|cache| reads && dataset <= *cache) {
        let cached = weir_base::size::Human(cache);
        let detail = format!(
            "the dataset of {} fits the cache of {cached}",
            weir_base::size::Human(dataset)
        );
        say(Finding::CacheResident, detail, "use a dataset of several times the cache, or say so");
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
            let off = 100.0 * (summary.in_flight / wanted - 1.0);
            if wanted >= LITTLE_DEPTH_MIN && off.abs() > LITTLE_PCT {
                let found = summary.in_flight;
                let detail = format!("{found:.1} operations were in flight instead of {wanted:.0}");
                let action =
                    "the generator took that time: use more workers, or call it this depth";
                say(Finding::Inconsistent, detail, action);
            }
        }
        LoadSpec::Open { rate, .. } => {
            let reached = 100.0 * summary.iops.median / (rate * clients).max(1e-9);
            let waited = cell.runs.iter().map(|run| run.backlog_max).max().unwrap_or(0);
            let missed = cell.runs.iter().any(|run| {
                let (iops, offered) = (RunFigures::of(run).iops, rate * clients);
                run.overloaded || !reaches(run.seconds, iops, offered, REACHED_PCT_MIN)
            });
            if missed {
                let detail =
                    format!("{reached:.1} % of the rate was reached, {waited} operations waited");
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
    let iops: Vec<f64> = cell.runs.iter().map(|run| RunFigures::of(run).iops).collect();
    let spread = 100.0 * (summary.iops.max - summary.iops.min) / summary.iops.median.max(1e-9);
    if iops.len() > 1 && spread > RUNS_SPREAD_PCT_MAX {
        let detail = format!("the runs differ by {spread:.0} % of their median");
        say(Finding::Unsteady, detail, "precondition, measure longer, and keep others away");
    }
    for run in &cell.runs {
        let seconds: Vec<f64> = whole_intervals(run).map(|second| second.ops as f64).collect();
        let rule = stats::SteadyRule {
            window: seconds.len().max(2),
            range_pct: f64::MAX,
            slope_pct: SLOPE_PCT_MAX,
        };
        let found = stats::steadiness(&seconds, rule);
        if let Some(found) = found.filter(|_| seconds.len() >= SLOPE_SECONDS_MIN)
            && found.rise_pct.abs() > SLOPE_PCT_MAX
        {
            let rise = found.rise_pct;
            let detail = format!("it changed by {rise:+.0} % from its start to its end");
            say(Finding::Unsteady, detail, "precondition, or warm up longer");
            break;
        }
    }
    if summary.latency.p99_us.is_none() {
        let count = summary.latency.count;
        let detail = format!("{count} operations are too few for a 99th percentile");
        say(Finding::UnderSampled, detail, "measure longer");
    } else if cell.spec.runs > 1 && summary.runs < RUNS_MIN {
        let detail = format!("{} runs say little of how far they differ", summary.runs);
        say(Finding::UnderSampled, detail, "make three runs or more");
    }
}
