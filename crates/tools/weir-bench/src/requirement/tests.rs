//! Tests that evaluate requirements on results with the figures of the reference document `004`.

use super::*;
use crate::fixture;
use crate::result::RunResult;
use crate::spec::{Arrival, CostSpec, LatencyBound, LatencyFigure, LoadSpec, OpKind, SizingSpec};
use crate::verdict::Remark;

/// Requirement of the reference document `004`: 216 operations per second, and reads within 20 ms.
fn exchange() -> Requirement {
    let bound = |op, figure, max_us| LatencyBound { stream: None, op, figure, max_us };
    Requirement {
        iops: Some(216.0),
        mib_s: None,
        latency: vec![
            bound(Some(OpKind::Read), LatencyFigure::Mean, 20_000.0),
            bound(None, LatencyFigure::P99, 100_000.0),
        ],
    }
}

fn requiring(mut result: RunResult, require: Requirement) -> RunResult {
    result.spec.require = Some(require);
    result
}

fn remark(finding: Finding) -> Vec<Remark> {
    let text = |text: &str| text.to_owned();
    vec![Remark { finding, detail: text("seen"), action: text("do"), latency_only: false }]
}

fn judged(result: RunResult, findings: &[Option<Finding>]) -> JudgedRun {
    let remarks = findings.iter().map(|finding| finding.map_or_else(Vec::new, remark)).collect();
    JudgedRun::with_remarks(result, remarks)
}

/// Cell with a closed loop of 751.3 operations per second for 40 s, with reads of 5.9 ms and writes
/// of 3.4 ms.
fn seventh_test() -> CellResult {
    let mut run = fixture::closed_run(7513, 4, 60, 5900, 3400);
    run.seconds = 40.0;
    fixture::cell("test 7", vec![run])
}

#[test]
fn published_test_passes_with_its_headroom() {
    let run = judged(requiring(fixture::result(vec![seventh_test()]), exchange()), &[None]);
    let found = assess(&run).unwrap();
    assert_eq!(found.outcome, Outcome::Pass);
    let [iops, mean, p99] = &found.cells[0].criteria[..] else { panic!("three bounds") };
    assert_eq!((iops.need, iops.got), (216.0, Some(751.3)));
    assert_eq!(format!("{:.0}", iops.headroom_pct.unwrap()), "248");
    assert_eq!(mean.name, "read mean latency");
    assert_eq!(found.least_headroom().unwrap().0, "read mean latency");
    assert!((mean.headroom_pct.unwrap() - 239.0).abs() < 1.0, "{mean:?}");
    assert_eq!((p99.name.as_str(), p99.outcome), ("p99 latency", Outcome::Pass));
}

#[test]
fn first_published_test_fails() {
    let mut run = fixture::closed_run(2007, 4, 60, 19_000, 3400);
    run.seconds = 40.0;
    let result = fixture::result(vec![fixture::cell("test 1", vec![run])]);
    let found = assess(&judged(requiring(result, exchange()), &[None])).unwrap();
    assert_eq!(found.outcome, Outcome::Fail);
    assert_eq!(format!("{:.0}", found.cells[0].criteria[0].headroom_pct.unwrap()), "-7");
}

#[test]
fn invalid_verdict_never_passes_a_requirement() {
    let outcome = |need: f64, finding| {
        let require = Requirement { iops: Some(need), ..exchange() };
        let result = requiring(fixture::result(vec![seventh_test()]), require);
        assess(&judged(result, &[Some(finding)])).unwrap().outcome
    };
    assert_eq!(outcome(216.0, Finding::CacheResident), Outcome::NotProven);
    assert_eq!(outcome(9999.0, Finding::CacheResident), Outcome::Fail);
    assert_eq!(outcome(9999.0, Finding::GeneratorBound), Outcome::NotProven);
    assert_eq!(outcome(216.0, Finding::Corrupt), Outcome::Fail);
    assert_eq!(outcome(216.0, Finding::Overload), Outcome::Fail);
}

#[test]
fn late_generator_does_not_disprove_a_rate() {
    let outcome = |need, latency: Vec<LatencyBound>, findings: &[Finding]| {
        let require = Requirement { iops: Some(need), mib_s: None, latency };
        let remarks: Vec<Remark> = findings.iter().flat_map(|finding| remark(*finding)).collect();
        let result = requiring(fixture::result(vec![seventh_test()]), require);
        assess(&JudgedRun::with_remarks(result, vec![remarks])).unwrap()
    };
    let late = [Finding::GeneratorBound];
    let found = outcome(216.0, Vec::new(), &late);
    assert_eq!(found.outcome, Outcome::Pass);
    assert_eq!(found.cells[0].criteria[0].outcome, Outcome::Pass);
    assert_eq!(outcome(9999.0, Vec::new(), &late).outcome, Outcome::NotProven);
    assert_eq!(outcome(216.0, exchange().latency, &late).outcome, Outcome::NotProven);
    let unsteady = [Finding::GeneratorBound, Finding::Unsteady];
    assert_eq!(outcome(216.0, Vec::new(), &unsteady).outcome, Outcome::NotProven);
}

#[test]
fn changing_latencies_do_not_disprove_a_rate() {
    let outcome = |latency: Vec<LatencyBound>, latency_only| {
        let require = Requirement { iops: Some(216.0), mib_s: None, latency };
        let mut remarks = remark(Finding::Unsteady);
        remarks[0].latency_only = latency_only;
        let result = requiring(fixture::result(vec![seventh_test()]), require);
        assess(&JudgedRun::with_remarks(result, vec![remarks])).unwrap().outcome
    };
    assert_eq!(outcome(Vec::new(), true), Outcome::Pass);
    assert_eq!(outcome(Vec::new(), false), Outcome::NotProven);
    assert_eq!(outcome(exchange().latency, true), Outcome::NotProven);
}

// Regression: a failed cell with corrupt data got the outcome "not proven", as if its data were
// correct.
#[test]
fn corrupt_data_always_fails_a_requirement() {
    let remarks = [Finding::Invalid, Finding::Corrupt].map(remark).concat();
    let result = requiring(fixture::result(vec![seventh_test()]), exchange());
    let found = assess(&JudgedRun::with_remarks(result.clone(), vec![remarks.clone()])).unwrap();
    assert_eq!(found.outcome, Outcome::Fail);
    assert!(found.cells[0].reason.as_ref().unwrap().contains("corrupt"), "{found:?}");
    let mut unmeasured = result;
    unmeasured.cells[0].runs.clear();
    let found = assess(&JudgedRun::with_remarks(unmeasured, vec![remarks])).unwrap();
    assert_eq!(found.outcome, Outcome::Fail);
}

#[test]
fn cells_at_the_needed_rate_decide() {
    let mut at_need = fixture::cell("at requirement", Vec::new());
    at_need.spec.load = LoadSpec::Open {
        workers: 1,
        rate: 216.0,
        arrival: Arrival::Poisson,
        in_flight_max: 64,
        backlog_max: 1000,
    };
    let mut run = fixture::closed_run(215, 10, 60, 5000, 3000);
    run.offered_iops = Some(216.0);
    at_need.runs = vec![run];
    // This slow cell would fail the requirement, but it was not made to test the requirement.
    let sweep = fixture::cell("1 thread", vec![fixture::closed_run(50, 10, 60, 9000, 9000)]);
    let result = requiring(fixture::result(vec![sweep.clone(), at_need]), exchange());
    let found = assess(&judged(result, &[None, None])).unwrap();
    assert_eq!((found.outcome, found.cells.len(), found.cells[0].cell), (Outcome::Pass, 1, 1));
    let iops = &found.cells[0].criteria[0];
    assert!(iops.headroom_pct.is_none() && iops.note.is_some(), "{iops:?}");
    let result = requiring(fixture::result(vec![sweep]), exchange());
    assert_eq!(assess(&judged(result, &[None])).unwrap().outcome, Outcome::Fail);
}

/// Regression: a requirement failed because chance had drawn 4 % fewer operations in a short run
/// than the requirement needs, although the target completed all of them immediately.
#[test]
fn random_shortfall_of_arrivals_is_tolerated() {
    let outcome = |arrival: Arrival, iops: u64| {
        let mut run = fixture::closed_run(iops, 10, 60, 5000, 3000);
        run.offered_iops = Some(216.0);
        let mut cell = fixture::cell("at requirement", vec![run]);
        let (workers, rate, in_flight_max, backlog_max) = (1, 216.0, 256, 1024);
        cell.spec.load = LoadSpec::Open { workers, rate, arrival, in_flight_max, backlog_max };
        let result = requiring(fixture::result(vec![cell]), exchange());
        assess(&judged(result, &[None])).unwrap().outcome
    };
    // Chance varies 2,160 arrivals by 6.5 % (three standard deviations). The tolerance of 1 % is
    // added to these 6.5 %.
    let poisson = |iops| outcome(Arrival::Poisson, iops);
    assert_eq!((poisson(205), poisson(195)), (Outcome::Pass, Outcome::Fail));
    // The number of arrivals does not vary if arrivals are constant.
    let constant = |iops| outcome(Arrival::Constant, iops);
    assert_eq!((constant(215), constant(205)), (Outcome::Pass, Outcome::Fail));
}

#[test]
fn search_gives_the_highest_rate_within_the_bounds() {
    // The read latency is 1 ms, plus half a microsecond for each offered operation per second.
    let cell = fixture::searched("knee", &[200, 400, 800, 1600], 900);
    let mut require = exchange();
    require.latency[0].max_us = 1250.0;
    let found = assess(&judged(requiring(fixture::result(vec![cell]), require), &[None])).unwrap();
    let iops = &found.cells[0].criteria[0];
    assert_eq!((iops.got, found.outcome), (Some(400.0), Outcome::Pass), "{found:?}");
    assert_eq!(format!("{:.0}", iops.headroom_pct.unwrap()), "85");
}

#[test]
fn percentile_with_too_few_operations_is_not_proven() {
    let mut run = fixture::closed_run(90, 10, 60, 5900, 3400);
    run.seconds = 1.0;
    let result = fixture::result(vec![fixture::cell("short", vec![run])]);
    let found = assess(&judged(requiring(result, exchange()), &[None])).unwrap();
    let p99 = &found.cells[0].criteria[2];
    assert_eq!(
        (p99.got, p99.outcome, found.outcome),
        (None, Outcome::NotProven, Outcome::NotProven)
    );
    let empty = requiring(fixture::result(vec![fixture::cell("none", Vec::new())]), exchange());
    assert_eq!(assess(&judged(empty, &[None])).unwrap().outcome, Outcome::NotProven);
    assert_eq!(assess(&judged(fixture::result(Vec::new()), &[])), None);
}

#[test]
fn unfinished_run_does_not_pass() {
    let mut result = requiring(fixture::result(vec![seventh_test()]), exchange());
    result.complete = false;
    assert_eq!(assess(&judged(result, &[None])).unwrap().outcome, Outcome::NotProven);
}

#[test]
fn sizes_keep_their_margin_free() {
    let labels = ["small", "medium", "large"].map(str::to_owned).to_vec();
    let sizing = SizingSpec { bins_iops: vec![4096.0, 8192.0, 16_000.0], labels, margin_pct: 20.0 };
    assert_eq!(size_for(&sizing, 3276.0), Some("small"));
    assert_eq!(size_for(&sizing, 3278.0), Some("medium"), "4,097.5 with the margin");
    assert_eq!(size_for(&sizing, 12_801.0), None);
    let mut result = requiring(fixture::result(vec![seventh_test()]), exchange());
    result.spec.sizing = Some(sizing);
    let rows = sizes(&judged(result, &[None]));
    assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].verdict), (2, "requirement", None));
    assert_eq!((rows[1].verdict, rows[1].size.as_deref()), (Some("valid"), Some("small")));
    assert!((rows[0].with_margin_iops - 270.0).abs() < 1e-9);
}

#[test]
fn published_prices_give_published_ratios() {
    // Prices of reference document `001`: 15,993 dollars, 5,200 GB, 250,000 reads per second.
    let cost = CostSpec { hardware_usd: 15_993.0, usable_gb: 5200.0 };
    assert!((usd_per_gb(&cost).unwrap() - 3.08).abs() < 0.005);
    assert!((usd_per_iops(&cost, 250_000.0).unwrap() - 0.064).abs() < 0.0005);
    assert_eq!(usd_per_iops(&cost, 0.0), None);
}
