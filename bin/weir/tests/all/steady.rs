//! Verdicts of `weir bench` that depend on steady timing: an honest disk, a disk at its limit, a
//! disk that stalls.
//!
//! Not here: disks with a verdict that machine load does not change (liars).
//!
//! Invariant: the runner runs these tests alone, because they measure time; an honest disk is valid
//! in at least one of a few attempts.

use std::fs;

use crate::common::liar::Liar;
use crate::liars::{Bench, KNEE, MS, NO, PROFILE, open};
use serde_json::Value;

/// Attempts; one of them must return the expected verdict.
const GOES_MAX: usize = 5;

#[test]
fn honest_disk_is_valid() {
    let bench = Bench::new(70, "qd = [8]");
    let target = bench.serve(Liar::honest(5 * MS, 1e6));
    let mut told = Vec::new();
    for _ in 0..GOES_MAX {
        let (status, verdict, details) = bench.verdict(&target, &[]);
        assert_eq!(status, Some(0), "{verdict}: {details}");
        if verdict == "valid" {
            return;
        }
        told.push(details);
    }
    panic!("not valid in {GOES_MAX} goes: {told:?}");
}

/// Machine load may delay the generator; the verdict then names the generator instead of the disk.
#[test]
fn disk_that_does_what_is_needed_and_no_more_is_not_overloaded() {
    let bench = Bench::new(100, &open(900));
    let target = bench.serve(Liar::honest(2 * MS, 1_000.0));
    let (_, verdict, details) = bench.verdict(&target, &["--runs", "1"]);
    assert_ne!(verdict, "overload", "{details}");
}

// Regression: a disk of 190 IOPS passed a requirement of 216 IOPS.
#[test]
fn disk_that_does_less_than_is_offered_is_overloaded() {
    // The self-test also offers 1.25 times the capacity.
    let bench = Bench::new(100, &open(1_050));
    let target = bench.serve(Liar::honest(2 * MS, 1_000.0));
    let words = ["--runs", "1", "--fail-on", "overload"];
    let (status, verdict, details) = bench.verdict(&target, &words);
    assert_eq!((verdict.as_str(), status), ("overload", Some(NO)), "{details}");
    assert!(details.contains("were not answered when the time was over"), "{details}");
}

#[test]
fn disk_that_stands_still_a_fifth_of_the_time_is_unsteady() {
    let bench = Bench::new(100, "qd = [1]");
    let stalls = Some((500 * MS, 100 * MS));
    let target = bench.serve(Liar { stalls, ..Liar::honest(MS / 2, 1e6) });
    let words = ["--runs", "1", "--fail-on", "any"];
    let (status, verdict, details) = bench.verdict(&target, &words);
    assert_eq!((verdict.as_str(), status), ("unsteady", Some(NO)), "{details}");
    assert!(details.contains("the target answered nothing"), "{details}");
}

/// Runs `validate` on a target; returns exit code and outcome.
fn validated(bench: &Bench, target: &str, need: &str, out: &str) -> (Option<i32>, String) {
    let words = ["validate", "-p", "./liars.toml", "-o", out, "-t", target, "--need", need];
    let output =
        bench.command(&[&words[..], &["--runs", "3", "--json"]].concat()).output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", crate::common::text(&output)));
    (output.status.code(), told["assessment"]["outcome"].as_str().unwrap().to_owned())
}

/// Validates a disk of 20 ms and 6,000 IOPS until the outcome is the expected one, and returns that
/// report. Under machine load the generator may not get a core in time: the run then has no
/// outcome, and each report must state the cause.
fn answered(need: &str, outcome_wanted: &str, status_wanted: i32) -> Option<String> {
    let bench = Bench::new(100, "qd = [4]");
    let sampled = PROFILE.replace("sample_pct = 100", "sample_pct = 5");
    let sampled = sampled.replace("READS", "100").replace("LOAD", "qd = [4]");
    fs::write(bench.path("liars.toml"), sampled + KNEE).unwrap();
    let target = bench.serve(Liar::honest(20 * MS, 6_000.0));
    let mut told = Vec::new();
    for go in 0..GOES_MAX {
        let out = format!("go{go}");
        let (status, outcome) = validated(&bench, &target, need, &out);
        let report = fs::read_to_string(bench.path(&out).join("report.md")).unwrap();
        if outcome == outcome_wanted {
            assert_eq!(status, Some(status_wanted));
            return Some(report);
        }
        assert_eq!(status, Some(NO), "{outcome}");
        told.push(report);
    }
    let is_said = |report: &String| report.contains("generator-bound");
    assert!(told.iter().all(is_said), "no outcome in {GOES_MAX} goes:\n{}", told.join("\n"));
    None
}

#[test]
fn a_requirement_that_is_not_met_ends_in_fail() {
    if let Some(report) = answered("500iops,p50=1ms", "fail", NO) {
        assert!(report.contains("FAIL"), "{report}");
    }
}

#[test]
fn a_requirement_that_is_met_ends_in_pass() {
    if let Some(report) = answered("4000iops,p99=2s", "pass", 0) {
        assert!(report.contains("PASS") && !report.contains("FAIL"), "{report}");
    }
}
