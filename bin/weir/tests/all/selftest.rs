//! `weir bench selftest`: the program on targets of known behaviour.
//!
//! Not here: what each check does (weir-bench). A stage of its own runs this test, so that no other
//! takes the processor from it.
//!
//! Invariant: a check that a busy machine can spoil has to pass in one of two goes, unless other
//! programs use the processor; any other fails both times.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Names of the checks that failed, and what all of them found.
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
fn it_says_of_known_targets_what_is_known() {
    let (first, told) = failed();
    if first.is_empty() {
        return;
    }
    let (second, again) = failed();
    let both: Vec<&String> = first.intersection(&second).collect();
    assert!(both.is_empty(), "{both:?} failed twice:\n{told}\n{again}");
}
