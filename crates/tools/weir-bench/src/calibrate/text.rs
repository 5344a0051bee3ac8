//! Formats the calibration report as a section of Markdown.
//!
//! `agree` computes the ratios and verdicts.
//!
//! Invariant: every ratio has its interval, and every ratio of Weir to fio has its verdict.

use std::fmt::Write as _;

use super::{CalibrationReport, CellReport, Compared, DriverRun};
use crate::stats::{self, RatioInterval};
use crate::words;

pub(super) fn markdown(report: &CalibrationReport) -> String {
    let mut out = String::new();
    line(&mut out, format_args!("## Calibration against fio\n"));
    head(&mut out, report);
    results(&mut out, report);
    costs(&mut out, report);
    verification(&mut out, report);
    jobs(&mut out, report);
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes everything");
}

fn head(out: &mut String, report: &CalibrationReport) {
    let CalibrationReport { program, fio, environment, .. } = report;
    let cores = environment.cores;
    let (cpu, kernel) = (&environment.cpu, &environment.kernel);
    line(out, format_args!("{program} and {fio}, {cpu}, {cores} cores, Linux {kernel}."));
    let (bytes, run) = (words::bytes(report.bytes), words::duration(report.run_ms));
    let runs = report.cells.iter().map(|cell| cell.ours.len()).max().unwrap_or(0);
    line(
        out,
        format_args!(
            "Both programs run each load alternately, {runs} runs of {run} each, on the same \
             {bytes}, with one worker, bypassing the page cache. Latency is the time from the \
             submission of an operation until the program reads its completion; both programs read \
             all available completions at once."
        ),
    );
    for (place, driver) in &report.drivers {
        line(out, format_args!("- {place}: weir by {driver}"));
    }
    if let Some(content) = report.cells.iter().find_map(|cell| cell.content) {
        line(out, format_args!("- written: {content}"));
    }
    line(
        out,
        format_args!(
            "- reads: neither program verifies; the cost of weir's verification is given below"
        ),
    );
    if !report.complete {
        line(out, format_args!("\n**The calibration was stopped early: some loads are missing.**"));
    }
}

/// Formats a ratio with its interval, such as `0.998 (0.981 to 1.012)`.
fn ratio(compared: &Compared) -> String {
    compared.ratio.as_ref().map_or_else(|| "n/a".to_owned(), interval)
}

fn interval(found: &RatioInterval) -> String {
    format!("{:.3} ({:.3} to {:.3})", found.ratio, found.low, found.high)
}

fn figure(value: Option<f64>) -> String {
    value.map_or_else(|| "n/a".to_owned(), words::number)
}

fn verdict(holds: Option<bool>, yes: &'static str, no: &'static str) -> &'static str {
    holds.map_or("inconclusive", |holds| if holds { yes } else { no })
}

fn results(out: &mut String, report: &CalibrationReport) {
    let cells: Vec<&CellReport> =
        report.cells.iter().filter(|cell| !cell.results.is_empty()).collect();
    if cells.is_empty() {
        return;
    }
    line(out, format_args!("\n### Results of both programs\n"));
    let all = if report.agrees() {
        "Both agree"
    } else {
        "They do not agree on every figure, or some comparisons are inconclusive"
    };
    line(
        out,
        format_args!(
            "{all}. They agree if the medians are within 3 %, or if the 95 % interval of their \
             ratio contains 1; an interval that spans more than a factor of 1.5 is inconclusive.\n"
        ),
    );
    line(out, format_args!("| target | load | figure | fio | weir | weir / fio | verdict |"));
    line(out, format_args!("| --- | --- | --- | --- | --- | --- | --- |"));
    for cell in cells {
        for found in &cell.results {
            let (fio, ours) = (figure(found.fio), figure(found.ours));
            let (place, load, name) = (cell.place, &cell.name, found.figure.name());
            let (ratio, verdict) = (ratio(found), verdict(found.holds, "agree", "differ"));
            line(
                out,
                format_args!(
                    "| {place} | {load} | {name} | {fio} | {ours} | {ratio} | {verdict} |"
                ),
            );
        }
    }
}

fn costs(out: &mut String, report: &CalibrationReport) {
    line(out, format_args!("\n### CPU time per operation\n"));
    line(
        out,
        format_args!(
            "CPU time per operation, user and system, in microseconds: for fio of the job's thread \
             only, for weir of the whole process. Requirement on null and file targets: no more \
             than fio's.\n"
        ),
    );
    line(out, format_args!("| target | load | fio | weir | weir / fio | verdict |"));
    line(out, format_args!("| --- | --- | --- | --- | --- | --- |"));
    for cell in &report.cells {
        let Some(cost) = &cell.cost else { continue };
        let (fio, ours, ratio) = (figure(cost.fio), figure(cost.ours), ratio(cost));
        let verdict = verdict(cost.holds, "no more", "more");
        let (place, load) = (cell.place, &cell.name);
        line(out, format_args!("| {place} | {load} | {fio} | {ours} | {ratio} | {verdict} |"));
    }
}

fn verification(out: &mut String, report: &CalibrationReport) {
    let cells = report.cells.iter();
    let cells: Vec<_> = cells.filter_map(|cell| Some((cell, cell.verification?))).collect();
    if cells.is_empty() {
        return;
    }
    line(out, format_args!("\n### CPU time of read verification\n"));
    line(
        out,
        format_args!(
            "Runs of profiles verify reads: the stamp of each operation's first block, and every \
             byte of that block in one of 64 operations. Microseconds of CPU time as above.\n"
        ),
    );
    line(out, format_args!("| target | load | weir | weir, verifying | verifying / not |"));
    line(out, format_args!("| --- | --- | --- | --- | --- |"));
    for (cell, found) in cells {
        let cpu = |runs: &[DriverRun]| {
            figure(stats::median(&runs.iter().map(|run| run.cpu_us).collect::<Vec<_>>()))
        };
        let (place, load) = (cell.place, &cell.name);
        let (plain, verified) = (cpu(&cell.ours), cpu(&cell.verified));
        let ratio = interval(&found);
        line(out, format_args!("| {place} | {load} | {plain} | {verified} | {ratio} |"));
    }
}

fn jobs(out: &mut String, report: &CalibrationReport) {
    line(out, format_args!("\n### fio jobs\n"));
    for cell in &report.cells {
        line(out, format_args!("{}: {}\n", cell.place, cell.name));
        line(out, format_args!("```ini\n{}```\n", cell.job));
    }
}
