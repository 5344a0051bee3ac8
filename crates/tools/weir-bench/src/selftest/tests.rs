//! Tests that the list of checks is complete, and that checks which do not depend on timing pass.
//!
//! Only the self-test itself asserts figures that depend on timing.

use std::collections::BTreeSet;

use super::*;
use crate::verdict::Finding;

#[test]
fn every_check_has_its_own_name_and_every_verdict_its_check() {
    let items = items();
    let names: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
    assert_eq!(names.len(), items.len());
    for finding in Finding::ALL {
        assert!(names.contains(format!("verdict: {}", finding.name()).as_str()));
    }
    // The list contains the timing checks, but their figures would be wrong while other tests are
    // running.
    for part in ["null target", "known latency", "stall of", "knee of", "content that", "147"] {
        assert!(names.iter().any(|name| name.contains(part)), "{part}");
    }
}

/// Checks that do not depend on timing pass even while other tests are running.
#[test]
fn checks_without_timing_pass() {
    let items: Vec<Item> = items().into_iter().filter(|item| !item.by_time).collect();
    let mut told = 0;
    let report = run_items(&items, Scale::Short, &mut |_| told += 1);
    assert!(report.passed(), "{}", report.text());
    assert!(told >= 19 && told == report.checks.len(), "{}", report.text());
    assert!(report.outcome().starts_with("PASS: "));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap().checks.len(), told);
}

fn failing(off: [f64; 3]) -> Item {
    let left = std::sync::Mutex::new(off.into_iter());
    Item::new("clock", "0", move |_| {
        let off = left.lock().unwrap().next().unwrap();
        Ok(Seen { passed: off <= 1.0, found: format!("{off}"), off })
    })
}

#[test]
fn retries_stop_at_success_and_report_the_best() {
    let mut check = make(&failing([9.0, 7.0, 8.0]).by_time(), Scale::Short);
    // Ignore that the check was not judged, because other tests may have used the processor.
    check.not_judged = None;
    assert_eq!((check.passed, check.found.as_str(), check.tries), (false, "7", 3));
    assert!(check.text().starts_with("FAILED clock: 7 (wanted: 0; 0.0 s, 3 tries)"));
    let check = make(&failing([9.0, 0.5, 0.1]).by_time(), Scale::Short);
    assert_eq!((check.passed, check.found.as_str(), check.tries), (true, "0.5", 2));
    let check = make(&failing([9.0, 0.0, 0.0]).by_time(), Scale::Full);
    assert_eq!((check.passed, check.tries), (false, 1), "the full form does not try again");
    let check = make(&failing([9.0, 0.0, 0.0]), Scale::Short);
    assert_eq!((check.passed, check.tries), (false, 1), "what time cannot spoil fails at once");
    let mut report = run_items(&[failing([9.0; 3])], Scale::Short, &mut |_| {});
    assert!(!report.passed() && report.outcome().starts_with("FAIL: 0 of 1"));
    report.checks[0].not_judged = busy(50.0);
    assert!(!report.passed() && report.outcome().starts_with("NOT PROVEN: 0 of 1"));
    assert!(report.text().contains("not judged: others used 50 % of the CPU time"));
}

#[test]
fn small_load_of_others_excuses_no_failure() {
    assert_eq!(busy(OTHERS_PCT_MAX), None);
}
