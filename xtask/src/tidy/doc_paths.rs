//! Paths in ARCHITECTURE.md: checks that each `crate/path.rs` is the path of a tracked file.
//!
//! Not here: links between documents, and file names without the name of a crate.
//!
//! Invariant: if a file was moved and ARCHITECTURE.md still has its old path, that is a finding.

use std::path::Path;

use super::finding::{Finding, Rule, Source};

/// Path of the document whose paths are checked.
pub(super) const PATH: &str = "ARCHITECTURE.md";

/// Returns the findings about the document. `sources` are all tracked Rust files.
pub(super) fn check(text: &str, sources: &[Source]) -> Vec<Finding> {
    let is_there = |named: &str| {
        let Some((package, path)) = named.split_once('/') else { return false };
        let ends = [format!("/{package}/src/{path}"), format!("/{package}/{path}")];
        sources.iter().any(|source| ends.iter().any(|end| source.path.ends_with(end)))
    };
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        // In the text split at backquotes, every second element was between two backquotes.
        let words = line.split('`').skip(1).step_by(2);
        for named in words.filter(|word| is_path(word)).filter(|word| !is_there(word)) {
            let what = format!("there is no file {named}");
            let (rule, path) = (Rule::DocPath, PATH.to_owned());
            findings.push(Finding { rule, path, line: number + 1, count: 1, what });
        }
    }
    findings
}

/// Returns true for the path of a Rust file in one of Weir's crates.
fn is_path(word: &str) -> bool {
    let is_rust = Path::new(word).extension().is_some_and(|extension| extension == "rs");
    word.starts_with("weir-") && word.contains('/') && is_rust
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moved_file_is_a_finding() {
        let text = "a\n`weir-x/a/b.rs` and `c.rs`\n`weir-x/examples/e.rs`, `weir-x/a.rs`\n";
        let source = |path: &str| Source { path: path.to_owned(), text: String::new() };
        let sources =
            [source("crates/base/weir-x/src/a/b.rs"), source("crates/base/weir-x/examples/e.rs")];
        let found: Vec<_> = check(text, &sources).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["ARCHITECTURE.md:3: doc-path: there is no file weir-x/a.rs"]);
    }
}
