//! Columns: the figures of each phase of a bonnie test over all runs, each with its verdict.
//!
//! `drive` measures the runs; `report` prints the columns.
//!
//! Invariants: the headline figure is the median, with the lowest and the highest value, because a
//! published summary printed the lowest value as the average. A column whose runs vary by more than
//! `CV_PCT_MAX` is unsteady.

use serde::Serialize;

use super::{BonnieResult, Figure, Phase};
use crate::stats;
use crate::summary::Spread;
use crate::verdict::{Finding, Remark};

/// Coefficient of variation (standard deviation divided by the mean) above which a column is
/// unsteady.
const CV_PCT_MAX: f64 = 10.0;
/// Minimum number of runs for a verdict on their variation.
const RUNS_MIN: usize = 3;

/// Figures of one phase over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Column {
    /// Phase to which the column belongs.
    pub phase: Phase,
    /// KiB per second, or operations per second.
    pub rate: Spread,
    /// Coefficient of variation of the rate in percent; `None` with fewer than two runs.
    pub cv_pct: Option<f64>,
    /// Median processor time, in percent of one core.
    pub cpu_pct: f64,
    /// Duration of the longest operation in all runs, in microseconds.
    pub latency_us: f64,
    /// Remarks on the column, worst first; empty if the column is valid.
    pub remarks: Vec<Remark>,
}

impl Column {
    /// Verdict on the column as one word.
    pub fn verdict(&self) -> &'static str {
        self.remarks.first().map_or("valid", |remark| remark.finding.name())
    }
}

/// Returns the columns of a bonnie test. A phase that was not measured has no column.
pub fn columns(result: &BonnieResult) -> Vec<Column> {
    let column = |phase: &Phase| {
        let runs = result.runs.iter().flat_map(|run| &run.figures);
        let own: Vec<&Figure> = runs.filter(|figure| figure.phase == *phase).collect();
        let of = |figure: fn(&Figure) -> f64| own.iter().map(|own| figure(own)).collect();
        let rates: Vec<f64> = of(|figure| figure.rate);
        let (cpu, latency): (Vec<f64>, Vec<f64>) =
            (of(|figure| figure.cpu_pct), of(|figure| figure.latency_us));
        let cv_pct = stats::cv_pct(&rates);
        (!own.is_empty()).then(|| Column {
            phase: *phase,
            rate: Spread::of(&rates),
            cv_pct,
            cpu_pct: stats::median(&cpu).unwrap_or(0.0),
            latency_us: latency.into_iter().fold(0.0, f64::max),
            remarks: remarks(result, *phase, own.len(), cv_pct),
        })
    };
    Phase::ALL.iter().filter_map(column).collect()
}

fn remarks(result: &BonnieResult, phase: Phase, runs: usize, cv_pct: Option<f64>) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut say = |finding, detail: String, action: &str| {
        remarks.push(Remark { finding, detail, action: action.to_owned(), latency_only: false });
    };
    let bad: u64 = result.runs.iter().map(|run| run.bad_blocks).sum();
    if bad > 0 && phase.reads_data() {
        let detail = format!("{bad} blocks differ from the written data");
        say(Finding::Corrupt, detail, "do not store data on this target; check its logs");
    }
    if phase.reads_data() && result.file_bytes <= result.memory_bytes {
        let human = weir_base::size::Human;
        let (file, memory) = (human(result.file_bytes), human(result.memory_bytes));
        let detail = format!("the file of {file} fits the memory of {memory}");
        say(Finding::CacheResident, detail, "use a file of at least three times the memory");
    }
    if let Some(cv) = cv_pct.filter(|cv| *cv > CV_PCT_MAX) {
        let detail = format!("the runs vary by {cv:.0} % (standard deviation by mean)");
        say(Finding::Unsteady, detail, "do more runs, and stop other load");
    }
    if runs < RUNS_MIN {
        let detail = format!("{runs} runs are too few to estimate how much runs differ");
        say(Finding::UnderSampled, detail, "do three runs or more");
    }
    remarks.sort_by_key(|remark| remark.finding);
    remarks
}
