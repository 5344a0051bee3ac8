//! Management calls: checks that each row of the table of calls has a verb and a test.
//!
//! Not here: the handler of each call, which the compiler requires.
//!
//! Invariant: a row that no verb of the command line uses, or that no test uses, is a finding.

use super::finding::{Finding, Rule, Source};

/// File with the table of management calls.
const TABLE: &str = "crates/control/weir-api/src/calls/table.rs";

/// Folder with the verbs of the command line.
const VERBS: &str = "bin/weir/src/";

/// A row of the table of calls: its line number, and the names of its request and its operation.
struct Row {
    line: usize,
    request: String,
    operation: String,
}

/// Returns the findings about the table of calls.
pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let Some(table) = sources.iter().find(|source| source.path == TABLE) else {
        return Vec::new();
    };
    let verbs: Vec<&Source> =
        sources.iter().filter(|source| source.path.starts_with(VERBS)).collect();
    // Support code of tests does not count as a test, because it implements all calls.
    let is_test = |source: &&Source| {
        (source.is_test() && !source.path.contains("/support/"))
            || source.path.ends_with("/rights_walk.rs")
    };
    let tests: Vec<&Source> = sources.iter().filter(is_test).collect();
    let names = |all: &[&Source], word: &str| all.iter().any(|source| has_word(&source.text, word));
    let mut findings = Vec::new();
    for row in rows(&table.text) {
        let Row { line, request, operation } = row;
        if !names(&verbs, &request) {
            let what = format!("no verb makes {request}");
            findings.push(table.finding(Rule::Calls, line, what));
        }
        let typed = operation.replace('_', " ");
        if ![&request, &operation, &typed].iter().any(|word| names(&tests, word)) {
            let what = format!("no test names {request}, {operation} or weir {typed}");
            findings.push(table.finding(Rule::Calls, line, what));
        }
    }
    findings
}

/// Returns the rows of the table, which are lines such as
/// `PoolScan = "pool_scan", POST "/v1/import/scan", ...`.
fn rows(text: &str) -> Vec<Row> {
    let row = |(index, line): (usize, &str)| {
        let (request, rest) = line.trim().split_once(" = \"")?;
        let (operation, rest) = rest.split_once("\", ")?;
        let is_row = request.chars().all(char::is_alphanumeric) && rest.contains(" \"/v1/");
        let (request, operation) = (request.to_owned(), operation.to_owned());
        is_row.then_some(Row { line: index + 1, request, operation })
    };
    text.lines().enumerate().filter_map(row).collect()
}

/// Returns true if a text contains this word as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_without_verb_or_test_is_a_finding() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let table = "/// Row.\n    PoolScan = \"pool_scan\", POST \"/v1/scan\", Admin;\n    \
                     PoolAdd = \"pool_add\", POST \"/v1/add\", Admin;\n";
        let found = check(&[
            source(TABLE, table),
            source("bin/weir/src/cli/pool.rs", "PoolScan PoolAddition"),
            source("bin/weir/tests/all/pool.rs", "weir(\"pool add tank\")"),
            source("crates/control/weir-api/tests/all/support/fake.rs", "PoolScan"),
        ]);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                format!("{TABLE}:2: calls: no test names PoolScan, pool_scan or weir pool scan"),
                format!("{TABLE}:3: calls: no verb makes PoolAdd"),
            ]
        );
    }
}
