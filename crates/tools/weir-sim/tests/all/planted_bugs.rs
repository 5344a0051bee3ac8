//! Planted bugs: the simulation detects each of them within a fixed list of seeds, and the engine
//! without planted bugs passes the same seeds.
//!
//! `make sim` runs many more seeds without planted bugs.
//!
//! Invariant: no test is random; a bug that is no longer found means a weaker simulation.

use weir_pool::PlantedBug;
use weir_sim::{Effort, FaultPlan, Layout, Scenario, enumerate};

/// Default effort: few recoveries of many scenarios find more bugs than many recoveries of few
/// scenarios.
const EFFORT: Effort = Effort {
    steps_per_million: 20_000,
    plans_per_step: 2,
    nested_per_million: 20_000,
    go_on_per_million: 20_000,
    absent_per_million: 100_000,
    own_losses_per_million: 0,
    old_per_million: 20_000,
};

/// Effort for bugs that need an absent leg: half of the recoveries run without a leg, and the load
/// continues after half of the recoveries, so that later cuts follow.
const LEGS: Effort = Effort {
    steps_per_million: 3_000,
    plans_per_step: 1,
    nested_per_million: 0,
    go_on_per_million: 500_000,
    absent_per_million: 500_000,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// Effort with power cuts during imports that run without a leg; the leg returns at a later import.
const OPENINGS: Effort = Effort {
    steps_per_million: 30_000,
    plans_per_step: 2,
    nested_per_million: 1_000_000,
    go_on_per_million: 0,
    absent_per_million: 600_000,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// Effort in which each cut is also recovered with an old copy of one leg.
const OLD: Effort = Effort {
    steps_per_million: 20_000,
    plans_per_step: 1,
    nested_per_million: 50_000,
    go_on_per_million: 50_000,
    absent_per_million: 0,
    own_losses_per_million: 0,
    old_per_million: 1_000_000,
};

/// Effort with a metadata loss after every cut.
const OWN: Effort = Effort {
    steps_per_million: 2_000,
    plans_per_step: 1,
    nested_per_million: 0,
    go_on_per_million: 0,
    absent_per_million: 0,
    own_losses_per_million: 1_000_000,
    old_per_million: 0,
};

/// Effort without cuts, for bugs that show before any crash. Such runs take little time, so the
/// tests run many.
const RUNS: Effort = Effort {
    steps_per_million: 0,
    plans_per_step: 0,
    nested_per_million: 0,
    go_on_per_million: 0,
    absent_per_million: 0,
    own_losses_per_million: 0,
    old_per_million: 0,
};

/// Finds the first seed in `1..=seeds` with a violation; returns the seed and the violation.
fn first_violation(bug: PlantedBug, seeds: u64, effort: Effort) -> Option<(u64, String)> {
    first_of(1..=seeds, bug, effort)
}

/// Finds the first of these seeds with a violation; returns the seed and the violation.
fn first_of(
    seeds: impl IntoIterator<Item = u64>,
    bug: PlantedBug,
    effort: Effort,
) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| {
        let violation = enumerate(Scenario::for_bug(seed, bug), effort).err()?;
        Some((seed, violation.to_string()))
    })
}

fn is_noticed(bug: PlantedBug, seeds: u64) {
    is_noticed_with(bug, seeds, EFFORT);
}

/// Asserts that the simulation notices a bug. It first tries the seeds `soon`, which notice the bug
/// within two seconds today and pass without the bug. After a change of the scenarios or of the
/// engine, it may need the seeds `1..=seeds`.
fn is_noticed_soon(bug: PlantedBug, soon: &[u64], seeds: u64, effort: Effort) {
    let seeds = soon.iter().copied().chain(1..=seeds);
    let (_, what) = first_of(seeds, bug, effort).expect("a planted bug must be noticed");
    assert!(!what.is_empty());
}

fn is_noticed_with(bug: PlantedBug, seeds: u64, effort: Effort) {
    let (seed, what) = first_violation(bug, seeds, effort).expect("a planted bug must be noticed");
    assert!(seed <= seeds && !what.is_empty());
}

#[test]
fn missing_commit_flush_is_noticed() {
    is_noticed(PlantedBug::SkipCommitFlush, 20);
}

#[test]
fn acknowledgement_before_the_log_is_durable_is_noticed() {
    is_noticed(PlantedBug::AckBeforeLogDurable, 20);
}

#[test]
fn early_segment_reuse_is_noticed() {
    is_noticed(PlantedBug::ReuseAtOnce, 60);
}

#[test]
fn wrong_remap_offset_is_noticed() {
    is_noticed(PlantedBug::RemapOffByOne, 20);
}

#[test]
fn early_eviction_of_a_changed_remap_table_is_noticed() {
    is_noticed(PlantedBug::RemapTableLeavesEarly, 60);
}

#[test]
fn early_reuse_of_a_cleaned_segment_is_noticed() {
    is_noticed(PlantedBug::FreeTooEarly, 60);
}

#[test]
fn skipped_checksum_check_is_noticed() {
    is_noticed(PlantedBug::SkipChecksum, 20);
}

#[test]
fn skipped_replay_of_the_last_batch_is_noticed() {
    is_noticed(PlantedBug::DropLastBatch, 20);
}

#[test]
fn wrong_parity_strip_is_noticed() {
    is_noticed(PlantedBug::WrongParityStrip, 20);
}

#[test]
fn early_parity_rewrite_is_noticed() {
    let often = Effort { go_on_per_million: 200_000, old_per_million: 0, ..EFFORT };
    // The bug shows only with a scrub between two cuts. One scenario in a hundred has such a scrub
    // and takes seconds, so the list starts with such a seed.
    let seeds = [127].into_iter().chain(1..=100);
    let (_, what) = first_of(seeds, PlantedBug::ParityAnewTooEarly, often).expect("noticed");
    assert!(what.contains("no other copy or parity"), "{what}");
}

#[test]
fn trusted_stale_leg_is_noticed() {
    is_noticed_with(PlantedBug::StaleLegTrusted, 20, LEGS);
}

#[test]
fn trusted_old_copy_of_a_leg_is_noticed() {
    is_noticed_with(PlantedBug::OldLegTrusted, 20, OLD);
}

#[test]
fn disks_older_than_the_recorded_txg_are_noticed() {
    is_noticed_with(PlantedBug::OldDisksTrusted, 20, OLD);
}

#[test]
fn metadata_tree_that_is_not_rewritten_is_noticed() {
    is_noticed_with(PlantedBug::LostRootStays, 20, OWN);
}

#[test]
fn import_that_gives_up_unreadable_parts_is_noticed() {
    // In one recovery of twenty, the loss is a part of the directory that is readable again later.
    // Only such a recovery shows the bug.
    is_noticed_with(PlantedBug::UnreadGivenUp, 60, Effort { steps_per_million: 10_000, ..OWN });
}

#[test]
fn import_that_writes_before_its_claim_is_noticed() {
    // A scenario that does not notice the bug takes 15 s of CPU, so start with a seed that does.
    is_noticed_soon(PlantedBug::OpensUnclaimed, &[14], 20, OPENINGS);
}

#[test]
fn resilver_that_skips_a_range_is_noticed() {
    is_noticed_with(PlantedBug::ResilverSkipsRange, 20, LEGS);
}

#[test]
fn early_vdev_removal_is_noticed() {
    is_noticed(PlantedBug::VdevLeavesEarly, 40);
}

#[test]
fn early_log_move_is_noticed() {
    // The bug shows only after a rare sequence: a flush is logged between the freeze of a txg and
    // the uberblock that moves the log, and a cut follows before the next uberblock. One move of
    // the log in ten has such a sequence. More cuts in a scenario do not help.
    is_noticed(PlantedBug::LogMovesEarly, 40);
}

#[test]
fn engine_passes_without_a_planted_bug() {
    assert_eq!(first_violation(PlantedBug::None, 20, EFFORT), None);
}

#[test]
fn engine_passes_with_absent_legs() {
    assert_eq!(first_violation(PlantedBug::None, 20, LEGS), None);
}

#[test]
fn engine_passes_with_cuts_during_imports() {
    // Seed 2 has a single disk; seed 6 has a raidz3, some of whose legs may be absent.
    assert_eq!(first_of([2, 6], PlantedBug::None, OPENINGS), None);
}

#[test]
fn engine_passes_with_old_copies_of_legs() {
    assert_eq!(first_violation(PlantedBug::None, 6, OLD), None);
}

#[test]
fn engine_passes_with_metadata_loss() {
    assert_eq!(first_violation(PlantedBug::None, 20, OWN), None);
}

/// Regression: a node of the remap tree that was unreadable and became readable again stayed
/// allocated for ever.
#[test]
fn unreadable_metadata_nodes_are_freed_when_they_become_readable() {
    let effort = Effort { steps_per_million: 10_000, ..OWN };
    assert_eq!(first_of([49, 517, 894], PlantedBug::None, effort), None);
}

#[test]
fn slot_with_the_root_of_its_neighbour_is_noticed() {
    is_noticed_with(PlantedBug::SlotHasNeighboursRoot, 20, RUNS);
}

#[test]
fn truncation_that_leaves_the_tail_is_noticed() {
    is_noticed_with(PlantedBug::TruncateLeavesTail, 20, RUNS);
}

#[test]
fn records_of_a_removed_object_in_a_reused_slot_are_noticed() {
    is_noticed_with(PlantedBug::ReusedSlotKeepsRecords, 20, RUNS);
}

/// Asserts that the first `count` scenarios with objects, without injected faults and on one of
/// these layouts pass.
fn objects_pass(layouts: &[Layout], count: usize, effort: Effort) {
    let scenarios = (1..).map(|seed| Scenario::of_seed(seed, PlantedBug::None));
    let fits = |scenario: &Scenario| {
        let is_plain = !scenario.reshapes && scenario.trouble == FaultPlan::None;
        scenario.objects && is_plain && layouts.contains(&scenario.layout)
    };
    for scenario in scenarios.filter(fits).take(count) {
        if let Err(violation) = enumerate(Scenario { storm: false, ..scenario }, effort) {
            panic!("{violation}");
        }
    }
}

#[test]
fn objects_pass_with_metadata_loss() {
    objects_pass(&[Layout::Single, Layout::Mirror], 4, OWN);
}

#[test]
fn objects_pass_with_old_copies_of_legs() {
    objects_pass(&[Layout::Mirror, Layout::Raidz1], 1, OLD);
}

#[test]
fn freeing_blocks_born_in_a_snapshots_last_txg_is_noticed() {
    is_noticed(PlantedBug::HeldOffByOne, 20);
}

#[test]
fn freeing_blocks_of_the_next_version_is_noticed() {
    is_noticed(PlantedBug::SharedFreed, 20);
}

#[test]
fn cleaning_away_blocks_of_snapshots_is_noticed() {
    is_noticed(PlantedBug::SnapshotsNotAsked, 20);
}

#[test]
fn freeing_a_rollback_snapshot_too_early_is_noticed() {
    // The bug shows only after a rollback and the destruction of its snapshot. Three of 400 seeds
    // have both.
    is_noticed_soon(PlantedBug::OldestFreedFirst, &[91, 284, 335], 150, EFFORT);
}

#[test]
fn freeing_the_same_part_twice_is_noticed() {
    is_noticed_soon(PlantedBug::FreedAgain, &[20, 22], 60, EFFORT);
}

#[test]
fn reference_that_is_dropped_twice_is_noticed() {
    is_noticed(PlantedBug::ReferenceDroppedTwice, 20);
}

#[test]
fn cleaning_away_blocks_of_later_owners_is_noticed() {
    is_noticed(PlantedBug::SharedNotAsked, 60);
}

#[test]
fn replay_that_zeros_the_rest_of_a_record_is_noticed() {
    is_noticed(PlantedBug::ReplayForgetsRest, 20);
}

#[test]
fn replay_with_an_outdated_rest_of_a_record_is_noticed() {
    is_noticed(PlantedBug::RestOutlivesTxg, 60);
}

#[test]
fn clone_not_charged_to_the_quota_is_noticed() {
    is_noticed(PlantedBug::ClonesNotCounted, 60);
}

#[test]
fn trim_missing_in_an_incremental_stream_is_noticed() {
    is_noticed_soon(PlantedBug::TrimsNotSent, &[20, 22], 60, EFFORT);
}

#[test]
fn dedupe_against_a_freed_block_is_noticed() {
    is_noticed_with(PlantedBug::HintOutlivesBlock, 600, RUNS);
}

#[test]
fn unsorted_clones_of_one_txg_are_noticed() {
    is_noticed_soon(PlantedBug::ClonesUnsorted, &[27, 31], 60, EFFORT);
}

#[test]
fn partial_record_that_undoes_a_clone_is_noticed() {
    is_noticed_soon(PlantedBug::PartsBesideClones, &[323, 334, 400], 600, RUNS);
}

#[test]
fn write_torn_at_block_borders_is_noticed() {
    is_noticed(PlantedBug::WritesCut, 20);
}
