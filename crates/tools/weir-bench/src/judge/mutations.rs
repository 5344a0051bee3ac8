//! Mutation check: if any single rule is switched off, at least one case in this file gets a wrong
//! verdict.
//!
//! `tests` checks the bound of each rule.
//!
//! Invariant: if all rules are switched on, every case gets its expected verdict.

use super::{RULES, Rule, judge};
use crate::fixture;
use crate::result::{CellResult, CellRun, CurvePoint, FilesCheck, RunResult, Verification};
use crate::spec::{Arrival, Limits, LoadSpec, MetadataSpec, Scale};

/// Expected verdict on the only cell, and the result that contains this cell.
type Case = (&'static str, RunResult);

/// Run with 1,000 operations per second at 16 ms: a queue depth of 16.
fn steady() -> CellRun {
    fixture::closed_run(1000, 10, 75, 16_000, 16_000)
}

fn of_runs(runs: Vec<CellRun>) -> RunResult {
    fixture::result(vec![fixture::cell("row", runs)])
}

/// Result with three steady runs, which `change` then modifies.
fn whole(change: impl Fn(&mut RunResult)) -> RunResult {
    let mut result = of_runs(vec![steady(), steady(), steady()]);
    change(&mut result);
    result
}

/// Result whose cell `change` has modified.
fn cell(change: impl Fn(&mut CellResult)) -> RunResult {
    whole(|result| change(&mut result.cells[0]))
}

/// Result in which `change` has modified each run.
fn runs(change: impl Fn(&mut CellRun)) -> RunResult {
    cell(|cell| cell.runs.iter_mut().for_each(&change))
}

/// Result with three open-loop runs at 200 operations per second and 5 ms. `change` receives the
/// number of each run.
fn open(change: impl Fn(usize, &mut CellRun)) -> RunResult {
    let run = |number| {
        let (due, answered, offered_iops) = (2000, 2000, Some(200.0));
        let plain = fixture::closed_run(200, 10, 75, 5_000, 5_000);
        let mut run = CellRun { offered_iops, due, answered, ..plain };
        change(number, &mut run);
        run
    };
    let mut result = of_runs((0..3).map(run).collect());
    result.cells[0].spec.load = LoadSpec::Open {
        workers: 1,
        rate: 200.0,
        arrival: Arrival::Constant,
        in_flight_max: 256,
        backlog_max: 1024,
    };
    result
}

/// Cases of the rules about data and failures.
fn data_cases() -> Vec<Case> {
    let verified = Verification { unread: [("i/o error".to_owned(), 1)].into(), ..<_>::default() };
    let refuse = |run: &mut CellRun| {
        run.classes[0].errors.insert("i/o error".to_owned(), 1);
    };
    vec![
        ("invalid", cell(|cell| cell.failure = Some("the client was lost".to_owned()))),
        ("invalid", cell(|cell| cell.runs.clear())),
        ("invalid", runs(refuse)),
        ("invalid", cell(move |cell| cell.verified = Some(verified.clone()))),
        ("invalid", runs(|run| run.clock_jumped = true)),
        ("invalid", runs(|run| run.start_skew_ms = Some(20.0))),
        ("corrupt", runs(|run| run.corrupt = 1)),
        ("corrupt", runs(|run| run.other_run = 1)),
        (
            "corrupt",
            runs(|run| run.files = Some(FilesCheck { missing: 1, ..FilesCheck::default() })),
        ),
        (
            "invalid",
            whole(|result| {
                result.target.kind = "nbd".to_owned();
                result.cells[0].runs[0].other_run = 1;
            }),
        ),
        ("holes", runs(|run| run.zero_reads_pct = 1.0)),
    ]
}

/// Cases of the rules about the load.
fn load_cases() -> Vec<Case> {
    // The queue grows by one operation per second, so the target does not keep up, although it
    // completes 99.5 % of the offered rate.
    let grows = |_, run: &mut CellRun| {
        let seconds = (1..).zip(&mut run.intervals);
        seconds.for_each(|(second, interval)| interval.in_flight = second);
    };
    let missed_search = cell(|cell| {
        let run = CellRun { offered_iops: Some(1000.0), ..steady() };
        cell.points = vec![CurvePoint { offered_iops: 1000.0, run, met: false }];
        cell.runs.clear();
    });
    let late = |_, run: &mut CellRun| (0..2000).for_each(|_| run.lag.record_ns(1_000_000));
    let limits = Limits { disk_iops: Some(500.0), network_mbps: None, storage_mib_s: None };
    vec![
        ("overload", open(|_, run| run.answered = 1900)),
        ("overload", open(grows)),
        ("overload", missed_search),
        ("generator-bound", runs(|run| run.cpu_s = (9.0, 0.5))),
        ("generator-bound", open(late)),
        ("inconsistent", cell(|cell| cell.spec.load = LoadSpec::Closed { workers: 1, depth: 32 })),
        ("mix-off", cell(|cell| cell.spec.streams[0].read_pct = 50.0)),
        (
            "mix-off",
            cell(|cell| {
                let mix = MetadataSpec::Mix { pct: 5.0, shares: Vec::new() };
                cell.spec.streams[0].metadata = Some(mix);
            }),
        ),
        ("cache-resident", whole(|result| result.target.cache_bytes = Some(1 << 40))),
        ("cache-resident", whole(move |result| result.spec.limits = Some(limits.clone()))),
    ]
}

/// Cases of the rules about changes over time and about the sample.
fn steady_cases() -> Vec<Case> {
    let faster = fixture::closed_run(1300, 10, 75, 12_300, 12_300);
    let falls = |run: &mut CellRun| {
        let seconds = (0..).zip(&mut run.intervals);
        seconds.for_each(|(second, interval)| interval.ops = 1200 - 40 * second);
    };
    let slows = |_, run: &mut CellRun| {
        run.intervals[5..].iter_mut().for_each(|second| second.p50_us = 20_000.0);
    };
    let slow_run = |number, run: &mut CellRun| {
        if number == 1 {
            run.classes = fixture::closed_run(200, 10, 75, 20_000, 20_000).classes;
        }
    };
    let of = |run: fn() -> CellRun| of_runs(vec![run(), run(), run()]);
    vec![
        ("unsteady", runs(|run| run.stalls.record_ns(2_000_000_000))),
        ("unsteady", of_runs(vec![steady(), faster, steady()])),
        ("unsteady", runs(falls)),
        ("unsteady", runs(|run| run.intervals[4].ops = 400)),
        ("unsteady", open(slow_run)),
        ("unsteady", open(slows)),
        ("under-sampled", whole(|result| result.spec.scale = Scale::Smoke)),
        ("under-sampled", of(|| fixture::closed_run(90, 3, 75, 177_000, 177_000))),
        ("under-sampled", of_runs(vec![steady(), steady()])),
        ("under-sampled", of(|| fixture::closed_run(1000, 2, 75, 16_000, 16_000))),
    ]
}

fn verdict(result: &RunResult, rules: &[Rule]) -> &'static str {
    let [remarks] = judge(result, rules).try_into().expect("one cell");
    remarks.first().map_or("valid", |remark| remark.finding.name())
}

#[test]
fn switching_off_any_rule_gives_a_wrong_verdict() {
    let valid = [("valid", whole(|_| {})), ("valid", open(|_, _| {}))];
    let cases: Vec<Case> =
        valid.into_iter().chain(data_cases()).chain(load_cases()).chain(steady_cases()).collect();
    for (number, (expected, result)) in cases.iter().enumerate() {
        assert_eq!(verdict(result, RULES), *expected, "case {number}: {:?}", judge(result, RULES));
    }
    for (index, rule) in RULES.iter().enumerate() {
        let others: Vec<Rule> = [&RULES[..index], &RULES[index + 1..]].concat();
        let is_noticed = cases.iter().any(|(expected, case)| verdict(case, &others) != *expected);
        assert!(is_noticed, "no case needs rule {:?}", rule.name);
    }
}
