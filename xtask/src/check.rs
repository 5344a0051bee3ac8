//! `cargo xtask check`: the checks before every commit.
//!
//! Not here: stages that take more than a minute or two with a warm build (test.rs), and the choice
//! of the packages that a change affects (affected.rs).
//!
//! Invariant: each stage of `cargo xtask check` is also a stage of `cargo xtask test`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::affected::{self, Affected};
use crate::runner::{Suite, UNIT_LANES};
use crate::stage::{self, Stage, Step};
use crate::{packages, test};

/// Packages to check.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Test only the packages changed since this revision and their dependents
    #[arg(long, value_name = "REV")]
    since: Option<String>,
}

/// Runs `cargo xtask check`.
pub(crate) fn main(args: &Args) -> Result<()> {
    let packages = match &args.since {
        None => None,
        Some(revision) => match affected::since(revision)? {
            Affected::Everything(file) => {
                println!("all packages: {file} changed, which belongs to no package");
                None
            }
            Affected::Packages(packages) => {
                tell(&packages, revision);
                Some(packages.into_keys().collect())
            }
        },
    };
    stage::run(&stages(packages.as_ref()))
}

fn tell(packages: &BTreeMap<String, String>, revision: &str) {
    if packages.is_empty() {
        println!("no package changed since {revision}: no lints, no tests");
    }
    for (package, why) in packages {
        println!("{package}: {why}");
    }
}

/// Returns the stages for these packages, or for all packages. Some stages always cover the whole
/// workspace: the unit tests of all packages are built, because a cargo call with fewer packages
/// would select other features and compile their dependencies again; and Clippy checks all crates,
/// because cargo runs Clippy again only for changed crates.
fn stages(packages: Option<&BTreeSet<String>>) -> Vec<Stage> {
    let has = |name: &str| packages.is_none_or(|packages| packages.contains(name));
    let mut stages = vec![test::fmt(), test::tidy(), test::subjects()];
    if packages.is_none_or(|packages| !packages.is_empty()) {
        stages.push(test::clippy());
    }
    if packages.is_none() {
        stages.push(test::fmt_fuzz());
    }
    if packages::TASKS.into_iter().any(has) {
        stages.extend([test::programs(), test::unit_xtask()]);
    }
    if has("weir") {
        stages.push(test::shipped());
        let suite = Suite::new("unit-weir", "--profile ci --package weir --bin weir", UNIT_LANES);
        stages.push(Stage { name: "unit-weir", step: Step::Tests(suite) });
    }
    let is_apart = |name: &str| name == "weir" || packages::TASKS.contains(&name);
    let others = packages
        .map(|packages| packages.iter().filter(|name| !is_apart(name.as_str())).cloned().collect());
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
    fn only_stages_affected_by_a_change_run() {
        assert_eq!(names(Some(&[])), ["fmt", "tidy", "subjects"]);
        for task in packages::TASKS {
            let stages = ["fmt", "tidy", "subjects", "clippy", "programs", "unit-xtask"];
            assert_eq!(names(Some(&[task])), stages);
        }
        let both = ["fmt", "tidy", "subjects", "clippy", "shipped", "unit-weir", "unit"];
        assert_eq!(names(Some(&["weir", "weir-pool"])), both);
        assert!(["fmt-fuzz", "unit-xtask"].iter().all(|name| names(None).contains(name)));
    }
}
