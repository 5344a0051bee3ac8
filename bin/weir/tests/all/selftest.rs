//! `weir bench selftest`: runs the program's checks on targets whose behaviour is known.
//!
//! Not here: the checks themselves (weir-bench). The runner runs this test alone, so that no other
//! test uses the CPU.
//!
//! Invariant: a check that a busy machine can make fail must pass in one of two attempts, unless
//! other programs use the CPU. Other checks do not depend on the load: they fail in both attempts
//! or in none.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Runs the self-test. Returns the names of the failed checks, and the complete report.
fn failed() -> (BTreeSet<String>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    let output = command.args(["bench", "selftest", "--json"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_str(&text).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 28, "every check is made: {text}");
    let failed: Vec<&Value> = checks.iter().filter(|check| check["passed"] != true).collect();
    assert_eq!(output.status.success(), failed.is_empty(), "{text}");
    let failed = failed.into_iter().filter(|check| check["not_judged"].is_null());
    let failed: BTreeSet<String> =
        failed.map(|check| check["name"].as_str().unwrap().to_owned()).collect();
    (failed, text)
}

#[test]
fn self_test_passes_on_known_targets() {
    let (first, told) = failed();
    if first.is_empty() {
        return;
    }
    let (second, again) = failed();
    let both: Vec<&String> = first.intersection(&second).collect();
    assert!(both.is_empty(), "{both:?} failed twice:\n{told}\n{again}");
}
