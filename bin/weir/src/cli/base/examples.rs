//! The examples of the commands.
//!
//! The help and the hints show them, and an end-to-end test runs them.
//!
//! Invariant: each line is a whole command.

/// A line for each example. A line that starts with `~` is not run by the test.
const EXAMPLES: &str = include_str!("../examples.txt");

/// Returns the examples of all commands, in the order in which they work.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    let lines = EXAMPLES.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.trim_start_matches("~ "))
}
