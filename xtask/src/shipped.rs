//! `shipped`: a stage that compares the features with which the dependencies of the shipped program
//! are built with the features in the build of the tests.
//!
//! All stages compile each dependency once, with all features that programs and tests request. If
//! the program used a feature that only tests request, its code would compile in all stages, but
//! not in the build of the shipped program.
//!
//! Not here: a build of the shipped program, which would take minutes more.
//!
//! Invariant: [`TESTS_ONLY`] lists each feature that only tests request, with the reason.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use weir_command::command;

use crate::packages;

/// Features that only tests request: package, features, reason.
const TESTS_ONLY: &[(&str, &[&str], &str)] = &[
    ("tokio", &["rt-multi-thread", "test-util"], "runtimes and clock of tests"),
    ("rand", &["sys_rng"], "proptest requests it"),
    (
        "regex-syntax",
        &["default", "unicode", "unicode-*"],
        "proptest requests them; they add tables and no function",
    ),
];

/// Options of cargo that select all dependencies of a build of tests.
const ALL_EDGES: &str = "--edges normal,build,dev";

/// Features of each package, by the name and version of the package.
type Features = BTreeMap<String, BTreeSet<String>>;

/// Runs the comparison. Fails if it finds a feature that is not in [`TESTS_ONLY`].
pub(crate) fn main() -> Result<()> {
    let shipped = features("--package weir --edges normal,build")?;
    let tests = features(&format!("{} {ALL_EDGES}", packages::all_except(&[])))?;
    let found = extra(&shipped, &tests);
    for (package, feature) in &found {
        println!(
            "{package}: only tests request the feature {feature:?}. Request it in [dependencies] \
             too if the program uses it, or add it to TESTS_ONLY in xtask/src/shipped.rs"
        );
    }
    if !found.is_empty() {
        bail!("shipped: {} features that the program lacks", found.len());
    }
    let unit = features(&format!("{} {ALL_EDGES}", packages::all_except(&["weir"])))?;
    let e2e = features(&format!("{} {ALL_EDGES}", packages::E2E))?;
    let differing = different(&unit, &e2e);
    if !differing.is_empty() {
        bail!(
            "shipped: cargo compiles these twice, with other features for the end-to-end tests \
             than for the unit tests: {}. Request the same in [dev-dependencies] of bin/weir",
            differing.join(", ")
        );
    }
    println!("shipped: features of {} packages compared", shipped.len());
    Ok(())
}

/// Returns the packages that both builds contain with different features.
fn different(one: &Features, other: &Features) -> Vec<String> {
    let differs = |(package, features): &(&String, &BTreeSet<String>)| {
        other.get(*package).is_some_and(|others| others != *features)
    };
    one.iter().filter(differs).map(|(package, _)| package.clone()).collect()
}

/// Returns the features of a build with these options of cargo, separated by spaces.
fn features(options: &str) -> Result<Features> {
    let mut cargo = command::command("cargo");
    cargo.args(["tree", "--locked", "--prefix", "none", "--format", "{p}|{f}"]);
    cargo.args(options.split_whitespace());
    Ok(parse(&command::output(&mut cargo)?))
}

/// Reads lines such as `rand v0.10.3 (proc-macro)|alloc,std`.
fn parse(text: &str) -> Features {
    let mut all = Features::new();
    for line in text.lines() {
        let Some((package, features)) = line.trim_end_matches(" (*)").split_once('|') else {
            continue;
        };
        let package: Vec<&str> = package.split_whitespace().take(2).collect();
        let features = features.split(',').filter(|name| !name.is_empty()).map(str::to_owned);
        all.entry(package.join(" ")).or_default().extend(features);
    }
    all
}

/// Returns the features that only the build of the tests has, each with its package, except the
/// features in [`TESTS_ONLY`].
fn extra(shipped: &Features, tests: &Features) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (package, own) in shipped {
        let all = tests.get(package).into_iter().flatten();
        let more = all.filter(|feature| !own.contains(*feature) && !is_known(package, feature));
        found.extend(more.map(|feature| (package.clone(), feature.clone())));
    }
    found
}

fn is_known(package: &str, feature: &str) -> bool {
    let name = package.split(' ').next().unwrap_or_default();
    let is = |known: &&str| match known.strip_suffix('*') {
        Some(prefix) => feature.starts_with(prefix),
        None => *known == feature,
    };
    TESTS_ONLY.iter().any(|(known, features, _)| *known == name && features.iter().any(is))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feature_requested_only_by_tests_is_found() {
        let shipped = parse("weir v0.1.0 (/weir)|\ntokio v1.54.1|net,rt\ntokio v1.54.1|net,rt (*)");
        let tests = "tokio v1.54.1|io-util,net,rt,test-util\nproptest v1.12.0|std\n";
        let found = extra(&shipped, &parse(tests));
        assert_eq!(found, [("tokio v1.54.1".to_owned(), "io-util".to_owned())]);
        assert_eq!(extra(&shipped, &parse("tokio v1.54.1|net,rt,test-util")), []);
    }

    #[test]
    fn package_with_different_features_in_two_builds_is_found() {
        let (one, other) =
            (parse("rand v0.10.3|std,sys_rng\nhex v1|\n"), parse("rand v0.10.3|std"));
        assert_eq!(different(&one, &other), ["rand v0.10.3"]);
        assert!(different(&one, &one).is_empty());
    }

    #[test]
    fn pattern_allows_a_family_of_features() {
        assert!(is_known("regex-syntax v0.8.11", "unicode-age"));
        assert!(!is_known("regex-syntax v0.8.11", "perf") && !is_known("tokio v1.54.1", "fs"));
    }
}
