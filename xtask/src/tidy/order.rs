//! The layers: a crate depends only on crates above it in one list.
//!
//! Not here: dev-dependencies, which tests may point anywhere.
//!
//! Invariant: a workspace crate that is not in the list is a finding.

use super::{Finding, Rule};
use crate::workspace::Package;

/// Lowest layer first. The simulator comes after the binary: nothing that ships depends on it.
const ORDER: [&str; 19] = [
    "weir-base",
    "weir-codec",
    "weir-device",
    "weir-format",
    "weir-cache",
    "weir-pool",
    "weir-dataset",
    "weir-serve",
    "weir-nbd",
    "weir-scsi",
    "weir-iscsi",
    "weir-initiator",
    "weir-api",
    "weir-bench",
    "weir",
    "weir-forge",
    "weir-fuzz",
    "weir-sim",
    "xtask",
];

/// Findings of the whole workspace.
pub(super) fn check(packages: &[Package]) -> Vec<Finding> {
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut findings = Vec::new();
    let mut find = |name: &str, what: String| {
        let path = name.to_owned();
        findings.push(Finding { rule: Rule::CrateOrder, path, line: 1, count: 1, what });
    };
    for package in packages {
        let Some(own) = place(&package.name) else {
            find(&package.name, "not in the list of layers (xtask/src/tidy/order.rs)".to_owned());
            continue;
        };
        for dependency in &package.dependencies {
            if dependency.is_dev() {
                continue;
            }
            if place(&dependency.name).is_some_and(|other| other >= own) {
                find(&package.name, format!("depends on {}, which is not below", dependency.name));
            }
        }
    }
    findings
}
