//! `cargo xtask check`: what to run before every commit.
//!
//! Not here: anything that takes more than a minute or two on a warm build (test.rs), which changes
//! affect which packages (affected.rs).
//!
//! Invariant: a subset of `cargo xtask test`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::affected::{self, Affected};
use crate::runner::{Suite, UNIT_LANES};
use crate::stage::{self, Needs, Stage, Step};
use crate::test;

/// What to check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Test only the packages that changed since this revision, and those that depend on them.
    #[arg(long, value_name = "REV")]
    since: Option<String>,
}

/// The task.
pub(crate) fn main(args: &Args) -> Result<()> {
    let packages = match &args.since {
        None => None,
        Some(revision) => match affected::since(revision)? {
            Affected::Everything(file) => {
                println!("all packages: {file} changed, which is in none of them");
                None
            }
            Affected::Packages(packages) => {
                tell(&packages, revision);
                Some(packages.into_keys().collect())
            }
        },
    };
    stage::run(&stages(packages.as_ref()), Needs::Nothing)
}

fn tell(packages: &BTreeMap<String, String>, revision: &str) {
    if packages.is_empty() {
        println!("no package changed since {revision}: no lints, no tests");
    }
    for (package, why) in packages {
        println!("{package}: {why}");
    }
}

/// The stages for these packages, or for all. All unit tests are built, or found built already:
/// cargo chooses features for what it builds together, so that a part of the packages would have
/// their dependencies compiled once more. Likewise clippy looks only at what changed.
fn stages(packages: Option<&BTreeSet<String>>) -> Vec<Stage> {
    let has = |name: &str| packages.is_none_or(|packages| packages.contains(name));
    let mut stages = vec![test::fmt(), test::tidy()];
    if packages.is_none_or(|packages| !packages.is_empty()) {
        stages.push(test::clippy());
    }
    if packages.is_none() {
        stages.push(test::fmt_fuzz());
    }
    if has("xtask") {
        stages.push(test::unit_xtask());
    }
    if has("weir") {
        let suite = Suite::new("unit-weir", "--profile ci --package weir --bin weir", UNIT_LANES);
        stages.push(Stage { name: "unit-weir", step: Step::Tests(suite) });
    }
    let apart = ["weir", "xtask"];
    let others = packages.map(|packages| {
        packages.iter().filter(|name| !apart.contains(&name.as_str())).cloned().collect()
    });
    if others.as_ref().is_none_or(|others: &BTreeSet<String>| !others.is_empty()) {
        stages.push(test::unit(others));
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(packages: Option<&[&str]>) -> Vec<&'static str> {
        let packages = packages.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        stages(packages.as_ref()).iter().map(|stage| stage.name).collect()
    }

    #[test]
    fn only_stages_that_a_change_can_fail_are_run() {
        assert_eq!(names(Some(&[])), ["fmt", "tidy"]);
        assert_eq!(names(Some(&["xtask"])), ["fmt", "tidy", "clippy", "unit-xtask"]);
        let both = ["fmt", "tidy", "clippy", "unit-weir", "unit"];
        assert_eq!(names(Some(&["weir", "weir-pool"])), both);
        assert!(["fmt-fuzz", "unit-xtask"].iter().all(|name| names(None).contains(name)));
    }
}
