//! The simulation notices faults: each planted one breaks a promise within a fixed list of seeds,
//! and the engine without it keeps all promises over the same seeds.
//!
//! Not here: faults found by chance (seeds).
//!
//! Invariant: nothing here is random; a fault that is not found any more is a weaker simulation.

use weir_pool::PlantedBug;
use weir_sim::{Effort, Scenario, enumerate};

/// Few recoveries of many scenarios find more than many of few.
const EFFORT: Effort = Effort {
    steps_per_million: 20_000,
    plans_per_step: 2,
    nested_per_million: 20_000,
    go_on_per_million: 20_000,
};

/// Every end of a flush, cut once: for what only a moment shows.
const AT_FLUSHES: Effort = Effort {
    steps_per_million: 250_000,
    plans_per_step: 1,
    nested_per_million: 0,
    go_on_per_million: 0,
};

/// The first of `seeds` that breaks a promise, and what it says.
fn first_violation(bug: PlantedBug, effort: Effort, seeds: u64) -> Option<(u64, String)> {
    (1..=seeds).find_map(|seed| {
        let violation = enumerate(Scenario::for_bug(seed, bug), effort).err()?;
        Some((seed, violation.to_string()))
    })
}

fn is_noticed(bug: PlantedBug, effort: Effort, seeds: u64) {
    let (seed, what) = first_violation(bug, effort, seeds).expect("a planted bug must be noticed");
    println!("{bug:?}: seed {seed}: {what}");
}

#[test]
fn a_commit_without_its_flush_is_noticed() {
    is_noticed(PlantedBug::SkipCommitFlush, EFFORT, 20);
}

#[test]
fn a_log_batch_that_is_not_durable_is_noticed() {
    is_noticed(PlantedBug::AckBeforeLogDurable, EFFORT, 20);
}

#[test]
fn a_segment_reused_too_early_is_noticed() {
    is_noticed(PlantedBug::ReuseAtOnce, EFFORT, 60);
}

#[test]
fn a_checksum_not_compared_is_noticed() {
    is_noticed(PlantedBug::SkipChecksum, EFFORT, 20);
}

#[test]
fn a_log_batch_not_replayed_is_noticed() {
    is_noticed(PlantedBug::DropLastBatch, EFFORT, 20);
}

#[test]
fn a_log_released_too_early_is_noticed() {
    is_noticed(PlantedBug::ReleaseLogEarly, AT_FLUSHES, 60);
}

#[test]
fn without_a_planted_bug_nothing_is_noticed() {
    assert_eq!(first_violation(PlantedBug::None, EFFORT, 20), None);
}
