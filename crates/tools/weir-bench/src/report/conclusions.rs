//! Conclusions of a run: sentences with computed differences, at the start of a report.
//!
//! `judge` decides the verdicts on single cells; `compare` compares two runs.
//!
//! Invariants:
//! - only cells with the verdict *valid* are compared with each other;
//! - two cells are compared only if they differ in a single setting: queue depth, share of reads,
//!   block size or access pattern.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::facts;
use crate::requirement;
use crate::result::CellResult;
use crate::spec::{Access, CellSpec, LoadSpec};
use crate::summary::CellSummary;
use crate::verdict::{Finding, JudgedRun, Remark};
use crate::words;

/// Difference in percent below which two values are called equal.
const EQUAL_PCT: f64 = 5.0;

/// Maximum number of faults that the conclusions describe; the verdicts list all faults.
const FAULTS_MAX: usize = 3;

/// Sentences of the conclusions, with the most important sentence first.
pub(super) fn conclusions(run: &JudgedRun) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(assessment) = requirement::assess(run) {
        let name = assessment.outcome.name();
        said.push(format!("The requirement: {name}. {}", facts::decided(&assessment)));
    }
    said.extend(run.refused().map(|refused| format!("The target refused operations: {refused}.")));
    let rows = rows(run);
    said.extend(highest(&rows));
    said.extend(Respect::ALL.into_iter().filter_map(|respect| difference(&rows, respect)));
    said.extend(slowest_tail(&rows));
    said.push(facts::counted(run));
    said.extend(faults(run));
    said
}

/// Describes the most frequent faults, each with an example cell and the action for the user.
fn faults(run: &JudgedRun) -> Vec<String> {
    let mut faults: Vec<(Finding, usize, String)> = Vec::new();
    for (cell, judged) in run.result().cells.iter().zip(run.cells()) {
        let Some(worst) = judged.remarks.first() else { continue };
        match faults.iter_mut().find(|(finding, ..)| *finding == worst.finding) {
            Some((_, rows, _)) => *rows += 1,
            None => {
                let (name, Remark { detail, action, .. }) = (&cell.spec.name, worst);
                let example = format!("{name}: {detail}. To do: {action}.");
                faults.push((worst.finding, 1, example));
            }
        }
    }
    faults.sort_by_key(|(finding, rows, _)| (Reverse(*rows), *finding));
    let sentence = |(finding, rows, example): (Finding, usize, String)| {
        let rows = if rows == 1 { "1 row is".to_owned() } else { format!("{rows} rows are") };
        format!("{rows} {}, such as {example}", finding.name())
    };
    faults.into_iter().take(FAULTS_MAX).map(sentence).collect()
}

/// Valid cell whose load is a closed loop with one stream of one block size.
struct Row<'a> {
    spec: &'a CellSpec,
    summary: CellSummary,
    depth: u64,
    read_pct: f64,
    block_bytes: u64,
    access: Access,
}

impl<'a> Row<'a> {
    fn of(cell: &'a CellResult, summary: &CellSummary) -> Option<Self> {
        let spec = &cell.spec;
        let ([stream], LoadSpec::Closed { workers, depth }) = (spec.streams.as_slice(), spec.load)
        else {
            return None;
        };
        let ([block], None) = (stream.blocks.as_slice(), stream.op) else { return None };
        let depth = u64::from(workers) * u64::from(depth) * u64::from(spec.clients.max(1));
        Some(Self {
            spec,
            summary: summary.clone(),
            depth,
            read_pct: stream.read_pct,
            block_bytes: u64::from(block.bytes),
            access: stream.access,
        })
    }

    fn iops(&self) -> f64 {
        self.summary.iops.median
    }
}

fn rows(run: &JudgedRun) -> Vec<Row<'_>> {
    let cells = run.result().cells.iter().zip(run.cells());
    let valid = cells.filter(|(_, judged)| judged.remarks.is_empty() && judged.summary.runs > 0);
    valid.filter_map(|(cell, judged)| Row::of(cell, &judged.summary)).collect()
}

/// Describes the cell with the most operations per second and the cell with the highest throughput.
fn highest(rows: &[Row<'_>]) -> Vec<String> {
    let most = |figure: &dyn Fn(&Row<'_>) -> f64| {
        rows.iter().max_by(|a, b| figure(a).total_cmp(&figure(b)))
    };
    let sentence = |what: &str, row: &Row<'_>| {
        format!(
            "The most {what}: {}, {} operations and {} MiB per second, mean latency {} ms.",
            row.spec.name,
            words::number(row.iops()),
            words::number(row.summary.mib_s.median),
            words::ms(row.summary.latency.mean_us)
        )
    };
    let Some(operations) = most(&|row| row.summary.iops.median) else { return Vec::new() };
    let mut said = vec![sentence("operations", operations)];
    let data = most(&|row| row.summary.mib_s.median);
    said.extend(data.filter(|row| row.spec != operations.spec).map(|row| sentence("data", row)));
    said
}

/// The single setting in which two cells differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Respect {
    Depth,
    Reads,
    Block,
    Access,
}

impl Respect {
    const ALL: [Self; 4] = [Self::Depth, Self::Reads, Self::Block, Self::Access];

    /// Text of the settings that cells have in common if they differ only in this setting.
    fn common(self, row: &Row<'_>) -> String {
        let access = match row.access {
            Access::Random => "random".to_owned(),
            Access::Sequential => "sequential".to_owned(),
            other => format!("{other:?}"),
        };
        let parts = [
            (Self::Access, access),
            (Self::Block, words::bytes(row.block_bytes)),
            (Self::Reads, format!("{} % reads", row.read_pct)),
            (Self::Depth, format!("{} in flight", row.depth)),
        ];
        let parts = parts.into_iter().filter(|(respect, _)| *respect != self);
        let mut parts: Vec<String> = parts.map(|(_, part)| part).collect();
        parts.extend(words::metadata(row.spec));
        parts.extend(row.spec.variant.clone());
        parts.join(", ")
    }

    /// Value of this setting, by which cells are sorted.
    fn value(self, row: &Row<'_>) -> f64 {
        match self {
            Self::Depth => row.depth as f64,
            Self::Reads => row.read_pct,
            Self::Block => row.block_bytes as f64,
            Self::Access => match row.access {
                Access::Random => 0.0,
                Access::Sequential => 1.0,
                _ => f64::NAN,
            },
        }
    }

    fn sentence(self, common: &str, low: &Row<'_>, high: &Row<'_>) -> String {
        let iops = high.iops() / low.iops();
        let latency = high.summary.latency.mean_us / low.summary.latency.mean_us;
        match self {
            Self::Depth => format!(
                "{common}: {} operations in flight instead of {} bring {} the rate, at {} the \
                 mean latency.",
                high.depth,
                low.depth,
                times(iops),
                times(latency)
            ),
            Self::Reads => format!(
                "{common}: {} % reads reach {} the rate of {} % reads.",
                high.read_pct,
                times(iops),
                low.read_pct
            ),
            Self::Block => format!(
                "{common}: operations of {} move {} the data of those of {}.",
                words::bytes(high.block_bytes),
                times(high.summary.mib_s.median / low.summary.mib_s.median),
                words::bytes(low.block_bytes)
            ),
            Self::Access => format!(
                "{common}: sequential operations reach {} the rate of random ones.",
                times(iops)
            ),
        }
    }
}

/// Describes the difference between the first and the last cell of a list of cells that differ only
/// in this setting. Chooses the longest list.
fn difference(rows: &[Row<'_>], respect: Respect) -> Option<String> {
    let mut groups: BTreeMap<String, Vec<&Row<'_>>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.iops() > 0.0 && !respect.value(row).is_nan()) {
        groups.entry(respect.common(row)).or_default().push(row);
    }
    let ends = |(common, mut group): (String, Vec<&Row<'_>>)| {
        group.sort_by(|a, b| respect.value(a).total_cmp(&respect.value(b)));
        let (low, high) = (*group.first()?, *group.last()?);
        let differ = respect.value(low) < respect.value(high);
        differ.then(|| (group.len(), respect.sentence(&common, low, high)))
    };
    // If several lists are the longest, take the first by name, so that the choice is stable.
    let found = groups.into_iter().filter_map(ends);
    found.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, said)| said)
}

/// Describes the cell with the largest ratio of 99th percentile latency to median latency.
fn slowest_tail(rows: &[Row<'_>]) -> Option<String> {
    let tail = |row: &Row<'_>| Some(row.summary.latency.p99_us? / row.summary.latency.p50_us?);
    let tails = rows.iter().filter_map(|row| Some((tail(row)?, row)));
    let (ratio, row) = tails.max_by(|a, b| a.0.total_cmp(&b.0))?;
    let latency = row.summary.latency;
    Some(format!(
        "The longest tail: {}, one operation in 100 takes {} ms or longer, {} the median.",
        row.spec.name,
        words::ms(latency.p99_us?),
        times(ratio)
    ))
}

/// Formats a ratio: `3.4 times`, or `about 1 times` if the values are nearly equal.
fn times(ratio: f64) -> String {
    if (ratio - 1.0).abs() * 100.0 < EQUAL_PCT {
        "about 1 times".to_owned()
    } else {
        format!("{} times", words::short(ratio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use crate::result::RunResult;

    fn row(name: &str, iops: u64, us: u64, change: impl Fn(&mut CellSpec)) -> CellResult {
        let run = || fixture::closed_run(iops, 10, 75, us, us);
        let mut cell = fixture::cell(name, vec![run(), run(), run()]);
        change(&mut cell.spec);
        cell
    }

    fn depth(cell: &mut CellSpec, depth: u32) {
        cell.load = LoadSpec::Closed { workers: 1, depth };
    }

    fn said(cells: Vec<CellResult>) -> String {
        let result: RunResult = fixture::result(cells);
        conclusions(&JudgedRun::of(result)).join("\n")
    }

    #[test]
    fn rows_that_differ_in_one_respect_are_compared() {
        let one = row("one", 1000, 1000, |cell| depth(cell, 1));
        let eight = row("eight", 4000, 2000, |cell| depth(cell, 8));
        let told = said(vec![one.clone(), eight]);
        assert!(told.contains("The most operations: eight, 4,000 operations"), "{told}");
        let difference = "random, 4KiB, 75 % reads: 8 operations in flight instead of 1 bring 4 \
                          times the rate, at 2 times the mean latency.";
        assert!(told.contains(difference), "{told}");
        let other = row("other", 4000, 2000, |cell| {
            depth(cell, 8);
            cell.streams[0].access = Access::Sequential;
        });
        let told = said(vec![one, other]);
        assert!(!told.contains("the rate"), "{told}");
    }

    #[test]
    fn invalid_row_is_not_compared() {
        let one = row("one", 1000, 1000, |cell| depth(cell, 1));
        // By Little's law, 4,000 operations per second of 100 us each mean 0.4 operations in flight
        // instead of 8.
        let wrong = row("wrong", 4000, 100, |cell| depth(cell, 8));
        let told = said(vec![one, wrong]);
        assert!(told.contains("The most operations: one,"), "{told}");
        assert!(!told.contains("times the rate"), "{told}");
        assert!(told.contains("1 of 2 rows can be quoted"), "{told}");
        let fault = "1 row is inconsistent, such as wrong: 0.4 operations were in flight instead";
        assert!(told.contains(fault) && told.contains("To do: "), "{told}");
    }

    #[test]
    fn run_without_cells_states_that_nothing_was_measured() {
        assert_eq!(said(Vec::new()), "No cell was measured.");
    }
}
