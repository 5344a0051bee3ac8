//! Differences between two runs. Some differences forbid a ranking; the others are only listed.
//!
//! `compare` computes the figures.
//!
//! Invariants: each refusal contains the values of both runs; an unknown cache forbids ranking,
//! because it may contain the data of one run; any other unknown property is listed and does not
//! forbid ranking.

use super::Judged;
use crate::result::RunResult;
use crate::spec::ContentSpec;
use crate::verdict::JudgedCell;
use crate::words;

/// Reasons why no cell of the two runs may be ranked.
pub(super) fn refusals(old: &RunResult, new: &RunResult) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut differ = |what: &str, old: String, new: String, same: bool| {
        if !same {
            reasons.push(format!("{what} differs: {old} before, {new} now"));
        }
    };
    let (a, b) = (&old.spec, &new.spec);
    let durability = (words::durability(a.durability), words::durability(b.durability));
    differ("durability", durability.0, durability.1, a.durability == b.durability);
    let dataset = (words::dataset(&a.dataset), words::dataset(&b.dataset));
    differ("the dataset", dataset.0, dataset.1, a.dataset == b.dataset);
    let content = (words::content(&a.content), words::content(&b.content));
    // Ignore the seed: a different seed gives different bytes of the same kind.
    let same = ContentSpec { seed: 0, ..a.content.clone() }
        == ContentSpec { seed: 0, ..b.content.clone() };
    differ("the content", content.0, content.1, same);
    if let (Some(a), Some(b)) = (&old.target.protection, &new.target.protection) {
        differ("protection", a.clone(), b.clone(), a == b);
    }
    reasons.extend(straddle(old, new));
    reasons
}

/// Reason not to rank two targets if the size of a target's cache is unknown. A rerun has only one
/// target, so it needs no such check.
pub(super) fn unknown_cache(old: &RunResult, new: &RunResult) -> Option<String> {
    let is_unknown = |result: &RunResult| result.target.cache_bytes.is_none();
    let of = match (is_unknown(old), is_unknown(new)) {
        (false, false) => return None,
        (true, false) => "of the old target",
        (false, true) => "of the new target",
        (true, true) => "of both targets",
    };
    Some(format!(
        "the size of the cache {of} is unknown, and the cache may hold the data; state it with \
         --old-cache and --new-cache (a size, or none), or measure with --target-cache"
    ))
}

/// Reason not to rank two targets if the data fits the cache of only one of them.
fn straddle(old: &RunResult, new: &RunResult) -> Option<String> {
    let ratio = |result: &RunResult| {
        let cache = result.target.cache_bytes.filter(|bytes| *bytes > 0)?;
        Some(result.spec.dataset.total_bytes() as f64 / cache as f64)
    };
    let (a, b) = (ratio(old)?, ratio(new)?);
    let larger = old.target.cache_bytes.max(new.target.cache_bytes)?;
    ((a <= 1.0) != (b <= 1.0)).then(|| {
        format!(
            "the working set was {a:.2} times the cache before and is {b:.2} times the cache now, \
             so a cache served only one of the runs; measure both with at least {}",
            words::bytes(larger.saturating_mul(2))
        )
    })
}

/// Additional reasons why one cell may not be ranked.
pub(super) fn cell_refusals(old: Judged<'_>, new: Judged<'_>) -> Vec<String> {
    let mut reasons = Vec::new();
    let mut invalid = |judged: &JudgedCell, which: &str| {
        if let Some(worst) = judged.remarks.first() {
            reasons.push(format!("the {which} cell is {}: {}", worst.finding.name(), worst.detail));
        }
    };
    invalid(old.1, "old");
    invalid(new.1, "new");
    let (a, b) = (&old.0.spec, &new.0.spec);
    if a.streams != b.streams {
        reasons
            .push("the workload of the cell differs (sizes, addresses or share of reads)".into());
    }
    if std::mem::discriminant(&a.load) != std::mem::discriminant(&b.load) {
        reasons.push("one is a closed loop, the other an open loop; not comparable".into());
    }
    if a.cache != b.cache {
        reasons.push(format!(
            "the caches differ: {} before, {} now",
            words::cache(a.cache),
            words::cache(b.cache)
        ));
    }
    reasons
}

/// Differences between two runs that do not forbid ranking.
pub(super) fn listed(old: &RunResult, new: &RunResult) -> Vec<String> {
    let mut lines = Vec::new();
    let mut differ = |what: &str, old: &str, new: &str| {
        if old != new {
            lines.push(format!("{what}: {old} before, {new} now"));
        }
    };
    differ("profile", &old.spec.name, &new.spec.name);
    differ("scale", words::scale(old.spec.scale), words::scale(new.spec.scale));
    differ("program", &old.program, &new.program);
    differ("target", &old.target.address, &new.target.address);
    differ("driver", &old.target.driver, &new.target.driver);
    differ("generator's machine", &old.environment.host, &new.environment.host);
    differ("processor", &old.environment.cpu, &new.environment.cpu);
    differ("kernel", &old.environment.kernel, &new.environment.kernel);
    let (a, b) = (old.environment.core_score, new.environment.core_score);
    if a > 0.0 && (b / a - 1.0).abs() > 0.05 {
        lines.push(format!("score of one core: {:.2} times the old score", b / a));
    }
    let facts = old.target.facts.keys().chain(new.target.facts.keys());
    let mut names: Vec<&String> = facts.collect();
    names.sort();
    names.dedup();
    for name in names {
        let known = |result: &RunResult| {
            result.target.facts.get(name).cloned().unwrap_or_else(|| "not known".to_owned())
        };
        let (a, b) = (known(old), known(new));
        if a != b {
            lines.push(format!("{name}: {a} before, {b} now"));
        }
    }
    if old.target.protection.is_none() || new.target.protection.is_none() {
        lines.push(
            "the protection of at least one target is unknown; compare only targets that survive \
             the same failures"
                .to_owned(),
        );
    }
    let features = |result: &RunResult| match result.target.features.as_slice() {
        [] => "none known".to_owned(),
        some => some.join(", "),
    };
    let (a, b) = (features(old), features(new));
    if a != b {
        lines.push(format!("features: {a} before, {b} now"));
    }
    lines
}
