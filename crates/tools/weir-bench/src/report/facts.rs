//! Texts of a report, which are equal in every format.
//!
//! `html` and `markdown` format the texts.
//!
//! Invariant: the texts contain every assumption and every warning.

use crate::requirement::{self, Assessment, CellAssessment, Criterion, Outcome};
use crate::result::{CellResult, RunResult};
use crate::spec::RunSpec;
use crate::stats::median;
use crate::verdict::{JudgedCell, JudgedRun};
use crate::{coverage, notes, standing, words};

pub(super) const CRITERION_HEADS: [&str; 6] =
    ["criterion", "need", "got", "headroom", "outcome", "note"];
pub(super) const SIZE_HEADS: [&str; 6] =
    ["for", "verdict", "IOPS", "MiB/s", "IOPS with margin", "size"];

/// Title of a section, and the facts of the section as names with values.
pub(super) type Section = (&'static str, Vec<(String, String)>);

/// Title of the run. If the run did not execute the whole profile, the title contains the scale.
pub(super) fn title(run: &JudgedRun) -> String {
    run.result().spec.title.clone()
}

/// Describes the rule that chose the deciding cells, and the criterion with the least headroom.
pub(super) fn decided(assessment: &Assessment) -> String {
    let chosen = format!("Decided by {}.", assessment.chosen);
    match assessment.least_headroom() {
        Some((name, pct)) if assessment.outcome == Outcome::Pass => {
            format!("{chosen} Lowest headroom: {} ({name}).", words::signed_pct(pct))
        }
        _ => chosen,
    }
}

pub(super) fn subtitle(run: &JudgedRun) -> String {
    let result = run.result();
    let done = if result.complete { "" } else { "; NOT COMPLETE" };
    let started = words::time(result.started_unix_ms);
    format!("{}, profile {}, {started}{done}", result.target.address, result.spec.name)
}

/// Counts the cells with each verdict.
pub(super) fn counted(run: &JudgedRun) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for verdict in run.cells().iter().map(JudgedCell::verdict) {
        match counts.iter_mut().find(|(name, _)| *name == verdict) {
            Some((_, count)) => *count += 1,
            None => counts.push((verdict, 1)),
        }
    }
    counts.sort_by_key(|(name, count)| (*name != "valid", usize::MAX - count));
    let counts: Vec<String> =
        counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    let asked = run.result().spec.cells.len();
    let missing = asked.saturating_sub(run.cells().len());
    let missing = if missing > 0 { format!("; {missing} not measured") } else { String::new() };
    if counts.is_empty() {
        return format!("No cell was measured{missing}.");
    }
    let (valid, all) = run.quotable();
    let counts = counts.join(", ");
    format!("{valid} of {all} rows can be quoted. Of {asked} cells: {counts}{missing}.")
}

/// Formats each criterion of a cell as a row with the columns of [`CRITERION_HEADS`].
pub(super) fn criteria(cell: &CellAssessment) -> Vec<Vec<String>> {
    let line = |found: &Criterion| {
        let figure = |value: f64| match found.unit {
            "us" => format!("{} ms", words::short(value / 1000.0)),
            unit => format!("{} {unit}", words::short(value)),
        };
        let bound = if found.unit == "us" { "at most" } else { "at least" };
        vec![
            found.name.clone(),
            format!("{bound} {}", figure(found.need)),
            found.got.map_or_else(|| "n/a".to_owned(), figure),
            found.headroom_pct.map_or_else(|| "n/a".to_owned(), words::signed_pct),
            found.outcome.name().to_owned(),
            found.note.clone().unwrap_or_default(),
        ]
    };
    cell.criteria.iter().map(line).collect()
}

/// Rows of the sizing table, with the columns of [`SIZE_HEADS`].
pub(super) fn size_rows(run: &JudgedRun) -> Vec<Vec<String>> {
    let row = |row: requirement::SizeRow| {
        vec![
            row.name,
            row.verdict.unwrap_or("stated").to_owned(),
            words::number(row.iops),
            row.mib_s.map_or_else(|| "n/a".to_owned(), words::number),
            words::number(row.with_margin_iops),
            row.size.unwrap_or_else(|| "more than the largest".to_owned()),
        ]
    };
    requirement::sizes(run).into_iter().map(row).collect()
}

/// A few lines about the target and the conditions of the run, which are shown next to the
/// headline.
pub(super) fn beside_headline(run: &JudgedRun) -> Vec<(String, String)> {
    let result = run.result();
    let (target, machine) = (&result.target, &result.environment);
    let size = words::bytes(target.bytes);
    vec![
        fact("target", format!("{} of {size}, {}", target.kind, target.driver)),
        fact("working set", words::dataset(&result.spec.dataset)),
        fact("caches", standing::sentence(result)),
        fact("durability", words::durability(result.spec.durability)),
        fact("generator", format!("{}, {} cores, {}", machine.host, machine.cores, machine.cpu)),
        fact("load average", format!("{:.2} when it began", machine.load_average)),
        fact("server on this machine", server_here(result)),
        fact("target's CPU time", target_cpu(result)),
        fact("verified", coverage::of_reads(result)),
    ]
}

/// Number of cores that the server process kept busy: the median over all runs.
fn target_cpu(result: &RunResult) -> String {
    let runs = result.cells.iter().flat_map(CellResult::measured);
    let cores = runs.filter_map(|run| Some(run.target_cpu_s? / run.seconds.max(1e-9)));
    let cores: Vec<f64> = cores.collect();
    match median(&cores) {
        Some(cores) => format!("{cores:.2} cores (median of the runs)"),
        None => "not known".to_owned(),
    }
}

/// All facts that a reader needs to interpret the figures and to repeat the run.
pub(super) fn facts(run: &JudgedRun) -> Vec<Section> {
    let result = run.result();
    vec![
        ("Environment", environment(result)),
        ("Conditions", conditions(result)),
        ("Warnings", numbered(&result.warnings)),
        ("Assumptions", numbered(&result.spec.assume)),
        ("How to repeat the run", identity(result)),
    ]
}

fn fact(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

fn environment(result: &RunResult) -> Vec<(String, String)> {
    let (target, machine) = (&result.target, &result.environment);
    let mut facts = vec![
        fact("target", target.address.clone()),
        fact("kind", target.kind.clone()),
        fact("size", words::bytes(target.bytes)),
        fact("smallest operation", words::bytes(u64::from(target.block_bytes))),
        fact("driven by", target.driver.clone()),
    ];
    facts.extend(target.facts.iter().map(|(name, value)| fact(name, value.clone())));
    facts.extend([
        fact("generator's machine", machine.host.clone()),
        fact("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        fact("load average when it began", format!("{:.2}", machine.load_average)),
        fact("server on this machine", server_here(result)),
        fact("clock governor", machine.governor.clone().unwrap_or_else(|| "not known".to_owned())),
        fact("score of one core", format!("{} per second", words::number(machine.core_score))),
        fact("memory", words::bytes(machine.memory_bytes)),
        fact("kernel", machine.kernel.clone()),
    ]);
    facts
}

/// Describes whether the generator and the server share the cores of this machine.
fn server_here(result: &RunResult) -> &'static str {
    if !result.target.address.contains("://") {
        "no server"
    } else if notes::is_local(&result.target.address) {
        "yes: generator and server compete for the cores"
    } else {
        "no"
    }
}

fn conditions(result: &RunResult) -> Vec<(String, String)> {
    let spec = &result.spec;
    let precondition = spec.precondition.map_or_else(
        || "none".to_owned(),
        |rule| {
            format!(
                "rounds of {} until {} of them are within {} % and rise by at most {} %",
                words::duration(rule.round_ms),
                rule.window,
                rule.range_pct,
                rule.slope_pct
            )
        },
    );
    let mut facts = vec![
        fact("dataset", words::dataset(&spec.dataset)),
        fact("content", words::content(&spec.content)),
        fact("caches", standing::sentence(result)),
        fact("verified while measured", coverage::of_reads(result)),
        fact("verified after the runs", coverage::of_blocks(result)),
        fact("durability", words::durability(spec.durability)),
        fact("precondition", precondition),
    ];
    facts.extend(latencies(spec));
    if let Some(cost) = &spec.cost {
        let per_gb = requirement::usd_per_gb(cost);
        let per_gb = per_gb.map_or_else(|| "n/a".to_owned(), |usd| format!("${usd:.2}/GB"));
        let (hardware, usable) = (words::number(cost.hardware_usd), words::number(cost.usable_gb));
        facts.push(fact("price", format!("${hardware} for {usable} GB usable: {per_gb}")));
    }
    facts
}

/// Time from which latency is measured (submission or scheduled time), for each kind of load in the
/// run.
fn latencies(spec: &RunSpec) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = Vec::new();
    for load in spec.cells.iter().map(|cell| &cell.load) {
        let name = format!("latency of {} loops", words::load_mode(load));
        if facts.iter().all(|(known, _)| *known != name) {
            facts.push((name, words::latency_counts(load).to_owned()));
        }
    }
    facts
}

fn numbered(lines: &[String]) -> Vec<(String, String)> {
    if lines.is_empty() {
        return vec![fact("none", "")];
    }
    lines.iter().enumerate().map(|(index, line)| fact(&(index + 1).to_string(), line)).collect()
}

fn identity(result: &RunResult) -> Vec<(String, String)> {
    vec![
        fact("command", result.command.join(" ")),
        fact("spec hash (XXH3-128)", result.spec_hash.clone()),
        fact("seed", result.spec.content.seed.to_string()),
        fact("program", result.program.clone()),
        fact("schema of result.json", result.schema.to_string()),
    ]
}
