//! Packages that each stage of `cargo xtask check` builds, as options of cargo.
//!
//! Not here: the list of the packages and files of the workspace (workspace.rs).
//!
//! Invariant: all stages select packages with these functions, so that they share one build of each
//! dependency. The stage `shipped` compares this build with the shipped program.

/// Packages with development tasks. A separate cargo call builds their unit tests: their features
/// would make cargo compile most dependencies of the other packages again.
pub(crate) const TASKS: [&str; 3] = ["weir-command", "weir-peers", "xtask"];

/// Packages with end-to-end tests.
pub(crate) const E2E: &str = "--package weir --package weir-export";

/// Returns the options that select all packages except [`TASKS`] and `others`.
pub(crate) fn all_except(others: &[&str]) -> String {
    let excluded = TASKS.iter().chain(others);
    excluded.fold("--workspace".to_owned(), |line, package| line + " --exclude " + package)
}

/// Returns the arguments with which cargo builds the unit tests of all packages except weir and
/// [`TASKS`]. The examples are left out: the end-to-end tests run them.
pub(crate) fn unit_tests() -> String {
    format!("--profile ci {} --lib --bins --tests", all_except(&["weir"]))
}
