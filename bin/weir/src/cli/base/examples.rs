//! The examples of the commands.
//!
//! The help and the hints show these examples, and an end-to-end test runs them.
//!
//! Invariant: each line is a complete command.

/// One example on each line. The end-to-end test skips lines that start with `~`.
const EXAMPLES: &str = include_str!("../examples.txt");

/// Returns the examples of all commands. The examples succeed if they run in this order.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    let lines = EXAMPLES.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.trim_start_matches("~ "))
}
