//! Rules that need only the lines of a file: its header, the lengths of file and lines, unfinished
//! work.
//!
//! Not here: rules that must distinguish code from comments (syntax.rs).
//!
//! Invariant: each rule reads the lines once.

use crate::tidy::finding::{Finding, Rule, Source};

/// Maximum number of lines of a file: as many as a reader can read in one sitting.
const FILE_LINES_MAX: usize = 800;

/// Maximum length of a line, as in rustfmt.toml; rustfmt does not check comments and strings.
const LINE_CHARS_MAX: usize = 100;

/// Maximum number of lines of a file's header (docs/WRITING.md).
const HEADER_LINES_MAX: usize = 12;

/// Words that mark unfinished work, built from halves so that this file does not contain them.
const PROMISES: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];

/// Returns the findings of one file.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let mut findings: Vec<Finding> = header(source).into_iter().collect();
    let mut lines = 0;
    for (index, line) in source.text.lines().enumerate() {
        lines = index + 1;
        let chars = line.chars().count();
        if chars > LINE_CHARS_MAX {
            let what = format!("{chars} characters, {LINE_CHARS_MAX} allowed");
            findings.push(source.finding(Rule::LineLength, lines, what));
        }
        let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        if let Some(word) = words.find(|word| PROMISES.contains(word)) {
            let what = format!("{word}: do it, or write an issue");
            findings.push(source.finding(Rule::Promise, lines, what));
        }
    }
    if lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, {FILE_LINES_MAX} allowed: split by meaning");
        let finding = source.finding(Rule::FileLength, lines, what);
        findings.push(Finding { count: lines, ..finding });
    }
    findings
}

fn header(source: &Source) -> Option<Finding> {
    let header: Vec<&str> =
        source.text.lines().take_while(|line| line.starts_with("//!")).collect();
    if header.is_empty() {
        return Some(source.finding(Rule::Header, 1, "the first line is not a //! header"));
    }
    if header.len() > HEADER_LINES_MAX {
        let what = format!("{} lines, {HEADER_LINES_MAX} allowed", header.len());
        return Some(source.finding(Rule::Header, header.len(), what));
    }
    // A `mod.rs` needs no invariants in its header, because it only lists the files of its folder.
    // rooms.rs checks this.
    let is_sign = source.path.ends_with("/mod.rs");
    let engine = source.path.starts_with("crates/") && !source.is_test() && !is_sign;
    if engine && !header.iter().any(|line| line.contains("Invariant")) {
        return Some(source.finding(Rule::Header, 1, "the header states no invariants"));
    }
    None
}
