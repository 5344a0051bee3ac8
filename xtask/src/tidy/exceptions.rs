//! The list of exceptions: numbers of known findings, by rule and file.
//!
//! Not here: the reasons of exceptions, which are `#` lines above the entries in the list.
//!
//! Invariants: if a file has more findings than its entry allows, all its findings are reported. If
//! the file has fewer findings, the entry must be lowered or removed.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::tidy::finding::{Finding, Rule};

/// Path of the list of exceptions.
pub(super) const PATH: &str = "xtask/tidy-exceptions.txt";

/// Allowed number of findings, by rule and file.
pub(super) type Exceptions = BTreeMap<(Rule, String), usize>;

/// Reads the list, whose lines are `rule path count`.
pub(super) fn parse(text: &str) -> Result<Exceptions> {
    let mut exceptions = Exceptions::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [rule, path, count] = words[..] else {
            bail!("{PATH}: not `rule path count`: {line}");
        };
        let rule = Rule::ALL.into_iter().find(|known| known.name() == rule);
        let rule = rule.with_context(|| format!("{PATH}: no such rule: {line}"))?;
        let count = count.parse().with_context(|| format!("{PATH}: no count: {line}"))?;
        if exceptions.insert((rule, path.to_owned()), count).is_some() {
            bail!("{PATH}: twice: {line}");
        }
    }
    Ok(exceptions)
}

/// Returns the lines to report: findings that no exception allows, and exceptions that allow more
/// findings than there are.
pub(super) fn apply(findings: &[Finding], exceptions: &Exceptions) -> Vec<String> {
    let mut counts = Exceptions::new();
    for finding in findings {
        *counts.entry((finding.rule, finding.path.clone())).or_default() += finding.count;
    }
    let excused = |finding: &Finding| {
        let key = (finding.rule, finding.path.clone());
        exceptions.get(&key).is_some_and(|allowed| counts[&key] <= *allowed)
    };
    let mut lines: Vec<String> =
        findings.iter().filter(|finding| !excused(finding)).map(ToString::to_string).collect();
    for ((rule, path), allowed) in exceptions {
        let count = counts.get(&(*rule, path.clone())).copied().unwrap_or(0);
        if count < *allowed {
            let name = rule.name();
            lines.push(format!("{PATH}: `{name} {path} {allowed}` can shrink to {count}"));
        }
    }
    lines
}
