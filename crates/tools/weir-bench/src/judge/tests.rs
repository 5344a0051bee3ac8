//! Tests each rule with figures that violate the rule, and with figures barely within its bound.
//!
//! `selftest` judges runs on targets; `mutations` switches off rules.
//!
//! Invariant: all tests start from the same valid result and change one value.

use super::{RULES, judge};
use crate::fixture;
use crate::result::{CellRun, CurvePoint, FilesCheck, RunResult, Verification};
use crate::spec::{Arrival, Limits, LoadSpec, MetadataSpec, OpKind, Scale};
use crate::verdict::Finding;

/// Run with 1,000 operations per second at 16 ms: a queue depth of 16.
fn steady() -> CellRun {
    fixture::closed_run(1000, 10, 75, 16_000, 16_000)
}

fn result_of(runs: Vec<CellRun>) -> RunResult {
    fixture::result(vec![fixture::cell("row", runs)])
}

/// Findings about the only cell of a result, with their details.
fn found(result: &RunResult) -> Vec<(Finding, String)> {
    let [remarks] = judge(result, RULES).try_into().expect("one cell");
    remarks.into_iter().map(|remark| (remark.finding, remark.detail)).collect()
}

/// Findings about a cell with three runs, each modified by `change`.
fn changed(change: impl Fn(&mut CellRun)) -> Vec<(Finding, String)> {
    let mut runs = vec![steady(), steady(), steady()];
    runs.iter_mut().for_each(change);
    found(&result_of(runs))
}

fn only(found: &[(Finding, String)], finding: Finding, words: &str) {
    let [(one, detail)] = found else { panic!("one finding: {found:?}") };
    assert!(*one == finding && detail.contains(words), "{found:?}");
}

#[test]
fn steady_runs_are_valid() {
    assert_eq!(changed(|_| {}), []);
}

#[test]
fn few_runs_or_seconds_and_smoke_scale_are_never_valid() {
    only(&found(&result_of(vec![steady()])), Finding::UnderSampled, "one run shows");
    only(&found(&result_of(vec![steady(), steady()])), Finding::UnderSampled, "two runs");
    let short = || fixture::closed_run(1000, 2, 75, 16_000, 16_000);
    let short = result_of(vec![short(), short(), short()]);
    let words = "2 whole seconds are too few to judge if it is steady";
    only(&found(&short), Finding::UnderSampled, words);
    let mut smoke = result_of(vec![steady(), steady(), steady()]);
    smoke.spec.scale = Scale::Smoke;
    only(&found(&smoke), Finding::UnderSampled, "smoke");
}

// Regression: a run that fell from 2,453 to 1,083 operations per second was valid, because slopes
// were checked only in runs of at least 10 s.
#[test]
fn slope_is_judged_from_three_seconds_on() {
    let falling = || {
        let mut run = fixture::closed_run(1000, 3, 75, 16_000, 16_000);
        for (interval, ops) in run.intervals.iter_mut().zip([1300, 1000, 700]) {
            interval.ops = ops;
        }
        run
    };
    let found = found(&result_of(vec![falling(), falling(), falling()]));
    only(&found, Finding::Unsteady, "changed by -60 %");
}

// Regression: an open loop of 150 operations per second on a correct disk was unsteady, because the
// rule allowed too little for chance: less than half of three standard deviations.
#[test]
fn slope_within_chance_is_valid() {
    let of = |ops: [u64; 3]| {
        let run = || {
            let mut run = fixture::closed_run(150, 3, 75, 106_667, 106_667);
            run.intervals.iter_mut().zip(ops).for_each(|(interval, ops)| interval.ops = ops);
            run
        };
        found(&result_of(vec![run(), run(), run()]))
    };
    assert_eq!(of([123, 150, 177]), []);
    only(&of([110, 150, 190]), Finding::Unsteady, "changed by +53 %");
}

#[test]
fn second_below_half_of_the_median_is_unsteady() {
    only(&changed(|run| run.intervals[4].ops = 400), Finding::Unsteady, "second 5 had 40 %");
    assert_eq!(changed(|run| run.intervals[4].ops = 600), []);
}

// Regression: a target that stalled for a fifth of the time got the verdict "valid, p99 1.0 ms" in
// a closed loop.
#[test]
fn stalls_are_counted_and_make_a_run_unsteady() {
    let stalls = |count: u32, ms: u64, cpu_wait_s: f64| {
        changed(move |run| {
            (0..count).for_each(|_| run.stalls.record_ns(ms * 1_000_000));
            run.cpu_wait_s = cpu_wait_s;
        })
    };
    only(&stalls(10, 200, 0.0), Finding::Unsteady, "no operation 30 times, 6.0 s in total, 0.20 s");
    // Stalls of 200 ms in 10 s are within the limit, and a period of 100 ms is shorter than ten
    // times the usual latency.
    assert_eq!(stalls(1, 200, 0.0), []);
    assert_eq!(stalls(50, 100, 0.0), []);
    // The generator had no CPU core in this time, so the stall says nothing about the target.
    assert_eq!(stalls(10, 200, 2.0), []);
    // A stall of one second makes a run unsteady, whatever the length of the run. Here the stall is
    // less than 3 % of the run.
    let long = || {
        let mut run = fixture::closed_run(1000, 60, 75, 16_000, 16_000);
        run.stalls.record_ns(1_100_000_000);
        run
    };
    let found = found(&result_of(vec![long(), long(), long()]));
    only(&found, Finding::Unsteady, "no operation 3 times, 3.3 s in total, 1.10 s");
}

#[test]
fn refused_operations_are_counted_by_kind_and_error() {
    let refuse = |run: &mut CellRun| {
        run.classes[0].errors.insert("no space".to_owned(), 2);
        run.classes[0].errors.insert("i/o error".to_owned(), 1);
    };
    let words = "read failed 3 times: i/o error; read failed 6 times: no space";
    only(&changed(refuse), Finding::Invalid, words);
}

#[test]
fn unreadable_block_is_an_error_but_not_corruption() {
    let mut result = result_of(vec![steady(), steady(), steady()]);
    let unread = [("i/o error".to_owned(), 3)].into();
    let found_by = Verification { blocks: 100, unread, ..Verification::default() };
    result.cells[0].verified = Some(found_by);
    only(&found(&result), Finding::Invalid, "could not read 3 (i/o error) blocks");
}

// Regression: a cell with a search was valid whatever its target did, because the rules about
// limits, stalls and scale skipped such a cell.
#[test]
fn best_rate_of_a_search_is_judged() {
    let search = |change: &dyn Fn(&mut RunResult)| {
        let mut result = result_of(Vec::new());
        let run = CellRun { offered_iops: Some(1000.0), ..steady() };
        result.cells[0].points = vec![CurvePoint { offered_iops: 1000.0, run, met: true }];
        change(&mut result);
        found(&result)
    };
    assert_eq!(search(&|_| {}), []);
    only(&search(&|result| result.spec.scale = Scale::Smoke), Finding::UnderSampled, "smoke");
    let stall = |result: &mut RunResult| {
        result.cells[0].points[0].run.stalls.record_ns(1_100_000_000);
    };
    only(&search(&stall), Finding::Unsteady, "1.10 s");
    let limits = |result: &mut RunResult| {
        result.spec.limits =
            Some(Limits { disk_iops: Some(500.0), network_mbps: None, storage_mib_s: None });
    };
    only(&search(&limits), Finding::CacheResident, "200 %");
}

/// Returns an open-loop run at 216 operations per second, in which `answered` operations completed
/// in time.
fn open_run(answered: u64, us: u64) -> CellRun {
    CellRun {
        due: 2160,
        answered,
        offered_iops: Some(216.0),
        ..fixture::closed_run(answered / 10, 10, 75, us, us)
    }
}

/// Findings about an open-loop cell with these runs.
fn open(runs: &[CellRun; 3]) -> Vec<(Finding, String)> {
    let mut result = result_of(runs.to_vec());
    result.cells[0].spec.load = LoadSpec::Open {
        workers: 1,
        rate: 216.0,
        arrival: Arrival::Poisson,
        in_flight_max: 256,
        backlog_max: 1024,
    };
    found(&result)
}

fn offered(answered: u64) -> Vec<(Finding, String)> {
    open(&[(); 3].map(|()| open_run(answered, 5_000)))
}

// Regression: a target that completed 190 operations per second met a required rate of 216, because
// completions after the end of the run counted and the backlog was below 1,024.
#[test]
fn answers_after_the_end_do_not_reach_a_rate() {
    only(&offered(1900), Finding::Overload, "260 were incomplete at the end");
    only(&offered(2050), Finding::Overload, "110 were incomplete");
    assert_eq!(offered(2150), []);
}

// The clock sets the rate of an open loop. Regression: a cell was valid although its target became
// ten times slower in the middle of a run, or in every second run.
#[test]
fn changing_latency_of_an_open_loop_is_unsteady() {
    let runs = |us: u64| open(&[open_run(2150, 5_000), open_run(2150, us), open_run(2150, 5_000)]);
    only(&runs(16_000), Finding::Unsteady, "us in one run and 16");
    only(&runs(1_000), Finding::Unsteady, "us in one run and 5");
    assert_eq!(runs(14_000), []);
    let slower = |seconds: std::ops::Range<usize>, us: f64| {
        open(&[(); 3].map(|()| {
            let mut run = open_run(2150, 5_000);
            run.intervals[seconds.clone()].iter_mut().for_each(|second| second.p50_us = us);
            run
        }))
    };
    let words = "5000 us in one third of a run, 16000 us in another";
    only(&slower(5..10, 16_000.0), Finding::Unsteady, words);
    only(&slower(3..6, 16_000.0), Finding::Unsteady, words);
    only(&slower(0..2, 16_000.0), Finding::Unsteady, words);
    assert_eq!(slower(5..10, 14_000.0), []);
    assert_eq!(slower(4..5, 50_000.0), [], "a single slow second");
}

// Regression: if the target met no rate of a search, the report printed the figures of a missed
// rate as valid.
#[test]
fn search_that_reaches_no_rate_is_overloaded() {
    let mut result = result_of(Vec::new());
    let run = CellRun { offered_iops: Some(1000.0), ..steady() };
    result.cells[0].points = vec![CurvePoint { offered_iops: 1000.0, run, met: false }];
    only(&found(&result), Finding::Overload, "the lowest was 1000/s");
}

// Regression: the verdict on a failed cell omitted the bad blocks that the verification had found.
#[test]
fn failed_row_reports_corrupt_blocks() {
    let mut result = result_of(Vec::new());
    result.cells[0].failure = Some("the connection was lost".to_owned());
    let examples = vec!["address 0: damaged".to_owned()];
    let verified = Verification { blocks: 10, bad: 1, examples, ..Verification::default() };
    result.cells[0].verified = Some(verified);
    let [(Finding::Invalid, _), (Finding::Corrupt, detail)] = &found(&result)[..] else {
        panic!("two findings: {:?}", found(&result))
    };
    assert!(detail.contains("1 blocks") && detail.contains("address 0"), "{detail}");
}

// Regression: corrupt blocks and failed operations in the phases before the first cell were
// ignored.
#[test]
fn faults_of_the_phases_before_a_row_count() {
    let before = |change: &dyn Fn(&mut CellRun)| {
        let mut result = result_of(vec![steady(), steady(), steady()]);
        change(&mut result.phases[0].run);
        found(&result)
    };
    only(&before(&|run| run.corrupt = 3), Finding::Corrupt, "3 blocks");
    only(&before(&|run| run.zero_reads_pct = 1.0), Finding::Holes, "1.0 %");
    let refuse = |run: &mut CellRun| {
        run.classes[0].errors.insert("i/o error".to_owned(), 2);
    };
    only(&before(&refuse), Finding::Invalid, "write failed 2 times: i/o error");
}

#[test]
fn rate_above_limit_or_dataset_in_memory_is_cache_resident() {
    let mut result = result_of(vec![steady(), steady(), steady()]);
    let limits = |iops| Limits { disk_iops: Some(iops), network_mbps: None, storage_mib_s: None };
    result.spec.limits = Some(limits(64.0));
    only(&found(&result), Finding::CacheResident, "1562 % of the stated limit");
    result.spec.limits = Some(limits(990.0));
    only(&found(&result), Finding::CacheResident, "101 % of the stated limit");
    result.spec.limits = Some(limits(1000.0));
    assert_eq!(found(&result), []);
    let dataset = result.spec.dataset.total_bytes();
    result.target.cache_bytes = Some(dataset);
    only(&found(&result), Finding::CacheResident, "fits the cache");
    result.cells[0].spec.streams[0].read_pct = 0.0;
    result.cells[0].runs.iter_mut().for_each(|run| run.classes.truncate(1));
    result.cells[0].runs.iter_mut().for_each(|run| run.classes[0].op = OpKind::Write);
    assert!(!found(&result).iter().any(|(finding, _)| *finding == Finding::CacheResident));
    result.target.cache_source = Some("tmpfs".to_owned());
    assert!(found(&result).iter().any(|(finding, _)| *finding == Finding::CacheResident));
}

#[test]
fn queue_depth_far_from_specified_is_inconsistent() {
    let of = |us| {
        let run = || fixture::closed_run(1000, 10, 75, us, us);
        found(&result_of(vec![run(), run(), run()]))
    };
    only(&of(8_000), Finding::Inconsistent, "8.0 operations were in flight instead of 16");
    only(&of(18_000), Finding::Inconsistent, "18.0 operations");
    assert_eq!(of(14_700), [], "29.4 of 32 is a note");
}

#[test]
fn operations_on_files_are_judged_without_the_time_of_their_system_calls() {
    let of = |op: Option<OpKind>, depth, cpu_s| {
        let run = || CellRun { cpu_s, ..fixture::closed_run(1000, 10, 0, 0, 2_000) };
        let mut result = result_of(vec![run(), run(), run()]);
        let spec = &mut result.cells[0].spec;
        spec.load = LoadSpec::Closed { workers: 4 / depth, depth };
        (spec.streams[0].op, spec.streams[0].read_pct) = (op, 0.0);
        found(&result)
    };
    // By Little's law, 1,000 operations per second at 2 ms are 2 operations in flight, not 4.
    assert_eq!(of(Some(OpKind::Stat), 1, (0.5, 9.0)), []);
    only(&of(Some(OpKind::Stat), 4, (0.5, 0.0)), Finding::Inconsistent, "2.0 operations");
    only(&of(Some(OpKind::Stat), 1, (8.5, 0.0)), Finding::GeneratorBound, "85 %");
    let found = of(None, 1, (0.5, 9.0));
    assert!(found.iter().any(|(finding, _)| *finding == Finding::GeneratorBound), "{found:?}");
}

#[test]
fn missing_files_and_a_wrong_share_of_metadata_operations_are_found() {
    let check = |missing, unexpected| {
        let examples = vec!["weir-bench-files-000/s0-w0000/f0000-00000003 is missing".to_owned()];
        Some(FilesCheck { listed: 9, missing, unexpected, examples })
    };
    only(&changed(|run| run.files = check(1, 0)), Finding::Corrupt, "3 files are missing");
    only(&changed(|run| run.files = check(0, 2)), Finding::Corrupt, "6 files exist after");
    assert_eq!(changed(|run| run.files = check(0, 0)), []);
    let mixed = |pct: f64, metadata: u64| {
        let run = || {
            let mut run = steady();
            let mut class = run.classes[0].clone();
            (class.op, class.ops, class.bytes) = (OpKind::Metadata, metadata, 0);
            run.classes.push(class);
            run
        };
        let mut result = result_of(vec![run(), run(), run()]);
        let mix = MetadataSpec::Mix { pct, shares: Vec::new() };
        let spec = &mut result.cells[0].spec;
        spec.streams[0].metadata = Some(mix);
        // The copied class has the latencies of 7,500 operations.
        spec.load = LoadSpec::Closed { workers: 1, depth: 28 };
        found(&result)
    };
    // 10,000 data operations and 1,111 metadata operations are a share of 10 %.
    assert_eq!(mixed(10.0, 1111), []);
    only(&mixed(5.0, 1111), Finding::MixOff, "10.0 % metadata operations instead of 5.0 %");
}

#[test]
fn metadata_operations_count_towards_the_rate_of_an_open_loop() {
    let of = |metadata: u64| {
        // 950 reads and writes per second.
        let run = || {
            let (due, offered_iops) = (10_000, Some(1000.0));
            let plain = fixture::closed_run(950, 10, 75, 1_000, 1_000);
            let answered = 9_500 + metadata;
            let mut run = CellRun { offered_iops, due, answered, ..plain };
            let mut class = run.classes[1].clone();
            (class.op, class.ops, class.bytes) = (OpKind::Metadata, metadata, 0);
            class.latency = crate::histogram::Latencies::default();
            (0..metadata).for_each(|_| class.latency.record_ns(1_000_000));
            run.classes.push(class);
            run
        };
        let mut result = result_of(vec![run(), run(), run()]);
        let mix = MetadataSpec::Mix { pct: 5.0, shares: Vec::new() };
        let spec = &mut result.cells[0].spec;
        spec.streams[0].metadata = Some(mix);
        spec.load = LoadSpec::Open {
            workers: 1,
            rate: 1000.0,
            arrival: Arrival::Constant,
            in_flight_max: 256,
            backlog_max: 10_000,
        };
        found(&result)
    };
    assert_eq!(of(500), []);
    assert_eq!(of(100)[0].0, Finding::Overload, "{:?}", of(100));
}
