//! Rules about data and failures: missing measurements, refused operations, and lost or damaged
//! data.
//!
//! `load`, `steady` and `sample` judge whether the figures can be trusted.
//!
//! Invariant: the rules of this file need no figures, so that they also find the corrupt blocks of
//! a failed cell.

use std::collections::BTreeMap;

use super::Evidence;
use crate::result::CellRun;
use crate::spec::OpKind;

/// Maximum number of files that a finding names.
const FILES_MAX: usize = 8;

pub(super) fn failed(evidence: &Evidence<'_>) -> Option<String> {
    evidence.cell.failure.clone()
}

pub(super) fn not_measured(evidence: &Evidence<'_>) -> Option<String> {
    let is_unexplained = evidence.cell.failure.is_none() && !evidence.is_measured();
    is_unexplained.then(|| "nothing was measured".to_owned())
}

pub(super) fn refusals(evidence: &Evidence<'_>) -> Option<String> {
    refused(all(evidence))
}

pub(super) fn unreadable(evidence: &Evidence<'_>) -> Option<String> {
    let verified = evidence.cell.verified.as_ref().filter(|found| !found.unread.is_empty())?;
    let each = |(error, count): (&String, &u64)| format!("{count} ({error})");
    let unread: Vec<String> = verified.unread.iter().map(each).collect();
    Some(format!("verification could not read {} blocks", unread.join(", ")))
}

pub(super) fn clock_jumped(evidence: &Evidence<'_>) -> Option<String> {
    let jumped = evidence.all.iter().any(|run| run.clock_jumped);
    jumped.then(|| "the clock jumped during the measurement".to_owned())
}

pub(super) fn corrupt(evidence: &Evidence<'_>) -> Option<String> {
    let verified = evidence.cell.verified.as_ref();
    let while_measuring: u64 = all(evidence).map(|run| run.corrupt + run.other_run).sum();
    let wrong = while_measuring + verified.map_or(0, |verified| verified.bad);
    let explained = if evidence.result.target.is_local() { 0 } else { of_other_runs(evidence) };
    let corrupt = wrong.saturating_sub(explained);
    let examples = verified.map(|found| found.examples.join("; ")).unwrap_or_default();
    (corrupt > 0).then(|| format!("{corrupt} blocks differ from the written data: {examples}"))
}

/// Reports files that the directories of a run should list and do not list, or list and should not.
pub(super) fn files(evidence: &Evidence<'_>) -> Option<String> {
    let checks = || all(evidence).filter_map(|run| run.files.as_ref());
    let missing: u64 = checks().map(|check| check.missing).sum();
    let unexpected: u64 = checks().map(|check| check.unexpected).sum();
    let examples: Vec<&str> =
        checks().flat_map(|check| &check.examples).take(FILES_MAX).map(String::as_str).collect();
    (missing + unexpected > 0).then(|| {
        format!(
            "{missing} files are missing, {unexpected} files exist after their removal or rename: \
             {}",
            examples.join("; ")
        )
    })
}

/// Reports blocks that another run wrote. If the target is on the network, another client may write
/// to it. A local target is locked, so a block of another run is old data: the target lost a write
/// of this run.
pub(super) fn other_run(evidence: &Evidence<'_>) -> Option<String> {
    let blocks = of_other_runs(evidence);
    (blocks > 0 && !evidence.result.target.is_local()).then(|| {
        format!(
            "{blocks} blocks of another run: that run writes to this target at the same time, or \
             the target lost writes of this run and returns data of an earlier run"
        )
    })
}

fn of_other_runs(evidence: &Evidence<'_>) -> u64 {
    let verified = evidence.cell.verified.as_ref().map_or(0, |verified| verified.other_run);
    all(evidence).map(|run| run.other_run).sum::<u64>() + verified
}

pub(super) fn holes(evidence: &Evidence<'_>) -> Option<String> {
    let holes = all(evidence).map(|run| run.zero_reads_pct).fold(0.0, f64::max);
    (holes > 0.0).then(|| format!("{holes:.1} % of the reads returned only zeros"))
}

/// Runs of the cell, and runs of the phases before the cell. All these runs use the same blocks.
fn all<'a>(evidence: &Evidence<'a>) -> impl Iterator<Item = &'a CellRun> {
    let phases = evidence.result.phases.iter().map(|phase| &phase.run);
    phases.chain(evidence.cell.measured())
}

/// Describes the operations that the target refused, by kind of operation and error; `None` if the
/// target refused no operation.
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
